"""The file of a cached object: its bytes, and behind them what shows whether they are those of a version."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ...core.local_view import map_file
from .folder import is_own_file

BLOCK_BYTES = 4 << 20  # each has a checksum
SMALL_BYTES = 1 << 20  # objects that are read at once, which leaves no descriptor open
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_END = struct.Struct("<16sI4s")  # the version, CRC-32 of what is behind the bytes, and a mark
_MARK = b"tdr3"


class DamagedError(Exception):
    """A cached object is not as it was stored, or of another version."""


def num_blocks(num_bytes: int) -> int:
    """Return the number of blocks of an object."""
    return -(-num_bytes // BLOCK_BYTES)


def file_bytes(num_bytes: int) -> int:
    """Return the length of the file of an object."""
    return num_bytes + 4 * num_blocks(num_bytes) + _END.size


def _trailer(crc32s: list[int], version: str) -> bytes:
    sums = struct.pack(f"<{len(crc32s)}I", *crc32s)
    digest = hashlib.sha256(version.encode()).digest()[:16]
    return sums + _END.pack(digest, zlib.crc32(sums + digest), _MARK)


class CachedFile:
    """A complete object, whose bytes remain readable when it is removed from the cache.

    Args:
        path: of its file.
        num_bytes: of the object.
        version: of the object.
        user: who alone may have written it.

    Raises:
        DamagedError: if it is another version, or damaged; and for what the cache has not written.
        OSError: if it cannot be opened.
    """

    def __init__(self, path: str, num_bytes: int, version: str, user: int) -> None:
        self.path, self._num_bytes = path, num_bytes
        self._data: memoryview | None = None
        file: BinaryIO = open(os.open(path, _READ), "rb", buffering=0)  # noqa: SIM115  # closed here or with this object
        status = os.fstat(file.fileno())
        if not is_own_file(status, user) or status.st_nlink > 1 or status.st_size != file_bytes(num_bytes):
            raise DamagedError(f"the file has {status.st_size:,} bytes")
        begin = 0 if num_bytes <= SMALL_BYTES else num_bytes
        read = os.pread(file.fileno(), file_bytes(num_bytes) - begin, begin)
        trailer = read[num_bytes - begin :]
        self._crc32s = struct.unpack_from(f"<{num_blocks(num_bytes)}I", trailer)
        if trailer != _trailer(list(self._crc32s), version):
            raise DamagedError("it is of another version, or damaged behind its bytes")
        if begin == 0:
            self._data = memoryview(read)[:num_bytes]
            if num_bytes and zlib.crc32(self._data) != self._crc32s[0]:
                raise DamagedError("its bytes do not match their checksum")
        with contextlib.suppress(OSError):  # where the folder is read-only now
            os.utime(file.fileno())  # when it was read last
        self._file = file if self._data is None else None
        self._verified = bytearray(num_blocks(num_bytes))  # 1 for each verified block

    def view(self, start: int, end: int | None) -> memoryview:
        """Return bytes ``start`` to ``end`` (exclusive; ``None``: the rest). A block is verified when first read.

        Raises:
            DamagedError: if a block does not match its checksum.
            EOFError: if the file was shortened.
        """
        stop = self._num_bytes if end is None else min(end, self._num_bytes)
        if self._data is not None:
            return self._data[start:stop]
        assert self._file is not None
        blocks = range(start // BLOCK_BYTES, num_blocks(stop))
        if all(self._verified[block] for block in blocks):
            return map_file(self._file.fileno(), start, stop)
        first = blocks.start * BLOCK_BYTES
        data = map_file(self._file.fileno(), first, min(blocks.stop * BLOCK_BYTES, self._num_bytes))
        for block in blocks:
            at = block * BLOCK_BYTES - first
            if not self._verified[block]:
                if zlib.crc32(data[at : at + BLOCK_BYTES]) != self._crc32s[block]:
                    raise DamagedError(f"the block at byte {block * BLOCK_BYTES:,} does not match its checksum")
                self._verified[block] = 1
        return data[start - first : stop - first]


class CachedFileWriter:
    """Writes the file of an object: pieces in any order, from several threads.

    The object is in the cache when all its bytes were written. If the writer is dropped before, the file is removed.

    Args:
        path: of the file while it is written.
        num_bytes: of the complete object.
        version: of the object.
        publish: called once, when the file is complete.
        on_dropped: called if it never is. It must be safe in a finalizer.

    Raises:
        OSError: if the disk is full, or the folder was removed.
    """

    def __init__(
        self,
        path: str,
        num_bytes: int,
        version: str,
        publish: Callable[[], None],
        on_dropped: Callable[[], None],
    ) -> None:
        self._is_published, self._path, self._on_dropped, self._pid = False, path, on_dropped, os.getpid()
        self._num_bytes, self._missing_bytes, self._version, self._publish = num_bytes, num_bytes, version, publish
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        self._file: BinaryIO = open(os.open(path, flags, 0o600), "r+b", buffering=0)  # noqa: SIM115  # as above
        if num_bytes > SMALL_BYTES and hasattr(os, "posix_fallocate"):  # macOS has none
            os.posix_fallocate(self._file.fileno(), 0, file_bytes(num_bytes))
        self._heads = dict[int, tuple[int, int]]()  # block: the end of its bytes that are hashed, and their CRC-32
        self._lock = threading.RLock()

    def write(self, start: int, data: memoryview) -> None:
        """Write bytes from ``start`` on. Each byte of the object is written once.

        Raises:
            OSError: if the disk is full, or the folder was removed.
        """
        if len(data) == self._num_bytes <= SMALL_BYTES:
            crc32s = [zlib.crc32(data)] if data else []
            self._write_at(0, b"".join((data, _trailer(crc32s, self._version))))
            self._end()
            return
        self._write_at(start, data)
        pieces = list(self._pieces(start, data))
        with self._lock:
            heads = [
                (block, at, piece, self._heads.get(block, (block * BLOCK_BYTES, 0))) for block, at, piece in pieces
            ]
        for block, at, piece, (head_end, crc32) in heads:
            if head_end == at:  # a block whose bytes are written in order is hashed on the way
                crc32 = zlib.crc32(piece, crc32)
                with self._lock:
                    self._heads[block] = at + len(piece), crc32
        with self._lock:
            self._missing_bytes -= len(data)
            is_complete = self._missing_bytes == 0
        if is_complete:
            self._write_at(
                self._num_bytes, _trailer([*map(self._crc32, range(num_blocks(self._num_bytes)))], self._version)
            )
            self._end()

    def _write_at(self, start: int, data: memoryview | bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._file.fileno(), data[done:] if done else data, start + done)

    @staticmethod
    def _pieces(start: int, data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
        """Split a piece at block borders: block, first byte, bytes."""
        borders = range(start - start % BLOCK_BYTES + BLOCK_BYTES, start + len(data), BLOCK_BYTES)
        for first, last in itertools.pairwise([start, *borders, start + len(data)]):
            yield first // BLOCK_BYTES, first, data[first - start : last - start]

    def _crc32(self, block: int) -> int:
        """Return the checksum of a block that is written; what was not hashed on the way is read again."""
        start, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self._num_bytes)
        head_end, crc32 = self._heads.get(block, (start, 0))
        return crc32 if head_end == end else zlib.crc32(map_file(self._file.fileno(), head_end, end), crc32)

    def _end(self) -> None:
        self._publish()
        self._is_published = True
        self._file.close()

    def __del__(self) -> None:
        if not self._is_published and os.getpid() == self._pid:  # a forked child has a copy
            self._on_dropped()
