"""The file of a cached object: its bytes, and behind them what shows whether they are those of a version."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
import threading
import time
import zlib
from array import array
from collections.abc import Callable

from ...core.files import map_file

_BLOCK_BYTES = 4 << 20  # each has a checksum
_END = struct.Struct("<II4s")  # length and CRC-32 of the text before it, mark
_MARK = b"tdr4"
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # without waiting for the writer of a FIFO
_WRITTEN_WITHIN_S = 10.0  # from the last byte that was written


class DamagedError(Exception):
    """A cached object is not as it was stored."""


def file_bytes(num_bytes: int, version: str) -> int:
    """Return the most bytes that the file of an object has: with the text, which has 8 characters for each block."""
    return num_bytes + 8 * (num_bytes // _BLOCK_BYTES) + 6 * len(version) + 64


class CachedFile:
    """A complete object, whose bytes remain readable when it is removed from the cache.

    Args:
        path: of its file.

    Attributes:
        size: of the object, in bytes.
        version: of the object.

    Raises:
        DamagedError: if it is not as it was stored; and for what the cache has not written.
        OSError: if it is missing, or seems to be written right now.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        descriptor = os.open(path, _READ)
        try:
            status = os.fstat(descriptor)
            try:
                self._parse(descriptor, status)
            except (OSError, EOFError, ValueError, struct.error) as error:
                if abs(time.time() - status.st_mtime) < _WRITTEN_WITHIN_S:
                    raise FileNotFoundError(path) from error
                raise DamagedError("what is behind its bytes is damaged") from error
        finally:
            os.close(descriptor)

    def _parse(self, descriptor: int, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ValueError("the cache has not written it")
        end = status.st_size - _END.size
        length, crc32, mark = _END.unpack(os.pread(descriptor, _END.size, end))
        self.size = end - length
        if mark != _MARK or self.size < 0 or zlib.crc32(text := os.pread(descriptor, length, self.size)) != crc32:
            raise ValueError("it does not match its checksum")
        self.version, sums = json.loads(text)
        self._unverified = dict(enumerate(array("I", bytes.fromhex(sums))))  # checksums of blocks
        self._data = map_file(descriptor, 0, self.size)
        with contextlib.suppress(OSError):  # where the folder is read-only now
            now_s = time.time()  # the clock of a file system is some ms behind, or another one's
            os.utime(descriptor, (now_s, now_s))  # when it was read last

    def read(self, start: int, end: int | None) -> memoryview:
        """Return bytes ``start`` to ``end`` (exclusive; ``None``: the rest). A block is verified when first read.

        Raises:
            DamagedError: if a block does not match its checksum.
        """
        stop = self.size if end is None else min(end, self.size)
        for block in range(start // _BLOCK_BYTES, -(-stop // _BLOCK_BYTES)):
            first, crc32 = block * _BLOCK_BYTES, self._unverified.get(block)
            if crc32 is not None:
                if zlib.crc32(self._data[first : first + _BLOCK_BYTES]) != crc32:
                    raise DamagedError(f"the block at byte {first:,} does not match its checksum")
                self._unverified.pop(block, None)
        return self._data[start:stop]


class CachedFileWriter:
    """Writes the file of an object: pieces in any order, from several threads. If it is dropped, nothing remains.

    Args:
        path: of the file, which counts as missing until it is complete.
        num_bytes: of the object.
        version: of the object.
        give_back: called if it never is complete. It must be safe in a finalizer.

    Raises:
        FileExistsError: if there is a file.
        OSError: if the folder was removed.
    """

    def __init__(self, path: str, num_bytes: int, version: str, give_back: Callable[[], None]) -> None:
        self._is_open, self._path, self._version, self._give_back = False, path, version, give_back
        self._num_bytes, self._missing_bytes, self._pid = num_bytes, num_bytes, os.getpid()
        self._lock = threading.RLock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._is_open = True

    def write(self, start: int, data: memoryview) -> bool:
        """Write bytes from ``start`` on, each byte of the object once.

        Returns:
            Whether all bytes of the object are written now, and all processes find it.

        Raises:
            OSError: if the disk is full.
        """
        with self._lock:
            self._missing_bytes -= len(data)
            if len(data) == self._num_bytes:
                end = self._end(lambda at: data[at : at + _BLOCK_BYTES])
                _require_all(len(data) + len(end), os.writev(self._file, (data, end)))
            else:
                _require_all(len(data), os.pwrite(self._file, data, start))
                if self._missing_bytes:
                    return False
                end = self._end(lambda at: os.pread(self._file, _BLOCK_BYTES, at))
                _require_all(len(end), os.pwrite(self._file, end, self._num_bytes))
            self._is_open = False
            os.close(self._file)
            return True

    def _end(self, block_at: Callable[[int], bytes | memoryview]) -> bytes:
        """Return what is behind the bytes of the object."""
        sums = array("I", (zlib.crc32(block_at(at)) for at in range(0, self._num_bytes, _BLOCK_BYTES)))
        text = json.dumps([self._version, sums.tobytes().hex()]).encode()
        return text + _END.pack(len(text), zlib.crc32(text), _MARK)

    def __del__(self) -> None:
        if self._is_open:
            os.close(self._file)
            if os.getpid() == self._pid:  # a forked child has a copy
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
                self._give_back()


def _require_all(expected: int, written: int) -> None:
    if written < expected:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
