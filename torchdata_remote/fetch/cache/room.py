"""Find a place for an object: in the open pack of this process, or in one of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from .catalog import Catalog
from .pack import Pack, allocate
from .writer import Place

_MAX_PACK_BYTES, _MAX_PACKED_BYTES, _MAX_GROWTH_BYTES = 32 << 20, 1 << 20, 4 << 20
_PACKS, _GROWTHS = 64, 128  # at least, in a full cache
_MAX_CLEANING_S = 0.05  # in one go


class _Grown(NamedTuple):
    """A pack with room: the end of its objects, and the first byte and number of those that were added."""

    pack: Pack
    end: int
    start: int
    num_bytes: int


class Room:
    """Reserves room for this process, for many small objects at once. Thread-safe.

    Args:
        catalog: of the cache.
        max_bytes: bound of the cache.
        leftovers: removes one file of an earlier cache in each step; until its end nothing is stored.
    """

    def __init__(self, catalog: Catalog, max_bytes: int, leftovers: Iterator[None]) -> None:
        self._catalog, self._space = catalog, catalog.space
        self._pack_bytes = min(_MAX_PACK_BYTES, max_bytes // _PACKS)
        self._packed_bytes = min(_MAX_PACKED_BYTES, self._pack_bytes // 4)  # larger objects have a pack for themselves
        self._growth_bytes = min(_MAX_GROWTH_BYTES, max_bytes // _GROWTHS)
        self._leftovers: Iterator[None] | None = leftovers
        self._lock = threading.RLock()
        self._open: Pack | None = None
        self._end = self._reserved = 0  # in it
        self._num_left = 0  # objects that may be added to it
        self._refused = (0, 0)  # the size of an object for which there was no room, and the number of the exchange

    def take(self, num_bytes: int) -> Place | None:
        """Return room for an object; ``None`` if there is none.

        Raises:
            OSError: if the disk is full, or the folder cannot be used.
        """
        place = self._from_open_pack(num_bytes)
        if place is None and not self._was_refused(num_bytes) and self._catalog.may_exchange():
            with self._catalog.exchanging:
                place = self._from_open_pack(num_bytes)  # another thread may have made room
                if place is None and not self._was_refused(num_bytes) and self._is_clean():
                    place = self._reserve(num_bytes)
                    if place is None:
                        self._refused = (num_bytes, self._catalog.num_exchanges)
        return place

    def _was_refused(self, num_bytes: int) -> bool:
        size, exchange = self._refused
        return exchange == self._catalog.num_exchanges and num_bytes >= size

    def _is_clean(self) -> bool:
        until = time.monotonic() + _MAX_CLEANING_S
        while self._leftovers is not None and time.monotonic() < until:
            if next(self._leftovers, self) is self:
                self._leftovers = None
        return self._leftovers is None

    def _from_open_pack(self, num_bytes: int) -> Place | None:
        with self._lock:
            if self._open is None or num_bytes > self._packed_bytes or self._end + num_bytes > self._reserved:
                return None
            if self._num_left == 0 or self._catalog.has_lost(self._open.number):
                return None
            self._end += num_bytes
            self._num_left -= 1
            return Place(self._open, self._end - num_bytes, alone=False)

    def _reserve(self, num_bytes: int) -> Place | None:
        if num_bytes > self._packed_bytes:
            return self._reserve_alone(num_bytes)
        grown = self._catalog.exchange(lambda: self._grow(num_bytes))
        if grown is None:
            return None
        pack, end, start, num_grown = grown
        try:
            allocate(pack.descriptor, start, num_grown)
        except OSError:
            self._catalog.exchange(lambda: self._space.grow(pack.number, -num_grown))
            num_grown = 0
            raise
        finally:
            with self._lock:
                if self._open is not pack:
                    self._open, self._end = pack, end
                self._reserved = start + num_grown
                self._num_left = self._space.growth_objects
            self._catalog.opened(pack)
        return self._from_open_pack(num_bytes)

    def _reserve_alone(self, num_bytes: int) -> Place | None:
        def add() -> Pack | None:
            room = self._space.in_blocks(num_bytes)
            return None if self._space.reserve(room, room, 0) is None else self._space.add_pack(room)

        pack = self._catalog.exchange(add)
        if pack is None:
            return None
        place = Place(pack, 0, alone=True)
        try:
            allocate(pack.descriptor, 0, num_bytes)
        except OSError:
            place.remove()
            self._catalog.abandon(pack.number)
            raise
        self._catalog.opened(pack)
        return place

    def _grow(self, num_bytes: int) -> _Grown | None:
        """Reserve room for several objects of this size: in the open pack, another process's, or a new one."""
        with self._lock:
            pack, end, start = self._open, self._end, self._reserved
            is_lost = pack is not None and (self._catalog.has_lost(pack.number) or pack.is_removed())
            if is_lost or end + num_bytes > self._pack_bytes:
                self._open = None
        if pack is not None and self._open is None:
            if is_lost:
                self._catalog.abandon(pack.number)
            else:
                self._space.seal(pack, end)
            pack = None
        if pack is None:
            adopted = self._space.recover(adoptable_bytes=self._pack_bytes - num_bytes)
            if adopted is not None:
                pack, end = adopted
                start = self._space.in_blocks(end)
        if pack is None:
            end = start = 0
        at_least = max(0, self._space.in_blocks(end + num_bytes) - start)
        wanted = max(at_least, self._space.in_blocks(self._growth_bytes))
        num_grown = self._space.reserve(at_least, wanted, int(pack is None))
        if num_grown is None:
            if pack is not None and pack is not self._open:
                self._space.seal(pack, end)
            return None
        if pack is None:
            pack = self._space.add_pack(num_grown)
        else:
            self._space.grow(pack.number, num_grown)
        return _Grown(pack, end, start, num_grown)
