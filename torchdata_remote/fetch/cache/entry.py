"""Read a complete object of the cache, verified by its checksums."""

from __future__ import annotations

import contextlib
import os
import zlib

from ...core.local_view import map_file
from .block_checksums import BLOCK_BYTES, file_bytes, num_blocks, unpack_trailer


class DamagedError(Exception):
    """A cached object is not as it was stored."""


class CachedFile:
    """A complete object in the cache. It is not removed while this object exists.

    Args:
        descriptor: of its file; closed with this object.
        path: of its file.
        num_bytes: of the object.
    """

    def __init__(self, descriptor: int, path: str, num_bytes: int) -> None:
        self._descriptor, self.path, self._num_bytes = descriptor, path, num_bytes
        self._crc32s: tuple[int, ...] = ()
        self._verified = bytearray(num_blocks(num_bytes))  # 1 for each verified block

    def read_checksums(self) -> None:
        """Read the trailer.

        Raises:
            DamagedError: if the file belongs to another object.
            EOFError: if it is too short.
        """
        trailer = map_file(self._descriptor, self._num_bytes, file_bytes(self._num_bytes))
        crc32s = unpack_trailer(trailer, os.path.basename(self.path))
        if crc32s is None or len(crc32s) != len(self._verified):
            raise DamagedError("it is another object's file")
        self._crc32s = crc32s

    def view(self, start: int, end: int | None) -> memoryview:
        """Return bytes ``start`` to ``end`` (exclusive; ``None``: the rest). A block is verified when first read.

        Raises:
            DamagedError: if a block does not match its checksum.
            EOFError: if the file was shortened.
        """
        stop = self._num_bytes if end is None else min(end, self._num_bytes)
        blocks = range(start // BLOCK_BYTES, num_blocks(stop))
        if all(self._verified[block] for block in blocks):
            return map_file(self._descriptor, start, stop)
        first = blocks.start * BLOCK_BYTES
        data = map_file(self._descriptor, first, min(blocks.stop * BLOCK_BYTES, self._num_bytes))
        for block in blocks:
            at = block * BLOCK_BYTES - first
            if not self._verified[block]:
                if zlib.crc32(data[at : at + BLOCK_BYTES]) != self._crc32s[block]:
                    raise DamagedError(f"the block at byte {block * BLOCK_BYTES:,} does not match its checksum")
                self._verified[block] = 1
        return data[start - first : stop - first]

    def remove(self) -> None:
        """Remove it from the cache, unless another file has replaced it."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), os.lstat(self.path)):
                os.unlink(self.path)

    def __del__(self) -> None:
        os.close(self._descriptor)
