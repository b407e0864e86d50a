"""Checksums of a cached object: made as its pieces arrive, stored behind its bytes, compared when it is read.

A file of the cache is the object, then the CRC-32 of each block of it, then 8 bytes that name the object.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

BLOCK_BYTES = 4 << 20
_NAME_BYTES = 8  # of the trailer, which a file that was renamed to another object's name does not have
_CRC_BYTES = 4


def num_blocks(num_bytes: int) -> int:
    """How many blocks an object of that length has."""
    return -(-num_bytes // BLOCK_BYTES)


def file_bytes(num_bytes: int) -> int:
    """Length of the file of an object of ``num_bytes``."""
    return num_bytes + _CRC_BYTES * num_blocks(num_bytes) + _NAME_BYTES


def object_bytes(length: int) -> int:
    """Length of the object in a file of ``length`` bytes, whichever object it is."""
    blocks, rest = divmod(max(0, length - _NAME_BYTES), BLOCK_BYTES + _CRC_BYTES)
    return blocks * BLOCK_BYTES + max(0, rest - _CRC_BYTES)


def pack_trailer(crc32s: Sequence[int], name: str) -> bytes:
    """What is stored behind an object's bytes.

    Args:
        crc32s: of its blocks.
        name: of its file, hexadecimal.
    """
    return struct.pack(f"<{len(crc32s)}I", *crc32s) + bytes.fromhex(name)[:_NAME_BYTES]


def unpack_trailer(trailer: memoryview, name: str) -> tuple[int, ...] | None:
    """The checksums in a trailer; ``None`` if it is not of the object of this name."""
    crc32s, named = trailer[:-_NAME_BYTES], trailer[-_NAME_BYTES:]
    if named != bytes.fromhex(name)[:_NAME_BYTES] or len(crc32s) % _CRC_BYTES:
        return None
    return struct.unpack(f"<{len(crc32s) // _CRC_BYTES}I", crc32s)


class ArrivingBlocks:
    """Checksums of an object whose pieces come in any order. Not thread-safe.

    A block whose bytes come in order, as those of a request do, is summed as they come; any other one is read again.

    Args:
        num_bytes: of the object.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._heads: dict[int, tuple[int, int]] = {}  # of each block begun in order: behind which byte, and its CRC-32

    def pieces(self, start: int, data: memoryview) -> list[tuple[int, int, memoryview, int]]:
        """Cut a piece at the ends of blocks: block, first byte, bytes, and the CRC-32 to go on from.

        Only those that go on where the block's last one ended, or begin it, are returned.
        """
        found, at = [], start
        while at < start + len(data):
            block = at // BLOCK_BYTES
            end = min((block + 1) * BLOCK_BYTES, start + len(data))
            behind, crc32 = self._heads.get(block, (block * BLOCK_BYTES, 0))
            if behind == at:
                found.append((block, at, data[at - start : end - start], crc32))
            at = end
        return found

    def took(self, block: int, behind: int, crc32: int) -> None:
        """The bytes of a block up to ``behind`` have this CRC-32."""
        self._heads[block] = behind, crc32

    def crc32s(self, read: Callable[[int, int], memoryview]) -> list[int]:
        """Of all blocks, when all bytes are there.

        Args:
            read: returns bytes ``start`` to ``end`` (exclusive) of the object.
        """
        found = []
        for block in range(num_blocks(self._num_bytes)):
            start, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self._num_bytes)
            behind, crc32 = self._heads.get(block, (start, 0))
            found.append(crc32 if behind == end else zlib.crc32(read(behind, end), crc32))
        return found
