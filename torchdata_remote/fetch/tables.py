"""Parquet and Arrow files: their footers, their row groups as units of splitting, and rows by ranged reads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache, partial
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.options import RetryPolicy, StorageOptions
from ..core.threads import ordered_map
from ..core.urls import RemoteUrl, redact, split_sample_range
from ..errors import ObjectChangedError
from ..formats.byte_reader import ByteReader
from ..formats.tables import Columns, Footer, Resolved, RowFilter, read_footer, row_groups
from .engine import Lane, Part
from .ranges import ObjectReader, OneObject
from .views import GatherRequest, Ranges, ViewDownload

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_IN_FLIGHT = 16
_GAP_BYTES = 128 << 10  # gaps up to this size are read too: they cost less than another request
_NUM_KEPT, _MOST_KEPT_BYTES = 512, 256 << 10  # footers


class Group(NamedTuple):
    """Rows of a row group.

    Args:
        number: of the row group in the file.
        first: number of its first row in the file.
        start: number of the first row that is wanted.
        stop: number of the row after the last one that is wanted.
    """

    number: int
    first: int
    start: int
    stop: int


@lru_cache(_NUM_KEPT)
def _kept_footer(url: str, size: int, etag: str, reader: str) -> list[Footer]:
    """Return the place for the footer of a version of a file."""
    return []


class TableFile:
    """A file, whose footer is read first; that of a version that was read before may be in memory.

    Args:
        source: reads it.
        options: of the source.

    Raises:
        StorageError: if it cannot be read.
        ShardReadError: if it is no table, or damaged.
    """

    def __init__(self, source: ObjectReader, options: StorageOptions) -> None:
        self._source = source
        if source.version.size is None:
            self.read(0, 1)
        self.version = version = source.version
        num_bytes, self.shown = version.size or 0, redact(version)
        kept = _kept_footer(str(version), num_bytes, version.etag, options.identity()) if version.etag else []
        footer = kept[0] if kept else read_footer(self.read, num_bytes, self.shown)
        if footer.memory_bytes <= _MOST_KEPT_BYTES:
            kept[:] = [footer]
        self.index = row_groups(footer, self.shown)
        self.num_rows = sum(self.index.counts)

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` (exclusive)."""
        return b"" if start >= stop else self._source.read(start, stop)

    def groups(self, row_filter: RowFilter | None, first_row: int, last_row: int) -> list[Group]:
        """Return the row groups with some of these rows, of which the filter may accept one, in order."""
        borders = pairwise(accumulate(self.index.counts, initial=0))
        groups = [
            Group(at, first, max(first, first_row), min(end, last_row)) for at, (first, end) in enumerate(borders)
        ]
        wanted = [group.number for group in groups if group.start < group.stop]
        return [groups[number] for number in self.index.kept(row_filter, wanted)]

    def batches(
        self, group: Group, columns: Resolved, pieces: Sequence[memoryview]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Decode the rows of a group, in batches of a bounded size: number of the first row in the file, and rows.

        Args:
            group: to decode.
            columns: that are chosen.
            pieces: the bytes of the ranges that it needs.

        Raises:
            ShardReadError: if they are damaged.
        """
        first = group.first
        for batch in self.index.batches(group.number, columns, pieces, self.read):
            begin, end = max(first, group.start), min(first + batch.num_rows, group.stop)
            if begin < end:
                yield begin, batch.slice(begin - first, end - begin)
            first += batch.num_rows
            if first >= group.stop:
                return


def list_groups(
    urls: Iterable[str], row_filter: RowFilter | None, options: StorageOptions, retry: RetryPolicy
) -> Generator[RemoteUrl, None, None]:
    """Yield a URL for each row group, in the order of the files and of their rows. Several footers are read at once.

    Args:
        urls: of files, or of ranges of their rows. Read only in the thread that iterates.
        row_filter: row groups that it excludes by their statistics are left out.
        options: for the stores.
        retry: policy for transient faults.

    Raises:
        StorageError: if a file cannot be read.
        ShardReadError: if it is no table, or damaged.
        SampleError: if the filter does not fit.
    """

    def opened(url: str, sleep: Callable[[float], object]) -> tuple[TableFile, tuple[int, int] | None]:
        whole, rows = split_sample_range(url)
        return TableFile(OneObject(whole, options, retry, sleep=sleep), options), rows

    with closing(ordered_map((partial(opened, url) for url in urls), max_threads=_MAX_IN_FLIGHT)) as files:
        for file, rows in files:
            listed = RemoteUrl(file.version, file.version.size, file.version.etag, num_samples=file.num_rows)
            for group in file.groups(row_filter, *(rows or (0, file.num_rows))):
                part = listed.part(group.start, group.stop)
                part.num_samples = group.stop - group.start
                yield part


class _TableDownload(ViewDownload):
    """A file whose footer is the first part. The others are windows of the bytes that its row groups need.

    Args:
        lane: downloads it.
        url: of the file; size and etag are looked up if they are not known.
        columns: to fetch.
        first_row: to yield.
        rows: the range that the URL stands for; ``None`` for the whole file.
    """

    def __init__(self, lane: Lane, url: str, columns: Columns, first_row: int, rows: tuple[int, int] | None) -> None:
        super().__init__(lane, None, max_gap_bytes=_GAP_BYTES)
        self.url, self._columns, self._first_row, self._rows = url, columns, first_row, rows
        self.groups: list[Group] = []

    def requests(self, part: Part) -> Sequence[Any]:
        return (None,) if self.size is None else super().requests(part)

    def fetch(self, request: GatherRequest | None, part: Part) -> None:
        if request is not None:
            super().fetch(request, part)
            return
        self.readers = [self.lane.reader(self.url)]
        self.file = file = TableFile(self.readers[0], self.lane.session.storage_options)
        self.columns = self._columns.resolve(file.index.schema, file.shown)
        first, last = self._rows or (0, file.num_rows)
        if last > file.num_rows:
            raise ObjectChangedError(
                f"{file.shown}: no rows {first:,} to {last:,} in a file of {file.num_rows:,} rows. It was replaced: "
                "list it again.",
                url=file.shown,
            )
        self.groups = file.groups(self._columns.row_filter, self._first_row, last)
        ranges = (file.index.ranges(group.number, self.columns) for group in self.groups)
        num_bytes = self._set_view(_ranges_of(file.version, chain.from_iterable(ranges)), self.lane)
        self.lane.learn(self, part, num_bytes, 0)


def _ranges_of(url: RemoteUrl, ranges: Iterable[tuple[int, int]]) -> Ranges:
    starts, stops = np.array(list(ranges), np.int64).reshape(-1, 2).T
    return Ranges([url], np.ones_like(starts), np.zeros_like(starts), starts, stops)


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
        self.url, self.number = whole, number
        self.first_byte = max(first_row, 0 if rows is None else rows[0])  # rows are the positions of tables
        self._lane = lane
        self.download = lane.add(_TableDownload(lane, whole, columns, self.first_byte, rows))

    def batches(self) -> Iterator[tuple[Resolved, int, pa.RecordBatch]]:
        """Yield the columns, the number of the first row, and rows, of row groups when their bytes are here.

        Raises:
            StorageError: for faults that retries did not solve.
            ShardReadError: if the footer or a row group is damaged.
        """
        download, windows = self.download, self._lane.pieces(self.download)
        reader = ByteReader(chain([next(windows, b"")], windows))  # once the footer is here
        for group in download.groups:
            ranges = download.file.index.ranges(group.number, download.columns)
            pieces = [memoryview(reader.take(stop - start)) for start, stop in ranges]
            for first, batch in download.file.batches(group, download.columns, pieces):
                yield download.columns, first, batch

    def close(self) -> None:
        self._lane.close(self.download)
