"""Values of tables: each column of Parquet and Arrow files as the docs' table says."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.shard_places import memory_place
from tests.support.tables import FORMATS, file_bytes

D = dt.datetime(2020, 1, 2, 3, 4, 5, 6)
CASES: list[tuple[pa.Array, list[Any]]] = [
    (pa.array([1, None, 3]), [1, None, 3]),
    (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
    (pa.array([True, None]), [True, None]),
    (pa.array([np.float16(1.5)]), [1.5]),
    (pa.array(["a", None, ""]), ["a", None, ""]),
    (pa.array([b"a", None]), [b"a", None]),
    (pa.nulls(2), [None, None]),
    (pa.array([D, None], pa.timestamp("us")), [np.datetime64(D), None]),
    (pa.array([1], pa.timestamp("ns", "Europe/Paris")), [np.datetime64(1, "ns")]),
    (pa.array([D.date(), None]), [np.datetime64("2020-01-02"), None]),
    (pa.array([90], pa.duration("s")), [np.timedelta64(90, "s")]),
    (pa.array([1_500, None], pa.time64("ns")), [dt.time(0, 0, 0, 1), None]),
    (pa.array([D.time()], pa.time64("us")), [D.time()]),
    (pa.array([decimal.Decimal("1.50")]), [decimal.Decimal("1.50")]),
    (pa.array(["a", "b", "a", None]).dictionary_encode(), ["a", "b", "a", None]),
    (pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]), ["a", "a", "b"]),
    (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), [[("k", 1)], None]),
    (pa.array([["a"], None, []]), [["a"], None, []]),
    (
        pa.array([{"x": 1, "y": [1]}, None, {"x": None, "y": None}]),
        [{"x": 1, "y": np.array([1])}, None, {"x": None, "y": None}],
    ),
    (pa.array([[1, 2], None, [], [3, None]]), [np.array([1, 2]), None, np.array([]), [3, None]]),
    (pa.array([[[1, 2], [3]], []]), [[np.array([1, 2]), np.array([3])], []]),
    (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2)), [np.array([1, 2]), None, [3, None]]),
    (pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.int8(), 2), 2)), [np.array([[1, 2], [3, 4]])]),
    (pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8).reshape(2, 2, 2)), list(np.arange(8).reshape(2, 2, 2))),
]
OF_FORM = [
    pytest.param(array, expected, form, id=f"{array.type}-{form}"[-60:])
    for array, expected in CASES
    for form in FORMATS
    if form != "parquet" or not str(array.type).startswith("run_end")
]


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_same(list(one.values()), list(other.values()))
    elif isinstance(one, list):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    else:
        assert one == other


def rows(data: bytes, **options: Any) -> list[dict[str, Any]]:
    place = memory_place()
    place.put({"t": data})
    return list(tdr.IterableWrapper([f"{place.url}t"]).table_reader(**options))


@pytest.mark.parametrize(("array", "expected", "form"), OF_FORM)
def test_a_column_has_the_values_that_are_documented(array: pa.Array, expected: list[Any], form: str) -> None:
    """In row groups of any length; arrays are copies that may be written to, one that is kept does not keep others."""
    for length in (100, 2):
        found = [row["c"] for row in rows(file_bytes(pa.table({"c": array}), form, rows=length))]
        assert_same(found, expected)
        for value in found:
            assert not isinstance(value, np.ndarray) or (value.flags.writeable and value.base is None)


@given(
    st.lists(st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=4), min_size=1, max_size=12),
    st.sampled_from(FORMATS),
    st.integers(1, 12),
)
def test_lists_of_numbers_are_those_of_pyarrow(values: list[Any], form: str, length: int) -> None:
    data = file_bytes(pa.table({"c": pa.array(values, pa.list_(pa.int64()))}), form, rows=length)
    found = [row["c"].tolist() if isinstance(row["c"], np.ndarray) else row["c"] for row in rows(data)]
    assert found == values


def test_dictionaries_of_a_stream_may_be_replaced() -> None:
    """Each record batch gets the dictionary before it."""
    columns = [pa.array(values).dictionary_encode() for values in (["a", "b"], ["x", "y"], ["y", "b"])]
    batches = [pa.record_batch({"c": column}) for column in columns]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    assert [row["c"] for row in rows(sink.getvalue().to_pybytes())] == ["a", "b", "x", "y", "y", "b"]
