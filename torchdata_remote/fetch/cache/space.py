"""Room in a cache: reserve it, keep what is there, remove what is not read any more.

An object is kept if there is room. Room is made by removing packs of which less than half is still valid, and then
packs of which no object was read while others were read twice (:mod:`.reuse`), the least recently used one first.
All methods are called within a transaction of the index.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from .index import CacheIndex
from .pack import Pack, adopt_pack, create_pack, remove_pack
from .reuse import reuse_window

_BLOCK_BYTES = 4_096  # of most file systems
_INDEX_GROWTH_BYTES = 64 << 10  # by what is recorded of reads, and by objects that are alone in their pack
_INDEX_BYTES = 128  # at most, of an object in the index
_MAX_GROWTH_OBJECTS, _GROWTHS = 256, 128
_MIN_COUNTED_IN_BLOCKS = 1 << 20  # a cache; below, blocks would be most of what is counted
_MAX_EVICTION_S = 0.05  # in one go
_MAX_VICTIMS = 1_024
_SLACK = 1.25  # what other processes read is recorded a little later


class Adopted(NamedTuple):
    """A pack that another process left, and its bytes so far."""

    pack: Pack
    num_bytes: int


class PackSpace:
    """Reserves room within the bound.

    Args:
        index: of the cache.
        max_bytes: bound on all packs and the index, in blocks of the disk; below 1 MiB on the bytes in packs.
    """

    def __init__(self, index: CacheIndex, max_bytes: int) -> None:
        self._index, self._max_bytes = index, max_bytes
        most = min(_MAX_GROWTH_OBJECTS, max_bytes // _GROWTHS // _INDEX_BYTES)
        self.growth_objects = max(1, most)  # are added to an open pack between two calls of ``reserve``
        self._is_in_blocks = max_bytes >= _MIN_COUNTED_IN_BLOCKS
        self._block_bytes = _BLOCK_BYTES if self._is_in_blocks else 1
        self.removed: list[int] = []  # packs, since it was emptied

    def in_blocks(self, num_bytes: int) -> int:
        """Round up to whole blocks of the disk."""
        return -(-num_bytes // self._block_bytes) * self._block_bytes

    def _used(self) -> int:
        used, _ = self._index.used_and_clock()
        return used + (self._index.num_bytes if self._is_in_blocks else 0)

    def _room(self, num_new: int) -> int:
        """Return the free bytes, without those by which the index may grow before ``reserve`` is called again.

        Args:
            num_new: packs that will be opened.
        """
        if not self._is_in_blocks:
            return self._max_bytes - self._used()
        (num_open,) = self._index.execute("SELECT count(*) FROM packs WHERE open").fetchone()
        growth = _INDEX_GROWTH_BYTES + (int(num_open) + num_new) * self.growth_objects * _INDEX_BYTES
        return (self._max_bytes - self._used() - growth) // _BLOCK_BYTES * _BLOCK_BYTES

    def reserve(self, at_least: int, wanted: int, num_new: int) -> int | None:
        """Make room; return how much of ``wanted`` may be added, ``None`` if it is less than ``at_least``.

        Args:
            at_least: bytes, in whole blocks.
            wanted: bytes, in whole blocks.
            num_new: packs that will be opened for it.
        """
        if self._room(num_new) < at_least:
            self.recover(adoptable_bytes=0)
        if self._room(num_new) < at_least:
            until = time.monotonic() + _MAX_EVICTION_S
            for number in self._victims():
                self.remove(number)
                if self._room(num_new) >= at_least or time.monotonic() > until:
                    break
        room = self._room(num_new)
        return min(room, wanted) if room >= at_least else None

    def _victims(self) -> Iterator[int]:
        yield from self._select("NOT open AND live * 2 < bytes")
        _, clock = self._index.used_and_clock()
        if self._used() > self._max_bytes:  # it was larger before
            yield from self._select("NOT open ORDER BY last_use")
        window = reuse_window(self._index.reads(), clock)
        if window is not None:
            yield from self._select("NOT open AND last_use < ? ORDER BY last_use", clock - round(_SLACK * window))

    def _select(self, condition: str, *values: int) -> Iterator[int]:
        for (number,) in self._index.execute(
            f"SELECT id FROM packs WHERE {condition} LIMIT {_MAX_VICTIMS}",  # noqa: S608  # no input of others
            *values,
        ).fetchall():
            yield number

    def add_pack(self, num_bytes: int) -> Pack:
        """Create a pack with so much reserved room.

        Raises:
            OSError: if its file cannot be created.
        """
        _, clock = self._index.used_and_clock()
        cursor = self._index.execute(
            "INSERT INTO packs (open, bytes, filled, live, last_use) VALUES (1, ?, 0, 0, ?)", num_bytes, clock
        )
        assert cursor.lastrowid is not None
        return create_pack(self._index.packs, cursor.lastrowid)

    def grow(self, number: int, num_bytes: int) -> None:
        """Add to the reserved room of a pack; a negative number gives room back."""
        self._index.execute("UPDATE packs SET bytes = bytes + ? WHERE id = ?", num_bytes, number)

    def seal(self, pack: Pack, num_bytes: int) -> None:
        """Give back the room that a pack does not use: nothing will be added to it."""
        if os.fstat(pack.descriptor).st_size > num_bytes:
            os.ftruncate(pack.descriptor, num_bytes)
        self._index.execute("UPDATE packs SET open = 0, bytes = ? WHERE id = ?", self.in_blocks(num_bytes), pack.number)

    def remove(self, number: int) -> None:
        """Remove a pack, unless it is in use."""
        if remove_pack(self._index.packs, number):
            self._index.remove_row(number)
            self.removed.append(number)

    def recover(self, adoptable_bytes: int) -> Adopted | None:
        """Finish packs of processes that ended; return one of less than ``adoptable_bytes``, to be continued."""
        for number, filled in self._index.execute("SELECT id, filled FROM packs WHERE open").fetchall():
            try:
                pack = adopt_pack(self._index.packs, number, filled, self._index.user)
            except OSError:
                self.remove(number)
                continue
            if pack is None:
                continue
            if not self._index.execute("SELECT 1 FROM batches WHERE pack = ?", number).fetchone():
                del pack
                self.remove(number)
            elif filled < adoptable_bytes:
                self._index.execute("UPDATE packs SET bytes = ? WHERE id = ?", self.in_blocks(filled), number)
                return Adopted(pack, filled)
            else:
                self.seal(pack, filled)
        return None
