"""Cache whole objects on local disk, shared by all processes of a host.

A file's name is the SHA-256 of URL, size and etag, so each version has its own file. A file is published by a rename
when it is complete, with checksums that are verified when it is read. A reader holds a shared lock (``flock``), which
prevents removal. The file ``usage`` holds the sum of sizes; each removal counts it again. Files of other users are
ignored.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import tempfile
import threading
import zlib

from ...core.local_view import map_file
from ...core.urls import redact
from ...errors import StorageError
from .block_checksums import ArrivingBlocks, file_bytes, object_bytes, pack_trailer
from .entry import CachedFile, DamagedError
from .folder import is_own_file, make_own_folder, open_own_file, private_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("torchdata_remote")
_TEMPORARY_PREFIX = "torchdata_remote-"
_NAME = re.compile("[0-9a-f]{64}")
_MAX_DIGITS, _FOLDER_DIGITS = 20, 2  # of a number of bytes; of a name: subfolders keep folders small
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_KEPT_AFTER_REMOVAL = 0.9  # of the bound, so that not every new object removes one
_warned_folders: set[str] = set()


class CacheEntryWriter:
    """Writes an object into the cache: pieces in any order, from several threads.

    The object is published when all its bytes were written. If the writer is dropped before, its file is removed.

    Args:
        cache: receives the object.
        path: of the complete file.
        num_bytes: of the complete object.
    """

    def __init__(self, cache: DiskCache, path: str, num_bytes: int) -> None:
        self._cache, self._path, self._num_bytes = cache, path, num_bytes
        self._missing_bytes, self._is_published = num_bytes, False
        self._blocks = ArrivingBlocks(num_bytes)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._descriptor, self._temporary = cache.temporary_file()
        self._reserve(file_bytes(num_bytes))

    def _reserve(self, num_bytes: int) -> None:
        """Allocate the disk space first, so that of several objects that do not fit together some are completed."""
        try:
            getattr(os, "posix_fallocate", lambda *_: None)(self._descriptor, 0, num_bytes)  # macOS lacks it
        except OSError as error:
            if error.errno in _NO_ROOM:  # else the file system does not support it
                raise

    def write(self, start: int, data: memoryview) -> None:
        """Write bytes from ``start`` on. Each byte of the object is written once.

        Raises:
            OSError: if the disk is full, or the folder was removed.
        """
        self._write(start, data)
        with self._lock:
            pieces = self._blocks.pieces(start, data)
        sums = [(block, at + len(piece), zlib.crc32(piece, crc32)) for block, at, piece, crc32 in pieces]
        with self._lock:
            for block, head_end, crc32 in sums:
                self._blocks.record(block, head_end, crc32)
            self._missing_bytes -= len(data)
            complete = self._missing_bytes == 0 and not self._is_published
            self._is_published = self._is_published or complete
        if complete:
            self._publish()

    def _write(self, start: int, data: bytes | memoryview) -> None:
        view, done = memoryview(data), 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done:], start + done)

    def _publish(self) -> None:
        crc32s = self._blocks.crc32s(lambda start, end: map_file(self._descriptor, start, end))
        self._write(self._num_bytes, pack_trailer(crc32s, os.path.basename(self._path)))
        os.fsync(self._descriptor)
        make_own_folder(os.path.dirname(self._path), self._cache.user)
        os.replace(self._temporary, self._path)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        try:
            self._cache.added(self._path, self._num_bytes)
        except OSError:  # uncounted objects would fill the disk
            os.unlink(self._path)
            raise

    def __del__(self) -> None:
        if hasattr(self, "_temporary"):
            os.close(self._descriptor)
            if os.getpid() == self._pid:  # a forked child has a copy, but the file belongs to the parent
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._temporary)


class DiskCache:
    """A folder of cached objects.

    Args:
        folder: created if missing. If it belongs to another user, a folder in it is used.
        max_bytes: bound on the sum of the objects' sizes. Larger objects are not cached.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        if fcntl is None:
            raise StorageError(f"{folder}: a cache needs file locks (flock), which Windows lacks: leave out cache_dir.")
        folder, self._max_bytes = os.path.abspath(os.path.expanduser(folder)), max_bytes
        self._folder, self.user = private_folder(folder)
        self._temporaries = os.path.join(self._folder, "partial")
        make_own_folder(self._temporaries, self.user)
        for file in os.scandir(self._temporaries):  # of killed processes
            if file.name.startswith(_TEMPORARY_PREFIX):
                _remove_unless_locked(file.path)

    def _path(self, url: str, num_bytes: int, etag: str) -> str:
        name = hashlib.sha256(f"{url}\n{num_bytes}\n{etag}".encode(errors="surrogateescape")).hexdigest()
        return os.path.join(self._folder, name[:_FOLDER_DIGITS], name)

    def find(self, url: str, num_bytes: int, etag: str) -> CachedFile | None:
        """Open a cached object; ``None`` if it is missing or damaged."""
        path = self._path(url, num_bytes, etag)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            found = CachedFile(descriptor, path, num_bytes)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return None  # missing, being removed, or not a file, such as a link
        status = os.fstat(descriptor)
        try:
            if not is_own_file(status, self.user):
                raise DamagedError("other users may have written it")
            found.read_checksums()
            if status.st_size != file_bytes(num_bytes):
                raise DamagedError(f"it has {status.st_size:,} bytes")
        except (DamagedError, EOFError, OSError) as error:
            if status.st_size != num_bytes or not num_bytes:  # else stored by a release without checksums
                _log.warning("%s in the cache is damaged, and the object is fetched again: %s", path, error)
            found.remove()
            return None
        with contextlib.suppress(OSError):  # on a read-only file system
            os.utime(descriptor)  # mark as used now
        return found

    def warn_once(self, problem: str) -> None:
        """Warn of the first problem with this folder in this process; a full disk would cause one per object."""
        if self._folder not in _warned_folders:
            _warned_folders.add(self._folder)
            try:
                room = f"{shutil.disk_usage(self._folder).free:,} bytes are free there"
            except OSError as error:
                room = str(error)
            _log.warning(
                "%s. Objects that do not fit into the cache %s (%s) are read without it, and fetched again in each "
                "epoch. This warning is shown once",
                problem,
                self._folder,
                room,
            )

    def fill(self, url: str, num_bytes: int, etag: str) -> CacheEntryWriter | None:
        """Start to store an object; ``None`` if it is larger than the cache.

        Raises:
            OSError: if the disk has no space for it.
        """
        if num_bytes > self._max_bytes:
            self.warn_once(f"{redact(url)} has {num_bytes:,} bytes, more than cache_bytes={self._max_bytes:,}")
            return None
        return CacheEntryWriter(self, self._path(url, num_bytes, etag), num_bytes)

    def temporary_file(self) -> tuple[int, str]:
        """Create a temporary file; returns its descriptor, which holds a lock, and its path."""
        while True:
            descriptor, path = tempfile.mkstemp("", _TEMPORARY_PREFIX, self._temporaries)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.exists(path):
                return descriptor, path
            os.close(descriptor)  # another process removed it as a leftover, before it was locked

    def added(self, path: str, num_bytes: int) -> None:
        """Count a published object; above the bound, remove the least recently used objects."""
        with os.fdopen(open_own_file(os.path.join(self._folder, "usage"), self.user), "r+b") as usage:
            fcntl.flock(usage, fcntl.LOCK_EX)
            before = usage.read(_MAX_DIGITS + 1)
            is_number = before.isdigit() and len(before) <= _MAX_DIGITS
            used = int(before) + num_bytes if is_number else self._max_bytes + 1
            if used > self._max_bytes:
                used = self._remove(max(num_bytes, round(self._max_bytes * _KEPT_AFTER_REMOVAL)), path)
            usage.seek(0)
            usage.truncate()
            usage.write(b"%d" % used)

    def _remove(self, allowed_bytes: int, newest: str) -> int:
        """Remove files until at most ``allowed_bytes`` remain, ``newest`` last; returns the remaining bytes."""
        files = []
        for folder in os.scandir(self._folder):
            if len(folder.name) == _FOLDER_DIGITS and folder.is_dir(follow_symlinks=False):
                for file in os.scandir(folder):
                    if _NAME.fullmatch(file.name) is None:
                        continue  # not a file of the cache
                    with contextlib.suppress(FileNotFoundError):
                        status = file.stat(follow_symlinks=False)
                        files.append((file.path == newest, status.st_mtime_ns, object_bytes(status.st_size), file.path))
        used = sum(size for _, _, size, _ in files)
        for is_newest, _, size, path in sorted(files):
            if used <= (self._max_bytes if is_newest else allowed_bytes):
                break
            if _remove_unless_locked(path):
                used -= size
        return used


def _remove_unless_locked(path: str) -> bool:
    """Remove a file that no process reads or writes; returns whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # not a file, such as a link
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:  # a process reads it, or it may not be removed
        return False
    finally:
        os.close(descriptor)
    return True
