"""Read a complete object of the cache, verified by its checksums."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from ...core.local_view import map_file
from .block_checksums import BLOCK_BYTES, num_blocks
from .object_table import Entry
from .pack import Pack


class DamagedError(Exception):
    """A cached object is not as it was stored."""


class CachedFile:
    """A complete object in the cache. It is not removed while this object exists.

    Args:
        pack: contains it.
        entry: where it is.
        crc32s: of its blocks.
    """

    def __init__(self, pack: Pack, entry: Entry, crc32s: Sequence[int]) -> None:
        self._pack, self.entry, self._crc32s = pack, entry, crc32s
        self.path = pack.path
        self._verified = bytearray(num_blocks(entry.size))  # 1 for each verified block

    def view(self, start: int, end: int | None) -> memoryview:
        """Return bytes ``start`` to ``end`` (exclusive; ``None``: the rest). A block is verified when first read.

        Raises:
            DamagedError: if a block does not match its checksum.
            EOFError: if the file was shortened.
        """
        offset, num_bytes = self.entry.offset, self.entry.size
        stop = num_bytes if end is None else min(end, num_bytes)
        blocks = range(start // BLOCK_BYTES, num_blocks(stop))
        if all(self._verified[block] for block in blocks):
            return map_file(self._pack.descriptor, offset + start, offset + stop)
        first = blocks.start * BLOCK_BYTES
        last = min(blocks.stop * BLOCK_BYTES, num_bytes)
        data = map_file(self._pack.descriptor, offset + first, offset + last)
        for block in blocks:
            at = block * BLOCK_BYTES - first
            if not self._verified[block]:
                if zlib.crc32(data[at : at + BLOCK_BYTES]) != self._crc32s[block]:
                    raise DamagedError(f"the block at byte {block * BLOCK_BYTES:,} does not match its checksum")
                self._verified[block] = 1
        return data[start - first : stop - first]
