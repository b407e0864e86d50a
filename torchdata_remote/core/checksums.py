"""Checksums of an object's blocks: computed while it is written, compared while it is read."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

BLOCK_BYTES = 4 << 20
# Limits for manifests that are read: a block is held in memory
MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 64 << 10, 64 << 20


class Checksums(NamedTuple):
    """CRC-32 (as in zlib, IEEE 802.3) of consecutive blocks of ``block_bytes``; the last one may be shorter.

    They detect damage, not forgery. A checksum covers a block rather than the whole object, so that a damaged block can
    be downloaded again before any of its bytes are used.
    """

    block_bytes: int
    crc32s: tuple[int, ...]


class BlockSummer:
    """Computes checksums from consecutive bytes of an object."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._done: list[int] = []
        self._crc32 = self._filled = 0

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        rest = memoryview(data)
        while rest:
            piece = rest[: self._block_bytes - self._filled]
            rest = rest[len(piece) :]
            self._crc32 = zlib.crc32(piece, self._crc32)
            self._filled += len(piece)
            if self._filled == self._block_bytes:
                self._done.append(self._crc32)
                self._crc32 = self._filled = 0

    def checksums(self) -> Checksums:
        """Return the checksums of all bytes so far."""
        last = [self._crc32] if self._filled else []
        return Checksums(self._block_bytes, (*self._done, *last))


class BlockCheck:
    """Holds back the pieces of a block until its checksum was verified.

    Args:
        checksums: of the object.
        num_bytes: length of the object.
        start: the byte at which reading starts: the first byte of a block.
    """

    def __init__(self, checksums: Checksums, num_bytes: int, start: int) -> None:
        self._checksums, self._num_bytes = checksums, num_bytes
        self._held: list[memoryview] = []
        self._crc32 = 0
        self._at = start
        # First byte of the last block that was damaged
        self.damaged_at: int | None = None

    def take(self, piece: memoryview) -> Sequence[memoryview]:
        """Add the next bytes, none after the end of the block; return the pieces that are verified.

        If the block is complete and damaged, its pieces are dropped, and ``damaged_at`` is where to resume reading.
        """
        self._held.append(piece)
        self._crc32 = zlib.crc32(piece, self._crc32)
        self._at += len(piece)
        if self._at != self.block_end(self._at - 1):
            return ()
        block, held = (self._at - 1) // self._checksums.block_bytes, self._held
        right = block < len(self._checksums.crc32s) and self._checksums.crc32s[block] == self._crc32
        self._held, self._crc32 = [], 0
        if right:
            return held
        self._at = self.damaged_at = block * self._checksums.block_bytes
        return ()

    def block_end(self, at: int) -> int:
        """Return the byte after the block that contains byte ``at``."""
        return min(self._num_bytes, (at // self._checksums.block_bytes + 1) * self._checksums.block_bytes)
