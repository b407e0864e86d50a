"""Cache of dataset summaries, invalidated when a dataset changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ....core.threads import NamedLocks

T = TypeVar("T")
LIFETIME_S = 60.0  # files of a local root may also change without a request
MAX_ENTRIES = 300  # a sheet of photographs has 250 kB


class SummaryCache:
    """Caches values that are computed from a dataset. Each dataset is computed by one thread at a time.

    Of a dataset without a value nothing is kept: clients choose its name, and send any number of them.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock, self._computing = threading.RLock(), NamedLocks()
        self._entries: dict[tuple[str, str], tuple[float, Any]] = {}  # oldest first
        self._outdated: dict[str, bool] = {}  # datasets that are being computed, and whether they changed meanwhile

    def __len__(self) -> int:
        return len(self._entries) + len(self._computing) + len(self._outdated)

    def get(self, name: str, kind: str, compute: Callable[[], T]) -> T:
        """Return the cached value, or compute it if the dataset changed or the value is older than a minute.

        Args:
            name: of the dataset.
            kind: of value; each has an entry of its own.
            compute: takes seconds; called by one thread at a time for each dataset.
        """
        with self._computing.held(name):
            with self._lock:
                self._drop_expired()
                cached = self._entries.get((name, kind))
                if cached is not None:
                    value: T = cached[1]
                    return value
                self._outdated[name] = False
            try:
                value = compute()
                with self._lock:
                    if not self._outdated[name]:
                        while len(self._entries) >= MAX_ENTRIES:
                            del self._entries[next(iter(self._entries))]
                        self._entries[name, kind] = self._clock(), value
            finally:
                with self._lock:
                    del self._outdated[name]
            return value

    def _drop_expired(self) -> None:
        while self._entries:
            key, (stored_s, _) = next(iter(self._entries.items()))
            if self._clock() - stored_s < LIFETIME_S:
                return
            del self._entries[key]

    def invalidate(self, name: str | None) -> None:
        """Drop the values of a dataset that changed."""
        if name is not None:
            with self._lock:
                if name in self._outdated:
                    self._outdated[name] = True
                for key in [key for key in self._entries if key[0] == name]:
                    del self._entries[key]
