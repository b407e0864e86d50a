"""Adaptive concurrency limit (AIMD): halved when a store asks for fewer requests, raised by one per success."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# A store that is overloaded refuses many requests at once
_MIN_HALVING_INTERVAL_S = 0.5
_CHECK_INTERVAL_S = 0.5


class Permit:
    """A permit that is held in a ``with`` block.

    Args:
        limit: gives it.
    """

    __slots__ = ("_counted", "_limit")

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit, self._counted = limit, False

    def __enter__(self) -> None:
        limit = self._limit
        self._counted = limit._limit < limit._most and limit._enter()

    def __exit__(self, kind: object, *exception: object) -> None:
        limit = self._limit
        if self._counted or limit._limit < limit._most:
            limit._leave(self._counted, kind is None)


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

    def permit(self) -> Permit:
        """Return a context manager that waits for a permit. A block without an error raises the limit by one."""
        return Permit(self)

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
