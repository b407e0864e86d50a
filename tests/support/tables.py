"""Tables in memory, as files of each format."""

from __future__ import annotations

import io
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

FORMATS = ("parquet", "arrow", "stream")


def file_bytes(table: pa.Table, form: str = "parquet", *, rows: int = 10, **options: Any) -> bytes:
    """Return a file of row groups, or record batches, of so many rows."""
    data = io.BytesIO()
    if form == "parquet":
        pq.write_table(table, data, row_group_size=rows, **options)
        return data.getvalue()
    opened = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
    with opened(data, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return data.getvalue()


def put_table(url: str, table: pa.Table, form: str = "parquet", *, rows: int = 10, **options: Any) -> str:
    """Write a file, and return its URL."""
    fsspec.filesystem("memory").pipe(url, file_bytes(table, form, rows=rows, **options))
    return url


def numbered(count: int, first: int = 0) -> pa.Table:
    """Return a table with a column of numbers, one of texts, one of vectors."""
    numbers = list(range(first, first + count))
    vectors = pa.array([[i, i + 1] for i in numbers], pa.list_(pa.int32()))
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": [f"row {i}" for i in numbers], "vector": vectors})
