"""Read keys from lists of lines and from tables: CSV, Parquet, Arrow and Feather, in any store or in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..core.arguments import check
from ..core.arguments.suggestions import did_you_mean
from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import HTTP, S3, RemoteUrl, join_url, object_path, redact, split_url
from ..errors import ManifestError, RemoteDataError, ShardReadError
from ..formats.compression.decompress import CompressionLimits, decompressed
from ..storage import read_whole
from .key_set import key_column
from .listing.patterns import literal_url
from .listing.url_table import StringColumn
from .ranged_file import RangedFile

_LINES, _CSV, _PARQUET = (".txt",), (".csv",), (".parquet",)
_IPC = (".arrow", ".feather", ".ipc")
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_INSTALL = "pip install 'torchdata_remote[tables]'"


def is_table(source: Any) -> bool:
    """Whether an object is a table in memory: of pyarrow, polars, pandas, DuckDB or another package with its protocol.

    A column, which is an iterable of keys, has the protocol too.
    """
    if is_lazy(source):
        return True
    return hasattr(source, "__arrow_c_stream__") and (hasattr(source, "columns") or hasattr(source, "schema"))


def is_lazy(source: Any) -> bool:
    """Whether an object is a query of polars."""
    return type(source).__name__ == "LazyFrame" and type(source).__module__.startswith("polars")


def is_expression(value: Any) -> bool:
    """Whether a filter is an expression of pyarrow or polars."""
    return _is_of_pyarrow(value) or _is_of_polars(value)


def _is_of_polars(value: Any) -> bool:
    return type(value).__name__ == "Expr" and type(value).__module__.startswith("polars")


def _is_of_pyarrow(value: Any) -> bool:
    return type(value).__name__ == "Expression" and type(value).__module__.startswith("pyarrow")


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
    if is_lazy(table) or (_is_of_polars(where) and type(table).__module__.startswith("polars")):
        names = table.lazy().collect_schema().names()
        _require_column(column, names, shown)
        frame = table.lazy()
        chosen = (frame if where is None else frame.filter(_for_polars(where))).select(column)
        return key_column(_filtered(chosen.collect, shown)[column], shown)
    arrow = _pyarrow(shown)
    reader = arrow.RecordBatchReader.from_stream(table)
    _require_column(column, reader.schema.names, shown)
    dataset = arrow.dataset.dataset(_without_views(reader.read_all(), arrow))
    return _keys_of_dataset(dataset, column, where, shown)


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
        return key_column(_lines(_content(url, options, retry)), shown)
    if not name.endswith(_CSV + _PARQUET + _IPC):
        raise RemoteDataError(
            f"{shown}: keys are read from files named *{', *'.join(_LINES + _CSV + _PARQUET + _IPC)}. Pass those of "
            "another file as a list.",
            url=shown,
        )
    arrow = _pyarrow(shown)
    import pyarrow.dataset as datasets

    try:
        if name.endswith(_CSV):
            import pyarrow.csv

            table = pyarrow.csv.read_csv(
                arrow.BufferReader(_content(url, options, retry)),
                convert_options=pyarrow.csv.ConvertOptions(column_types={column: arrow.string()}),
            )
            dataset = datasets.dataset(table)
        else:
            kind = datasets.ParquetFileFormat() if name.endswith(_PARQUET) else datasets.IpcFileFormat()
            fragment = kind.make_fragment(arrow.PythonFile(RangedFile(url, options, retry), "r"))
            dataset = datasets.FileSystemDataset([fragment], fragment.physical_schema, kind)
        names = dataset.schema.names
    except RemoteDataError:
        raise
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(shown, error) from error
    _require_column(column, names, shown)
    return _keys_of_dataset(dataset, column, where, shown)


def options_beside(url: str, other: str, options: StorageOptions) -> StorageOptions:
    """Return the options for an object beside another: none in another kind of store, to which secrets are not sent."""
    places = [split_url(join_url(*split_url(one)))[:2] for one in (url, other)]
    kinds = [("s3" if scheme in S3 else scheme, host if scheme in HTTP else "") for scheme, host in places]
    return options if kinds[0] == kinds[1] else StorageOptions()


def _keys_of_dataset(dataset: Any, column: str, where: Any, shown: str) -> StringColumn:
    if _is_of_polars(where):
        import polars as pl

        query = pl.scan_pyarrow_dataset(dataset).filter(where).select(column)
        return key_column(_filtered(query.collect, shown)[column], shown)
    batches = _filtered(lambda: dataset.to_batches(columns=[column], filter=where), shown)

    def keys() -> Iterator[Any]:
        while (batch := _filtered(lambda: next(batches, None), shown)) is not None:
            yield from batch.column(0).to_pylist()

    return key_column(keys(), shown)


def _without_views(table: Any, arrow: Any) -> Any:
    """Cast the texts of polars: pyarrow's filters have no kernel for them."""
    types = [arrow.large_string() if str(kind) == "string_view" else kind for kind in table.schema.types]
    return table.cast(arrow.schema(list(zip(table.schema.names, types, strict=True))))


def _filtered(run: Callable[[], Any], shown: str) -> Any:
    """Run a filter, whose errors are of the package that it is written for."""
    try:
        return run()
    except RemoteDataError:
        raise
    except (OSError, UnicodeDecodeError) as error:  # pyarrow's, for what it cannot take apart
        raise _damaged(shown, error) from error
    except Exception as error:  # of pyarrow or polars, which have trees of their own
        if not type(error).__module__.startswith(("pyarrow", "polars")):
            raise
        what = f"where: {shown} cannot be filtered or read: {type(error).__name__}: {error}"
        raise check.marked(ValueError(what)) from error


def _damaged(shown: str, error: Exception) -> ManifestError:
    return ManifestError(f"{shown} is damaged, or no table of its kind: {error}.", url=shown)


def _for_polars(where: Any) -> Any:
    if _is_of_pyarrow(where):
        raise check.marked(TypeError("where is an expression of pyarrow, and keys a LazyFrame: write it for polars."))
    return where


def _require_column(column: str, names: Iterable[str], shown: str) -> None:
    names = list(names)
    if column not in names:
        near = did_you_mean(column, names) or f". It has {', '.join(map(repr, names[:10]))}."
        raise check.marked(ValueError(f"key_column={column!r}: {shown} has no such column{near}"))


def _lines(data: bytes) -> Iterator[str]:
    """Yield the lines of a text that are not empty."""
    return (line for line in data.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n").split("\n") if line)


def _content(url: str, options: StorageOptions, retry: RetryPolicy) -> bytes:
    """Read a file, and decompress it if it is compressed."""
    shown = redact(url)
    try:
        _, parts = decompressed(
            [read_whole(url, options, retry, by_obstore=False)], url=shown, limits=CompressionLimits()
        )
        return b"".join(parts)
    except ShardReadError as error:
        raise ManifestError(f"{shown}: the keys cannot be decompressed: {error}", url=shown) from error


def _pyarrow(shown: str) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.dataset
    except ImportError as error:
        raise RemoteDataError(f"{shown} is read by pyarrow: {_INSTALL}") from error
    return pa
