"""Read keys from lists of lines and from tables: CSV, Parquet, Arrow and Feather, in any store or in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...core.arguments import check
from ...core.arguments.suggestions import did_you_mean
from ...core.options import RetryPolicy, StorageOptions
from ...core.urls import RemoteUrl, join_url, object_path, redact, split_url
from ...errors import ManifestError, RemoteDataError, SampleError, ShardReadError
from ...formats.compression.decompress import CompressionLimits, decompressed
from ...formats.tables import ADVICE, RowFilter, without_views
from ...storage import read_whole
from ..listing.patterns import literal_url
from ..listing.url_table import StringColumn
from ..tables.footers import TableFile
from .keys import key_column

_LINES, _CSV, _BINARY = (".txt",), (".csv",), (".parquet", ".arrow", ".feather", ".ipc")
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_CSV_BLOCK_BYTES = 64 << 20
_INSTALL = "pip install 'torchdata_remote[tables]'"


def is_table(source: Any) -> bool:
    """Whether an object is a table in memory: of pyarrow, polars, pandas, DuckDB or another package with its protocol.

    A column, which is an iterable of keys, has the protocol too.
    """
    has_columns = hasattr(source, "columns") or hasattr(source, "schema")
    return _is_lazy(source) or (hasattr(source, "__arrow_c_stream__") and has_columns)


def is_expression(value: Any) -> bool:
    """Whether a filter is an expression of pyarrow or polars."""
    return _is_of("pyarrow", value, "Expression") or _is_of("polars", value, "Expr")


def _is_lazy(source: Any) -> bool:
    return _is_of("polars", source, "LazyFrame")


def _is_of(package: str, value: Any, name: str) -> bool:
    return type(value).__name__ == name and type(value).__module__.startswith(package)


def keys_of_table(table: Any, column: str, where: Any = None) -> StringColumn:
    """Return the keys of a table in memory.

    Args:
        table: as :func:`is_table` takes it.
        column: name of the column of keys.
        where: expression of pyarrow or polars that rows must fulfil; ``None`` for all.

    Raises:
        ValueError: if there is no such column, or the expression does not fit the table.
        TypeError: if keys are not texts.
    """
    shown = check.a_kind(table)
    if _is_lazy(table):
        with _explained("keys", shown):
            _require_column(column, table.collect_schema().names(), shown)
        with _explained("keys" if where is None else "where", shown):
            table, where = (table if where is None else table.filter(where)).select(column).collect(), None
    arrow = _pyarrow(shown)
    with _explained("keys", shown):
        reader = arrow.RecordBatchReader.from_stream(table)
        _require_column(column, reader.schema.names, shown)
        rows = reader.read_all()
    return _keys_of_arrow(rows, column, where, shown)


def keys_of_file(url: str, column: str, where: Any, options: StorageOptions, retry: RetryPolicy) -> StringColumn:
    """Return the keys of a file: lines of a ``.txt``, or a column of a table.

    Of a Parquet file only the columns of the keys and of the filter are read, and of these only the row groups that
    statistics do not exclude.

    Args:
        url: or path of the file; a ``.txt`` and a ``.csv`` may be compressed.
        column: name of the column of keys.
        where: as :func:`keys_of_table`.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        RemoteDataError: if the file is damaged, or of a kind that is not known.
        ValueError, TypeError: as :func:`keys_of_table`.
    """
    url = url if isinstance(url, RemoteUrl) else join_url(*split_url(literal_url(url)))
    shown, name = redact(url), object_path(url).lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    if name.endswith(_LINES):
        if where is not None:
            raise check.marked(ValueError(f"where: {shown} has lines and no columns that an expression could filter."))
        text = _content(url, options, retry).decode("utf-8-sig", "surrogateescape")
        return key_column(filter(None, text.replace("\r\n", "\n").split("\n")), shown)
    if not name.endswith(_CSV + _BINARY):
        raise RemoteDataError(
            f"{shown}: keys are read from files named *{', *'.join(_LINES + _CSV + _BINARY)}. Pass those of "
            "another file as a list.",
            url=shown,
        )
    arrow = _pyarrow(shown)
    try:
        if name.endswith(_CSV):
            table = _table_of_csv(_content(url, options, retry), column, arrow)
            _require_column(column, table.schema.names, shown)
        else:
            file = TableFile(url, options, retry)
            _require_column(column, file.schema.names, shown)
            table = file.read(*_needed(file.schema, column, where, shown))
    except (arrow.ArrowException, OSError, UnicodeDecodeError, ShardReadError) as error:
        if isinstance(error, RemoteDataError) and not isinstance(error, ShardReadError):
            raise
        what = str(error).removeprefix(f"{shown}: ").removesuffix(ADVICE).rstrip(". ")
        raise ManifestError(f"{shown} is damaged, or no table of its kind: {what}.", url=shown) from error
    return _keys_of_arrow(table, column, where, shown)


def _table_of_csv(data: bytes, column: str, arrow: Any) -> Any:
    import pyarrow.csv

    return pyarrow.csv.read_csv(
        arrow.BufferReader(data),
        # A row has to fit into a block; captions in quotes may have lines of their own
        read_options=pyarrow.csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(column_types={column: arrow.string()}),
    )


def _needed(schema: Any, column: str, where: Any, shown: str) -> tuple[list[str], RowFilter | None]:
    """Return the columns to read, and the filter if statistics may exclude row groups by it."""
    if where is None:
        return [column], None
    if _is_of("polars", where, "Expr"):
        roots = set(where.meta.root_names())
        # Selectors have several outputs, and no names without a table
        is_named = not where.meta.has_multiple_outputs() and roots <= set(schema.names)
        return [name for name in schema.names if name == column or not is_named or name in roots], None
    try:
        row_filter = RowFilter(where)
        names = row_filter.names_in(schema, shown)
    except (SampleError, ValueError) as error:
        raise _unfit("where", shown, error.__cause__ or error) from error
    return list(dict.fromkeys([column, *names])), row_filter


def _keys_of_arrow(table: Any, column: str, where: Any, shown: str) -> StringColumn:
    if _is_of("polars", where, "Expr"):
        import polars as pl

        with _explained("where", shown):
            frame: Any = pl.from_arrow(table)
            return key_column(frame.filter(where)[column], shown)
    table = table.cast(without_views(table.schema))
    if where is not None:
        with _explained("where", shown):
            table = table.filter(where)
    batches = table.select([column]).to_batches()
    return key_column((key for batch in batches for key in batch.column(0).to_pylist()), shown)


@contextmanager
def _explained(argument: str, shown: str) -> Iterator[None]:
    """Explain errors of pyarrow and polars, which have trees of their own."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("pyarrow", "polars")):
            raise
        raise _unfit(argument, shown, error) from error


