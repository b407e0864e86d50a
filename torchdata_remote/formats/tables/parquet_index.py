"""Row groups of Parquet: the column chunks of the chosen columns, and their decoding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..positioned_file import PositionedFile
from .columns import Resolved
from .fetched_ranges import FetchedRanges
from .footer import PARQUET, Footer
from .index import BATCH_BYTES, MAX_BATCH_ROWS, Fetch, Range, TableIndex, merged
from .library import damaged, reading, require_text
from .row_filter import RowFilter

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetIndex(TableIndex):
    """The row groups of a Parquet file."""

    def __init__(self, footer: Footer, url: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        super().__init__(footer, url)
        self._sound: set[tuple[int, str]] = set()  # row groups and columns
        with reading(url, "the footer"):
            # A file of its own: the library looks at no other bytes before it reads rows
            self._metadata: Any = pq.read_metadata(pa.BufferReader(self._alone()))
            self.schema = self._metadata.schema.to_arrow_schema()
            require_text(self.schema)
            self.counts = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        if min(self.counts, default=0) < 0 or sum(self.counts) != self._metadata.num_rows:
            raise damaged(url, "the footer", f"{self._metadata.num_rows} rows in row groups of {self.counts}")

    def _alone(self) -> bytes:
        return PARQUET + self.footer.data

    def kept(self, row_filter: RowFilter | None, groups: Sequence[int]) -> Sequence[int]:
        if row_filter is None:
            return groups
        names = row_filter.names_in(self.schema, self.url)
        with reading(self.url, "the statistics of the footer"):
            for group in groups:
                self._require_sound(group, names)
            found = row_filter.kept(self._alone(), groups)
        return [group for group in groups if group in found]

    def _require_sound(self, group: int, names: Sequence[str]) -> None:
        """Check the metadata of column chunks as the library does where it raises; elsewhere it ends the process."""
        names = [name for name in names if (group, name) not in self._sound]
        if not names:
            return
        import pyarrow.parquet as pq

        # Buffered, it checks all chunks before it reads the first
        file = pq.ParquetFile(
            _NoData(self.footer.num_bytes), metadata=self._metadata, buffer_size=1 << 12, pre_buffer=False
        )
        with contextlib.suppress(_DataReachedError):
            next(file.iter_batches(1, row_groups=[group], columns=names, use_threads=False), None)
        for column, chunk in self._chunks(group, names):
            if column.physical_type != chunk.physical_type:  # statistics are read by it
                raise ValueError(f"column {column.path!r} is {column.physical_type}, its chunk {chunk.physical_type}")
        self._sound.update((group, name) for name in names)

    def _chunks(self, group: int, names: Sequence[str]) -> Iterator[tuple[Any, Any]]:
        """Yield the schema and the metadata of the column chunks of some columns."""
        schema, found = self._metadata.schema, self._metadata.row_group(group)
        for index in range(len(schema)):
            column = schema.column(index)
            if any(column.path == name or column.path.startswith(name + ".") for name in names):
                yield column, found.column(index)

    def ranges(self, group: int, columns: Resolved) -> list[Range]:
        found = []
        with reading(self.url, f"row group {group}"):
            names = _names(columns)
            self._require_sound(group, names)
            for _, chunk in self._chunks(group, names):
                start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
                if dictionary is not None and 0 < dictionary < start:
                    start = dictionary
                found.append((start, start + chunk.total_compressed_size))
            return merged(found, self.footer.num_bytes)

    def batches(
        self, group: int, columns: Resolved, pieces: Sequence[memoryview], fetch: Fetch
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        num_rows = self.counts[group]
        if not columns.paths:
            yield from _without_columns(num_rows)
            return
        file = FetchedRanges(self.ranges(group, columns), pieces, self.footer.num_bytes, fetch)
        names = _names(columns)
        decoded_bytes = sum(chunk.total_uncompressed_size for _, chunk in self._chunks(group, names))
        batch_rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES * num_rows // max(1, decoded_bytes)))
        num_decoded = 0
        with file.errors(), reading(self.url, f"row group {group}"):
            source = pq.ParquetFile(file, metadata=self._metadata, pre_buffer=False, page_checksum_verification=True)
            for batch in source.iter_batches(batch_rows, row_groups=[group], columns=names, use_threads=False):
                num_decoded += batch.num_rows
                yield batch
            if num_decoded != num_rows:
                raise ValueError(f"{num_decoded:,} of {num_rows:,} rows")


def _names(columns: Resolved) -> list[str]:
    return [".".join(path) for path in columns.paths]


class _DataReachedError(Exception):
    """The library has begun to read pages."""


class _NoData(PositionedFile):
    """A file of which only the footer is known."""

    def read(self, size: int | None = -1) -> bytes:
        raise _DataReachedError


def _without_columns(num_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows without a value, for a table that has no columns but those that the reader sets."""
    import pyarrow as pa

    for first in range(0, num_rows, MAX_BATCH_ROWS):
        yield pa.RecordBatch.from_pydict({"": pa.nulls(min(MAX_BATCH_ROWS, num_rows - first))})
