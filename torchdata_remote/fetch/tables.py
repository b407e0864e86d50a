"""Parquet and Arrow files: their footers, their row groups as units of splitting, and rows by ranged reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import RetryPolicy, StorageOptions
from ..core.threads.ordered_map import ordered_map
from ..core.urls import RemoteUrl, redact, split_sample_range
from ..errors import ObjectChangedError
from ..formats.tables import Columns, Footer, Resolved, RowFilter, index_of, read_footer
from .engine import Lane, Part
from .local_files import Numbered
from .ranges import OneObject
from .session import FetchSession
from .streams import open_ahead
from .views import Ranges, ViewDownload

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_IN_FLIGHT = 16
_REQUESTS_PER_FILE = 4  # at once, for the heads of record batches
_MAX_MERGED_BYTES = 8 << 20
_GAP_BYTES = 128 << 10  # gaps up to this size are read too: they cost less than another request
_NUM_KEPT, _MOST_KEPT_BYTES = 256, 256 << 10  # 64 MiB of footers


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


class TableFile(OneObject):
    """A file, whose footer is read first; that of a version that was read before may be in memory.

    Args:
        url: of the file; its size and version are asked for if they are not known.
        options: for the store.
        retry: policy for transient faults.
        in_flight: delays requests when the store asks for fewer.
        sleep: waits for a number of seconds; raises to stop waiting.
        by_obstore: whether obstore may be used, after which a process cannot be forked.

    Raises:
        StorageError: if it cannot be read.
        ShardReadError: if it is no table, or damaged.
    """

    def __init__(
        self,
        url: str,
        options: StorageOptions,
        retry: RetryPolicy,
        in_flight: ConcurrencyLimit | None = None,
        sleep: Callable[[float], object] = time.sleep,
        *,
        by_obstore: bool = True,
    ) -> None:
        super().__init__(url, options, retry, in_flight=in_flight, sleep=sleep, by_obstore=by_obstore)
        if self.version.size is None:
            self.read(0, 1)
        version, self.shown = self.version, redact(url)
        kept, num_bytes = [], version.size or 0
        if version.etag is not None:
            kept = _kept_footer(str(version), num_bytes, version.etag, options.identity())
        footer = kept[0] if kept else read_footer(self, num_bytes, self.shown)
        if footer.memory_bytes <= _MOST_KEPT_BYTES:
            kept.append(footer)
        self.index = index_of(footer, self.shown)
        self.num_rows = sum(self.index.counts)

    def read(self, start: int, stop: int) -> bytes:
        return b"" if start >= stop else super().read(start, stop)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges, which ascend. Close ones are one request, and a few requests run at once."""
        spans, places = list[list[int]](), []
        for start, stop in ranges:
            is_close = spans and 0 <= start - spans[-1][1] <= _GAP_BYTES
            if not is_close or stop - spans[-1][0] > _MAX_MERGED_BYTES:
                spans.append([start, stop])
            spans[-1][1] = stop
            places.append((len(spans) - 1, start - spans[-1][0], stop - spans[-1][0]))
        tasks = [lambda sleep, span=span: self.read(*span) for span in spans]
        with closing(ordered_map(tasks, max_threads=_REQUESTS_PER_FILE)) as found:
            data = list(found)
        return [data[number][start:stop] for number, start, stop in places]

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
    in_flight = ConcurrencyLimit(_MAX_IN_FLIGHT, check=lambda: None)

    def groups_of(url: str, sleep: Callable[[float], object]) -> list[RemoteUrl]:
        whole, rows = split_sample_range(url)
        file = TableFile(whole, options, retry, in_flight, sleep)
        listed = RemoteUrl(file.version, file.version.size, file.version.etag, num_samples=file.num_rows)
        found = []
        for group in file.groups(row_filter, *(rows or (0, file.num_rows))):
            found.append(listed.part(group.start, group.stop))
            found[-1].num_samples = group.stop - group.start
        return found

    with closing(ordered_map((partial(groups_of, url) for url in urls), max_threads=_MAX_IN_FLIGHT)) as files:
        for groups in files:
            yield from groups


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

    def jobs(self, part: Part, lane: Lane) -> list[Callable[[], None]]:
        return [partial(self._read_footer, part, lane)] if self.size is None else super().jobs(part, lane)

    def _read_footer(self, part: Part, lane: Lane) -> None:
        running = lane.running
        sleep = partial(running.pool.sleep, is_closed=lambda: self.closed)
        options, retry = lane.session.storage_options, running.options.retry
        self.file = file = TableFile(self.url, options, retry, running.in_flight, sleep)
        self.columns = self._columns.resolve(file.index.schema, file.shown)
        first, last = self._rows or (0, file.num_rows)
        if last > file.num_rows:
            raise ObjectChangedError(
                f"{file.shown}: no rows {first:,} to {last:,} in a file of {file.num_rows:,} rows. It was replaced: "
                "list it again.",
                url=file.shown,
            )
        self.groups = file.groups(self._columns.row_filter, self._first_row, last)
        ranges = [file.index.ranges(group.number, self.columns) for group in self.groups]
        num_bytes = self._set_view(lane, _ranges_of(file.version, ranges))
        lane.learn(self, part, num_bytes, 0)


def _ranges_of(url: RemoteUrl, groups: Sequence[Sequence[tuple[int, int]]]) -> Ranges:
    counts = np.array(list(map(len, groups)), np.int64)
    starts, stops = np.array([one for ranges in groups for one in ranges], np.int64).reshape(-1, 2).T
    return Ranges([url], counts, np.zeros_like(starts), starts, stops)


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
        self.download = lane.add(_TableDownload(lane, whole, columns, self.first_byte, rows))
        self._window, self._window_bytes = memoryview(b""), 0  # what is left of it

    def batches(self) -> Iterator[tuple[Resolved, int, pa.RecordBatch]]:
        """Yield the columns, the number of the first row, and rows, of row groups when their bytes are here.

        Raises:
            StorageError: for faults that retries did not solve.
            ShardReadError: if the footer or a row group is damaged.
        """
        download = self.download
        self._advance()
        for group in download.groups:
            ranges = download.file.index.ranges(group.number, download.columns)
            pieces = [self._take(stop - start) for start, stop in ranges]
            for first, batch in download.file.batches(group, download.columns, pieces):
                yield download.columns, first, batch

    def _advance(self) -> None:
        self._window = self._lane.next_piece(self.download, self._window_bytes) or memoryview(b"")
        self._window_bytes = len(self._window)

    def _take(self, num_bytes: int) -> memoryview:
        """Return the next bytes."""
        pieces = []
        while num_bytes:
            if not self._window:
                self._advance()
            pieces.append(self._window[:num_bytes])
            self._window = self._window[num_bytes:]
            num_bytes -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

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
