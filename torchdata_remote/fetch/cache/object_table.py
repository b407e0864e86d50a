"""Table in memory of the objects in a cache: 36 bytes for each, found by binary search without a system call."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

ENTRY = np.dtype(
    [("key", "<u8"), ("version", "<u8"), ("offset", "<u8"), ("size", "<u8"), ("crc32", "<u4"), ("pack", "<u4")]
)
DROPPED = 0  # pack of an entry that says that an object is not in the cache any more
_MIN_MERGED = 4_096


class Entry(NamedTuple):
    """Where an object is: ``key`` names its URL, ``version`` its size and etag."""

    key: int
    version: int
    offset: int
    size: int
    crc32: int  # of its first block
    pack: int


@lru_cache(4_096)
def identify(url: str, num_bytes: int, etag: str) -> tuple[int, int]:
    """Return key and version of an object: 64 bits of SHA-256 each."""
    name = hashlib.sha256(url.encode(errors="surrogateescape"))
    key = name.digest()[:8]
    name.update(b"\n%d\n%b" % (num_bytes, etag.encode(errors="surrogateescape")))
    return int.from_bytes(key, "little"), int.from_bytes(name.digest()[:8], "little")


def pack_entries(entries: list[Entry]) -> bytes:
    """Return the bytes by which entries are stored."""
    return np.array([tuple(entry) for entry in entries], ENTRY).tobytes()


class ObjectTable:
    """The last entry of each key. Not thread-safe.

    New entries are kept in a dict, and merged into a sorted array when there are many.
    """

    def __init__(self) -> None:
        self._sorted = np.empty(0, ENTRY)
        self._keys: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._recent: dict[int, Entry] = {}
        self._gone: set[int] = {DROPPED}  # packs

    def get(self, key: int) -> Entry | None:
        """Return the entry of a key, if its object is in the cache."""
        entry = self._recent.get(key)
        if entry is None:
            at = int(self._keys.searchsorted(np.uint64(key)))
            if at == len(self._keys) or self._keys[at] != key:
                return None
            entry = Entry(*self._sorted[at].item())
        return None if entry.pack in self._gone else entry

    def add(self, entry: Entry) -> None:
        """Add an entry, in place of the one of the same key."""
        self._recent[entry.key] = entry
        if len(self._recent) > max(_MIN_MERGED, len(self._sorted) // 8):
            self._merge(np.empty(0, ENTRY))

    def add_stored(self, stored: bytes) -> None:
        """Add what ``pack_entries`` returned. Bytes of another length are ignored."""
        entries = np.frombuffer(stored, ENTRY) if len(stored) % ENTRY.itemsize == 0 else np.empty(0, ENTRY)
        if len(entries) < _MIN_MERGED:
            for values in entries.tolist():
                self.add(Entry(*values))
        else:
            self._merge(entries)

    def forget_pack(self, pack: int) -> None:
        """Drop all objects of a pack that was removed."""
        self._gone.add(pack)

    def is_gone(self, pack: int) -> bool:
        """Whether a pack was removed."""
        return pack in self._gone

    def _merge(self, entries: npt.NDArray[np.void]) -> None:
        recent = np.array([tuple(entry) for entry in self._recent.values()], ENTRY)
        every = np.concatenate([self._sorted, recent, entries])
        every = every[np.argsort(every["key"], kind="stable")]
        is_last = np.ones(len(every), bool)
        is_last[:-1] = every["key"][1:] != every["key"][:-1]
        self._sorted = every[is_last & ~np.isin(every["pack"], list(self._gone))]
        self._keys = np.ascontiguousarray(self._sorted["key"])
        self._recent = {}
