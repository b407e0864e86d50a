"""Small objects that many threads have downloaded, stored by one of these threads at a time.

If each thread stored its own, all of them would wait for Python's lock after each step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_MAX_WAITING = 64  # objects; then the other threads wait, too


class WaitingObjects:
    """Calls that store objects, in a queue. Thread-safe."""

    def __init__(self) -> None:
        self._calls: deque[tuple[int, Callable[[], None]]] = deque()
        self._keys: set[int] = set()
        self._lock = threading.RLock()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def add(self, key: int, call: Callable[[], None]) -> None:
        """Add a call that stores the object of a key; :meth:`store` makes it."""
        self._keys.add(key)
        self._calls.append((key, call))

    def store(self) -> None:
        """Make all calls, unless another thread is about to."""
        while self._calls:
            if not self._lock.acquire(blocking=len(self._calls) > _MAX_WAITING):
                return  # the thread that has the lock looks again after it has released it
            try:
                self._make_calls()
            finally:
                self._lock.release()

    def settle(self) -> None:
        """Make all calls, and wait for those of other threads."""
        with self._lock:
            self._make_calls()

    def _make_calls(self) -> None:  # with the lock held
        while self._calls:
            key, call = self._calls.popleft()
            call()
            self._keys.discard(key)
            del call  # it refers to the bytes of the object
