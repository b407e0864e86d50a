"""The fetch engine: many requests in flight, bytes in memory bounded, objects handed on in order.

Whoever consumes plans: each time bytes are consumed, and when an answer tells a size that was not known, as many parts
as the byte bound allows are queued for the threads. So the bound is always full of bytes that are fetched, being
fetched, or next in the queue, and the source of URLs is only ever pulled from the consumer's thread.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable, Generator, Iterator

from ..core.stats.counters import FETCH
from ..core.threads.finalizer_lock import FinalizerLock
from ..core.threads.pool import PoolClosedError, next_item
from ..core.urls import redact
from .object_download import ObjectDownload, Part
from .range_download import ObjectVersion
from .range_reader import read_range
from .session import FetchSession

_OBJECTS_WAITING = 4


class PartScheduler:
    """Fetches objects for one iteration of one pipe, in one process: a lane of its engine.

    Args:
        engine: limits, threads, and the byte bound, of which a lane has its share.
    """

    def __init__(self, engine: FetchSession) -> None:
        self.options, self._storage_options = engine.options, engine.storage_options
        self._num_lanes = engine.num_lanes
        part_bytes, num_lanes = self.options.actual_part_bytes, engine.num_lanes
        self._part_bytes = {mapped: part_bytes(mapped=mapped, num_lanes=num_lanes) for mapped in (False, True)}
        self._engine = engine.start()
        self._pool, self._lock = self._engine.pool, FinalizerLock(self._leave)
        self._reserved_bytes = self._num_unfinished = 0  # the latter: parts that are queued or being fetched
        self._unplanned: dict[ObjectDownload, None] = {}  # in order
        self._being_read: dict[ObjectDownload, None] = {}  # in order; some that are completely planned among them
        self._unready: dict[ObjectDownload, None] = {}  # in order; where objects are handed on as they are complete
        self._ready: queue.SimpleQueue[ObjectDownload] = queue.SimpleQueue()
        self._waiting_for_room = 0  # of the unplanned, how many the byte bound holds back; counted to 4
        self._users = 1  # whoever made it, and every open object
        self._pid = os.getpid()

    def open(self, url: str, start: int = 0, stop: int | None = None) -> ObjectDownload:
        """Take an object on and plan parts of it, within the byte bound; each call needs a ``close_object``."""
        self._require_own_process(url)
        connection, cache = self._engine.connection, self._engine.cache
        target = ObjectDownload(url, self._storage_options, connection, cache, start=start, stop=stop)
        with self._lock:
            self._users += 1
            self._unplanned[target] = None
            if not self.options.in_order:
                self._unready[target] = None
            self._plan_ahead()
        return target

    def has_room(self) -> bool:
        """Whether more objects should be opened, to have something to plan when bytes are consumed."""
        return self._waiting_for_room < _OBJECTS_WAITING

    def next_ready(self) -> ObjectDownload:
        """Wait for the next object that is complete, of those opened with ``in_order=False``.

        When no object can be completed within the byte bound it is the oldest one, which streams.
        """
        self._require_own_process("this pass")
        with self._lock:
            self._hand_on_if_stuck()
        with FETCH.waiting():
            return next_item(self._ready)

    def next_piece(self, target: ObjectDownload, consumed_bytes: int) -> memoryview | None:
        """Give back the bytes of the last piece, then wait for the next one; ``None`` at the object's end."""
        self._require_own_process(target.url)
        if target.error is not None:
            raise target.error
        while True:
            with self._lock:
                if consumed_bytes:
                    self._consume(target, consumed_bytes)
                    consumed_bytes = 0
                if target.can_plan():
                    self._being_read[target] = None
                    if not target.parts:
                        self._plan(target)  # whatever the bound says: the consumer must get on
                if not target.parts:
                    return None
                part = target.parts[0]
            with FETCH.waiting():
                piece = next_item(part.pieces)
            if piece is not None:
                return piece
            with self._lock:  # an empty part, or one that failed
                self._consume(target, part.reserved_bytes)
            if part.error is not None:
                target.error = part.error
                raise part.error

    def _require_own_process(self, what: str) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"{redact(what)} was opened in another process, this one's parent. Open it here.")

    def _consume(self, target: ObjectDownload, num_bytes: int) -> None:  # with the lock held
        part = target.parts[0]
        self._give_back(part, num_bytes)
        if part.reserved_bytes == 0:
            target.parts.popleft()
        self._plan_ahead()

    def close_object(self, target: ObjectDownload) -> None:
        """Drop what was planned; requests that have not begun are not made. Safe in a finalizer."""
        target.close()
        self._lock.settle(target)

    def release(self) -> None:
        """Whoever made this opens nothing more; the threads end with the last object. Safe in a finalizer."""
        self._engine.open_no_more()
        self._lock.settle(None)

    def _leave(self, target: ObjectDownload | None) -> None:  # with the lock held
        self._users -= 1
        if target is not None:
            for part in target.parts:
                self._give_back(part, part.reserved_bytes)
            target.parts.clear()
            self._unplanned.pop(target, None)
            self._being_read.pop(target, None)
            self._unready.pop(target, None)
        if self._users == 0:
            self._engine.leave()
        else:
            self._plan_ahead()

    def _give_back(self, part: Part, num_bytes: int) -> None:  # with the lock held
        self._reserved_bytes -= num_bytes
        part.reserved_bytes -= num_bytes

    def _plan_ahead(self) -> None:  # with the lock held
        self._waiting_for_room = 0
        if not self._unplanned or self._pool.closed:
            return
        while len(self._being_read) > 1:  # by turns: each gets the same share of the byte bound
            target = min(self._being_read, key=lambda target: (not target.can_plan(), len(target.parts)))
            if not target.can_plan() or not self._has_room_for(target):
                break
            self._plan(target)
        finished = []
        for target in self._unplanned:
            while self._waiting_for_room == 0 and self._may_plan(target) and self._has_room_for(target):
                self._plan(target)
            if target.completely_planned():
                finished.append(target)
            self._waiting_for_room += self._may_plan(target)
            if self._waiting_for_room == _OBJECTS_WAITING:
                break  # many may be open; those behind wait anyway
        for target in finished:
            del self._unplanned[target]

    def _may_plan(self, target: ObjectDownload) -> bool:  # with the lock held
        """Whether a part can be added ahead, within its share where several streams are read at once."""
        held_bytes = len(target.parts) * self._part_bytes[target.mapped]
        return target.can_plan() and held_bytes < self.options.share_bytes(self._engine.lane_bytes(self._num_lanes))

    def _has_room_for(self, target: ObjectDownload) -> bool:  # with the lock held
        wanted = self._reserved_bytes + target.next_part_bytes(self._part_bytes[target.mapped])
        return self._reserved_bytes == 0 or wanted <= self._engine.lane_bytes(self._num_lanes)

    def _plan(self, target: ObjectDownload) -> None:  # with the lock held
        part = target.plan(self._part_bytes[target.mapped])
        self._reserved_bytes += part.reserved_bytes
        try:
            self._pool.submit(self._fetch, target, part, on_dropped=lambda error: self._fetch(target, part, error))
            self._num_unfinished += 1
        except PoolClosedError as error:
            target.num_unfinished -= 1
            part.error = error
            part.pieces.put(None)

    def _fetch(self, target: ObjectDownload, part: Part, dropped: PoolClosedError | None = None) -> None:
        """In a thread of the pool: fetch one part, hand on its bytes or its error."""
        try:
            if dropped is not None:
                raise dropped
            pieces = self._read(target, part.start, part.end, lambda found: self._learn(target, part, found))
            with contextlib.closing(pieces):  # which ends the request
                at = part.start
                while not target.closed and (piece := next(pieces, None)) is not None:
                    target.keep(at, piece)
                    at += len(piece)
                    part.pieces.put(piece)
                    self._pool.check()
        except BaseException as error:  # noqa: BLE001  # it belongs to the consumer, whatever it is
            if not target.closed:
                part.error = error
        finally:
            if not self.options.in_order:
                self._finish(target)
            part.pieces.put(None)

    def read_range(self, target: ObjectDownload, start: int, end: int) -> Iterator[memoryview]:
        """Bytes of an object of known size besides its parts, fetched in the thread that iterates."""
        self._require_own_process(target.url)
        return self._read(target, start, end, lambda found: None)

    def _read(
        self, target: ObjectDownload, start: int, end: int | None, on_found: Callable[[ObjectVersion], None]
    ) -> Generator[memoryview, None, None]:
        return read_range(
            target.source,
            target.range_of(start, end),
            self.options.retry,
            in_flight=self._engine.in_flight,
            on_found=on_found,
            sleep=lambda seconds: self._pool.sleep(seconds, is_closed=lambda: target.closed),
            on_damage=target.distrust_cache,
        )

    def _learn(self, target: ObjectDownload, part: Part, found: ObjectVersion) -> None:
        if (found.size, found.etag, found.end) == (target.size, target.etag, part.end):
            return  # nothing new; a lock would cost many threads dear
        with self._lock:
            target.learn(found)
            if not target.closed:
                self._give_back(part, part.reserved_bytes - (found.end - part.start))
            self._plan_ahead()

    def _finish(self, target: ObjectDownload) -> None:
        """Where objects are handed on as they are complete: see whether one is."""
        with self._lock:
            self._num_unfinished -= 1
            target.num_unfinished -= 1
            if target in self._unready:
                failed = any(part.error is not None for part in target.parts)
                if failed or (target.num_unfinished == 0 and target.completely_planned()):
                    self._hand_on(target)
            self._hand_on_if_stuck()

    def _hand_on_if_stuck(self) -> None:  # with the lock held
        if self._unready and self._num_unfinished == 0 and self._ready.empty():
            self._hand_on(next(iter(self._unready)))

    def _hand_on(self, target: ObjectDownload) -> None:  # with the lock held
        del self._unready[target]
        self._ready.put(target)
