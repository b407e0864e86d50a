"""The file of a cached object: its bytes, and behind them what shows whether they are those of a version."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import BinaryIO

from ...core.local_view import map_file
from .folder import is_own_file

BLOCK_BYTES = 4 << 20  # each has a checksum
SMALL_BYTES = 1 << 20  # objects that are written and read at once, which leaves no descriptor open
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_LENGTHS, _END = (
    struct.Struct("<QH"),
    struct.Struct("<I4s"),
)  # of object and version; CRC-32 of all that is before, mark
_MARK = b"tdr3"
_MAX_END_BYTES = 66_000  # behind the checksums: mostly the version
_WRITTEN_WITHIN_S = 10.0  # a small object, from when its file is there


class DamagedError(Exception):
    """A cached object is not as it was stored."""


def _num_blocks(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES)


def trailer(num_bytes: int, version: str, crc32s: Sequence[int]) -> bytes:
    """Return what is behind the bytes of an object.

    Args:
        num_bytes: of the object.
        version: of the object.
        crc32s: of its blocks.
    """
    name = version.encode()
    checked = b"".join((array("I", crc32s), name, _LENGTHS.pack(num_bytes, len(name))))
    return checked + _END.pack(zlib.crc32(checked), _MARK)


def file_bytes(num_bytes: int, version: str) -> int:
    """Return the length of the file of an object."""
    return num_bytes + 4 * _num_blocks(num_bytes) + len(version.encode()) + _LENGTHS.size + _END.size


def write_small(path: str, data: bytes | memoryview, end: bytes) -> None:
    """Write the file of a small object at once. It counts as missing until it is complete.

    Args:
        path: of the file.
        data: the object.
        end: its trailer.

    Raises:
        FileExistsError: if there is a file.
        OSError: if the disk is full, or the folder was removed; then there is no file.
    """
    descriptor = os.open(path, _CREATE, 0o600)
    try:
        done = os.writev(descriptor, (data, end))
        while done < len(data) + len(end):  # mostly this raises: the disk is full
            done += os.write(descriptor, b"".join((data, end))[done:])
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


class CachedFile:
    """A complete object, whose bytes remain readable when it is removed from the cache.

    Args:
        path: of its file.
        user: who alone may have written it.

    Attributes:
        size: of the object, in bytes.
        version: of the object.

    Raises:
        DamagedError: if it is not as it was stored; and for what the cache has not written.
        OSError: if it cannot be opened, or seems to be written right now.
    """

    def __init__(self, path: str, user: int) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        descriptor = os.open(path, _READ)
        try:
            status = os.fstat(descriptor)
            if not is_own_file(status, user) or status.st_nlink > 1:
                raise DamagedError("others may have written it")
            length = status.st_size
            is_small = length <= SMALL_BYTES + _MAX_END_BYTES
            num_read = length if is_small else 4 * _num_blocks(length) + _MAX_END_BYTES
            read = os.pread(descriptor, num_read, length - num_read)
            try:
                self._parse(read, length - num_read)
            except (struct.error, DamagedError):
                if abs(time.time() - status.st_mtime) < _WRITTEN_WITHIN_S:
                    raise FileNotFoundError(path) from None
                raise DamagedError("what is behind its bytes is damaged") from None
            self._data = memoryview(read)[: self.size] if is_small else None
            if self._data and zlib.crc32(self._data) != self._crc32s[0]:
                raise DamagedError("its bytes do not match their checksum")
            if not is_small:
                self._file = open(os.dup(descriptor), "rb", buffering=0)  # noqa: SIM115  # closed with this object
            with contextlib.suppress(OSError):  # where the folder is read-only now
                os.utime(descriptor)  # when it was read last
        finally:
            os.close(descriptor)
        self._verified = bytearray(len(self._crc32s))  # 1 for each verified block

    def _parse(self, read: bytes, offset: int) -> None:
        """Parse the end of the file, which was read from ``offset`` on."""
        crc32, mark = _END.unpack_from(read, len(read) - _END.size)
        end = len(read) - _END.size - _LENGTHS.size
        self.size, length = _LENGTHS.unpack_from(read, end)
        begin = self.size - offset
        sums_end = begin + 4 * _num_blocks(self.size)
        if mark != _MARK or begin < 0 or sums_end + length != end or zlib.crc32(read[begin : -_END.size]) != crc32:
            raise DamagedError
        self._crc32s = struct.unpack(f"<{_num_blocks(self.size)}I", read[begin:sums_end])
        self.version = read[sums_end:end].decode()

    def read(self, start: int, end: int | None) -> memoryview:
        """Return bytes ``start`` to ``end`` (exclusive; ``None``: the rest). A block is verified when first read.

        Raises:
            DamagedError: if a block does not match its checksum, or the file was cut.
        """
        stop = self.size if end is None else min(end, self.size)
        if self._data is not None:
            return self._data[start:stop]
        file = self._file  # close() may be called meanwhile
        assert file is not None, "it was closed"
        blocks = range(start // BLOCK_BYTES, _num_blocks(stop))
        is_verified = all(self._verified[block] for block in blocks)
        first = start if is_verified else blocks.start * BLOCK_BYTES
        last = stop if is_verified else min(blocks.stop * BLOCK_BYTES, self.size)
        try:
            data = map_file(file.fileno(), first, last)
        except (EOFError, OSError) as error:
            raise DamagedError(str(error)) from error
        for block in () if is_verified else blocks:
            at = block * BLOCK_BYTES - first
            if not self._verified[block]:
                if zlib.crc32(data[at : at + BLOCK_BYTES]) != self._crc32s[block]:
                    raise DamagedError(f"the block at byte {block * BLOCK_BYTES:,} does not match its checksum")
                self._verified[block] = 1
        return data[start - first : stop - first]

    def close(self) -> None:
        """Release the file. Safe in a finalizer, and while other threads read."""
        self._file = None


class CachedFileWriter:
    """Writes the file of an object: pieces in any order, from several threads. If it is dropped, that is an ``abort``.

    Args:
        path: of the file while it is written.
        num_bytes: of the object.
        version: of the object.
        publish: gives the complete file its name.
        give_back: called if it never is complete. It must be safe in a finalizer.

    Raises:
        OSError: if the disk is full, or the folder was removed.
    """

    def __init__(
        self, path: str, num_bytes: int, version: str, publish: Callable[[str], None], give_back: Callable[[], None]
    ) -> None:
        self._is_done, self._path, self._give_back, self._pid = False, path, give_back, os.getpid()
        self._num_bytes, self._missing_bytes, self._version, self._publish = num_bytes, num_bytes, version, publish
        self._file: BinaryIO = open(os.open(path, _CREATE, 0o600), "r+b", buffering=0)  # noqa: SIM115  # by commit()
        if hasattr(os, "posix_fallocate"):  # macOS has none
            os.posix_fallocate(self._file.fileno(), 0, file_bytes(num_bytes, version))
        self._lock = threading.RLock()

    def write(self, start: int, data: memoryview) -> bool:
        """Write bytes from ``start`` on, each byte of the object once.

        Returns:
            Whether all bytes of the object are written now: in one of the calls.

        Raises:
            OSError: if the disk is full.
        """
        self._write_at(start, data)
        with self._lock:
            self._missing_bytes -= len(data)
            return self._missing_bytes == 0

    def _write_at(self, start: int, data: memoryview | bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._file.fileno(), data[done:] if done else data, start + done)

    def commit(self) -> None:
        """Let all processes find the object, of which all bytes were written.

        Raises:
            OSError: if the disk is full, or the folder was removed.
        """
        descriptor, num_bytes = self._file.fileno(), self._num_bytes
        borders = [*range(0, num_bytes, BLOCK_BYTES), num_bytes]
        crc32s = [zlib.crc32(map_file(descriptor, *block)) for block in itertools.pairwise(borders)]
        self._write_at(num_bytes, trailer(num_bytes, self._version, crc32s))
        self._file.close()
        self._publish(self._path)
        self._is_done = True

    def abort(self) -> None:
        """Remove what was written. Safe in a finalizer."""
        if not self._is_done and os.getpid() == self._pid:  # a forked child has a copy
            self._is_done = True
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._give_back()

    def __del__(self) -> None:
        self.abort()
