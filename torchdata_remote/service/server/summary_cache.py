"""Cache of dataset summaries, invalidated when a dataset changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LIFETIME_S = 60.0  # files of a local root may also change without a request
_MAX_ENTRIES = 1000


class SummaryCache:
    """Caches values that are computed from a dataset. Each dataset is computed by one thread at a time.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._entries: dict[tuple[str, str], tuple[float, Any]] = {}
        self._changes: dict[str, int] = {}
        self._locks: dict[str, threading.RLock] = {}

    def get(self, name: str, kind: str, compute: Callable[[], T]) -> T:
        """Return the cached value, or compute it if the dataset changed or the value is older than a minute.

        Args:
            name: of the dataset.
            kind: of value; each has an entry of its own.
            compute: takes seconds; called by one thread at a time for each dataset.
        """
        with self._lock:
            lock = self._locks.setdefault(name, threading.RLock())
        with lock:
            with self._lock:
                cached = self._entries.get((name, kind))
                changes = self._changes.get(name, 0)
            if cached is not None and self._clock() - cached[0] < LIFETIME_S:
                value: T = cached[1]
                return value
            value = compute()
            with self._lock:
                if self._changes.get(name, 0) == changes:
                    while len(self._entries) >= _MAX_ENTRIES:
                        self._entries.pop(next(iter(self._entries)))
                    self._entries[name, kind] = self._clock(), value
            return value

    def invalidate(self, name: str | None) -> None:
        """Drop the values of a dataset that changed."""
        if name is not None:
            with self._lock:
                self._changes[name] = self._changes.get(name, 0) + 1
                for key in [key for key in self._entries if key[0] == name]:
                    del self._entries[key]