def _unfit(argument: str, shown: str, error: BaseException) -> ValueError:
    what = f"{shown} cannot be {'filtered' if argument == 'where' else 'read'}"
    return check.marked(ValueError(f"{argument}: {what}: {type(error).__name__}: {error}"))


def _require_column(column: str, names: Sequence[str], shown: str) -> None:
    if column not in names:
        near = did_you_mean(column, names) or f". It has {', '.join(map(repr, names[:10]))}."
        raise check.marked(ValueError(f"key_column={column!r}: {shown} has no such column{near}"))
    if (number := list(names).count(column)) > 1:
        raise check.marked(ValueError(f"key_column={column!r}: {shown} has {number} columns of that name."))


def _content(url: str, options: StorageOptions, retry: RetryPolicy) -> bytes:
    """Read a file, and decompress it if it is compressed."""
    shown, data = redact(url), read_whole(url, options, retry, by_obstore=False)
    try:
        _, parts = decompressed([data], url=shown, limits=CompressionLimits())
        return b"".join(parts)
    except ShardReadError as error:
        raise ManifestError(f"{shown}: the keys cannot be decompressed: {error}", url=shown) from error


def _pyarrow(shown: str) -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise RemoteDataError(f"{shown} is read by pyarrow: {_INSTALL}") from error
    return pa
