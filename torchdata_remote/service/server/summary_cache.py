"""What was seen of datasets, which takes seconds to see, for as long as nothing changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
KEPT_S = 60.0  # the owner of a local root may change it without asking the service
_MAX_KEPT = 1000


class SummaryCache:
    """Keeps what functions return, for each dataset.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._kept: dict[tuple[str, str], tuple[float, Any]] = {}
        self._changes: dict[str, int] = {}
        self._one_at_a_time: dict[str, threading.RLock] = {}

    def of(self, name: str, what: str, look: Callable[[], T]) -> T:
        """What ``look`` returns, or returned within the last minute, if the dataset was not changed since.

        Args:
            name: of the dataset.
            what: tells looks at it apart.
            look: takes its time; called by one thread at a time for each dataset.
        """
        with self._lock:
            mine = self._one_at_a_time.setdefault(name, threading.RLock())
        with mine:
            with self._lock:
                seen = self._kept.get((name, what))
                changes = self._changes.get(name, 0)
            if seen is not None and self._clock() - seen[0] < KEPT_S:
                found: T = seen[1]
                return found
            found = look()
            with self._lock:
                if self._changes.get(name, 0) == changes:
                    while len(self._kept) >= _MAX_KEPT:
                        self._kept.pop(next(iter(self._kept)))
                    self._kept[name, what] = self._clock(), found
            return found

    def forget(self, name: str | None) -> None:
        """A dataset was changed."""
        if name is not None:
            with self._lock:
                self._changes[name] = self._changes.get(name, 0) + 1
                for key in [key for key in self._kept if key[0] == name]:
                    del self._kept[key]
