"""Checksums of a cached object: computed while it is written, stored after its bytes, verified when it is read.

A cache file consists of the object, the CRC-32 of each of its blocks, and 8 bytes that identify the object.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

BLOCK_BYTES = 4 << 20
_NAME_BYTES = 8  # end of the trailer; detects a file that was renamed to another object's name
_CRC_BYTES = 4


def num_blocks(num_bytes: int) -> int:
    """Return the number of blocks of an object."""
    return -(-num_bytes // BLOCK_BYTES)


def file_bytes(num_bytes: int) -> int:
    """Return the file length of an object of ``num_bytes``."""
    return num_bytes + _CRC_BYTES * num_blocks(num_bytes) + _NAME_BYTES


def object_bytes(length: int) -> int:
    """Return the length of the object in a file of ``length`` bytes."""
    blocks, rest = divmod(max(0, length - _NAME_BYTES), BLOCK_BYTES + _CRC_BYTES)
    return blocks * BLOCK_BYTES + max(0, rest - _CRC_BYTES)


def pack_trailer(crc32s: Sequence[int], name: str) -> bytes:
    """Pack the trailer that follows an object's bytes.

    Args:
        crc32s: of its blocks.
        name: of its file, hexadecimal.
    """
    return struct.pack(f"<{len(crc32s)}I", *crc32s) + bytes.fromhex(name)[:_NAME_BYTES]


def unpack_trailer(trailer: memoryview, name: str) -> tuple[int, ...] | None:
    """Return the checksums in a trailer; ``None`` if it belongs to another object."""
    crc32s, named = trailer[:-_NAME_BYTES], trailer[-_NAME_BYTES:]
    if named != bytes.fromhex(name)[:_NAME_BYTES] or len(crc32s) % _CRC_BYTES:
        return None
    return struct.unpack(f"<{len(crc32s) // _CRC_BYTES}I", crc32s)


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
