"""Cache whole objects on local disk, a file for each, in a folder that all processes of a host share.

Nothing waits for the disk: a file has a checksum of each block, so an object whose bytes were lost when the host
crashed is noticed when it is read, and fetched again. Files of other users are ignored.

An object is kept if there is room, and what is there stays: an epoch reads every object once, so that the one that was
just read is the last one to be needed again. Room is made by removing what was not read in two epochs, and objects of
which a new version was seen.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import logging
import os
import re
import shutil
import time
import uuid
import weakref
import zlib
from collections.abc import Iterator
from functools import partial
from multiprocessing.util import Finalize

from ...core.urls import redact
from ...errors import StorageError
from .files import (
    CachedFile,
    CachedFileWriter,
    DamagedError,
    file_bytes,
    trailer,
    write_small,
)
from .folder import (
    STATE,
    SharedFolderError,
    format_folder,
    is_own_file,
    make_own_folder,
    mark_used,
    network_file_system,
    open_own_file,
    was_used,
)
from .shared_state import EXCLUSIVE, SHARED, STATE_BYTES, Room, SharedState, Totals, has_locks, lock

_log = logging.getLogger("torchdata_remote")
_warned_folders: dict[str, str] = {}  # and the problem
_BLOCK_BYTES = 4_096  # of most file systems
_MAX_CLEANING_S = 0.05  # in one go
_COUNT_AGAIN_S = 86_400.0  # what is not told of, such as files that somebody has removed
_JOIN_S = 10.0  # while another process counts
_WRITING, _USERS = "writing", "users"
_NAME = re.compile("[0-9a-f]{30}")
_live: weakref.WeakValueDictionary[tuple[str, int], DiskCache] = weakref.WeakValueDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _live.clear())  # theirs belong to the parent


def open_cache(folder: str, max_bytes: int) -> DiskCache | None:
    """Open a cache, the same one for all passes of this process that use the folder at a time.

    A disk that became full or read-only does not end a training.

    Returns:
        ``None``, with one warning, if the folder was used before and cannot be used now.

    Raises:
        StorageError: if this platform has no cache.
        OSError: if the folder was never used, and cannot be; or if hosts may share it.
    """
    path = os.path.abspath(os.path.expanduser(folder))
    place = os.path.realpath(path), max_bytes
    try:
        cache = _live.get(place)
        if cache is None or not cache.is_there():
            cache = _live[place] = DiskCache(folder, max_bytes)
        return cache
    except SharedFolderError:
        raise
    except OSError as error:
        if not was_used(path):
            raise
        _warn_once(path, f"The cache cannot be used: {error}")
        return None


class DiskCache:
    """A folder of cached objects.

    Args:
        folder: created if missing.
        max_bytes: bound on what all files take, in blocks of the disk. Larger objects are not cached.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        if not has_locks:
            raise StorageError(f"{folder}: a cache needs file locks (flock), which Windows lacks: leave out cache_dir.")
        folder, self._max_bytes = os.path.abspath(os.path.expanduser(folder)), max_bytes
        self._user = os.geteuid()
        os.makedirs(folder, 0o700, exist_ok=True)
        kind = network_file_system(folder)
        if kind is not None:
            raise SharedFolderError(f"it is on a file system of type {kind}, which hosts may share")
        self._folder = format_folder(folder)
        make_own_folder(self._folder, self._user)
        make_own_folder(os.path.join(self._folder, _WRITING), self._user)
        self._state = SharedState(os.path.join(self._folder, STATE), self._user)
        self._room = Room(self._state, max_bytes - STATE_BYTES)
        self._token, self._numbers = uuid.uuid4().hex, itertools.count()  # of files that are written
        self._files: Iterator[tuple[str, os.stat_result]] | None = None  # which are looked at, to make room
        self._unread_before_s = 0.0  # those are removed
        with contextlib.suppress(OSError):  # a folder that is read-only now
            users = open_own_file(os.path.join(self._folder, _USERS), self._user)
            self._users = open(users, "rb", buffering=0)  # noqa: SIM115  # closed with this object, which ends the lock
            self._join(users)
        Finalize(self, self._room.close, exitpriority=0)  # also where a worker ends, which skips atexit
        mark_used(folder)

    def _join(self, users: int) -> None:
        """Become one of the users of the folder. The first one counts the objects if a process was killed."""
        with contextlib.suppress(BlockingIOError):
            lock(users, EXCLUSIVE, 0)
            with self._state.locked() as totals:
                if totals.reserved_bytes or not 0 <= time.time() - totals.counted_s < _COUNT_AGAIN_S:
                    self._count(totals)
        lock(users, SHARED, _JOIN_S)

    def _count(self, totals: Totals) -> None:
        with os.scandir(os.path.join(self._folder, _WRITING)) as entries:
            for entry in entries:
                os.unlink(entry.path)
        totals.used_bytes = sum(_room_of(status.st_size) for _, status in self._objects())
        totals.reserved_bytes, totals.counted_s = 0, time.time()

    def _objects(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the files of all objects."""
        for number in range(256):
            with contextlib.suppress(OSError), os.scandir(os.path.join(self._folder, f"{number:02x}")) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name) and self._is_ours(status):
                        yield entry.path, status

    def _is_ours(self, status: os.stat_result) -> bool:
        return is_own_file(status, self._user) and status.st_nlink == 1

    def is_there(self) -> bool:
        """Whether the folder is still the same one."""
        return self._state.is_at(os.path.join(self._folder, STATE))

    def _path(self, name: str) -> tuple[str, int]:
        """Return the path of an object's file, and its key in the sample of reads."""
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        return f"{self._folder}/{digest[:2]}/{digest[2:32]}", int(digest[2:10], 16)

    def find(
        self, name: str, num_bytes: int | None = None, version: str | None = None, *, counts: bool = True
    ) -> CachedFile | None:
        """Open a cached object; ``None`` if it is missing. One that is damaged, or not as expected, is removed.

        Args:
            name: of the object, which has one version at a time.
            num_bytes: of the object, if it is known.
            version: of the object, if it is known. If not, the caller compares it.
            counts: whether this is the one time that an epoch reads the object.
        """
        path, key = self._path(name)
        if counts:
            self._state.record(key)
        try:
            found = CachedFile(path, self._user)
            if num_bytes in (None, found.size) and version in (None, found.version):
                return found
        except DamagedError:
            pass
        except OSError as error:
            if error.errno != errno.ELOOP:  # missing mostly
                return None
        self._remove(path)
        return None

    def drop(self, found: CachedFile) -> None:
        """Drop a damaged or outdated object, or the one that has replaced it."""
        self._remove(found.path)

    def _remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            os.unlink(path)
            if self._is_ours(status):
                self._room.give_back(_room_of(status.st_size))

    def put(self, name: str, version: str, data: bytes | memoryview) -> None:
        """Store a whole small object that was not found, if there is room.

        Raises:
            OSError: if the disk has no space for it, or the folder cannot be used.
        """
        end = trailer(len(data), version, (zlib.crc32(data),) if data else ())
        if self._take(name, len(data), taken := _room_of(len(data) + len(end))):
            try:
                self._write_small(self._path(name)[0], data, end)
            except OSError as error:  # another process has stored it, or does right now
                self._room.give_back(taken)
                if not isinstance(error, FileExistsError):
                    raise

    def _write_small(self, path: str, data: bytes | memoryview, end: bytes) -> None:
        try:
            write_small(path, data, end)
        except FileNotFoundError:
            make_own_folder(os.path.dirname(path), self._user)
            write_small(path, data, end)

    def fill(self, name: str, num_bytes: int, version: str) -> CachedFileWriter | None:
        """Start to store an object that was not found; ``None`` if there is no room for it.

        Raises:
            OSError: if the disk has no space for it, or the folder cannot be used.
        """
        taken = _room_of(file_bytes(num_bytes, version))
        if not self._take(name, num_bytes, taken):
            return None
        temporary = os.path.join(self._folder, _WRITING, f"{self._token}-{next(self._numbers)}")
        publish, give_back = partial(self._publish, self._path(name)[0]), partial(self._room.give_back, taken)
        return CachedFileWriter(temporary, num_bytes, version, publish, give_back)

    def has_room(self, name: str, num_bytes: int, version: str) -> bool:
        """Whether an object could be stored now. If the folder cannot be used, that is a warning."""
        taken = _room_of(file_bytes(num_bytes, version))
        try:
            found = self._take(name, num_bytes, taken)
        except OSError as error:
            found = False
            self.warn_once(f"{shown(name)} is not cached: {error}")
        if found:
            self._room.give_back(taken)
        return found

    def _take(self, name: str, num_bytes: int, taken: int) -> bool:
        """Take room for an object; returns whether there is any."""
        if taken > self._room.max_bytes:
            self.warn_once(f"{shown(name)} has {num_bytes:,} bytes, more than cache_bytes={self._max_bytes:,} can hold")
            return False
        return self._room.take(taken, self._make_room)

    def _publish(self, path: str, temporary: str) -> None:
        """Give a complete file its name; it replaces what is there."""
        make_own_folder(os.path.dirname(path), self._user)
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if self._is_ours(status):
                self._room.give_back(_room_of(status.st_size))
        os.replace(temporary, path)

    def _make_room(self, totals: Totals, wanted: int) -> None:
        """Remove what is not read any more, and if the bound was larger before, anything."""
        begin_s, max_bytes = time.monotonic(), self._room.max_bytes
        if self._files is None:
            before_s, is_smaller = (
                self._state.unread_before(totals),
                totals.used_bytes - totals.reserved_bytes > max_bytes,
            )
            if before_s is None and not is_smaller:
                return
            self._unread_before_s, self._files = before_s or 0.0, self._objects()
        for path, status in self._files:
            if status.st_mtime < self._unread_before_s or totals.used_bytes > max_bytes:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    totals.used_bytes -= _room_of(status.st_size)
            if totals.used_bytes + wanted <= max_bytes or time.monotonic() - begin_s > _MAX_CLEANING_S:
                return
        self._files = None

    def warn_once(self, problem: str) -> None:
        """Warn of the first problem with this folder in this process; a full disk would cause one per object."""
        _warn_once(self._folder, problem)


def shown(name: str) -> str:
    """Return the URL in the name of an object, for messages."""
    return redact(name.rpartition("\n")[2])


def _room_of(length: int) -> int:
    """Return what a file of this length takes of the disk."""
    return -(-length // _BLOCK_BYTES) * _BLOCK_BYTES


def _warn_once(folder: str, problem: str) -> None:
    if _warned_folders.setdefault(folder, problem) is problem:  # one thread only
        try:
            room = f"{shutil.disk_usage(folder).free:,} bytes are free there"
        except OSError as error:
            room = str(error)
        _log.warning(
            "%s. Objects that do not fit into the cache %s (%s) are read without it, and fetched again in each "
            "epoch. This warning is shown once",
            problem,
            folder,
            room,
        )
