"""Keys come from lines, tables and other iterables; the rows of tables are filtered by their columns."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.scripted import Response, scripted
from torchdata_remote import IterableWrapper
from torchdata_remote.errors import (
    EmptyListingError,
    MissingKeyError,
    MissingMemberError,
    ObjectNotFoundError,
    RemoteDataError,
    SampleError,
    ShardReadError,
)

COLUMNS: dict[str, list[Any]] = {"__key__": ["0007", "a/b", "é"], "width": [10, 20, 30], "id": [1, 2, 3]}
WIDE = ["a/b", "é"]


def _bytes(write: Callable[[pa.Table, io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(pa.table(COLUMNS), buffer)
    return buffer.getvalue()


FILES = {
    "keys.parquet": _bytes(pyarrow.parquet.write_table),
    "keys.feather": _bytes(pyarrow.feather.write_feather),
    "keys.arrow": _bytes(lambda table, to: pyarrow.feather.write_feather(table, to, compression="uncompressed")),
}


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    """A shard with all keys that the tables of this module name, in the order of the alphabet."""
    keys = {*COLUMNS["__key__"], "a b", "é/1", *"ab", *(f"{at:06d}" for at in range(3_900, 4_000))}
    with tdr.ShardWriter("memory://key-shards/{shard}.tar", overwrite=True) as writer:
        for key in sorted(keys):
            writer.write({"__key__": key, "cls": 1})


def _selected(keys: Any, column: str = "__key__", where: Any = None, **more: Any) -> list[str]:
    """Keys of the samples that are selected."""
    urls = IterableWrapper(["memory://key-shards/index.json"]).list_remote()
    return [sample["__key__"] for sample in urls.select(keys=keys, key_column=column, where=where).shard_tar_reader()]


def _keys(name: str, data: bytes, column: str = "__key__", where: Any = None) -> list[str]:
    fsspec.filesystem("memory").pipe(f"/key-tables/{name}", data)
    return _selected(f"memory://key-tables/{name}", column, where)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "where", [None, pc.field("width") > 15, [("width", ">", 15)]], ids=["all", "expression", "list"]
)
def test_tables_in_a_store(name: str, where: Any) -> None:
    assert _keys(name, FILES[name], where=where) == (COLUMNS["__key__"] if where is None else WIDE)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_lines(ending: bytes) -> None:
    data = b"\xef\xbb\xbf" + ending.join([b"a b", b"", "é/1".encode(), b""])
    assert _keys("keys.txt", data) == ["a b", "é/1"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"]),
        pa.chunked_array([["a"], ["b"]]),
        pl.Series(["a", "b"]),
        pd.Series(["a", "b"]),
        np.array(["a", "b"]),
        {"a", "b"},
    ],
    ids=lambda column: f"{type(column).__module__}.{type(column).__name__}",
)
def test_columns_and_other_iterables_hold_keys(column: Any) -> None:
    assert _selected(column) == ["a", "b"]


@pytest.mark.parametrize("kind", [pa.table, pl.DataFrame, pl.LazyFrame, pd.DataFrame])
def test_a_table_in_memory_is_refused_as_its_column_is_meant(kind: Any) -> None:
    with pytest.raises(TypeError, match="keys"):
        _selected(kind(COLUMNS))


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(MissingMemberError, match=r"keys.parquet has no column 'keys'; did you mean '__key__'"):
        _keys("keys.parquet", FILES["keys.parquet"], column="keys")


def test_a_column_of_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Keys are texts"):
        _keys("keys.parquet", FILES["keys.parquet"], column="id")


def test_an_expression_that_does_not_fit_is_an_error_that_names_the_file() -> None:
    with pytest.raises(SampleError, match=r"memory://key-tables/keys.parquet: filter .*height.* cannot be applied"):
        _keys("keys.parquet", FILES["keys.parquet"], where=pc.field("height") > 1)
    with pytest.raises(RemoteDataError, match="a filter needs a table"):
        _keys("keys.txt", b"a", where=pc.field("width") > 1)
    with pytest.raises(TypeError, match=r"pyarrow.compute.field"):
        _keys("keys.parquet", FILES["keys.parquet"], where=pl.col("width") > 1)
    with pytest.raises(TypeError, match="where must be a function"):
        _selected(["a"], where=pc.field("width") > 1)


def test_damaged_files_are_errors() -> None:
    for name in ("bad.parquet", "bad.arrow"):
        with pytest.raises(ShardReadError, match=rf"memory://key-tables/{name}"):
            _keys(name, b"no table at all")
    with pytest.raises(RemoteDataError, match=r"\*\.txt, \*\.parquet"):
        _keys("keys.csv", b"__key__\na")
    with pytest.raises(ObjectNotFoundError):
        _selected("memory://key-tables/none.parquet")


def test_without_pyarrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'torchdata_remote\[tables\]'"):
        _keys("keys.parquet", FILES["keys.parquet"])


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
    data = bytearray(FILES[name])
    at %= len(data)
    data[at] = value
    try:
        _keys(name, bytes(data[:at] if cut else data), where=where)
    except (EmptyListingError, MissingKeyError):
        return  # other keys
    except (RemoteDataError, ValueError, TypeError) as error:
        assert name in str(error)  # noqa: PT017  # damage may be without effect


def test_options_go_to_a_file_of_keys_in_the_same_kind_of_store_only() -> None:
    with scripted(lambda request: Response.of_object(request, b"a\nb\n")) as server:
        options = {"endpoint_url": server.url, "key": "k", "secret": "hunter2", "region": "us-east-1"}
        urls = IterableWrapper(["memory://key-shards/index.json"]).list_remote()
        for other in (f"{server.url}/keys.txt", f"{server.url}/b/keys.txt"):
            assert len(list(urls.select(keys=other, storage_options=options))) == 1
        assert server.requests
        assert not any("hunter2" in str(request.headers) for request in server.requests)
        assert not any("authorization" in request.headers for request in server.requests)
