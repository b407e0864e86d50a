"""Rows of a record batch as samples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ShardReadError
from ..sample import KEY, URL, Sample
from .columns import Path, Resolved
from .library import reading
from .values import values_of

if TYPE_CHECKING:
    import pyarrow as pa

_KEY_DIGITS = 9


def row_samples(
    batch: pa.RecordBatch, first_row: int, columns: Resolved, *, url: str, stem: str
) -> tuple[list[Sample], Sequence[int]]:
    """Return the samples of those rows that the filter accepts, and the number of each row in its file.

    Args:
        batch: with the columns of ``columns.paths``.
        first_row: number of the batch's first row in the file.
        columns: which entries to make.
        url: of the file, as samples and errors may show it.
        stem: what keys begin with that are made of row numbers.
    """
    rows: Sequence[int] = range(first_row, first_row + batch.num_rows)
    with reading(url, f"rows {first_row:,} to {first_row + batch.num_rows:,}"):
        if columns.row_filter is not None:
            accepted = columns.row_filter.accepted(batch)
            if not accepted.all():
                import pyarrow as pa

                batch = batch.filter(pa.array(accepted))
                rows = (np.flatnonzero(accepted) + first_row).tolist()
        keys = _keys(batch, columns.key, rows, url, stem)
        values = [values_of(_column(batch, path)) for _, path in columns.entries]
    names = [KEY, URL, *(name for name, _ in columns.entries)]
    return [dict(zip(names, row)) for row in zip(keys, repeat(url), *values)], rows  # noqa: B905  # equally long


def _keys(batch: pa.RecordBatch, path: Path | None, rows: Sequence[int], url: str, stem: str) -> list[str]:
    if path is None:
        return [f"{stem}{row:0{_KEY_DIGITS}d}" for row in rows]
    keys = values_of(_column(batch, path))
    if None in keys:
        name, row = ".".join(path), rows[keys.index(None)]
        raise ShardReadError(f"{url}: row {row:,} has no key: the column {name!r} is null there.", url=url)
    return list(map(str, keys))


def _column(batch: pa.RecordBatch, path: Path) -> pa.Array:
    import pyarrow.compute as pc

    column = batch.column(batch.schema.names.index(path[0]))
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column
