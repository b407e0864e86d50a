"""List the row groups of tables, by their footers: several files at once, in order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial

from ...core.concurrency_limit import ConcurrencyLimit
from ...core.options import RetryPolicy, StorageOptions
from ...core.threads.ordered_map import ordered_map
from ...core.urls import RemoteUrl, redact, split_sample_range
from ...formats.tables import RowFilter, index_of
from .footers import ObjectRanges, footer_of

MAX_IN_FLIGHT = 16


def list_groups(
    urls: Iterable[str], row_filter: RowFilter | None, options: StorageOptions, retry: RetryPolicy
) -> Generator[RemoteUrl, None, None]:
    """Yield a URL for each row group, in the order of the files and of their rows.

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
    in_flight = ConcurrencyLimit(MAX_IN_FLIGHT, check=lambda: None)
    tasks = (partial(_groups_of, url, row_filter, options, retry, in_flight) for url in urls)
    files = ordered_map(tasks, max_threads=MAX_IN_FLIGHT)
    try:
        for groups in files:
            yield from groups
    finally:
        files.close()


def _groups_of(
    url: str,
    row_filter: RowFilter | None,
    options: StorageOptions,
    retry: RetryPolicy,
    in_flight: ConcurrencyLimit,
    sleep: Callable[[float], None],
) -> list[RemoteUrl]:
    whole, rows = split_sample_range(url)
    source = ObjectRanges(whole, options, retry, in_flight, sleep)
    index = index_of(footer_of(source), redact(source.url))
    num_rows = sum(index.counts)
    file = RemoteUrl(source.url, source.url.size, source.url.etag, num_samples=num_rows)
    kept = set(index.kept(row_filter, range(len(index.counts))))
    return list(_parts(file, index.counts, kept, rows or (0, num_rows)))


def _parts(file: RemoteUrl, counts: Iterable[int], kept: set[int], rows: tuple[int, int]) -> Iterator[RemoteUrl]:
    first = 0
    for number, count in enumerate(counts):
        start, stop = max(first, rows[0]), min(first + count, rows[1])
        first += count
        if start < stop and number in kept:
            part = file.part(start, stop)
            part.num_samples = stop - start
            yield part
