"""What the iterations of a pipe, and of its copies, share in one process: threads, requests, the byte bound."""

from __future__ import annotations

import os
import weakref
from enum import Enum
from typing import Any

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import FetchOptions, StorageOptions
from ..core.threads.finalizer_lock import FinalizerLock
from ..core.threads.pool import Pool
from ..errors import StorageError
from ..storage.registry import Connection
from .cache.disk_cache import DiskCache


class _Event(Enum):
    OPENS_NO_MORE = 1
    LEAVES = 2
    NOT_KEPT = 3


def _opened(cache_dir: str, cache_bytes: int) -> DiskCache:
    try:
        return DiskCache(cache_dir, cache_bytes)
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        raise StorageError(f"cache_dir={cache_dir!r} cannot be used as a cache: {error}") from error


class ActiveSession:
    """An engine at work: it is started by its first lane, and its threads end with its last one, unless it is kept.

    Args:
        options: limits.
    """

    def __init__(self, options: FetchOptions) -> None:
        self.options = options
        self.connection = Connection(options.backend, options.retry.progress_timeout_s)
        self.cache = None
        if options.cache_dir is not None and options.cache_bytes is not None:
            self.cache = _opened(options.cache_dir, options.cache_bytes)
        self.pool = Pool(options.max_in_flight)
        self.in_flight = ConcurrencyLimit(options.max_in_flight, check=self.pool.check)
        self._lock = FinalizerLock(self._settle)
        self._num_lanes = 0  # that have something open
        self._num_opening = 0  # that may open more
        self._num_begun = 0  # of the pass at hand
        self.kept = False  # for the next lane
        self._pid = os.getpid()

    def join(self) -> bool:
        """Begin one more lane; ``False`` if the threads have ended, or belong to the process this was forked from."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            if self.pool.closed:
                return False
            if self._num_opening == 0:
                self._num_begun = 0  # a new pass
            self._num_begun += 1
            self._num_opening += 1
            self._num_lanes += 1
            return True

    def open_no_more(self) -> None:
        """A lane opens nothing more. Safe in a finalizer."""
        self._lock.settle(_Event.OPENS_NO_MORE)

    def leave(self) -> None:
        """A lane has nothing open. Safe in a finalizer."""
        self._lock.settle(_Event.LEAVES)

    def keep_no_longer(self) -> None:
        """The threads end with the last lane. Safe in a finalizer."""
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

    def lane_bytes(self, num_expected: int) -> int:
        """A lane's share of the byte bound: among those that have something open, and those that will begin."""
        num_lanes = self._num_lanes + max(0, num_expected - self._num_begun)
        return self.options.max_buffer_bytes // max(1, num_lanes)


class FetchSession:
    """What a pipe that fetches holds. Nothing is opened before :meth:`start`, in the process that calls it.

    Copies of a pipe share its engine: each iteration is a lane.

    Args:
        options: limits, of all lanes together.
        storage_options: for the stores.
        num_lanes: that are expected at the same time.
    """

    def __init__(self, options: FetchOptions, storage_options: StorageOptions, num_lanes: int = 1) -> None:
        self.options, self.storage_options, self.num_lanes = options, storage_options, num_lanes
        self._running: ActiveSession | None = None

    def start(self) -> ActiveSession:
        """The engine at work, with one more lane."""
        running = self._running
        if running is None or not running.join():
            running = ActiveSession(self.options)
            running.join()
            self._running = running  # another thread may have put its own there: each has joined the one it gets
        return running

    def keep(self) -> None:
        """Let threads and connections stay between passes, in this process, until this is collected."""
        running = self.start()
        if not running.kept:
            running.kept = True
            weakref.finalize(self, running.keep_no_longer)
        running.open_no_more()
        running.leave()

    def for_lanes(self, num_lanes: int) -> FetchSession:
        """Another one, of the same limits."""
        return FetchSession(self.options, self.storage_options, num_lanes)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_running": None}
