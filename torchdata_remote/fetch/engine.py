"""Plan and start the downloads of one pass: many requests at once, bounded memory, bytes in the order they are read.

Fetching is driven by the consumer: each time bytes are consumed, and when a response reports a size that was not known,
as many parts as the memory budget allows are queued for the threads. URLs are only read in the consumer's thread.

Parts are planned in the order in which the reader consumes them. For streams that are read by turns it is simulated:
each part has a turn, and an object begins with the turn at which one of the streams before it has ended. So the budget
never waits for a part that is behind one that is waited for, and the next part is found without a look at all objects.
"""

from __future__ import annotations

import heapq
import os
import queue
from collections.abc import Iterable
from typing import TypeVar

from ..core.options import StorageOptions
from ..core.shard_view import split_view_url
from ..core.stats.counters import FETCH
from ..core.threads.finalizer_lock import FinalizerLock
from ..core.threads.pool import PoolClosedError, next_item
from ..core.urls import redact
from ..storage import Store
from .downloads import Download, ObjectDownload, Part
from .ranges import ObjectVersion
from .session import FetchSession
from .views import ViewDownload

DownloadT = TypeVar("DownloadT", bound=Download)

_OBJECTS_WAITING = 4
_EXPECTED_PARTS = 2  # of an object of unknown size, before the first size is known
_FRACTION_AHEAD = 4  # of the budget: what is expected of objects whose size was asked for, ahead of their turn


