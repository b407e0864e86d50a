"""Read the footers of tables and keep them, list the row groups of files, and read whole columns of one file."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING

from ...core.concurrency_limit import ConcurrencyLimit
from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.threads.ordered_map import ordered_map
from ...core.urls import RemoteUrl, redact, split_sample_range
from ...formats.tables import Footer, Resolved, RowFilter, TableIndex, index_of, read_footer, reading
from ..read_ahead import OneObject

if TYPE_CHECKING:
    import pyarrow as pa

_CACHE_BYTES = 64 << 20
_MAX_IN_FLIGHT = 16
_MAX_MERGED_BYTES = 8 << 20
_GAP_BYTES = 128 << 10  # gaps up to this size are read too: they cost less than another request
_REQUESTS_PER_FILE = 4  # at once, for the heads of record batches

_READ_BYTES = 32 << 20  # that are read at once; one row group may have more

Sleep = Callable[[float], object]
_Group = tuple[int, list[tuple[int, int]]]  # its number, and the bytes that it needs


class ObjectRanges(OneObject):
    """Reads ranges of one object, with retries, in the calling thread.

    Args:
        url: of the object; its size and version are looked up if they are not known.
        options: for the store.
        retry: policy for transient faults.
        in_flight: delays requests when the store asks for fewer.
        sleep: waits for a number of seconds; raises to stop waiting.
        by_obstore: whether obstore may be used, after which a process cannot be forked.
    """

    def __init__(
        self,
        url: str,
        options: StorageOptions,
        retry: RetryPolicy,
        in_flight: ConcurrencyLimit,
        sleep: Sleep = time.sleep,
        *,
        by_obstore: bool = True,
    ) -> None:
        super().__init__(url, options, retry, in_flight=in_flight, sleep=sleep, by_obstore=by_obstore)
        self.identity = options.identity()  # who reads, at which server
        if self.listed_size is None:
            entry = call_with_retries(lambda: self.store.stat(self.path), retry, url=url, sleep=sleep)
            self.size, self.etag = entry.size, entry.etag

    @property
    def url(self) -> RemoteUrl:
        """Of the object, with its size."""
        return self.version

    def read(self, start: int, stop: int) -> bytes:
        return b"" if start >= stop else super().read(start, stop)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges. Close ones are one request, and a few requests run at once.

        Raises:
            StorageError: for faults that retries did not solve.
        """
        order = sorted(range(len(ranges)), key=ranges.__getitem__)
        groups: list[list[int]] = []
        for index in order:
            start, stop = ranges[index]
            is_close = groups and start - ranges[groups[-1][-1]][1] <= _GAP_BYTES
            if is_close and stop - ranges[groups[-1][0]][0] <= _MAX_MERGED_BYTES:
                groups[-1].append(index)
                continue
            groups.append([index])
        found = [b""] * len(ranges)
        borders = [(ranges[group[0]][0], max(ranges[index][1] for index in group)) for group in groups]
        tasks = [lambda sleep, border=border: self.read(*border) for border in borders]
        with closing(ordered_map(tasks, max_threads=_REQUESTS_PER_FILE)) as merged:
            for group, (first, _), data in zip(groups, borders, merged, strict=True):
                for index in group:
                    start, stop = ranges[index]
                    found[index] = data[start - first : stop - first]
        return found


class _FooterCache:
    """The footers that were used last, of objects whose version the store has given (etag)."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all of them, with a new lock: in a forked child the old one may be held forever."""
        self._lock, self._num_bytes = threading.RLock(), 0
        self._footers = OrderedDict[tuple[str, int | None, str, str], Footer]()

    def of(self, source: ObjectRanges) -> Footer:
        url = source.url
        if url.etag is None:
            return read_footer(source, url.size or 0, redact(url))
        key = str(url), url.size, url.etag, source.identity
        with self._lock:
            if key in self._footers:
                self._footers.move_to_end(key)
                return self._footers[key]
        footer = read_footer(source, url.size or 0, redact(url))
        with self._lock:
            if key not in self._footers:
                self._footers[key] = footer
                self._num_bytes += footer.memory_bytes
            while self._num_bytes > _CACHE_BYTES:
                self._num_bytes -= self._footers.popitem(last=False)[1].memory_bytes
        return footer


