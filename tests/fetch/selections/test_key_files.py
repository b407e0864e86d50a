"""Keys come from lines and tables, in any store and of any package, filtered by their columns."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from torchdata_remote import IterableWrapper
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.errors import ManifestError, ObjectNotFoundError, RemoteDataError
from torchdata_remote.fetch.selections.key_files import is_table, keys_of_file, keys_of_table, options_beside
from torchdata_remote.fetch.tables.footers import ObjectRanges

COLUMNS: dict[str, list[Any]] = {"__key__": ["0007", "a/b", "é"], "width": [10, 20, 30], "id": [1, 2, 3]}
WIDE = ["a/b", "é"]


def _bytes(write: Callable[[pa.Table, io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(pa.table(COLUMNS), buffer)
    return buffer.getvalue()


FILES = {
    "keys.parquet": _bytes(pyarrow.parquet.write_table),
    "keys.csv": _bytes(pyarrow.csv.write_csv),
    "keys.csv.gz": gzip.compress(_bytes(pyarrow.csv.write_csv)),
    "keys.feather": _bytes(pyarrow.feather.write_feather),
    "keys.arrow": _bytes(lambda table, to: pyarrow.feather.write_feather(table, to, compression="uncompressed")),
}


def _keys(name: str, data: bytes, column: str = "__key__", where: Any = None) -> list[str]:
    fsspec.filesystem("memory").pipe(f"/key-tables/{name}", data)
    return list(keys_of_file(f"memory://key-tables/{name}", column, where, StorageOptions(), RetryPolicy()))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "where", [None, pc.field("width") > 15, pl.col("width") > 15], ids=["all", "pyarrow", "polars"]
)
def test_tables_in_a_store(name: str, where: Any) -> None:
    """Each kind of file gives its keys as texts, filtered by expressions of both packages."""
    assert _keys(name, FILES[name], where=where) == (COLUMNS["__key__"] if where is None else WIDE)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines(ending: bytes, pack: Any) -> None:
    """A text has one key in each line; empty lines and a byte order mark are none."""
    data = b"\xef\xbb\xbf" + ending.join([b"a b", b"", "é/1".encode(), b""])
    assert _keys("keys.txt", pack(data)) == ["a b", "é/1"]


@pytest.mark.parametrize(
    "table",
    [
        pa.table(COLUMNS),
        pa.RecordBatch.from_pydict(COLUMNS),
        pl.DataFrame(COLUMNS),
        pl.LazyFrame(COLUMNS),
        pd.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS).set_index("__key__"),
    ],
    ids=lambda table: f"{type(table).__module__}.{type(table).__name__}",
)
def test_tables_in_memory(table: Any) -> None:
    """Tables of pyarrow, polars and pandas are taken as they are."""
    assert is_table(table)
    assert list(keys_of_table(table, "__key__")) == COLUMNS["__key__"]
    if not isinstance(table, pl.LazyFrame):
        assert list(keys_of_table(table, "__key__", pc.field("width") > 15)) == WIDE
    assert list(keys_of_table(table, "__key__", pl.col("width") > 15)) == WIDE


@pytest.mark.parametrize("column", [pa.array(["a", "b"]), pa.chunked_array([["a"], ["b"]]), pl.Series(["a", "b"])])
def test_columns_are_iterables_of_keys(column: Any) -> None:
    """A column is no table."""
    assert not is_table(column)
    with tdr.ShardWriter("memory://key-columns/{shard}.tar", overwrite=True) as writer:
        for key in "abc":
            writer.write({"__key__": key, "cls": 1})
    urls = IterableWrapper(["memory://key-columns/index.json"]).list_remote()
    assert [url.num_samples for url in urls.select(keys=column)] == [2]


def test_only_the_needed_part_of_a_parquet_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other columns, and row groups that statistics exclude, are not requested."""
    rows, numbers = 4_000, random.Random(0)
    table = pa.table(
        {
            "__key__": [f"{at:06d}" for at in range(rows)],
            "at": range(rows),
            "caption": [numbers.randbytes(300) for _ in range(rows)],
        }
    )
    buffer, read = io.BytesIO(), 0
    pyarrow.parquet.write_table(table, buffer, row_group_size=500)
    ask = ObjectRanges.read

    def counted(ranges: ObjectRanges, start: int, stop: int) -> bytes:
        nonlocal read
        read += stop - start
        return ask(ranges, start, stop)

    monkeypatch.setattr(ObjectRanges, "read", counted)
    assert _keys("big.parquet", buffer.getvalue(), where=pc.field("at") >= 3_900) == [
        f"{at:06d}" for at in range(3_900, rows)
    ]
    assert read < len(buffer.getvalue()) / 5


@pytest.mark.parametrize("where", [pl.col("width") > pl.col("width").mean(), pl.all_horizontal(cs.numeric() > 15)])
@pytest.mark.parametrize("name", ["keys.parquet", "keys.arrow"])
def test_expressions_of_polars_see_the_whole_table(name: str, where: Any) -> None:
    """A mean is that of all row groups, and a selector finds columns that no name asks for."""
    frame, buffer = pl.DataFrame({"__key__": ["a", "b", "c", "d"], "width": [10, 20, 30, 60]}), io.BytesIO()
    if name.endswith("parquet"):
        pyarrow.parquet.write_table(frame.to_arrow(), buffer, row_group_size=2)
    else:
        frame.write_ipc(buffer)
    assert _keys(f"polars-{name}", buffer.getvalue(), where=where) == list(frame.filter(where)["__key__"])


