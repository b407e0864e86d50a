"""Locks by name, which exist only while they are held or waited for."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Hashable, Iterator


class KeyedLocks:
    """A lock for each key. A key that no thread holds or waits for takes no memory.

    Example:
        >>> locks = KeyedLocks()
        >>> with locks.held("pets"):
        ...     len(locks)
        1
        >>> len(locks)
        0
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._locks: dict[Hashable, threading.RLock] = {}
        self._holders: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.contextmanager
    def held(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of a key; the same thread may hold it several times."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.RLock())
            self._holders[key] += 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                self._holders[key] -= 1
                if not self._holders[key]:
                    del self._holders[key], self._locks[key]
