"""Plan and start the downloads of one pass: many requests at once, bounded memory, bytes in the order they are read.

Fetching is driven by the consumer: each time bytes are consumed, and when a response reports a size that was not known,
as many parts as the memory budget allows are queued for the threads. URLs are only read in the consumer's thread.

Parts are planned in the order in which the reader consumes them: of the streams that are read by turns, the next part
is of the one that has the fewest parts ahead. Objects behind them are begun only where a size has to be known first.
"""

from __future__ import annotations

import queue
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from ..core import threads as forks
from ..core.stats import FETCH
from ..core.threads import FinalizerLock, PoolClosedError, next_item
from ..core.urls import redact, split_url
from ..storage import Store, open_store
from .ranges import ObjectReader
from .session import FetchSession, call

_ONE_REQUEST = (None,)
_OBJECTS_WAITING = 4
_FRACTION_AHEAD = 4  # of the budget: first parts of objects of unknown size that may be large, ahead of their turn


class Part:
    """A range of a download: queued, being requested, or here.

    Args:
        start: its first byte.
        end: the byte after its last one; ``None`` if all of an empty object is requested.
        reserved_bytes: of the memory budget.
        buffer: where the bytes of several requests are put together, which is then the only piece.
    """

    __slots__ = ("buffer", "end", "error", "left", "pieces", "reserved_bytes", "start")

    def __init__(self, start: int, end: int | None, reserved_bytes: int, buffer: memoryview | None = None) -> None:
        self.start, self.end, self.reserved_bytes, self.buffer = start, end, reserved_bytes, buffer
        self.pieces: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()  # consecutive; then None
        self.error: BaseException | None = None  # why the pieces end early
        self.left: list[int] = []  # one is popped when a request has ended; the last one is 0


