"""Schedule the downloads of parts: many requests at once, bounded memory, objects in order.

Fetching is driven by the consumer: each time bytes are consumed, and when a response reports a size that was not known,
as many parts as the memory budget allows are queued for the threads. URLs are only read in the consumer's thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial

from ..core.stats.counters import FETCH
from ..core.threads.finalizer_lock import FinalizerLock
from ..core.threads.pool import PoolClosedError, next_item
from ..core.urls import redact
from .download import Download, Part
from .lookahead import Lookahead
from .object_download import ObjectDownload
from .open_download import opened
from .range_download import ObjectVersion
from .range_reader import read_range
from .session import FetchSession

_OBJECTS_WAITING = 4


class PartScheduler:
    """Downloads objects for one iteration of one pipe, in one process: a lane of its session.

    Args:
        session: limits, threads, and the memory budget, of which a lane has its share.
    """

    def __init__(self, session: FetchSession) -> None:
        self.options, self._storage_options = session.options, session.storage_options
        part_bytes, num_lanes = self.options.actual_part_bytes, session.num_lanes
        self._part_bytes = {mapped: part_bytes(mapped=mapped, num_lanes=num_lanes) for mapped in (False, True)}
        self._session = session.start()
        self._lane_bytes = partial(self._session.lane_bytes, num_lanes)
        self._pool, self._lock = self._session.pool, FinalizerLock(self._leave)
        self._reserved_bytes = 0
        self._unplanned: dict[Download, None] = {}  # in order
        self._unasked: dict[Download, None] = {}  # those of unknown size without a request
        self._being_read: dict[Download, None] = {}  # in order; includes completely planned ones
        self._waiting_for_room = 0  # unplanned objects that the memory budget holds back; counted to 4
        self.num_waits = 0  # of the consumer, for bytes that had not arrived
        self._users = 1  # the owner, and every open object
        self._pid = os.getpid()

    def open(self, url: str, start: int = 0, stop: int | None = None) -> Download:
        """Register an object and plan parts of it within the budget. Each call needs a ``close_object``."""
        self._require_own_process(url)
        download = opened(url, self._storage_options, self._session, start, stop)
        with self._lock:
            self._users += 1
            self._register(download)
            self._plan_ahead()
        return download

    def _register(self, download: Download) -> None:  # with the lock held
        self._unplanned[download] = None
        if download.size is None:
            self._unasked[download] = None

    def has_room(self) -> bool:
        """Whether more objects should be opened, to have something to plan when bytes are consumed."""
        return self._waiting_for_room < _OBJECTS_WAITING

    def next_object(self, opened: Iterable[Download]) -> Download:
        """Choose the object to hand out next among those that were opened and not handed out: the first one."""
        return next(iter(opened))

    def next_piece(self, download: Download, consumed_bytes: int) -> memoryview | None:
        """Release the bytes of the last piece, then wait for the next one; ``None`` at the object's end."""
        self._require_own_process(download.url)
        if download.error is not None:
            raise download.error
        while True:
            with self._lock:
                if consumed_bytes:
                    self._consume(download, consumed_bytes)
                    consumed_bytes = 0
                if download.can_plan():
                    self._being_read[download] = None
                    if not download.parts:
                        self._plan(download)  # even beyond the budget: the consumer waits for this part
                if not download.parts:
                    return None
                part = download.parts[0]
            self.num_waits += part.pieces.empty()
            with FETCH.waiting():
                piece = next_item(part.pieces)
            if piece is not None:
                return piece
            with self._lock:  # an empty part, or one that failed
                self._consume(download, part.reserved_bytes)
            if part.error is not None:
                download.error = part.error
                raise part.error

    def _require_own_process(self, what: str) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"{redact(what)} was opened in another process, this one's parent. Open it here.")

    def _consume(self, download: Download, num_bytes: int) -> None:  # with the lock held
        part = download.parts[0]
        self._release_bytes(part, num_bytes)
        if part.reserved_bytes == 0:
            del download.parts[0]
        self._plan_ahead()

    def close_object(self, download: Download) -> None:
        """Drop the planned parts; requests that have not started are not sent. Safe in a finalizer."""
        download.close()
        self._lock.settle(download)

    def release(self) -> None:
        """Open no more objects; the threads stop with the last open one. Safe in a finalizer."""
        self._session.open_no_more()
        self._lock.settle(None)

    def _leave(self, download: Download | None) -> None:  # with the lock held
        self._users -= 1
        if download is not None:
            for part in download.parts:
                self._release_bytes(part, part.reserved_bytes)
            download.parts.clear()
            for downloads in (self._unplanned, self._unasked, self._being_read):
                downloads.pop(download, None)
        if self._users == 0:
            self._session.leave()
            self._lock.end()
        else:
            self._plan_ahead()

    def _release_bytes(self, part: Part, num_bytes: int) -> None:  # with the lock held
        self._reserved_bytes -= num_bytes
        part.reserved_bytes -= num_bytes

    def _plan_ahead(self) -> None:  # with the lock held
        self._waiting_for_room = 0
        if not self._unplanned or self._pool.closed:
            return
        while len(self._being_read) > 1:  # round robin: each gets the same share of the budget
            download = min(self._being_read, key=lambda download: (not download.can_plan(), len(download.parts)))
            if not download.can_plan() or not self._has_room_for(download):
                break
            self._plan(download)
        if self._unasked:
            self._ask_for_sizes()
        finished = []
        for download in self._unplanned:
            while self._waiting_for_room == 0 and download.size is not None and self._has_room_for(download):
                if not self._may_plan(download):
                    break
                self._plan(download)
            if download.completely_planned():
                finished.append(download)
            self._waiting_for_room += self._may_plan(download)
            if self._waiting_for_room == _OBJECTS_WAITING:
                break  # many may be open; the following ones wait anyway
        for download in finished:
            del self._unplanned[download]

    def _ask_for_sizes(self) -> None:  # with the lock held
        lookahead = Lookahead(self._lane_bytes(), self.options, self._part_bytes, self._session.expected_bytes)
        for download in lookahead.unasked(self._unplanned, self._unasked):
            if not self._has_room_for(download):
                return
            self._plan(download)

    def _may_plan(self, download: Download) -> bool:  # with the lock held
        """Whether a part can be added ahead, within the object's share if several streams are read at once."""
        held_bytes = len(download.parts) * self._part_bytes[download.mapped]
        return download.can_plan() and held_bytes < self.options.share_bytes(self._lane_bytes())

    def _has_room_for(self, download: Download) -> bool:  # with the lock held
        needed_bytes = self._reserved_bytes + download.next_part_bytes(self._part_bytes[download.mapped])
        return self._reserved_bytes == 0 or needed_bytes <= self._lane_bytes()

    def _plan(self, download: Download) -> bool:  # with the lock held
        """Add the next part and queue its request; returns ``False`` if the pool is closed."""
        self._unasked.pop(download, None)
        part = download.plan(self._part_bytes[download.mapped])
        self._reserved_bytes += part.reserved_bytes
        try:
            download.submit(part, self._pool, self._fetch, self._part_ended)
        except PoolClosedError as error:
            part.error = error
            part.pieces.put(None)
            return False
        return True

    def _fetch(self, download: ObjectDownload, part: Part, dropped: PoolClosedError | None = None) -> None:
        """Download one part in a thread of the pool: hand out its bytes or its error."""
        try:
            if dropped is not None:
                raise dropped
            at, on_version = part.start, partial(self._update_plan, download, part)
            with closing(self.read_range(download, at, part.end, on_version)) as pieces:
                while not download.closed and (piece := next(pieces, None)) is not None:
                    download.keep(at, piece)
                    at += len(piece)
                    part.pieces.put(piece)
                    self._pool.check()
        except BaseException as error:  # noqa: BLE001  # raised in the consumer, whatever it is
            dropped = None  # or it and this frame would keep each other
            if not download.closed:
                part.error = error
        finally:
            self._part_ended(download)
            part.pieces.put(None)

    def _part_ended(self, download: Download) -> None:
        """Called in the thread that downloaded a part, before the consumer sees its end."""

    def read_range(
        self,
        download: ObjectDownload,
        start: int,
        end: int | None,
        on_version: Callable[[ObjectVersion], None] = lambda version: None,
    ) -> Generator[memoryview, None, None]:
        """Read bytes of an object in the thread that iterates. Closing the iterator ends the request."""
        self._require_own_process(download.url)
        return read_range(
            download.source,
            download.range_of(start, end),
            self.options.retry,
            in_flight=self._session.in_flight,
            on_found=on_version,
            sleep=partial(self._pool.sleep, is_closed=lambda: download.closed),
            on_damage=download.distrust_cache,
        )

    def _update_plan(self, download: ObjectDownload, part: Part, version: ObjectVersion) -> None:
        if (version.size, version.etag, version.end) == (download.size, download.etag, part.end):
            return  # nothing new; taking the lock would slow down many threads
        with self._lock:
            if download.size is None:
                self._session.expect(version.size)
            download.learn(version)
            if not download.closed:
                self._release_bytes(part, part.reserved_bytes - (version.end - part.start))
            self._plan_ahead()
