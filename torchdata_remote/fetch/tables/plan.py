"""Plan which bytes of a table are read: the row groups that overlap a range of rows, and their columns."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from ...core.urls import RemoteUrl, redact
from ...errors import ObjectChangedError
from ...formats.tables import Columns, Resolved, TableIndex, index_of
from .footers import ObjectRanges, footer_of


class PendingRead(Protocol):
    """A read of ranges, as ``CoalescedRead`` is."""

    cancelled: bool

    def wait(self) -> list[memoryview]:
        """Wait for the bytes of each range, or raise."""


class FailedRead:
    """A read that could not begin.

    Args:
        error: that is raised where its bytes are needed.
    """

    cancelled = False

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> list[memoryview]:
        """Raise the error."""
        raise self._error


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
        self.read: PendingRead | None = None


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
    url = source.url
    shown = redact(url)
    index = index_of(footer_of(source), shown)
    resolved = columns.resolve(index.schema, shown)
    num_rows = sum(index.counts)
    if rows is not None and not 0 <= rows[0] <= rows[1] <= num_rows:
        raise ObjectChangedError(
            f"{shown}: no rows {rows[0]:,} to {rows[1]:,} in a file of {num_rows:,} rows. It was replaced: list it "
            "again.",
            url=shown,
        )
    last = num_rows if rows is None else rows[1]
    spans: dict[int, tuple[int, int, int]] = {}
    first = 0
    for number, count in enumerate(index.counts):
        start, stop = max(first, first_row), min(first + count, last)
        if start < stop:
            spans[number] = first, start, stop
        first += count
    kept = index.kept(columns.row_filter, list(spans))
    groups = deque(PlannedGroup(number, *spans[number], index.ranges(number, resolved)) for number in kept)
    return Plan(url, source, index, resolved, groups)
