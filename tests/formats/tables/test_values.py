from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.formats.tables.values import values_of

D = dt.datetime(2020, 1, 2, 3, 4, 5, 6)
CASES: list[tuple[pa.Array, list[Any]]] = [
    (pa.array([1, None, 3]), [1, None, 3]),
    (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
    (pa.array([True, None]), [True, None]),
    (pa.array([1.5, None]), [1.5, None]),
    (pa.array([np.float16(1.5)]), [1.5]),
    (pa.array(["a", None, ""]), ["a", None, ""]),
    (pa.array(["a"], pa.large_string()), ["a"]),
    (pa.array([b"a", None]), [b"a", None]),
    (pa.array([b"ab"], pa.binary(2)), [b"ab"]),
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
    (pa.array([{}, {}], pa.struct([])), [{}, {}]),
    (pa.array([[1, 2], None, [], [3, None]]), [np.array([1, 2]), None, np.array([]), [3, None]]),
    (pa.array([[[1, 2], [3]], []]), [[np.array([1, 2]), np.array([3])], []]),
    (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), [np.array([1, 2]), np.array([3, 4])]),
    (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2)), [np.array([1, 2]), None, [3, None]]),
    (pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.int8(), 2), 2)), [np.array([[1, 2], [3, 4]])]),
    (pa.array([[], []], pa.list_(pa.int64(), 0)), [np.array([]), np.array([])]),
    (pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8).reshape(2, 2, 2)), list(np.arange(8).reshape(2, 2, 2))),
]


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, (list, dict)):
        items = one if isinstance(one, list) else list(one.values())
        others = other if isinstance(other, list) else list(other.values())
        assert isinstance(one, list) or list(one) == list(other)
        assert len(items) == len(others)
        for first, second in zip(items, others, strict=True):
            assert_same(first, second)
    else:
        assert one == other


@pytest.mark.parametrize(("array", "expected"), CASES, ids=[str(array.type) for array, _ in CASES])
def test_a_column_has_the_values_that_are_documented(array: pa.Array, expected: list[Any]) -> None:
    """Also of a slice, and of none."""
    assert_same(values_of(array), expected)
    assert_same(values_of(array[1:]), expected[1:])
    assert values_of(array[:0]) == []


def test_arrays_are_copies_that_may_be_written_to() -> None:
    """One that is kept does not keep the batch, and torch takes it without a warning."""
    array = pa.array([[1, 2], [3, 4]])
    first, second = values_of(array)
    first += 10
    assert first.base is None
    assert second.tolist() == [3, 4]
    assert array.to_pylist() == [[1, 2], [3, 4]]


@given(
    rows=st.lists(st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=4), max_size=12),
    start=st.integers(0, 12),
)
def test_lists_of_numbers_are_those_of_pyarrow(rows: list[Any], start: int) -> None:
    array = pa.array(rows, pa.list_(pa.int64()))[start:]
    found = [one.tolist() if isinstance(one, np.ndarray) else one for one in values_of(array)]
    assert found == array.to_pylist()


@pytest.mark.parametrize("kind", [pa.list_view(pa.int8()), pa.large_list_view(pa.int8())])
@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_views_of_lists_have_all_rows(kind: Any, start: int) -> None:
    """pyarrow's cast of them to lists loses the last row after a null."""
    rows = [[1], None, [2, 3], []]
    found = values_of(pa.array(rows, kind).slice(start))
    assert [None if row is None else row.tolist() for row in found] == rows[start:]


def test_a_tensor_has_its_shape_also_beside_a_null() -> None:
    storage = pa.array([[1, 2, 3, 4], None, [5, 6, 7, 8]], pa.list_(pa.int8(), 4))
    found = values_of(pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int8(), [2, 2]), storage))
    assert [None if row is None else row.tolist() for row in found] == [[[1, 2], [3, 4]], None, [[5, 6], [7, 8]]]