class Download:
    """The parts of an object or a view, in order: those that are planned, and how long the next one is.

    Attributes:
        url: of it.
        lane: downloads it.
        mapped: whether it is a local file.
        part_bytes: most bytes of a part.
        may_be_small: whether few bytes are asked for first, if the size is not known.
        block_bytes: length of the blocks that are verified as a whole: parts begin and end at their borders.
        parts: those that are planned; the first one is being consumed.
        error: raised in the consumer; final.
        size: of the object; ``None`` until the first response reports it.
        can_plan: whether a part can be planned now; not while the first response has to report the size.
        closed: whether the rest is not wanted.

    Args:
        lane: as above.
        start: the first byte to read.
        stop: the byte after the last one to read; ``sys.maxsize`` for the object's end.
        size: of the object; ``None`` until the first response reports it.
        block_bytes: as above.
    """

    url = ""
    mapped = may_be_small = False
    part_bytes = sys.maxsize

    def __init__(self, lane: Lane, start: int, stop: int, size: int | None, block_bytes: int = 1) -> None:
        self.lane, self.size, self.block_bytes = lane, size, block_bytes
        self.planned_bytes = self.first_byte = start - start % block_bytes
        self._stop = min(stop + -stop % block_bytes, sys.maxsize if size is None else size)
        self.can_plan = size is None or start < self._stop or start == size == 0  # an empty object is asked for once
        self.closed = False
        self.parts: list[Part] = []
        self.error: BaseException | None = None

    @property
    def next_bytes(self) -> int:
        """Largest length of the next part."""
        most = self.part_bytes
        if self.size is None and self.may_be_small:
            most = min(most, self.lane.running.first_bytes)
        return min(max(1, most // self.block_bytes) * self.block_bytes, self._stop - self.planned_bytes)

    def plan(self, num_bytes: int) -> Part:
        """Add the next part, of :attr:`next_bytes`. It has no end if all of an empty object is requested."""
        start = self.planned_bytes
        self.planned_bytes = start + num_bytes
        self.can_plan = self.size is not None and self.planned_bytes < self._stop
        part = Part(start, self.planned_bytes if num_bytes else None, num_bytes)
        self.parts.append(part)
        return part

    def learn(self, size: int, end: int) -> None:
        """Record the size, and the end of its part, from the first response."""
        if self.size is None:
            self.size, self._stop, self.planned_bytes = size, min(self._stop, size), end
            self.can_plan = end < self._stop

    def requests(self, part: Part) -> Sequence[Any]:
        """Return what :meth:`fetch` is called with, once for each request."""
        return _ONE_REQUEST

    def fetch(self, request: Any, part: Part) -> None:
        """Bring bytes of a part, in a thread of the pool."""
        raise NotImplementedError

    def submit(self, part: Part) -> None:
        """Queue the requests for a part that was planned."""
        requests = self.requests(part)
        part.left = list(range(len(requests)))
        for request in requests:
            try:
                self.lane.running.pool.submit(self.run, request, part, on_dropped=None)
            except PoolClosedError as error:  # noqa: PERF203  # a request costs a thousand times more
                self.run(request, part, error)

    def run(self, request: Any, part: Part, dropped: PoolClosedError | None = None) -> None:
        """Send a request; the last one of a part shows the consumer its end, or the error."""
        try:
            if dropped is not None:
                raise dropped
            if not self.closed:
                self.fetch(request, part)
        except BaseException as error:  # noqa: BLE001  # raised in the consumer, whatever it is
            dropped = None  # or it and this frame would keep each other
            part.error = error
        if part.left.pop() == 0:
            if part.buffer is not None and part.error is None:
                part.pieces.put(part.buffer.toreadonly())
            part.buffer = None
            part.pieces.put(None)
            if not self.lane.options.in_order and part.start == self.first_byte:
                self.lane.begun.put(self)

    def close(self) -> None:
        """Download no more. Safe in a finalizer."""
        self.closed, self.can_plan = True, False


DownloadT = TypeVar("DownloadT", bound=Download)
ItemT = TypeVar("ItemT")


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
        self._lock: FinalizerLock[Callable[[], None]] = FinalizerLock(call)
        self._reserved_bytes = 0
        self._stores: dict[tuple[str, str], Store] = {}
        # In order: those that are not completely planned, and those of them of which nothing is planned
        self._open, self._waiting = OrderedDict[Download, None](), OrderedDict[Download, None]()
        self.begun: queue.SimpleQueue[Download] = queue.SimpleQueue()  # whose first part is here, unless in order
        self._users = 1  # the owner, and every open object
        self._num_forks = forks.num_forks

    def open_store(self, url: str) -> tuple[Store, str]:
        """Return the store of a URL, and the path in it."""
        scheme, bucket, path = split_url(url)
        store = self._stores.get((scheme, bucket))
        if store is None:
            store, _ = open_store(url, self.session.storage_options, self.running.connection)
            self._stores[scheme, bucket] = store
        return store, path

    def reader(self, url: str) -> ObjectReader:
        """Return what reads ranges of an object, with the limits of this lane."""
        running = self.running
        return ObjectReader(url, *self.open_store(url), self.options.retry, running.in_flight, sleep=running.pool.sleep)

    def add(self, download: DownloadT) -> DownloadT:
        """Plan parts of a download within the budget. Each call needs a ``close``."""
        self.require_own_process(download.url)
        download.part_bytes = self._part_bytes[download.mapped]
        with self._lock:
            self._users += 1
            if download.can_plan:
                self._open[download] = self._waiting[download] = None
                self._plan_ahead()
        return download

    def has_room(self) -> bool:
        """Whether more objects should be opened, to have something to plan when bytes are consumed."""
        return len(self._waiting) < _OBJECTS_WAITING

    def next_object(self, opened: Iterable[Download]) -> Download:
        """Choose the object to hand out next among those that were opened and not handed out.

        That is the first one, or without ``in_order`` one whose first part is here; the first one, if no part of any of
        them is requested, because others fill the budget.
        """
        if not self.options.in_order:
            self.require_own_process("this pass")
            while any(download.parts for download in opened):
                if (download := _wait(self.begun)) in opened:
                    return download
        return next(iter(opened))

    def next_piece(self, download: Download, consumed_bytes: int) -> memoryview | None:
        """Release the bytes of the last piece, then wait for the next one; ``None`` at the object's end."""
        self.require_own_process(download.url)
        has_ended = False
        while True:
            if consumed_bytes or has_ended or not download.parts:
                with self._lock:
                    if consumed_bytes or has_ended:
                        self._consume(download, consumed_bytes, has_ended=has_ended)
                    # Even beyond the budget: the consumer waits for this part
                    if not download.parts and download.can_plan and download.error is None:
                        self._plan(download, download.next_bytes)
            if download.error is not None:
                raise download.error
            if not download.parts:
                return None
            part = download.parts[0]
            piece = _wait(part.pieces)
            if piece is not None:
                return piece
            consumed_bytes, has_ended, download.error = 0, True, part.error

    def pieces(self, download: Download) -> Iterator[memoryview]:
        """Yield all bytes of a download; those of a piece are released when the next one is asked for."""
        num_bytes = 0
        while (piece := self.next_piece(download, num_bytes)) is not None:
            num_bytes = len(piece)
            yield piece

    def require_own_process(self, what: str) -> None:
        """Raise in a child that was forked."""
        if forks.num_forks != self._num_forks:
            raise RuntimeError(f"{redact(what)} was opened in another process, this one's parent. Open it here.")

    def _consume(self, download: Download, num_bytes: int, *, has_ended: bool) -> None:  # with the lock held
        part = download.parts[0]
        # A response may be longer or shorter than what was reserved for it, until its size is settled
        self._release_bytes(part, part.reserved_bytes if has_ended else num_bytes)
        if has_ended:
            del download.parts[0]
        self._plan_ahead()

    def close(self, download: Download) -> None:
        """Drop the planned parts; requests that have not started are not sent. Safe in a finalizer."""
        if not download.closed:
            download.close()
            self._lock.settle(partial(self._leave, download))

    def release(self) -> None:
        """Open no more objects; the threads stop with the last open one. Safe in a finalizer."""
        self._lock.settle(partial(self._leave, None))

    def _leave(self, download: Download | None) -> None:  # with the lock held
        self._users -= 1
        if download is not None:
            for part in download.parts:
                self._release_bytes(part, part.reserved_bytes)
            download.parts.clear()
            self._open.pop(download, None)
            self._waiting.pop(download, None)
        if self._users == 0:
            self.running.leave()
        else:
            self._plan_ahead()

    def _release_bytes(self, part: Part, num_bytes: int) -> None:  # with the lock held
        self._reserved_bytes -= num_bytes
        part.reserved_bytes -= num_bytes

    def _plan_ahead(self) -> None:  # with the lock held
        """Plan parts, as long as there is room."""
        running = self.running
        while self._open and not running.pool.closed:
            max_bytes = running.lane_bytes(self.session.num_lanes)
            download = self._next(max_bytes)
            if download is None:
                return
            num_bytes = download.next_bytes
            if self._reserved_bytes and self._reserved_bytes + num_bytes > max_bytes:
                return
            self._plan(download, num_bytes)

    def _next(self, max_bytes: int) -> Download | None:  # with the lock held
        """Choose the download whose part is planned next."""
        chosen, fewest = None, sys.maxsize
        for download in islice(self._open, self.options.interleave):
            if download.can_plan and len(download.parts) < fewest:
                chosen, fewest = download, len(download.parts)
        if chosen is not None:
            return chosen if fewest * chosen.part_bytes < max_bytes // self.options.interleave else None
        waiting = next(iter(self._waiting), None)
        if waiting is None or waiting.size is not None:
            return waiting
        # First parts of large objects that are read later would hold the budget
        num_begun = len(self._open) - len(self._waiting)
        few = num_begun < self.options.interleave or num_begun * waiting.next_bytes < max_bytes // _FRACTION_AHEAD
        return waiting if few or self.running.whole_bytes else None

    def _plan(self, download: Download, num_bytes: int) -> None:  # with the lock held
        """Add the next part and queue its request."""
        part = download.plan(num_bytes)
        self._reserved_bytes += num_bytes
        self._waiting.pop(download, None)
        if download.size is not None and not download.can_plan:
            self._open.pop(download, None)
        download.submit(part)

    def learn(self, download: Download, part: Part, size: int, end: int) -> None:
        """Record size and end of a part from the first response, in its thread, and plan with it."""
        download.learn(size, end)
        self._lock.settle(partial(self._learned, download, part, size, end))  # which waits for no other thread

    def _learned(self, download: Download, part: Part, size: int, end: int) -> None:  # with the lock held
        self._release_bytes(part, min(part.reserved_bytes, (part.end or end) - end))  # a server may send all
        self.running.learn(size, end)
        if not download.can_plan:
            self._open.pop(download, None)
        self._plan_ahead()


def _wait(items: queue.SimpleQueue[ItemT]) -> ItemT:
    if items.empty():
        with FETCH.waiting():
            return next_item(items)
    return items.get()