class Lane:
    """The downloads of one iteration of one pipe, in one process: a lane of its session.

    Args:
        session: limits, threads, and the memory budget, of which a lane has its share.
    """

    def __init__(self, session: FetchSession) -> None:
        self.session, self.options = session, session.options
        self._part_bytes = [
            self.options.actual_part_bytes(mapped=mapped, num_lanes=session.num_lanes) for mapped in (False, True)
        ]
        self.running = session.start()
        self._lock = FinalizerLock(self._leave)
        self._reserved_bytes = 0
        self._open: dict[Download, None] = {}  # in order; those that are not completely planned
        # Heaps: turn and number of the parts that can be planned next, and the turns at which streams will have ended
        self._queue: list[tuple[int, int, Download]] = []
        self._free_at = [0] * self.options.interleave
        self._reading: set[Download] = set()  # whose parts the consumer has waited for
        self._num_opened = 0
        self._asked: dict[Download, int] = {}  # for their size: bytes that are expected behind the first part
        self._expected_bytes = 0  # sum of these
        self.num_waits = 0  # of the consumer, for bytes that had not arrived
        self._users = 1  # the owner, and every open object
        self._pid = os.getpid()

    def open(self, url: str, start: int = 0, stop: int | None = None) -> Download:
        """Plan parts of an object or a view within the budget. Each call needs a ``close``."""
        self.require_own_process(url)
        _, view = split_view_url(url)
        return self.add(
            ObjectDownload(self, url, start, stop) if view is None else ViewDownload(self, view, start, stop)
        )

    def options_of(self, url: str) -> StorageOptions:
        """Return the options for the store of a URL."""
        return self.session.storage_options.for_url(url)

    def open_store(self, url: str) -> tuple[Store, str]:
        """Return the store of a URL, and the path in it."""
        return self.running.open_store(url, self.session.storage_options)

    def add(self, download: DownloadT) -> DownloadT:
        """Plan parts of a download within the budget. Each call needs a ``close``."""
        with self._lock:
            self._users += 1
            self._num_opened += 1
            download.number = self._num_opened
            self._open[download] = None
            self._register(download)
            self._begin(download)
            self._plan_ahead()
        return download

    def _register(self, download: Download) -> None:  # with the lock held
        """Called for each download, before parts of it are planned."""

    def _begin(self, download: Download) -> None:  # with the lock held
        """Queue a download at the turn at which the reader comes to it."""
        part_bytes = self._part_bytes[download.mapped]
        num_parts = download.unplanned_parts(part_bytes, self._rest(download))
        download.turn = self._free_at[0] + len(download.parts)
        heapq.heapreplace(self._free_at, download.turn + max(1, num_parts))
        self._enqueue(download)

    def _rest(self, download: Download) -> int:
        """The bytes for which no part is planned, as far as the size is known or expected."""
        expected_bytes = self.running.expected_bytes or _EXPECTED_PARTS * self._part_bytes[download.mapped]
        return download.unplanned_bytes(expected_bytes)

    def _enqueue(self, download: Download) -> None:  # with the lock held
        if not download.is_queued and download.can_plan:
            download.is_queued = True
            heapq.heappush(self._queue, (download.turn, download.number, download))

    def _reorder(self) -> None:  # with the lock held
        """Simulate the reader anew: an object is not as long as expected, or more streams are read by turns."""
        self._free_at = [0] * max(self.options.interleave, len(self._reading))
        self._queue.clear()
        self._asked = {download: self._rest(download) for download in self._asked}
        self._expected_bytes = sum(self._asked.values())
        for download in self._open:
            download.is_queued = False
            self._begin(download)

    def has_room(self) -> bool:
        """Whether more objects should be opened, to have something to plan when bytes are consumed."""
        return len(self._queue) < _OBJECTS_WAITING

    def next_object(self, opened: Iterable[Download]) -> Download:
        """Choose the object to hand out next among those that were opened and not handed out: the first one."""
        return next(iter(opened))

    def next_piece(self, download: Download, consumed_bytes: int) -> memoryview | None:
        """Release the bytes of the last piece, then wait for the next one; ``None`` at the object's end."""
        self.require_own_process(download.url)
        if download.error is not None:
            raise download.error
        while True:
            with self._lock:
                if consumed_bytes:
                    self._consume(download, consumed_bytes)
                    consumed_bytes = 0
                if not download.parts and download.can_plan:
                    self._reading.add(download)
                    if len(self._reading) > len(self._free_at):
                        self._reorder()
                    self._plan(download)  # even beyond the budget: the consumer waits for this part
                if not download.parts:
                    return None
                part = download.parts[0]
            piece = self._wait(part.pieces)
            if piece is not None:
                return piece
            with self._lock:  # an empty part, or one that failed
                self._consume(download, part.reserved_bytes)
            if part.error is not None:
                download.error = part.error
                raise part.error

    def _wait(self, pieces: queue.SimpleQueue[memoryview | None]) -> memoryview | None:
        if pieces.empty():
            self.num_waits += 1
            with FETCH.waiting():
                return next_item(pieces)
        return pieces.get()

    def require_own_process(self, what: str) -> None:
        """Raise in a child that was forked."""
        if os.getpid() != self._pid:
            raise RuntimeError(f"{redact(what)} was opened in another process, this one's parent. Open it here.")

    def _consume(self, download: Download, num_bytes: int) -> None:  # with the lock held
        part = download.parts[0]
        self._release_bytes(part, num_bytes)
        if part.reserved_bytes == 0:
            del download.parts[0]
            self._enqueue(download)
        self._plan_ahead()

    def close(self, download: Download) -> None:
        """Drop the planned parts; requests that have not started are not sent. Safe in a finalizer."""
        download.close()
        self._lock.settle(download)

    def enter(self) -> None:
        """Count a stream that this lane does not download."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Count a stream that was closed. Safe in a finalizer."""
        self._lock.settle(None)

    def release(self) -> None:
        """Open no more objects; the threads stop with the last open one. Safe in a finalizer."""
        self.running.open_no_more()
        self._lock.settle(None)

    def _leave(self, download: Download | None) -> None:  # with the lock held
        self._users -= 1
        if download is not None:
            for part in download.parts:
                self._release_bytes(part, part.reserved_bytes)
            download.parts.clear()
            self._open.pop(download, None)
            self._reading.discard(download)
            self._expected_bytes -= self._asked.pop(download, 0)
        if self._users == 0:
            self.running.leave()
            self._lock.end()
        else:
            self._plan_ahead()

    def _release_bytes(self, part: Part, num_bytes: int) -> None:  # with the lock held
        self._reserved_bytes -= num_bytes
        part.reserved_bytes -= num_bytes

    def _plan_ahead(self) -> None:  # with the lock held
        """Plan parts in turn, as long as there is room."""
        waiting, max_bytes = self._queue, self.running.lane_bytes(self.session.num_lanes)
        share_bytes = self.options.share_bytes(max_bytes)
        while waiting and not self.running.pool.closed:
            turn, number, download = waiting[0]
            part_bytes = self._part_bytes[download.mapped]
            if not download.can_plan or len(download.parts) * part_bytes >= share_bytes:
                heapq.heappop(waiting)  # it comes back when it can be planned, and one of its parts was consumed
                download.is_queued = False
            elif turn < download.turn:  # the consumer has waited for a part
                heapq.heapreplace(waiting, (download.turn, number, download))
            elif self._must_wait(download, part_bytes, max_bytes):
                return
            else:
                heapq.heappop(waiting)
                download.is_queued = False
                self._plan(download)

    def _must_wait(self, download: Download, part_bytes: int, max_bytes: int) -> bool:  # with the lock held
        """Whether the next part has to wait until others are consumed."""
        needed_bytes = self._reserved_bytes + download.next_part_bytes(part_bytes)
        if download.size is not None and self._asked and next(iter(self._asked)).number < download.number:
            if self.running.expected_bytes is None and self.options.in_order:
                return True  # an object that is read before may need all of the budget
            needed_bytes += self._expected_bytes
        if self._reserved_bytes and needed_bytes > max_bytes:
            return True
        if download.size is not None or len(self._asked) < self.options.interleave:
            return False
        # First parts of large objects that are read later would hold the budget
        return self._expected_bytes > max_bytes // _FRACTION_AHEAD

    def _plan(self, download: Download) -> bool:  # with the lock held
        """Add the next part and queue its request; returns ``False`` if the pool is closed."""
        part = download.plan(self._part_bytes[download.mapped])
        self._reserved_bytes += part.reserved_bytes
        download.turn += 1
        if download.size is None:
            self._asked[download] = self._rest(download)
            self._expected_bytes += self._asked[download]
        elif download.is_planned:
            self._open.pop(download, None)
        else:
            self._enqueue(download)
        try:
            download.submit(part, self)
        except PoolClosedError as error:
            part.error = error
            part.pieces.put(None)
            return False
        return True

    def part_ended(self, download: Download) -> None:
        """Called in the thread that downloaded a part, before the consumer sees its end."""

    def learn(self, download: Download, part: Part, version: ObjectVersion) -> None:
        """Record what the first response to a part says, and plan with it.

        Raises:
            ObjectChangedError: if another part, or the listing, says something else.
        """
        with self._lock:
            if download.size is None:
                self.running.expect(version.size)
            download.learn(version)
            if not download.closed:
                self._release_bytes(part, part.reserved_bytes - (version.end - part.start))
                self._note_size(download)
            self._plan_ahead()

    def _note_size(self, download: Download) -> None:  # with the lock held
        expected_bytes, part_bytes = self._asked.pop(download, 0), self._part_bytes[download.mapped]
        self._expected_bytes -= expected_bytes
        if download.is_planned:
            self._open.pop(download, None)
        if download.unplanned_parts(part_bytes, download.unplanned_bytes(0)) != -(-expected_bytes // part_bytes):
            self._reorder()
        else:
            self._enqueue(download)


class UnorderedLane(Lane):
    """As :class:`Lane`, for ``in_order=False``: objects are handed out in the order in which they are complete.

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
        self._unready[download] = None

    def next_object(self, opened: Iterable[Download]) -> Download:
        """Wait for the next object that is complete."""
        self.require_own_process("this pass")
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

    def part_ended(self, download: Download) -> None:
        with self._lock:
            # Not counted: a part that the pool refused after it was queued
            num_unfinished = self._num_unfinished.pop(download, 1) - 1
            if num_unfinished:
                self._num_unfinished[download] = num_unfinished
            if download in self._unready:
                failed = any(part.error is not None for part in download.parts)
                if failed or (download not in self._num_unfinished and download.is_planned):
                    self._mark_ready(download)
            self._release_oldest_if_stuck()

    def _release_oldest_if_stuck(self) -> None:  # with the lock held
        if self._unready and not self._num_unfinished and self._ready.empty():
            self._mark_ready(next(iter(self._unready)))

    def _mark_ready(self, download: Download) -> None:  # with the lock held
        del self._unready[download]
        self._ready.put(download)
