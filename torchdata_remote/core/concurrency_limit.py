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

    Attributes:
        limit: requests that may run at once now.
        is_reduced: whether these are fewer than ``most``: then each request calls :meth:`enter`, and each that ends
            :meth:`leave`.

    Args:
        most: the full limit.
        check: called while waiting; may raise, to end the waiting.
        clock: monotonic, in seconds.
    """

    def __init__(self, most: int, *, check: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._check, self._clock = most, check, clock
        self.limit, self.is_reduced = most, False
        # Permits that are held, of those that were counted
        self._running = 0
        self._halved_at = float("-inf")
        # Reentrant because finalizers return permits, too
        self._changed = threading.Condition(threading.RLock())

    @contextlib.contextmanager
    def permit(self) -> Iterator[None]:
        """Wait for a permit, and give it back at the end of the block."""
        counted, succeeded = self.is_reduced and self.enter(), False
        try:
            yield
            succeeded = True
        finally:
            if counted or self.is_reduced:
                self.leave(counted=counted, succeeded=succeeded)

    def enter(self) -> bool:
        """Wait for a permit; return ``True``."""
        with self._changed:
            while self._running >= self.limit:
                self._changed.wait(_CHECK_INTERVAL_S)
                self._check()
            self._running += 1
            return True

    def leave(self, *, counted: bool, succeeded: bool) -> None:
        """Record that a request has ended; raise the limit by one if it succeeded.

        Args:
            counted: whether it had a permit.
            succeeded: whether it ended without an error.
        """
        with self._changed:
            self._running -= counted
            self._set(min(self._most, self.limit + succeeded))
            self._changed.notify(2)

    def _set(self, limit: int) -> None:
        self.limit, self.is_reduced = limit, limit < self._most

    def slow_down(self) -> None:
        """Halve the limit, because the store asked for fewer requests."""
        with self._changed:
            if self._clock() - self._halved_at >= _MIN_HALVING_INTERVAL_S:
                self._halved_at = self._clock()
                self._set(max(1, self.limit // 2))
