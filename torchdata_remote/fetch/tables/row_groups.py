"""Fetch the row groups of tables: a file is a download of the engine whose parts are row groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from ...core.urls import RemoteUrl, redact, split_sample_range
from ...errors import ObjectChangedError
from ...formats.tables import Columns, Resolved, TableIndex
from ..engine import Download, Lane, Part
from ..local_files import Numbered
from ..ranges import ObjectVersion
from ..session import FetchSession
from ..streams import open_ahead
from ..views import GatheredDownload, Ranges, ViewPlan, Window, new_buffer
from .footers import ObjectRanges, index_in, spans_of


class PlannedGroup(NamedTuple):
    """A row group to read.

    Args:
        number: in the file.
        first: number of its first row in the file.
        start: number of the first row to yield.
        stop: number of the row after the last one to yield.
        ranges: its bytes.
    """

    number: int
    first: int
    start: int
    stop: int
    ranges: list[tuple[int, int]]

    @property
    def num_bytes(self) -> int:
        """Bytes of its ranges."""
        return sum(end - begin for begin, end in self.ranges)


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


class TableDownload(GatheredDownload):
    """A file whose footer is the first part, and whose row groups are the others. Positions are rows.

    Args:
        lane: downloads it.
        url: of the file; size and etag are looked up if they are not known.
        columns: to fetch.
        first_row: to yield.
        rows: the range that the URL stands for; ``None`` for the whole file.
    """

    def __init__(self, lane: Lane, url: str, columns: Columns, first_row: int, rows: tuple[int, int] | None) -> None:
        super().__init__(lane, [url if isinstance(url, RemoteUrl) else RemoteUrl(url)])
        self._columns, self._first_row, self._rows = columns, first_row, rows
        self.table: Plan | None = None  # once the footer is here
        self._unplanned: deque[PlannedGroup] = deque()

    @property
    def next_bytes(self) -> int:
        return max(1, self._unplanned[0].num_bytes) if self._unplanned else 1

    def plan(self) -> Part:
        if self.size is None:
            part, self.can_plan = Part(0, None, 1), False
        else:
            group = self._unplanned.popleft()
            self.can_plan = bool(self._unplanned)
            part = self._window(group)
        self.parts.append(part)
        return part

    def _window(self, group: PlannedGroup) -> Window:
        starts, stops = np.array(group.ranges, np.int64).reshape(-1, 2).T
        view = Ranges(self.urls, np.ones_like(starts), np.zeros_like(starts), starts, stops)
        num_bytes = group.num_bytes
        requests = ViewPlan(view).requests(0, num_bytes) if num_bytes else []
        return Window(0, requests, new_buffer(num_bytes), max(1, num_bytes))

    def submit(self, part: Part, lane: Lane) -> None:
        if isinstance(part, Window):
            super().submit(part, lane)
        else:
            Download.submit(self, part, lane)

    def fetch(self, part: Part, lane: Lane) -> None:
        """Plan the row groups."""
        running = lane.running
        sleep = partial(running.pool.sleep, is_closed=lambda: self.closed)
        options, retry = lane.session.storage_options, running.options.retry
        source = ObjectRanges(self.urls[0], options, retry, running.in_flight, sleep)
        self.table = plan_of(source, self._columns, self._first_row, self._rows)
        self.readers = [lane.reader(self.table.url)]
        num_bytes = sum(group.num_bytes for group in self.table.groups)
        lane.learn(self, part, ObjectVersion(num_bytes, source.url.etag, 1))

    def learn(self, found: ObjectVersion) -> None:
        assert self.table is not None  # which calls this
        self.size, self.urls = found.size, [self.table.url]
        self._unplanned = deque(self.table.groups)
        self.can_plan = bool(self._unplanned) and not self.closed


class FetchedGroup(NamedTuple):
    """A row group whose bytes are here: see ``PlannedGroup``."""

    plan: Plan
    group: PlannedGroup
    pieces: list[memoryview]


class TableStream:
    """A file, or a range of its rows, whose row groups are fetched in order.

    Args:
        columns: to fetch.
        lane: downloads it.
        url: may be a part.
        number: of the URL among those of the source.
        first_row: at which to resume; 0 for the beginning.
    """

    def __init__(self, columns: Columns, lane: Lane, url: str, number: int | None, first_row: int) -> None:
        whole, rows = split_sample_range(url)
        self.url, self.number, self.closed = whole, number, False
        self.first_byte = max(first_row, 0 if rows is None else rows[0])  # rows are the positions of tables
        self._lane = lane
        self.download = lane.add(TableDownload(lane, whole, columns, self.first_byte, rows))

    def groups(self) -> Iterator[FetchedGroup]:
        """Yield the row groups, each when its bytes are here.

        Raises:
            StorageError: for faults that retries did not solve.
            ShardReadError: if the footer is damaged.
        """
        lane, download = self._lane, self.download
        data, plan = lane.next_piece(download, 0), download.table
        if plan is None or data is None:
            return
        for group in plan.groups:
            assert data is not None  # there is a part for each group
            ends = list(accumulate((stop - start for start, stop in group.ranges), initial=0))
            yield FetchedGroup(plan, group, [data[start:end] for start, end in pairwise(ends)])
            data = None
            data = lane.next_piece(download, max(1, group.num_bytes))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._lane.close(self.download)


def stream_tables(
    source: Iterator[Numbered], session: FetchSession, columns: Columns
) -> Generator[tuple[str, TableStream], None, None]:
    """Yield a stream for each URL of a table. Footers and row groups of the next ones are fetched meanwhile.

    Args:
        source: number, URL and first row of each. Read only in the thread that iterates.
        session: limits and threads.
        columns: to fetch.

    Raises:
        Exception: an error of ``source``, after the URLs before it.
    """
    return open_ahead(source, session, partial(TableStream, columns))
