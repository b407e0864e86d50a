"""Row groups of a file, and record batches of Arrow: which bytes each needs, and its rows. pyarrow decodes them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..positioned_file import PositionedFile
from .columns import Resolved, RowFilter
from .footer import ARROW, PARQUET, Footer, reading

if TYPE_CHECKING:
    import pyarrow as pa

Range = tuple[int, int]

_BATCH_BYTES = 16 << 20  # of the values that are decoded at once
_MAX_BATCH_ROWS = 8192
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class RowGroups(ABC):
    """The row groups of one file.

    Args:
        footer: of the file.
        url: as errors may show it.

    Raises:
        ShardReadError: if the footer is damaged.
    """

    schema: pa.Schema
    counts: Sequence[int]
    """Number of rows of each row group."""

    def __init__(self, footer: Footer, url: str) -> None:
        self.footer, self.url = footer, url
        is_tail = footer.kind == ARROW  # which pyarrow reads again
        self._tail = [(footer.num_bytes - len(footer.data), memoryview(footer.data))] if is_tail else []

    def kept(self, row_filter: RowFilter | None, groups: Sequence[int]) -> Sequence[int]:
        """Return those of some row groups that may have rows that the filter accepts, in order."""
        return groups

    def ranges(self, group: int, columns: Resolved) -> list[Range]:
        """Return the bytes that a row group needs, sorted, without overlaps: first, and the one after the last."""
        found: list[Range] = []
        with reading(self.url, f"row group {group}"):
            for start, stop in sorted(self._ranges(group, columns)):
                if not 0 <= start <= stop <= self.footer.num_bytes:
                    raise ValueError(f"bytes {start:,} to {stop:,} of a file of {self.footer.num_bytes:,} bytes")
                if found and start <= found[-1][1]:
                    found[-1] = found[-1][0], max(stop, found[-1][1])
                elif stop > start:
                    found.append((start, stop))
        return found

    def batches(
        self, group: int, columns: Resolved, pieces: Sequence[memoryview], fetch: Callable[[int, int], bytes]
    ) -> Iterator[pa.RecordBatch]:
        """Decode a row group, in batches of a bounded size.

        Args:
            group: its number.
            columns: to decode.
            pieces: the bytes of ``ranges``.
            fetch: reads other bytes, in case that the library asks for some.

        Raises:
            ShardReadError: if they are damaged.
        """
        starts = [start for start, _ in self.ranges(group, columns)]
        file = _RangedFile(self.footer.num_bytes, [*zip(starts, pieces, strict=True), *self._tail], fetch)
        num_rows = 0
        with reading(self.url, f"row group {group}"):
            for batch in self._batches(group, columns, file):
                num_rows += batch.num_rows
                yield batch
            if num_rows != self.counts[group]:
                raise ValueError(f"{num_rows:,} of {self.counts[group]:,} rows")

    @abstractmethod
    def _ranges(self, group: int, columns: Resolved) -> Iterator[Range]: ...

    @abstractmethod
    def _batches(self, group: int, columns: Resolved, file: _RangedFile) -> Iterator[pa.RecordBatch]: ...


def row_groups(footer: Footer, url: str) -> RowGroups:
    """Return the row groups of a file.

    Raises:
        ShardReadError: if the footer is damaged.
    """
    return ParquetGroups(footer, url) if footer.kind == PARQUET else ArrowBatches(footer, url)


class _RangedFile(PositionedFile):
    """A file of which some ranges are in memory. Others are fetched when they are read."""

    def __init__(
        self, num_bytes: int, pieces: list[tuple[int, memoryview]], fetch: Callable[[int, int], bytes] | None
    ) -> None:
        super().__init__(num_bytes)
        self._pieces, self._fetch = pieces, fetch

    def read(self, size: int | None = -1) -> bytes:
        return bytes(self.read_buffer(size))

    def read_buffer(self, size: int | None = -1) -> bytes | memoryview:
        """Return the next bytes, without a copy if they were fetched: pyarrow calls this in place of ``read``."""
        start = min(self._at, self._num_bytes)
        self._at = stop = self._num_bytes if size is None or size < 0 else min(start + size, self._num_bytes)
        for first, piece in self._pieces:
            if first <= start and stop <= first + len(piece):
                return piece[start - first : stop - first]
        if self._fetch is None:
            raise _DataReachedError
        return self._fetch(start, stop)


class _DataReachedError(Exception):
    """The library has begun to read pages."""


class ParquetGroups(RowGroups):
    """The row groups of a Parquet file."""

    def __init__(self, footer: Footer, url: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        super().__init__(footer, url)
        self._sound: set[tuple[int, str]] = set()  # row groups and columns
        # A file of its own: the library looks at no other bytes before it reads rows
        self._alone = pa.py_buffer(PARQUET + footer.data)
        with reading(url, "the footer"):
            self._metadata: Any = pq.read_metadata(pa.BufferReader(self._alone))
            self.schema = self._metadata.schema.to_arrow_schema()
            self.counts = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
            if min(self.counts, default=0) < 0 or sum(self.counts) != self._metadata.num_rows:
                raise ValueError(f"{self._metadata.num_rows} rows in row groups of {self.counts}")
            _ = self.schema.names  # raises for what is no UTF-8

    def kept(self, row_filter: RowFilter | None, groups: Sequence[int]) -> Sequence[int]:
        if row_filter is None:
            return groups
        names = row_filter.names_in(self.schema, self.url)
        with reading(self.url, "the statistics of the footer"):
            for group in groups:
                self._require_sound(group, names)
            found = row_filter.kept(self._alone, groups)
        return [group for group in groups if group in found]

    def _require_sound(self, group: int, names: Sequence[str]) -> None:
        """Check the metadata of column chunks as the library does where it raises; elsewhere it ends the process."""
        names = [name for name in names if (group, name) not in self._sound]
        if not names:
            return
        import pyarrow.parquet as pq

        # Buffered, it checks all chunks before it reads the first
        nothing = _RangedFile(self.footer.num_bytes, [], None)
        file = pq.ParquetFile(nothing, metadata=self._metadata, buffer_size=1 << 12, pre_buffer=False)
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

    def _ranges(self, group: int, columns: Resolved) -> Iterator[Range]:
        self._require_sound(group, columns.names)
        for _, chunk in self._chunks(group, columns.names):
            start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
            if dictionary is not None and 0 < dictionary < start:
                start = dictionary
            yield start, start + chunk.total_compressed_size

    def _batches(self, group: int, columns: Resolved, file: _RangedFile) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        num_bytes = sum(chunk.total_uncompressed_size for _, chunk in self._chunks(group, columns.names))
        rows = _batch_rows(self.counts[group], num_bytes)
        source = pq.ParquetFile(file, metadata=self._metadata, pre_buffer=False, page_checksum_verification=True)
        yield from source.iter_batches(rows, row_groups=[group], columns=columns.names, use_threads=False)


def _batch_rows(num_rows: int, num_bytes: int) -> int:
    return max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * num_rows // max(1, num_bytes)))


class ArrowBatches(RowGroups):
    """The record batches of an Arrow file or stream."""

    def __init__(self, footer: Footer, url: str) -> None:
        import pyarrow as pa

        super().__init__(footer, url)
        is_batch = footer.messages[:, 3] == 1
        self._bounds, self._dictionaries = footer.messages[is_batch, :2].tolist(), footer.messages[~is_batch, :2]
        self.counts = footer.messages[is_batch, 2].tolist()
        with reading(url, "the schema"):
            if footer.kind == ARROW:
                self._stored = pa.ipc.open_file(_RangedFile(footer.num_bytes, self._tail, None)).schema
            else:
                self._stored = pa.ipc.read_schema(pa.py_buffer(footer.data))
            self.schema = pa.schema([field.with_type(_without_views(field.type)) for field in self._stored])
            _ = self.schema.names  # raises for what is no UTF-8

    def _ranges(self, group: int, columns: Resolved) -> Iterator[Range]:
        """Yield the dictionaries and the batch. Those of a stream may be replaced, so none after the batch counts."""
        start, stop = self._bounds[group]
        for first, last in self._dictionaries.tolist():
            if self.footer.kind == ARROW or first < start:
                yield first, last
        yield start, stop

    def _batches(self, group: int, columns: Resolved, file: _RangedFile) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        used = {path[0] for path in columns.paths}
        included = [index for index, name in enumerate(self._stored.names) if name in used]
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=included or None)
        if self.footer.kind == ARROW:
            batch = pa.ipc.open_file(file, options=options).get_batch(group)
        else:
            data = [self.footer.data]
            for start, stop in sorted(self._ranges(group, columns)):
                file.seek(start)
                data.append(file.read(stop - start))
            (batch,) = pa.ipc.open_stream(b"".join([*data, _END_OF_STREAM]), options=options)
        # Offsets in the message are not checked elsewhere, and reading by a damaged one ends the process
        batch.validate(full=True)
        if self._stored.types != self.schema.types:
            batch = batch.cast(pa.schema([self.schema.field(name) for name in batch.schema.names]))
        rows = _batch_rows(batch.num_rows, batch.nbytes)
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Return a type with large strings and binaries in place of views, which polars writes.

    pyarrow can read views, but hardly compute with them.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_views(kind.value_type), kind.ordered)
    # Types of their own came with pyarrow 16
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(kind), kind)
