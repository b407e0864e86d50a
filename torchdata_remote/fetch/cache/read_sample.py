"""Which of the objects that are read are recorded in the index of a cache."""

from __future__ import annotations

from .index import MAX_SAMPLED, CacheIndex
from .reuse import reuse_window

_SAMPLED = 512  # reads, after which the sample is looked at


class ReadSample:
    """Not thread-safe, but for ``has``.

    Args:
        index: of the cache.
        max_bytes: bound of the cache.
    """

    def __init__(self, index: CacheIndex, max_bytes: int) -> None:
        self._index, self._max_bytes = index, max_bytes
        self._share = MAX_SAMPLED  # of all objects
        self._since = [0, 0]  # sampled reads, and bytes

    def has(self, key: int) -> bool:
        """Whether reads of an object are recorded."""
        return key >> 32 < self._share

    def look(self, num_sampled: int, num_bytes: int) -> None:
        """Within a transaction: keep the sample small, after so many more sampled reads and bytes."""
        self._since = [self._since[0] + num_sampled, self._since[1] + num_bytes]
        if self._since[0] >= _SAMPLED or self._since[1] >= self._max_bytes:
            self._since = [0, 0]
            _, clock = self._index.used_and_clock()
            self._index.limit_sample(reuse_window(self._index.reads(), clock), self._max_bytes)
        self._share = self._index.sampled()
