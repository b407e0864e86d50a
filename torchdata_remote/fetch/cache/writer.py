"""Write an object into a pack while it is downloaded."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Callable
from typing import NamedTuple

from ...core.local_view import map_file
from .block_checksums import ArrivingBlocks, num_blocks
from .pack import Pack


class Place(NamedTuple):
    """Room for an object: ``pack`` at ``offset``. Where ``alone``, the pack is for this object only."""

    pack: Pack
    offset: int
    alone: bool

    def remove(self) -> None:
        """Remove the file. Safe in a finalizer."""
        with contextlib.suppress(OSError):
            os.unlink(self.pack.path)


class CacheEntryWriter:
    """Writes an object into the cache: pieces in any order, from several threads.

    The object is in the cache when all its bytes were written. If the writer is dropped before, a file for this object
    alone is removed; among others, the room is lost until their pack is removed.

    Args:
        place: room for it.
        num_bytes: of the complete object.
        on_complete: called once, with the CRC-32 of each block.
        on_end: called when this object is dropped, with whether it was complete. It must be safe in a finalizer.
    """

    def __init__(
        self,
        place: Place,
        num_bytes: int,
        on_complete: Callable[[list[int]], None],
        on_end: Callable[[bool], None],
    ) -> None:
        self._place, self._num_bytes, self._missing_bytes = place, num_bytes, num_bytes
        self._on_complete, self._on_end = on_complete, on_end
        self._is_complete = False
        self._blocks = ArrivingBlocks(num_bytes)
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def write(self, start: int, data: memoryview) -> None:
        """Write bytes from ``start`` on. Each byte of the object is written once.

        Raises:
            OSError: if the disk is full, or the folder was removed.
        """
        descriptor, done = self._place.pack.descriptor, 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], self._place.offset + start + done)
        if done == self._num_bytes and num_blocks(done) <= 1 and not self._is_complete:  # a small object in one piece
            self._is_complete = True
            self._on_complete([zlib.crc32(data)])
            return
        with self._lock:
            pieces = self._blocks.pieces(start, data)
        sums = [(block, at + len(piece), zlib.crc32(piece, crc32)) for block, at, piece, crc32 in pieces]
        with self._lock:
            for block, head_end, crc32 in sums:
                self._blocks.record(block, head_end, crc32)
            self._missing_bytes -= len(data)
            is_last = self._missing_bytes == 0 and not self._is_complete
            self._is_complete = self._is_complete or is_last
        if is_last:
            self._on_complete(self._blocks.crc32s(self._written))

    def _written(self, start: int, end: int) -> memoryview:
        return map_file(self._place.pack.descriptor, self._place.offset + start, self._place.offset + end)

    def __del__(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child has a copy
        if self._place.alone and not self._is_complete:
            self._place.remove()
        self._on_end(self._is_complete)
