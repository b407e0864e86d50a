"""Cache whole objects on local disk, shared by all processes of a host.

Objects are stored in packs: files with one large object, or with many small ones. An index says where they are. Nothing
waits for the disk: the index contains a checksum of each block, so an object whose bytes were lost when the host
crashed is noticed when it is read, and fetched again. Files of other users are ignored.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import time
import weakref
from collections.abc import Callable
from functools import partial

from ...core.urls import redact
from ...errors import StorageError
from .catalog import RETRY_S, Catalog
from .entry import CachedFile
from .folder import SharedFolderError, format_folder, mark_used, network_file_system, private_folder, was_used
from .index import CacheIndex
from .index_file import DamagedIndexError, has_sqlite
from .later import Later, is_ending
from .leftovers import remove_leftovers
from .object_table import Entry, identify
from .pack import has_locks
from .room import Room
from .waiting import WaitingObjects
from .writer import CacheEntryWriter

_log = logging.getLogger("torchdata_remote")
_warned_folders: dict[str, str] = {}  # and the problem
_locked_until: dict[tuple[str, int], float] = {}  # caches whose index another process has locked for long
_MAX_FAILED = 4  # late calls without a pass
_RECORD_S = 1.0  # at most, until what was read is recorded
MAX_SMALL_BYTES = 256 << 10
_live: weakref.WeakValueDictionary[tuple[str, int], DiskCache] = weakref.WeakValueDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _live.clear())  # theirs belong to the parent


def open_cache(folder: str, max_bytes: int) -> DiskCache | None:
    """Open a cache: the same one for all passes of this process that use the folder at a time, or one after the other.

    A disk that became full or read-only, or a process that is stopped, does not end a training.

    Returns:
        ``None``, with one warning, if the folder was used before and cannot be used now.

    Raises:
        StorageError: if this platform has no cache.
        OSError: if the folder was never used, and cannot be; or if hosts may share it.
    """
    path = os.path.abspath(os.path.expanduser(folder))
    place = os.path.realpath(path), max_bytes
    if time.monotonic() < _locked_until.get(place, 0):
        return None
    try:
        cache = _live.get(place)
        if cache is None or not cache.refresh():
            cache = _live[place] = DiskCache(folder, max_bytes)
        return cache
    except SharedFolderError:
        raise
    except OSError as error:
        if not was_used(path):
            raise
        if error.errno == errno.EAGAIN:  # not each of many short passes waits for it
            _locked_until[place] = time.monotonic() + RETRY_S
        _warn_once(path, f"The cache cannot be used: {error}")
        return None


class DiskCache:
    """A folder of cached objects.

    Args:
        folder: created if missing. If it belongs to another user, a folder in it is used.
        max_bytes: bound on the sum of the objects' sizes. Larger objects are not cached.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        if not has_locks:
            raise StorageError(f"{folder}: a cache needs file locks (flock), which Windows lacks: leave out cache_dir.")
        if not has_sqlite:
            raise StorageError(
                f"{folder}: a cache needs the module sqlite3, which this Python lacks: leave out cache_dir."
            )
        folder, self._max_bytes = os.path.abspath(os.path.expanduser(folder)), max_bytes
        self._folder, self.user = private_folder(folder)
        kind = network_file_system(self._folder)
        if kind is not None:
            raise SharedFolderError(f"it is on a file system of type {kind}, which hosts may share")
        try:
            index = CacheIndex(format_folder(self._folder), self.user)
            self._catalog = Catalog(index, max_bytes)
        except DamagedIndexError:  # and removed
            index = CacheIndex(format_folder(self._folder), self.user)
            self._catalog = Catalog(index, max_bytes)
        self._room = Room(self._catalog, max_bytes, remove_leftovers(index.packs))
        self._waiting, self._publishing, self._recording = WaitingObjects(), Later(), Later()
        self._has_ended, self._num_failed = False, 0  # late calls, in a row
        mark_used(folder)

    def refresh(self) -> bool:
        """Look what other processes have stored; return ``False`` if the folder is not the same any more."""
        if self._catalog.may_exchange():
            try:
                self._catalog.exchange(lambda: None)
            except (FileNotFoundError, NotADirectoryError, DamagedIndexError):
                return False
            except OSError as error:
                self._warn_of_index(error)
        return True

    def find(self, url: str, num_bytes: int, etag: str) -> CachedFile | None:
        """Open a cached object; ``None`` if it is missing."""
        key, version = identify(url, num_bytes, etag)
        self._waiting.wait_for(key)
        entry = self._catalog.find(key, version, num_bytes)
        self._recording.call(self._flush, _RECORD_S, at_end=False)
        opened = None if entry is None else self._catalog.open(entry)
        return None if entry is None or opened is None else CachedFile(opened[0], entry, opened[1])

    def drop(self, found: CachedFile) -> None:
        """Drop a damaged object, unless another one has replaced it."""
        self._catalog.drop(found.entry)
        with contextlib.suppress(OSError):  # others will notice the damage, too
            self._catalog.publish(at_once=True)

    def publish(self) -> None:
        """Let other processes find at once what was stored. Otherwise they do a little later.

        Raises:
            OSError: if the index cannot be written.
        """
        self._catalog.publish(at_once=True)

    def settle(self) -> None:
        """Store what waits, and let others find it, as far as the disk allows."""
        self._waiting.settle()
        self._flush()

    def _publish_later(self) -> None:
        """Until then this cache lives, so that the next pass has it, and finds what is stored."""
        wait_s = self._catalog.publish_in_s()
        if wait_s is not None:
            self._publishing.call(self._flush, wait_s)

    def _flush(self) -> None:
        is_last = is_ending() and not self._has_ended
        self._has_ended = self._has_ended or is_last
        if self._catalog.may_exchange() or is_last:  # one try more, although another process may be stopped
            try:
                self._catalog.flush()
                self._num_failed = 0
            except (FileNotFoundError, NotADirectoryError):
                return  # the folder was removed after the last pass
            except OSError as error:
                self._num_failed += 1
                self._warn_of_index(error)
        if self._num_failed < _MAX_FAILED and not is_ending():  # later ones are made when something is read
            self._publish_later()

    def _warn_of_index(self, error: OSError) -> None:
        self.warn_once(f"The index of the cache cannot be written, which is tried again: {error}")

    def store_later(
        self, url: str, num_bytes: int, etag: str, data: memoryview, on_error: Callable[[OSError], None]
    ) -> None:
        """Store a small object in the next :meth:`store_waiting` of any thread.

        Args:
            url: of the object.
            num_bytes: of the object, at most ``MAX_SMALL_BYTES``.
            etag: of the object.
            data: all of it.
            on_error: called if it cannot be stored.
        """
        key, _ = identify(url, num_bytes, etag)
        self._waiting.add(key, partial(self._store, url, num_bytes, etag, data, on_error))

    def _store(
        self, url: str, num_bytes: int, etag: str, data: memoryview, on_error: Callable[[OSError], None]
    ) -> None:
        try:
            writer = self.fill(url, num_bytes, etag)
            if writer is not None:
                writer.write(0, data)
        except OSError as error:
            on_error(error)

    def store_waiting(self) -> None:
        """Store the objects that wait, unless another thread is about to."""
        self._waiting.store()

    def fill(self, url: str, num_bytes: int, etag: str) -> CacheEntryWriter | None:
        """Start to store an object; ``None`` if there is no room for it.

        Raises:
            OSError: if the disk has no space for it, or the folder cannot be used.
        """
        if num_bytes > self._max_bytes:
            self.warn_once(f"{redact(url)} has {num_bytes:,} bytes, more than cache_bytes={self._max_bytes:,}")
            return None
        place = self._room.take(num_bytes)
        if place is None:
            if not self._catalog.may_exchange():
                self.warn_once(f"{redact(url)} is not cached: {self._catalog.problem}")
            return None
        key, version = identify(url, num_bytes, etag)

        def complete(crc32s: list[int]) -> None:
            entry = Entry(key, version, place.offset, num_bytes, crc32s[0] if crc32s else 0, place.pack.number)
            self._catalog.add(entry, crc32s, alone=place.alone)
            try:
                self._catalog.publish(at_once=place.alone)
            except OSError as error:
                self._warn_of_index(error)
            self._publish_later()

        def end(is_complete: bool) -> None:
            if place.alone and not is_complete:
                self._catalog.abandon(place.pack.number)

        return CacheEntryWriter(place, num_bytes, complete, end)

    def warn_once(self, problem: str) -> None:
        """Warn of the first problem with this folder in this process; a full disk would cause one per object."""
        _warn_once(self._folder, problem)


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
