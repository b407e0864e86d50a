"""Whole objects on local disk, shared by all processes of a host.

A file's name is the SHA-256 of URL, size and etag, so that another version is another file. Files appear by a rename
when they are complete. Who reads one holds a shared lock on it (``flock``), which the removal of the least recently
used ones respects. The file ``usage`` holds the sum of their sizes; each removal counts it anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import tempfile
import threading

from .errors import StorageError
from .mapped import view_of_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("torchdata_remote")
_TEMPORARY_PREFIX = "torchdata_remote-"
_NAME = re.compile("[0-9a-f]{64}")
_MAX_DIGITS = 20  # of a number of bytes
_FOLDER_DIGITS = 2  # of the name, so that no folder holds a million files
_KEPT_AFTER_REMOVAL = 0.9  # of the bound, so that not every object that comes removes one


class CachedFile:
    """A complete object in the cache. While it is referred to it is not removed."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self._descriptor, self._num_bytes = descriptor, num_bytes

    def view(self, start: int, end: int | None) -> memoryview:
        """Bytes ``start`` to ``end`` (exclusive; ``None``: the rest)."""
        return view_of_file(self._descriptor, start, self._num_bytes if end is None else min(end, self._num_bytes))

    def __del__(self) -> None:
        os.close(self._descriptor)


class Filling:
    """An object on its way into the cache: pieces in any order, from several threads.

    It appears when all its bytes were written. If it is dropped before that, nothing is left behind.

    Args:
        cache: where it will appear.
        path: of the complete file.
        num_bytes: of the complete object.
    """

    def __init__(self, cache: DiskCache, path: str, num_bytes: int) -> None:
        self._cache, self._path, self._num_bytes = cache, path, num_bytes
        self._missing_bytes = num_bytes
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._descriptor, self._temporary = cache.temporary_file()

    def write(self, start: int, data: memoryview) -> None:
        """Bytes from ``start`` on. Each byte of the object is written once.

        Raises:
            OSError: if the disk is full, or the folder was taken away.
        """
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], start + done)
        with self._lock:
            self._missing_bytes -= len(data)
            complete = self._missing_bytes == 0 and len(data) > 0
        if complete:
            os.fsync(self._descriptor)
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            os.replace(self._temporary, self._path)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._cache.added(self._path, self._num_bytes)

    def __del__(self) -> None:
        if hasattr(self, "_temporary"):
            os.close(self._descriptor)
            if os.getpid() == self._pid:  # a forked child has a copy, but the file is its parent's
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._temporary)


class DiskCache:
    """A folder of objects.

    Args:
        folder: made if it is not there.
        max_bytes: bound on the sum of the objects' sizes. Objects larger than it are not kept.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        if fcntl is None:
            raise StorageError(f"{folder}: a cache needs file locks (flock), which Windows lacks: leave out cache_dir.")
        self._folder, self._max_bytes = os.path.abspath(os.path.expanduser(folder)), max_bytes
        self._temporaries = os.path.join(self._folder, "partial")
        os.makedirs(self._temporaries, exist_ok=True)
        self._complained = False
        for left in os.scandir(self._temporaries):  # by processes that were killed
            if left.name.startswith(_TEMPORARY_PREFIX):
                _remove_unless_locked(left.path)

    def _path(self, url: str, num_bytes: int, etag: str) -> str:
        name = hashlib.sha256(f"{url}\n{num_bytes}\n{etag}".encode(errors="surrogateescape")).hexdigest()
        return os.path.join(self._folder, name[:_FOLDER_DIGITS], name)

    def find(self, url: str, num_bytes: int, etag: str) -> CachedFile | None:
        """The object, if it is there."""
        path = self._path(url, num_bytes, etag)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            found = CachedFile(descriptor, num_bytes)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return None  # it is not there, is being removed, or is something else, such as a link
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != num_bytes:
            _log.warning("%s in the cache is not what was written there; the object is fetched again", path)
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        with contextlib.suppress(OSError):  # where it may only be read
            os.utime(descriptor)  # used now
        return found

    def complain(self, problem: str) -> None:
        """Warn of the first problem; a full disk would have one for each object."""
        if not self._complained:
            self._complained = True
            _log.warning("%s (further ones are not told)", problem)

    def fill(self, url: str, num_bytes: int, etag: str) -> Filling | None:
        """Begin to keep an object; ``None`` if it is too large, or empty."""
        if not 0 < num_bytes <= self._max_bytes:
            return None
        return Filling(self, self._path(url, num_bytes, etag), num_bytes)

    def temporary_file(self) -> tuple[int, str]:
        """Descriptor and path of a new file, locked for as long as the descriptor is open."""
        while True:
            descriptor, path = tempfile.mkstemp("", _TEMPORARY_PREFIX, self._temporaries)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.exists(path):
                return descriptor, path
            os.close(descriptor)  # another process took it for one that was left, before it was locked

    def added(self, path: str, num_bytes: int) -> None:
        """Count an object that has appeared; if they are too many bytes, remove what was not used for longest."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with os.fdopen(os.open(os.path.join(self._folder, "usage"), flags, 0o666), "r+b") as usage:
            fcntl.flock(usage, fcntl.LOCK_EX)
            before = usage.read(_MAX_DIGITS + 1)
            known = before.isdigit() and len(before) <= _MAX_DIGITS
            used = int(before) + num_bytes if known else self._max_bytes + 1
            if used > self._max_bytes:
                used = self._remove(max(num_bytes, round(self._max_bytes * _KEPT_AFTER_REMOVAL)), path)
            usage.seek(0)
            usage.truncate()
            usage.write(b"%d" % used)

    def _remove(self, allowed_bytes: int, newest: str) -> int:
        """Remove files until the others are at most so many bytes, ``newest`` last; returns how many these are."""
        files = []
        for folder in os.scandir(self._folder):
            if len(folder.name) == _FOLDER_DIGITS and folder.is_dir():
                for file in os.scandir(folder):
                    if _NAME.fullmatch(file.name) is None:
                        continue  # somebody else's
                    with contextlib.suppress(FileNotFoundError):
                        status = file.stat(follow_symlinks=False)
                        files.append((file.path == newest, status.st_mtime_ns, status.st_size, file.path))
        used = sum(size for _, _, size, _ in files)
        for is_newest, _, size, path in sorted(files):
            if used <= (self._max_bytes if is_newest else allowed_bytes):
                break
            if _remove_unless_locked(path):
                used -= size
        return used


def _remove_unless_locked(path: str) -> bool:
    """Remove a file that nobody reads or writes; returns whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # something else, such as a link
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:  # somebody reads it, or it may not be removed
        return False
    finally:
        os.close(descriptor)
    return True
