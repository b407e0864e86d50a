"""How many requests may be under way: fewer when a store asks for it, then one more after each that went well."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

_HALVED_AT_MOST_EVERY_S = 0.5  # many requests are refused at once, for one reason
_LOOK_EVERY_S = 0.5


class ConcurrencyLimit:
    """Hands out permits, one a request: additive increase, multiplicative decrease, as TCP's.

    (V. Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988.) Until the first ``slow_down``, and when all permits
    are back, nothing is counted: whoever uses it has ``most`` threads at the most, and a lock would cost them dear.

    Args:
        most: permits when all is well.
        check: called while waiting; raises to end that.
        clock: seconds that only grow.
    """

    def __init__(self, most: int, *, check: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._check, self._clock = most, check, clock
        self._limit = most
        self._running = 0  # of those that were counted
        self._halved_at = float("-inf")
        self._changed = threading.Condition(threading.RLock())  # permits are given back by finalizers, too

    @property
    def limit(self) -> int:
        """Permits at the moment."""
        return self._limit

    @contextlib.contextmanager
    def permit(self) -> Iterator[None]:
        """Wait for a permit and hold it in the block. A block that ends well makes room for one more."""
        counted = self._limit < self._most and self._enter()
        well = False
        try:
            yield
            well = True
        finally:
            if counted or self._limit < self._most:
                self._leave(counted, well)

    def _enter(self) -> bool:
        with self._changed:
            while self._running >= self._limit:
                self._changed.wait(_LOOK_EVERY_S)
                self._check()
            self._running += 1
            return True

    def _leave(self, counted: bool, well: bool) -> None:
        with self._changed:
            self._running -= counted
            self._limit = min(self._most, self._limit + well)
            self._changed.notify(2)

    def slow_down(self) -> None:
        """The store asked for fewer requests."""
        with self._changed:
            if self._clock() - self._halved_at >= _HALVED_AT_MOST_EVERY_S:
                self._halved_at = self._clock()
                self._limit = max(1, self._limit // 2)
