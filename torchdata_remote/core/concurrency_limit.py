"""Adaptive concurrency limit (AIMD): halved when a store asks for fewer requests, raised by one per success."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

# A store that is overloaded refuses many requests at once
_MIN_HALVING_INTERVAL_S = 0.5
_CHECK_INTERVAL_S = 0.5


class ConcurrencyLimit:
    """Limits concurrent requests: additive increase, multiplicative decrease, as in TCP.

    (V. Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988.) At full limit permits are not counted: the caller
    never runs more than ``most`` threads, and this keeps a lock off the hot path.

    Args:
        most: the full limit.
        check: called while waiting; may raise, to end the waiting.
        clock: monotonic, in seconds.
    """

    def __init__(self, most: int, *, check: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._check, self._clock = most, check, clock
        self._limit = most
        # Permits that are held, of those that were counted
        self._running = 0
        self._halved_at = float("-inf")
        # Reentrant because finalizers return permits, too
        self._changed = threading.Condition(threading.RLock())

    @property
    def limit(self) -> int:
        """Requests that may run at once now."""
        return self._limit

    @contextlib.contextmanager
    def permit(self) -> Iterator[None]:
        """Wait for a permit, and hold it in the block. A block without an error raises the limit by one."""
        counted = self._limit < self._most and self._enter()
        succeeded = False
        try:
            yield
            succeeded = True
        finally:
            if counted or self._limit < self._most:
                self._leave(counted, succeeded)

    def _enter(self) -> bool:
        with self._changed:
            while self._running >= self._limit:
                self._changed.wait(_CHECK_INTERVAL_S)
                self._check()
            self._running += 1
            return True

    def _leave(self, counted: bool, succeeded: bool) -> None:
        with self._changed:
            self._running -= counted
            self._limit = min(self._most, self._limit + succeeded)
            self._changed.notify(2)

    def slow_down(self) -> None:
        """Halve the limit, because the store asked for fewer requests."""
        with self._changed:
            if self._clock() - self._halved_at >= _MIN_HALVING_INTERVAL_S:
                self._halved_at = self._clock()
                self._limit = max(1, self._limit // 2)
