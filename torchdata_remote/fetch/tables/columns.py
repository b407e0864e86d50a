"""Read columns of one table whole: those of keys, and of the conditions on them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...core.concurrency_limit import ConcurrencyLimit
from ...core.options import MIB, RetryPolicy, StorageOptions
from ...core.urls import redact
from ...formats.tables import Resolved, RowFilter, index_of, reading
from .footers import ObjectRanges, footer_of

if TYPE_CHECKING:
    import pyarrow as pa

_READ_BYTES = 32 * MIB  # that are read at once; one row group may have more
_MAX_IN_FLIGHT = 16

_Group = tuple[int, list[tuple[int, int]]]  # its number, and the bytes that it needs


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
        self._source = ObjectRanges(url, options, retry, in_flight, time.sleep, by_obstore=False)
        self._shown = redact(url)
        self._index = index_of(footer_of(self._source), self._shown)

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

        columns = Resolved([], None, [(name,) for name in names], None, {})
        kept = self._index.kept(row_filter, range(len(self._index.counts)))
        tables: list[pa.Table] = []
        for groups in _together([(number, self._index.ranges(number, columns)) for number in kept]):
            pieces = iter(self._source.read_many([one for _, ranges in groups for one in ranges]))
            for number, ranges in groups:
                views = [memoryview(next(pieces)) for _ in ranges]
                for batch in self._index.batches(number, columns, views, self._source.read):
                    with reading(self._shown, f"row group {number}"):
                        batch.validate(full=True)
                        tables.append(pa.Table.from_batches([batch.select(names)]))
        return pa.concat_tables(tables or [self.schema.empty_table().select(names)])


def _together(groups: Iterable[_Group]) -> Iterator[list[_Group]]:
    """Yield row groups that are read at once."""
    found: list[_Group] = []
    for group in groups:
        if found and sum(stop - start for _, ranges in [*found, group] for start, stop in ranges) > _READ_BYTES:
            yield found
            found = []
        found.append(group)
    if found:
        yield found
