"""Checksums of a cached object: the CRC-32 of each of its blocks, computed while it is written."""

from __future__ import annotations

import zlib
from collections.abc import Callable

BLOCK_BYTES = 4 << 20


def num_blocks(num_bytes: int) -> int:
    """Return the number of blocks of an object."""
    return -(-num_bytes // BLOCK_BYTES)


class ArrivingBlocks:
    """Checksums of an object whose pieces are written in any order. Not thread-safe.

    A block whose bytes are written in order, as by one request, is hashed on the way; any other one is read again.

    Args:
        num_bytes: of the object.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._heads: dict[int, tuple[int, int]] = {}  # block -> end of its hashed head, and CRC-32

    def pieces(self, start: int, data: memoryview) -> list[tuple[int, int, memoryview, int]]:
        """Split a piece at block borders: block, first byte, bytes, and the CRC-32 to continue from.

        Only pieces that continue the hashed head of their block are returned.
        """
        continued, at = [], start
        while at < start + len(data):
            block = at // BLOCK_BYTES
            end = min((block + 1) * BLOCK_BYTES, start + len(data))
            head_end, crc32 = self._heads.get(block, (block * BLOCK_BYTES, 0))
            if head_end == at:
                continued.append((block, at, data[at - start : end - start], crc32))
            at = end
        return continued

    def record(self, block: int, head_end: int, crc32: int) -> None:
        """Record the CRC-32 of a block's bytes up to ``head_end``."""
        self._heads[block] = head_end, crc32

    def crc32s(self, read: Callable[[int, int], memoryview]) -> list[int]:
        """Return the checksums of all blocks, after all bytes were written.

        Args:
            read: returns bytes ``start`` to ``end`` (exclusive) of the object.
        """
        crc32s = []
        for block in range(num_blocks(self._num_bytes)):
            start, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self._num_bytes)
            head_end, crc32 = self._heads.get(block, (start, 0))
            crc32s.append(crc32 if head_end == end else zlib.crc32(read(head_end, end), crc32))
        return crc32s
