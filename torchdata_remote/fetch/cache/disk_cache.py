"""Cache objects on local disk, a file for each, in a folder that all processes of a host share.

Nothing waits for the disk: a file has checksums, so an object whose bytes were lost when the host crashed is noticed
when it is read, and fetched again.

An object is kept if there is room, and what is there stays: an epoch reads every object once, so that the one that was
just read is the last one to be needed again. Room is made by removing what was not read in two epochs, and objects of
which a new version was seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import cache, partial
from multiprocessing.util import Finalize
from typing import Any

from ...core.urls import redact
from .files import CachedFile, CachedFileWriter, DamagedError, file_bytes

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("torchdata_remote")
_FORMAT, _STATE = "v4", "state"  # folder and file
_BLOCK_BYTES = 4_096  # of most file systems
_STATE_BYTES = 2 * _BLOCK_BYTES  # also while it is replaced
_CHUNKS, _MAX_CHUNK_BYTES = 256, 16 << 20  # of the bound, which a process reserves at once
_WAIT_S, _POLL_S = 0.5, 0.001  # for the lock
_PAUSE = 10  # times the length of a look for room that found none, until the next one
_READS_APART_S = 60.0  # of one object by two epochs; less by the ranks of a host that all read it


def open_cache(folder: str, max_bytes: int) -> DiskCache:
    """Return the cache in a folder, the same one for all passes of this process.

    Raises:
        OSError: if the folder cannot be a cache.
        ValueError: if it has a NUL character.
    """
    return _opened(os.path.realpath(os.path.expanduser(folder)), max_bytes, os.getpid())


@cache
def _opened(folder: str, max_bytes: int, pid: int) -> DiskCache:  # a child of a fork reserves room for itself
    return DiskCache(folder, max_bytes)


class DiskCache:
    """A folder of cached objects. Thread-safe.

    Args:
        folder: created if missing.
        max_bytes: bound on what all files take, in blocks of the disk. Larger objects are not cached.

    Raises:
        OSError: if the folder cannot be used.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        if fcntl is None:
            raise OSError("a cache needs file locks (flock), which Windows lacks: leave out cache_dir")
        self._folder, self._cache_bytes, self._max_bytes = f"{folder}/{_FORMAT}", max_bytes, max_bytes - _STATE_BYTES
        self._make_folder()
        self._lock = threading.RLock()
        self._chunk_bytes = min(max_bytes // _CHUNKS, _MAX_CHUNK_BYTES)
        self._free_bytes = 0  # that are reserved, and not used
        self._given_back = deque[int]()
        self._look_again_s, self._watched = 0.0, frozenset[str]()
        self._has_warned = False
        Finalize(None, self._close, exitpriority=0)  # also where a worker ends, which skips atexit

    def _make_folder(self) -> None:
        """Create the folder, which only this user may enter, if it is missing."""
        for path in (os.path.dirname(self._folder), self._folder):
            os.makedirs(path, 0o700, exist_ok=True)
        status = os.lstat(self._folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(f"{self._folder} is no folder that only user {os.geteuid()} may enter: remove it")

    # Objects

    def _path(self, name: str) -> str:
        return f"{self._folder}/{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"

    def find(self, name: str, num_bytes: int | None = None, version: str | None = None) -> CachedFile | None:
        """Open a cached object; ``None`` if it is missing. One that is damaged, or not as expected, is removed.

        Args:
            name: of the object, which has one version at a time.
            num_bytes: of the object, if it is known.
            version: of the object, if it is known. If not, the caller compares it.
        """
        path = self._path(name)
        try:
            found = CachedFile(path)
            if num_bytes in (None, found.size) and version in (None, found.version):
                return found
        except OSError:
            return None
        except DamagedError:
            pass
        self.drop(path)
        return None

    def drop(self, path: str) -> None:
        """Remove a damaged or outdated object, or the one that has replaced it."""
        with contextlib.suppress(OSError):
            length = os.lstat(path).st_size
            os.unlink(path)
            self._given_back.append(_room_of(length))

    def fill(self, name: str, num_bytes: int, version: str) -> CachedFileWriter | None:
        """Start to store an object that was not found; ``None`` if there is no room for it, or another process does.

        Raises:
            OSError: if the disk has no space for it, or the folder cannot be used.
        """
        taken = _room_of(file_bytes(num_bytes, version))
        if not self._take(name, taken):
            return None
        give_back = partial(self._given_back.append, taken)
        create = partial(CachedFileWriter, self._path(name), num_bytes, version, give_back)
        try:
            with contextlib.suppress(FileNotFoundError):
                return create()
            self._make_folder()  # it was removed
            return create()
        except OSError as error:
            give_back()
            if not isinstance(error, FileExistsError):
                raise
            return None

    def has_room(self, name: str, num_bytes: int) -> bool:
        """Whether an object could be stored now. If the folder cannot be used, that is a warning.

        Args:
            name: of the object; empty if an epoch asks for it more than once.
            num_bytes: of the object.
        """
        taken = _room_of(num_bytes + _BLOCK_BYTES)
        try:
            if not self._take(name, taken):
                return False
        except OSError as error:
            self.warn_once(name, str(error))
            return False
        self._given_back.append(taken)
        return True

    def warn_once(self, name: str, problem: str) -> None:
        """Warn of the first problem with this folder in this process; a full disk would cause one per object."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s is not cached: %s. Objects that do not fit into the cache %s are read without it, and fetched "
                "again in each epoch. This warning is shown once",
                redact(name.rpartition("\n")[2]),
                problem,
                self._folder,
            )

    # Room

    def _take(self, name: str, taken: int) -> bool:
        """Take room for an object; returns whether there is any.

        Raises:
            OSError: if the disk has no space for the state, or the folder cannot be used.
        """
        if taken > self._max_bytes:
            self.warn_once(name, f"it has {taken:,} bytes, more than cache_bytes={self._cache_bytes:,} can hold")
            return False
        with self._lock:
            while self._given_back:
                self._free_bytes += self._given_back.popleft()
            if self._free_bytes < taken:
                self._look_for_room(self._path(name)[-32:] if name else "", taken)
            if self._free_bytes < taken:
                return False
            self._free_bytes -= taken
            return True

    def _look_for_room(self, key: str, taken: int) -> None:
        """Reserve room for this process: for many objects at once, since each look at the state takes a lock."""
        began_s, missing = time.monotonic(), taken - self._free_bytes
        if began_s < self._look_again_s and key not in self._watched:
            return
        try:
            self._make_folder()
            with self._locked() as state:
                before_s = None
                if state["used"] > self._max_bytes:  # the bound was larger
                    before_s = 0.0
                elif state["used"] + missing > self._max_bytes:
                    before_s = _unread_before(state["refused"], key)
                if before_s is not None:
                    state["used"] = self._sweep(before_s)
                self._watched = frozenset(state["refused"])
                wanted = min(max(missing, self._chunk_bytes), self._max_bytes - state["used"])
                wanted *= wanted >= missing
                state["used"] += wanted
            self._free_bytes += wanted
        except BlockingIOError:  # another process, which may be stopped, holds the lock
            pass
        finally:
            now_s = time.monotonic()
            self._look_again_s = 0.0 if self._free_bytes >= taken else now_s + _PAUSE * (now_s - began_s)

    def _sweep(self, before_s: float) -> int:
        """Remove what was not read since then, and what exceeds the bound; return the bytes that are used."""
        used = self._free_bytes
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    room = 0 if entry.name.startswith(_STATE) else _room_of(status.st_size)
                    if room and (status.st_mtime < before_s or used + room > self._max_bytes):
                        os.unlink(entry.path)
                    else:
                        used += room
        return used

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """Lock the folder for other processes, and store what the block changes. Without a state, count the files.

        It has the bytes that are used or reserved, and the objects that were refused for want of room: the first time,
        the last one (seconds since 1970), and how often that was.

        Raises:
            OSError: if another process holds the lock, or the disk takes no more.
        """
        path, until = f"{self._folder}/{_STATE}", time.monotonic() + _WAIT_S
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(_POLL_S)
            try:
                before = bytes(CachedFile(path).read(0, None))
                state = json.loads(before)
            except (OSError, DamagedError):
                before, state = b"", {"used": self._sweep(0.0), "refused": {}}
            yield state
            after = json.dumps(state).encode()
            if after != before:
                with contextlib.suppress(FileNotFoundError):  # of a process that was killed
                    os.unlink(f"{path}-new")
                CachedFileWriter(f"{path}-new", len(after), "", lambda: None).write(0, memoryview(after))
                os.replace(f"{path}-new", path)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor too
            os.close(descriptor)

    def _close(self) -> None:
        """Let other processes have what was not used."""
        with contextlib.suppress(OSError), self._lock, self._locked() as state:
            state["used"] -= self._free_bytes + sum(self._given_back)
            self._free_bytes = 0
            self._given_back.clear()


def _room_of(length: int) -> int:
    """Return what a file of this length takes of the disk."""
    return -(-length // _BLOCK_BYTES) * _BLOCK_BYTES


def _unread_before(refused: dict[str, tuple[float, float, int]], key: str) -> float | None:
    """Note that an object found no room. The third time, return when that was for the first time.

    An epoch reads each object once, so a whole epoch of all datasets that are read in turn is between the first time
    and the third: what was not read since is not read any more. Objects are noted in times that double, so that few
    are, and one that is read no more does not keep others out.
    """
    now_s = time.time()
    first_s, last_s, count = refused.get(key, (now_s, 0.0, 0))
    noted_s = [noted_s for noted_s, _, _ in refused.values()]
    is_due = not noted_s or now_s - noted_s[0] >= 2 * (noted_s[-1] - noted_s[0])
    if not key or not (now_s - last_s >= _READS_APART_S if count else is_due):
        return None
    refused[key] = first_s, now_s, count + 1
    if count < 2:
        return None
    refused.clear()
    return first_s
