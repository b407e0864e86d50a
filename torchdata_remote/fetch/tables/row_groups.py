"""Fetch the row groups of tables: several ahead of the consumer, within a bound on memory."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import chain, takewhile, zip_longest
from typing import NamedTuple

import numpy as np

from ...core.stats.counters import FETCH
from ...core.threads.pool import next_item
from ...core.urls import RemoteUrl, redact, split_sample_range
from ...errors import ObjectChangedError, ShardReadError
from ...formats.tables import Columns, Resolved, TableIndex
from ..coalesced import CoalescedRead, RangeCoalescer
from ..local_files import Numbered
from ..sample_table import Members
from ..session import FetchSession
from .footers import ObjectRanges, index_in, spans_of

_GROUPS_PER_REQUEST = 4  # that are requested at once, times max_in_flight


class PlannedGroup:
    """A row group to read, whose bytes may be on their way.

    Args:
        number: in the file.
        first: number of its first row in the file.
        start: number of the first row to yield.
        stop: number of the row after the last one to yield.
        ranges: its bytes.
    """

    def __init__(self, number: int, first: int, start: int, stop: int, ranges: list[tuple[int, int]]) -> None:
        self.number, self.first, self.start, self.stop, self.ranges = number, first, start, stop, ranges
        self.num_bytes = sum(end - begin for begin, end in ranges)
        self.read: CoalescedRead | Exception | None = None  # an error is raised where the row group is used


class Plan(NamedTuple):
    """What is read of one file."""

    url: RemoteUrl
    source: ObjectRanges
    table: TableIndex
    columns: Resolved
    groups: deque[PlannedGroup]


def plan_of(source: ObjectRanges, columns: Columns, first_row: int, rows: tuple[int, int] | None) -> Plan:
    """Read the footer of a file, and plan its row groups.

    Args:
        source: of its bytes.
        columns: that are chosen.
        first_row: to yield.
        rows: the range that the URL stands for; ``None`` for the whole file.

    Raises:
        StorageError: if the footer cannot be read.
        ShardReadError: if it is damaged.
        ObjectChangedError: if the file does not have these rows.
        SampleError: if the columns or the filter do not fit.
    """
    index, shown = index_in(source), redact(source.url)
    resolved = columns.resolve(index.schema, shown)
    num_rows = sum(index.counts)
    if rows is not None and not 0 <= rows[0] <= rows[1] <= num_rows:
        raise ObjectChangedError(
            f"{shown}: no rows {rows[0]:,} to {rows[1]:,} in a file of {num_rows:,} rows. It was replaced: list it "
            "again.",
            url=shown,
        )
    spans = spans_of(index, first_row, num_rows if rows is None else rows[1])
    kept = index.kept(columns.row_filter, list(spans))
    groups = deque(PlannedGroup(number, *spans[number], index.ranges(number, resolved)) for number in kept)
    return Plan(source.url, source, index, resolved, groups)


class FetchedGroup(NamedTuple):
    """A row group whose bytes are here: see ``PlannedGroup``."""

    plan: Plan
    group: PlannedGroup
    pieces: list[memoryview]


class TableStream:
    """A file, or a range of its rows, whose row groups are fetched in order.

    Args:
        fetcher: of this pass.
        number: of the URL among those of the source.
        url: may be a part.
        first_row: at which to resume; 0 for the beginning.
    """

    def __init__(self, fetcher: TableFetcher, number: int, url: str, first_row: int) -> None:
        whole, rows = split_sample_range(url)
        self.url, self.number, self.rows = whole, number, rows
        self.first_byte = max(first_row, 0 if rows is None else rows[0])  # rows are the positions of tables
        self._fetcher = fetcher
        self._plan: Plan | None = None
        self._error: BaseException | None = None
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.is_planned = False  # or the plan has failed
        self.closed = False

    def prepare(self, make: Callable[[], Plan]) -> None:
        """Plan what to read, in a thread; an error is raised where the plan is used."""
        try:
            self._plan = None if self.closed else make()
        except BaseException as error:  # noqa: BLE001  # raised by groups()
            self.fail(error)
        else:
            self._set_planned()

    def fail(self, error: BaseException) -> None:
        """Record that the plan was not made."""
        self._error = error
        self._set_planned()

    def _set_planned(self) -> None:
        self.is_planned = True
        self._arrived.put(None)

    @property
    def planned(self) -> deque[PlannedGroup]:
        """The row groups that were not taken, as far as they are known."""
        return deque() if self._plan is None else self._plan.groups

    def groups(self) -> Iterator[FetchedGroup]:
        """Yield the row groups, each when its bytes are here.

        Raises:
            StorageError: for faults that retries did not solve.
            ShardReadError: if the footer is damaged.
        """
        with FETCH.waiting():
            next_item(self._arrived)
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        plan = self._plan
        assert plan is not None
        while plan.groups:
            group = plan.groups[0]
            pieces = self._fetcher.take(self, plan, group)
            plan.groups.popleft()
            try:
                yield FetchedGroup(plan, group, pieces)
            finally:
                del pieces
                self._fetcher.release(group)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._fetcher.close_stream(self)
            self._plan = None


class TableFetcher:
    """Fetches the row groups of one pass.

    Args:
        session: limits and threads.
        columns: to fetch.
    """

    def __init__(self, session: FetchSession, columns: Columns) -> None:
        self._session, self._columns = session, columns
        self._coalescer = RangeCoalescer(session, lambda url: session.storage_options)
        self._running = self._coalescer.session
        self._open: list[TableStream] = []
        self._ahead: deque[TableStream] = deque()
        self._held_bytes, self._num_started = 0, 0
        self._opens_more, self._is_left = True, False

    def streams(self, source: Iterator[Numbered]) -> Generator[tuple[str, TableStream], None, None]:
        """Yield a stream for each URL. The footers of the next ones are read meanwhile.

        Args:
            source: number, URL and first row of each. Read only in the thread that iterates.

        Raises:
            Exception: an error of ``source``, after the URLs before it.
        """
        ended: Exception | None = None
        try:
            while True:
                while ended is None and len(self._ahead) < self._session.options.max_in_flight:
                    try:
                        stream = TableStream(self, *next(source))
                        self._ahead.append(stream)
                        make = partial(self._plan, stream)
                        self._running.pool.submit(stream.prepare, make, on_dropped=stream.fail)
                    except Exception as error:  # noqa: BLE001, PERF203  # earlier files are read first
                        ended = error
                self._request()
                if self._ahead:
                    stream = self._ahead.popleft()
                    self._open.append(stream)
                    yield str(stream.url), stream
                elif isinstance(ended, StopIteration):
                    return
                elif ended is not None:
                    raise ended
        finally:
            ended = None
            self._opens_more = False
            for stream in list(self._ahead):
                stream.close()
            self._settle()

    def _plan(self, stream: TableStream) -> Plan:
        running = self._running
        sleep = partial(running.pool.sleep, is_closed=lambda: stream.closed)
        source = ObjectRanges(
            stream.url, self._session.storage_options, running.options.retry, running.in_flight, sleep
        )
        return plan_of(source, self._columns, stream.first_byte, stream.rows)

    def _in_turn(self) -> Iterator[tuple[TableStream, PlannedGroup]]:
        """Yield the planned row groups in the order in which they will be used.

        None of those that are used after a file without a plan: its own would find no room.
        """
        turns = zip_longest(*([(stream, group) for group in stream.planned] for stream in self._open))
        for one in chain.from_iterable(turns):
            if one is not None:
                yield one
        if not all(stream.is_planned for stream in self._open):
            return
        for stream in takewhile(lambda stream: stream.is_planned, self._ahead):
            for group in list(stream.planned):
                yield stream, group

    def _request(self) -> None:
        """Request the row groups that have room."""
        max_bytes = self._running.lane_bytes(self._session.num_lanes)
        most = _GROUPS_PER_REQUEST * self._session.options.max_in_flight
        for stream, group in self._in_turn():
            if group.read is None:
                if self._held_bytes and (self._held_bytes + group.num_bytes > max_bytes or self._num_started >= most):
                    return
                self._start(stream, group)

    def _start(self, stream: TableStream, group: PlannedGroup) -> None:
        assert stream._plan is not None
        starts, ends = np.array(group.ranges, np.int64).reshape(-1, 2).T
        zeros = np.zeros(len(starts), np.int64)
        members = Members([stream._plan.url], [""] * len(starts), zeros, starts, ends - starts, np.array([len(starts)]))
        self._held_bytes += group.num_bytes
        self._num_started += 1
        try:
            group.read = self._coalescer.start_read(members)
        except Exception as error:  # noqa: BLE001  # raised where the row group is read
            group.read = error

    def take(self, stream: TableStream, plan: Plan, group: PlannedGroup) -> list[memoryview]:
        """Wait for a row group."""
        self._request()
        if group.read is None:
            self._start(stream, group)
        if isinstance(group.read, Exception):
            raise group.read
        assert group.read is not None
        pieces = group.read.wait()
        if [len(piece) for piece in pieces] != [stop - start for start, stop in group.ranges]:
            shown = redact(plan.url)
            raise ShardReadError(f"{shown}: row group {group.number} ends behind the file's end.", url=shown)
        return pieces

    def release(self, group: PlannedGroup) -> None:
        """Record that a row group was used, or is not needed any more."""
        if group.read is not None:
            if isinstance(group.read, CoalescedRead):
                group.read.cancelled = True
            group.read = None
            self._held_bytes -= group.num_bytes
            self._num_started -= 1

    def close_stream(self, stream: TableStream) -> None:
        """Drop the row groups of a stream. Safe in a finalizer."""
        for group in stream.planned:
            self.release(group)
        for found in (self._open, self._ahead):
            if stream in found:
                found.remove(stream)
        self._coalescer.unmap(str(stream.url))
        self._settle()

    def _settle(self) -> None:
        """Let the threads end with the last stream."""
        if not self._opens_more and not self._open and not self._ahead and not self._is_left:
            self._is_left = True
            self._coalescer.__exit__(None, None, None)