def test_a_file_that_polars_has_written_is_filtered_by_pyarrow() -> None:
    """Its texts are of a type for which pyarrow has no comparison."""
    buffer = io.BytesIO()
    pl.DataFrame({"__key__": ["a", "b"], "split": ["train", "val"]}).write_ipc(buffer)
    assert _keys("views.arrow", buffer.getvalue(), where=pc.field("split") == "val") == ["b"]


def test_a_column_that_is_there_twice_is_refused() -> None:
    """Which of them has the keys cannot be known."""
    table, buffer = pa.table([["a"], ["b"]], ["__key__", "__key__"]), io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    with pytest.raises(ValueError, match=r"twice\.parquet has 2 columns of that name"):
        _keys("twice.parquet", buffer.getvalue())


def test_a_column_that_is_missing_is_named() -> None:
    """With those that are there."""
    with pytest.raises(ValueError, match=r"key_column='keys'.*no such column; did you mean '__key__'"):
        _keys("keys.parquet", FILES["keys.parquet"], column="keys")
    with pytest.raises(ValueError, match=r"has no such column"):
        keys_of_table(pl.DataFrame(COLUMNS), "file_name")


def test_a_column_of_numbers_is_refused() -> None:
    """000017 is not 17."""
    with pytest.raises(TypeError, match=r"Keys are texts"):
        _keys("keys.parquet", FILES["keys.parquet"], column="id")


@pytest.mark.parametrize("where", [pc.field("height") > 1, pl.col("height") > 1])
def test_an_expression_that_does_not_fit_is_an_error_of_where(where: Any) -> None:
    """It names the file and the field."""
    with pytest.raises(ValueError, match=r"where: memory://key-tables/keys.parquet cannot be filtered.*height"):
        _keys("keys.parquet", FILES["keys.parquet"], where=where)


def test_damaged_files_are_errors() -> None:
    """A file that is no table of its kind, or no gzip, is named."""
    for name in ("bad.parquet", "bad.arrow"):
        with pytest.raises(ManifestError, match=rf"memory://key-tables/{name} is damaged"):
            _keys(name, b"no table at all")
    with pytest.raises(ManifestError, match="cannot be decompressed"):
        _keys("bad.txt.gz", gzip.compress(b"a\n" * 9_000)[:-9])
    with pytest.raises(RemoteDataError, match=r"\*\.txt, \*\.csv"):
        _keys("keys.xlsx", b"")
    with pytest.raises(ObjectNotFoundError):
        keys_of_file("memory://key-tables/none.parquet", "__key__", None, StorageOptions(), RetryPolicy())


def test_without_pyarrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables need an optional package."""
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(RemoteDataError, match=r"pip install 'torchdata_remote\[tables\]'"):
        _keys("keys.parquet", FILES["keys.parquet"])


def test_secrets_go_to_their_own_kind_of_store_only() -> None:
    """The options of the shards' store are used for a file of keys in the same kind of store."""
    options = StorageOptions({"key": "k", "secret": "s"})
    assert options_beside("s3://a/keys.txt", "s3a://b/0.tar", options) is options
    for other in ("https://a/keys.txt", "gs://a/keys.txt", "/local/keys.txt"):
        assert options_beside(other, "s3://b/0.tar", options) is not options
    assert options_beside("https://a/keys.txt", "https://b/0.tar", options) is not options


@settings(deadline=None, max_examples=200)
@given(
    name=st.sampled_from(sorted(FILES)),
    at=st.integers(0, 10**6),
    value=st.integers(0, 255),
    cut=st.booleans(),
    where=st.sampled_from([None, pc.field("width") > 15]),
)
def test_any_damaged_byte_is_an_error_that_names_the_file_or_other_keys(
    name: str, at: int, value: int, cut: bool, where: Any
) -> None:
    """Also where pyarrow reports it by an OSError, without the name of the file."""
    data = bytearray(FILES[name])
    at %= len(data)
    data[at] = value
    try:
        _keys(name, bytes(data[:at] if cut else data), where=where)
    except (RemoteDataError, ValueError, TypeError) as error:
        assert name in str(error)  # noqa: PT017  # damage may be without effect


def test_a_csv_with_long_captions_of_several_lines() -> None:
    """Rows that are longer than the blocks in which pyarrow reads, and lines in quotes that look like rows."""
    rows = [f'{number:04d},"a ""cat""\nno/key,0\n{"x" * 1_000}"\r\n' for number in range(3_000)]
    rows.append(f'last,"{"no/key,0" * 500_000}"\n')
    found = _keys("captions.csv", ("__key__,caption\n" + "".join(rows)).encode())
    assert found == [*(f"{number:04d}" for number in range(3_000)), "last"]


def test_a_condition_of_a_file_names_its_columns() -> None:
    """Another column may be at that position among those that are read."""
    with pytest.raises(ValueError, match="by its position: write its name"):
        _keys("keys.parquet", FILES["keys.parquet"], where=pc.field(0) == "a")


@pytest.mark.parametrize(
    "table",
    [pd.DataFrame({"__key__": ["a", 1]}), pl.LazyFrame({"__key__": ["a"]}).filter(pl.col("nope") > 1)],
    ids=["types", "query"],
)
def test_a_table_that_its_own_package_cannot_read(table: Any) -> None:
    """A column of several types, a query that does not fit its columns: no error of another package alone."""
    with pytest.raises(ValueError, match=r"keys: a (Data|Lazy)Frame cannot be read: \w+: "):
        keys_of_table(table, "__key__")


def test_an_array_without_dimensions_is_no_keys() -> None:
    with pytest.raises(TypeError, match="select: keys must be an iterable of keys"):
        IterableWrapper(["memory://b/0.tar"]).select(keys=np.array("a"))
