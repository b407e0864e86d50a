"""Resources shared by all iterators of a pipe in one process: threads, concurrency limit, memory budget, cache."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterator
from enum import Enum
from typing import Any

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import FetchOptions, StorageOptions
from ..core.threads.finalizer_lock import FinalizerLock
from ..core.threads.pool import Pool
from ..errors import StorageError
from ..storage import Connection, Store, broken_link, open_store
from .cache.disk_cache import DiskCache, open_cache

_CACHE_ADVICE = "Pass a folder of a local disk that this user can create and write to."
_SPECIAL = re.compile(r"::|[?@\0]")  # a path with these may be a mistake: open_store looks at the whole URL
_RECENT_SIZES = 4  # weight of a size in the expected one: a quarter


class _Event(Enum):
    OPENS_NO_MORE = 1
    LEAVES = 2
    NOT_KEPT = 3


def _open_cache(cache_dir: str, cache_bytes: int) -> DiskCache | None:
    where = f"cache_dir={cache_dir!r} cannot be used as a cache"
    if not os.fspath(cache_dir):
        raise StorageError(f"{where}: it is empty. {_CACHE_ADVICE}")
    try:
        return open_cache(cache_dir, cache_bytes)
    except StorageError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        raise StorageError(f"{where}: {_why(cache_dir, error)}. {_CACHE_ADVICE}") from error


def _why(cache_dir: str, error: OSError | ValueError) -> str:
    """Say why a folder cannot be used."""
    if isinstance(error, OSError):
        broken = [path for path in _with_parents(cache_dir) if os.path.lexists(path) and not os.path.exists(path)]
        if broken:
            return f"{broken[-1]} is {broken_link(broken[-1])}"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"it is a file, or below one ({error})"
    return str(error)


def _with_parents(path: str) -> Iterator[str]:
    """Yield a path and the folders above it, from below."""
    path = os.path.abspath(path)
    while path != os.path.dirname(path):
        yield path
        path = os.path.dirname(path)


def connection_of(options: FetchOptions) -> Connection:
    """Return how to connect to the stores of a session."""
    return Connection(options.backend, options.retry.progress_timeout_s)


class ActiveSession:
    """The running half of a session. Its threads stop with the last lane, unless the session is kept.

    A lane is one iterator with its open objects.

    Args:
        options: limits.
    """

    def __init__(self, options: FetchOptions) -> None:
        self.options = options
        self.connection = connection_of(options)
        self.cache = None
        if options.cache_dir is not None and options.cache_bytes is not None:
            self.cache = _open_cache(options.cache_dir, options.cache_bytes)
        self.pool = Pool(options.max_in_flight)
        self.in_flight = ConcurrencyLimit(options.max_in_flight, check=self.pool.check)
        self._lock = FinalizerLock(self._settle)
        self._num_lanes = 0  # lanes with open objects
        self._num_opening = 0  # lanes that may open more
        self._num_started = 0  # lanes of the current pass
        self.expected_bytes: int | None = None  # size of the next object, from those before; for unknown sizes
        self.kept = False  # whether threads outlive the last lane
        self._pid = os.getpid()
        self._latest_store: tuple[str, StorageOptions, Store] | None = None  # URL of the bucket, with a slash

    def open_store(self, url: str, options: StorageOptions) -> tuple[Store, str]:
        """Return the store of a URL, and the path in it, as ``storage.open_store`` does."""
        latest = self._latest_store
        if latest is not None and url.startswith(latest[0]) and options is latest[1]:
            path = str(url[len(latest[0]) :])
            if not _SPECIAL.search(path):
                return latest[2], path
        store, path = open_store(url, options, self.connection)
        root = str(url[: -len(path)]) if path and url.endswith(path) else ""
        if root.count("/") == 3 and root.endswith("/"):
            self._latest_store = root, options, store
        return store, path

    def join(self) -> bool:
        """Start a lane; ``False`` if the threads have stopped, or belong to the process this one was forked from."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            if self.pool.closed:
                return False
            if self._num_opening == 0:
                self._num_started = 0  # a new pass
            self._num_started += 1
            self._num_opening += 1
            self._num_lanes += 1
            return True

    @property
    def is_kept(self) -> bool:
        """Whether the threads of this process outlive the last lane."""
        return self.kept and not self.pool.closed and os.getpid() == self._pid

    def open_no_more(self) -> None:
        """Record that a lane opens no more objects. Safe in a finalizer."""
        self._lock.settle(_Event.OPENS_NO_MORE)

    def leave(self) -> None:
        """Record that a lane has no open objects. Safe in a finalizer."""
        self._lock.settle(_Event.LEAVES)

    def keep_no_longer(self) -> None:
        """Let the threads stop with the last lane. Safe in a finalizer."""
        self._lock.settle(_Event.NOT_KEPT)

    def _settle(self, event: _Event) -> None:  # with the lock held
        if event is _Event.OPENS_NO_MORE:
            self._num_opening -= 1
            return
        if event is _Event.LEAVES:
            self._num_lanes -= 1
        else:
            self.kept = False
        if self._num_lanes == 0 and not self.kept:
            self.pool.close()
            self._lock.end()

    def expect(self, num_bytes: int) -> None:
        """Record the size of an object whose size was unknown."""
        expected = num_bytes if self.expected_bytes is None else self.expected_bytes
        self.expected_bytes = expected + (num_bytes - expected) // _RECENT_SIZES

    def lane_bytes(self, num_expected: int) -> int:
        """Return a lane's share of the memory budget, among open lanes and those expected to start."""
        num_lanes = self._num_lanes + max(0, num_expected - self._num_started)
        return self.options.max_buffer_bytes // max(1, num_lanes)


class FetchSession:
    """Session of a pipe that fetches; picklable. Connections are opened by :meth:`start` in the calling process.

    Copies of a pipe share its session: each iteration is a lane.

    Args:
        options: limits of all lanes together.
        storage_options: for the stores.
        num_lanes: expected at the same time.
    """

    def __init__(self, options: FetchOptions, storage_options: StorageOptions, num_lanes: int = 1) -> None:
        self.options, self.storage_options, self.num_lanes = options, storage_options, num_lanes
        self._running: ActiveSession | None = None
        # Whether this package reads local files, and not fsspec; ``None`` before one was read
        self.reads_local_files: bool | None = None

    def start(self) -> ActiveSession:
        """Return the running session with one more lane."""
        running = self._running
        if running is None or not running.join():
            running = ActiveSession(self.options)
            running.join()
            self._running = running  # another thread may have replaced it: each has joined its own
        return running

    def keep(self) -> None:
        """Keep threads and connections between passes in this process, until this object is collected."""
        if self._running is not None and self._running.is_kept:
            return
        running = self.start()
        if not running.kept:
            running.kept = True
            weakref.finalize(self, running.keep_no_longer)
        running.open_no_more()
        running.leave()

    def for_lanes(self, num_lanes: int) -> FetchSession:
        """Return another session with the same limits."""
        return FetchSession(self.options, self.storage_options, num_lanes)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_running": None}
