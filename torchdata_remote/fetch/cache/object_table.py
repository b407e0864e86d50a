"""Table in memory of the objects in a cache: 36 bytes for each, found by binary search without a system call."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

ENTRY = np.dtype(
    [("key", "<u8"), ("version", "<u8"), ("offset", "<u8"), ("size", "<u8"), ("crc32", "<u4"), ("pack", "<u4")]
)
DROPPED = 0  # pack of an entry that says that an object is not in the cache any more
_MIN_SORTED, _GROWTH = 1_024, 4


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


def check_entries(stored: Sequence[tuple[int, bytes]]) -> None:
    """Check what an index contains: packs, and what ``pack_entries`` returned for some of the objects of each.

    Raises:
        ValueError: if it is damaged. So is ``TypeError``.
    """
    entries = np.frombuffer(b"".join(part for _, part in stored), ENTRY)
    lengths = np.array([len(part) for _, part in stored], np.int64)
    packs = np.repeat(np.array([pack for pack, _ in stored], np.int64), lengths // ENTRY.itemsize)
    if any(lengths % ENTRY.itemsize) or not all((entries["pack"] == packs) | (entries["pack"] == DROPPED)):
        raise ValueError("its entries are damaged")


class ObjectTable:
    """The last entry of each key. Not thread-safe.

    New entries are kept in a dict. When there are many, they become a sorted array, the last of a few, each of them
    several times as long as the next one: so an array is merged rarely, and a lookup searches few.
    """

    def __init__(self) -> None:
        self._sorted: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.void]]] = []  # keys and entries, oldest first
        self._recent: dict[int, Entry] = {}
        self._gone: set[int] = {DROPPED}  # packs

    def get(self, key: int) -> Entry | None:
        """Return the entry of a key, if its object is in the cache."""
        entry = self._recent.get(key)
        if entry is None:
            entry = self._search(np.uint64(key))
        return None if entry is None or entry.pack in self._gone else entry

    def _search(self, key: np.uint64) -> Entry | None:
        for keys, entries in reversed(self._sorted):
            at = int(keys.searchsorted(key))
            if at < len(keys) and keys[at] == key:
                return Entry(*entries[at].item())
        return None

    def add(self, entry: Entry) -> None:
        """Add an entry, in place of the one of the same key."""
        self._recent[entry.key] = entry
        if len(self._recent) >= _MIN_SORTED:
            self._sort_recent()

    def add_stored(self, *stored: bytes) -> None:
        """Add what ``pack_entries`` returned."""
        entries = np.frombuffer(b"".join(stored), ENTRY)
        if len(entries) >= _MIN_SORTED:
            self._sort_recent()
            self._sort(entries)
        else:
            for values in entries.tolist():
                self.add(Entry(*values))

    def forget_pack(self, pack: int) -> None:
        """Drop all objects of a pack that was removed."""
        self._gone.add(pack)

    def is_gone(self, pack: int) -> bool:
        """Whether a pack was removed."""
        return pack in self._gone

    def _sort_recent(self) -> None:
        recent, self._recent = self._recent, {}
        if recent:
            self._sort(np.array([tuple(entry) for entry in recent.values()], ENTRY))

    def _sort(self, entries: npt.NDArray[np.void]) -> None:
        while self._sorted and len(self._sorted[-1][1]) < _GROWTH * len(entries):
            entries = np.concatenate([self._sorted.pop()[1], entries])
        order = np.argsort(entries["key"], kind="stable")
        keys = entries["key"][order]
        is_last = np.append(keys[1:] != keys[:-1], True)
        self._sorted.append((keys[is_last], entries[order[is_last]]))
