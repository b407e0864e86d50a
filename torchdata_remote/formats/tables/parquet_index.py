"""Row groups of Parquet: the column chunks of the chosen columns, and their decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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

    def kept(self, row_filter: RowFilter | None) -> set[int]:
        if row_filter is None:
            return super().kept(None)
        row_filter.names_in(self.schema, self.url)
        with reading(self.url, "the statistics of the footer"):
            return row_filter.kept(self._alone())

    def _chunks(self, group: int, columns: Resolved) -> Iterator[Any]:
        """Yield the metadata of the column chunks to read."""
        names = [".".join(path) for path in columns.paths]
        schema, found = self._metadata.schema, self._metadata.row_group(group)
        for index in range(len(schema)):
            path = schema.column(index).path
            if any(path == name or path.startswith(name + ".") for name in names):
                yield found.column(index)

    def ranges(self, group: int, columns: Resolved) -> list[Range]:
        found = []
        with reading(self.url, f"row group {group}"):
            for chunk in self._chunks(group, columns):
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
        decoded_bytes = sum(chunk.total_uncompressed_size for chunk in self._chunks(group, columns))
        batch_rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES * num_rows // max(1, decoded_bytes)))
        num_decoded = 0
        with file.errors(), reading(self.url, f"row group {group}"):
            source = pq.ParquetFile(file, metadata=self._metadata, pre_buffer=False, page_checksum_verification=True)
            names = [".".join(path) for path in columns.paths]
            for batch in source.iter_batches(batch_rows, row_groups=[group], columns=names, use_threads=False):
                num_decoded += batch.num_rows
                yield batch
            if num_decoded != num_rows:
                raise ValueError(f"{num_decoded:,} of {num_rows:,} rows")


def _without_columns(num_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows without a value, for a table that has no columns but those that the reader sets."""
    import pyarrow as pa

    for first in range(0, num_rows, MAX_BATCH_ROWS):
        yield pa.RecordBatch.from_pydict({"": pa.nulls(min(MAX_BATCH_ROWS, num_rows - first))})
