"""Resources shared by all iterators of a pipe in one process: threads, concurrency limit, memory budget, cache."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from ..core.options import FetchOptions, StorageOptions
from ..core.retry import ConcurrencyLimit
from ..core.threads import FinalizerLock, Pool
from ..errors import StorageError
from ..storage import Connection
from .cache.disk_cache import DiskCache, open_cache

FIRST_BYTES, _LEAST_FIRST_BYTES = 1 << 20, 64 << 10


def call(function: Callable[[], None]) -> None:
    """Settle what a finalizer left with a lock."""
    function()


def _open_cache(options: FetchOptions) -> DiskCache | None:
    cache_dir, cache_bytes = options.cache_dir, options.cache_bytes
    if cache_dir is None or cache_bytes is None:
        return None
    try:
        if not cache_dir:
            raise FileNotFoundError("it is empty")
        return open_cache(cache_dir, cache_bytes)
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        raise StorageError(
            f"cache_dir={cache_dir!r} cannot be used as a cache: {error}. Pass a folder of a local disk that this user "
            "can create and write to."
        ) from error


class ActiveSession:
    """The running half of a session. Its threads stop with the last lane.

    A lane is one iterator with its open objects.

    Attributes:
        whole_bytes: size of the largest object of unknown size that came whole by its first request; 0 after one that
            did not.
        first_bytes: that are asked for first of an object of unknown size, and reserved in the memory budget.

    Args:
        options: limits.
    """

    def __init__(self, options: FetchOptions) -> None:
        self._max_bytes = options.max_buffer_bytes
        self.connection = Connection(options.backend, options.retry.progress_timeout_s)
        self.cache = _open_cache(options)
        self.pool = Pool(options.max_in_flight)
        self.in_flight = ConcurrencyLimit(options.max_in_flight, check=self.pool.check)
        self._lock: FinalizerLock[Callable[[], None]] = FinalizerLock(call)
        self._num_lanes = 0  # lanes with open objects
        self.whole_bytes, self.first_bytes = 0, FIRST_BYTES
        self.num_kept = 0  # of the lanes, those that only keep the threads
        self._pid = os.getpid()

    @property
    def is_running(self) -> bool:
        """Whether the threads are those of this process, and were not stopped."""
        return not self.pool.closed and os.getpid() == self._pid

    def join(self) -> bool:
        """Start a lane; ``False`` if the threads have stopped, or belong to the process this one was forked from."""
        if not self.is_running:
            return False
        with self._lock:
            self._num_lanes += 1
            return not self.pool.closed

    def leave(self) -> None:
        """Record that a lane has no open objects. Safe in a finalizer."""
        self._lock.settle(self._leave)

    def _leave(self) -> None:  # with the lock held
        self._num_lanes -= 1
        if self._num_lanes == 0:
            self.pool.close()

    def learn(self, size: int, end: int) -> None:
        """Record where the first response of an object of unknown size ended."""
        self.whole_bytes = max(self.whole_bytes, size) if end == size else 0
        self.first_bytes = min(FIRST_BYTES, max(_LEAST_FIRST_BYTES, 2 * self.whole_bytes or FIRST_BYTES))

    def lane_bytes(self, num_expected: int) -> int:
        """Return a lane's share of the memory budget, among open lanes and those expected at the same time."""
        return self._max_bytes // max(1, num_expected, self._num_lanes - self.num_kept)


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
        self._kept: ActiveSession | None = None

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
        if self._kept is None or not self._kept.is_running:
            self._kept = self.start()
            self._kept.num_kept += 1
            weakref.finalize(self, self._kept.leave)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_running": None, "_kept": None}