_footers = _FooterCache()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_footers.clear)


def index_in(source: ObjectRanges) -> TableIndex:
    """Return the row groups and columns of a file, whose footer may have been read before.

    Raises:
        StorageError: if it cannot be read.
        ShardReadError: if it is no table, or damaged.
    """
    return index_of(_footers.of(source), redact(source.url))


def spans_of(index: TableIndex, first_row: int, last_row: int) -> dict[int, tuple[int, int, int]]:
    """Return each row group with some of these rows: number of its first row, and of the first and last one of these.

    Args:
        index: of the file.
        first_row: number in the file.
        last_row: number of the row after the last one.
    """
    borders = pairwise(accumulate(index.counts, initial=0))
    found = {number: (first, max(first, first_row), min(end, last_row)) for number, (first, end) in enumerate(borders)}
    return {number: (first, start, stop) for number, (first, start, stop) in found.items() if start < stop}


class TableFile:
    """A Parquet or Arrow file, whose footer is read. Without obstore, so that a process that only lists can be forked.

    Args:
        url: of the file.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        StorageError: if it cannot be read.
        ShardReadError: if it is neither, or damaged.
    """

    def __init__(self, url: str, options: StorageOptions, retry: RetryPolicy) -> None:
        in_flight = ConcurrencyLimit(_MAX_IN_FLIGHT, check=lambda: None)
        self._source = ObjectRanges(url, options, retry, in_flight, by_obstore=False)
        self._index = index_in(self._source)

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self._index.schema

    def read(self, names: list[str], row_filter: RowFilter | None) -> pa.Table:
        """Return columns after all checks for damage: libraries that compute with damaged ones may end the process.

        Args:
            names: of the columns.
            row_filter: row groups that it excludes by their statistics are left out.

        Raises:
            StorageError: if the file cannot be read.
            ShardReadError: if it is damaged.
            SampleError: if the filter does not fit.
        """
        import pyarrow as pa

        columns, index = Resolved([], None, [(name,) for name in names], None, {}), self._index
        tables = [index.schema.empty_table().select(names)]
        kept = index.kept(row_filter, range(len(index.counts)))
        for groups in _together((number, index.ranges(number, columns)) for number in kept):
            pieces = iter(self._source.read_many([one for _, ranges in groups for one in ranges]))
            for number, ranges in groups:
                views = [memoryview(piece) for piece in islice(pieces, len(ranges))]
                for batch in index.batches(number, columns, views, self._source.read):
                    with reading(redact(self._source.url), f"row group {number}"):
                        batch.validate(full=True)
                        tables.append(pa.Table.from_batches([batch.select(names)]))
        return pa.concat_tables(tables[1:] or tables)


def _together(groups: Iterable[_Group]) -> Iterator[list[_Group]]:
    """Yield row groups that are read at once."""
    found, num_bytes = list[_Group](), 0
    for group in groups:
        size = sum(stop - start for start, stop in group[1])
        if found and num_bytes + size > _READ_BYTES:
            yield found
            found, num_bytes = [], 0
        found.append(group)
        num_bytes += size
    if found:
        yield found


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

    def groups_of(url: str, sleep: Sleep) -> list[RemoteUrl]:
        whole, rows = split_sample_range(url)
        source = ObjectRanges(whole, options, retry, in_flight, sleep)
        index = index_in(source)
        num_rows = sum(index.counts)
        file = RemoteUrl(source.url, source.url.size, source.url.etag, num_samples=num_rows)
        found, spans = list[RemoteUrl](), spans_of(index, *(rows or (0, num_rows)))
        for number in sorted(index.kept(row_filter, range(len(index.counts)))):
            if number in spans:
                _, start, stop = spans[number]
                found.append(file.part(start, stop))
                found[-1].num_samples = stop - start
        return found

    with closing(ordered_map((partial(groups_of, url) for url in urls), max_threads=_MAX_IN_FLIGHT)) as files:
        for groups in files:
            yield from groups
