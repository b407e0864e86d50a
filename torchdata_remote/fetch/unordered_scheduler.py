"""Schedule the downloads of parts, and hand out objects in the order in which they are complete."""

from __future__ import annotations

import queue
from collections.abc import Iterable

from ..core.stats.counters import FETCH
from ..core.threads.pool import next_item
from .download import Download
from .scheduler import PartScheduler
from .session import FetchSession


class UnorderedScheduler(PartScheduler):
    """As :class:`PartScheduler`, for ``in_order=False``.

    An object is ready when all of its parts are downloaded, or one has failed. If no object can be completed within the
    memory budget, the oldest one is handed out and streams.

    Args:
        session: limits, threads, and the memory budget, of which a lane has its share.
    """

    def __init__(self, session: FetchSession) -> None:
        self._unready: dict[Download, None] = {}  # in order
        self._num_unfinished: dict[Download, int] = {}  # parts that are queued or being downloaded
        self._ready: queue.SimpleQueue[Download] = queue.SimpleQueue()
        super().__init__(session)

    def _register(self, download: Download) -> None:  # with the lock held
        super()._register(download)
        self._unready[download] = None

    def next_object(self, opened: Iterable[Download]) -> Download:
        """Wait for the next object that is complete."""
        self._require_own_process("this pass")
        with self._lock:
            self._release_oldest_if_stuck()
        self.num_waits += self._ready.empty()
        with FETCH.waiting():
            return next_item(self._ready)

    def _leave(self, download: Download | None) -> None:  # with the lock held
        if download is not None:
            self._unready.pop(download, None)
        super()._leave(download)

    def _plan(self, download: Download) -> bool:  # with the lock held
        is_queued = super()._plan(download)
        if is_queued:
            self._num_unfinished[download] = self._num_unfinished.get(download, 0) + 1
        return is_queued

    def _part_ended(self, download: Download) -> None:
        with self._lock:
            # Not counted: a part that the pool refused after it was queued
            num_unfinished = self._num_unfinished.pop(download, 1) - 1
            if num_unfinished:
                self._num_unfinished[download] = num_unfinished
            if download in self._unready:
                failed = any(part.error is not None for part in download.parts)
                if failed or (download not in self._num_unfinished and download.completely_planned()):
                    self._mark_ready(download)
            self._release_oldest_if_stuck()

    def _release_oldest_if_stuck(self) -> None:  # with the lock held
        if self._unready and not self._num_unfinished and self._ready.empty():
            self._mark_ready(next(iter(self._unready)))

    def _mark_ready(self, download: Download) -> None:  # with the lock held
        del self._unready[download]
        self._ready.put(download)
