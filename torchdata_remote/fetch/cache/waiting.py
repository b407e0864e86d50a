"""Small objects that many threads have downloaded, stored by one of these threads at a time.

If each thread stored its own, all of them would wait for Python's lock after each step.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from .later import Later, is_ending

_MAX_WAITING = 64  # objects; then the other threads wait, too
_STORE_S = 0.2  # at most, until an object is stored although its thread does not come to it
_AT_EXIT_S = 2.0


class _WaitingObject:
    """Is stored by the first thread that comes to it; others wait until it is."""

    def __init__(self, store: Callable[[], None]) -> None:
        self._store: Callable[[], None] | None = store
        self._lock = threading.RLock()

    def store(self, max_wait_s: float = -1) -> None:
        if not self._lock.acquire(timeout=max_wait_s):
            return
        try:
            store, self._store = self._store, None  # it refers to the bytes of the object
            if store is not None:
                store()
        finally:
            self._lock.release()


class WaitingObjects:
    """Calls that store objects, in a queue. Thread-safe. A process that ends makes them, for 2 s at most."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, _WaitingObject]] = deque()
        self._by_key: dict[int, _WaitingObject] = {}
        self._lock = threading.RLock()
        self._later = Later()

    def add(self, key: int, call: Callable[[], None]) -> None:
        """Add a call that stores the object of a key; :meth:`store` makes it."""
        waiting = _WaitingObject(call)
        self._by_key[key] = waiting
        self._queue.append((key, waiting))
        self._later.call(self._store_left, _STORE_S)

    def store(self) -> None:
        """Make all calls, unless another thread is about to."""
        while self._queue:
            if not self._lock.acquire(blocking=len(self._queue) > _MAX_WAITING):
                return  # the thread that has the lock looks again after it has released it
            try:
                while self._queue:
                    self._store_next()
            finally:
                self._lock.release()

    def wait_for(self, key: int) -> None:
        """Return when the object of a key is stored, if it was added before."""
        waiting = self._by_key.get(key)
        if waiting is not None:
            waiting.store()

    def settle(self) -> None:
        """Make the calls that were added before, and wait for those that other threads make."""
        for waiting in self._by_key.copy().values():
            waiting.store()

    def _store_next(self) -> None:  # with the lock held
        try:
            key, waiting = self._queue.popleft()
        except IndexError:
            return  # a finalizer in this thread has stored it
        try:
            waiting.store()
        finally:
            if self._by_key.get(key) is waiting:  # no newer version
                self._by_key.pop(key, None)

    def _store_left(self) -> None:
        """Store what threads have left that were stopped: those of a worker that ends."""
        if is_ending():
            until = time.monotonic() + _AT_EXIT_S
            for waiting in self._by_key.copy().values():
                waiting.store(max(0.0, until - time.monotonic()))
            return
        self.store()
        if self._by_key:
            self._later.call(self._store_left, _STORE_S)
