"""The rows of a filter are those of ``pyarrow.Table.filter``, whatever row groups statistics would exclude."""

from __future__ import annotations

import operator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.tables import put_table
from torchdata_remote import IterableWrapper, ShardWriter
from torchdata_remote.errors import EmptyListingError, SampleError

NAN, INF = float("nan"), float("inf")
X, Y, N = pc.field("x"), pc.field("y"), pc.field("n")
FLOATS = st.sampled_from([NAN, INF, -INF, -0.0, 0.0, 1.0, 4.5])
INTEGERS = st.sampled_from([-1, 0, 1, 4])
TEXTS = st.sampled_from(["", "a", "b", "it's \"a"])
KINDS = {"x": pa.float64(), "y": pa.float32(), "n": pa.int64(), "it's": pa.string()}
VALUES: dict[str, Any] = {"x": FLOATS, "y": FLOATS, "n": INTEGERS, "it's": TEXTS}
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
JOINED = (operator.and_, operator.or_, operator.eq, pc.xor, pc.and_kleene, pc.and_not, pc.coalesce)
MOST_ROWS = 12


@st.composite
def conditions_of_values(draw: Any) -> Any:
    """A condition on one column, or on two."""
    name = draw(st.sampled_from(list(KINDS)))
    column, constant = pc.field(name), pc.scalar(pa.scalar(draw(VALUES[name] | st.none()), KINDS[name]))
    values = pa.array(draw(st.lists(VALUES[name] | st.none(), max_size=3)), KINDS[name])
    others = [pc.field(other) for other in KINDS if other != "it's" != name]
    made = [
        *(compared(column, constant) for compared in COMPARISONS),
        *(compared(constant, column) for compared in COMPARISONS),
        *(operator.lt(column, other) for other in others),
        column.isin(values),
        column.is_valid(),
        column.is_null(nan_is_null=name in "xy" and draw(st.booleans())),
        pc.scalar(draw(st.booleans())),
    ]
    return draw(st.sampled_from(made))


CONDITIONS = st.recursive(
    conditions_of_values(),
    lambda inner: st.one_of(
        st.builds(operator.invert, inner),
        st.builds(lambda join, one, other: join(one, other), st.sampled_from(JOINED), inner, inner),
        st.builds(pc.if_else, inner, inner, inner),
    ),
    max_leaves=4,
)
TABLES = st.integers(1, MOST_ROWS).flatmap(
    lambda count: st.builds(
        lambda *columns: pa.table(
            [pa.array(values, kind) for values, kind in zip(columns, KINDS.values(), strict=True)], names=list(KINDS)
        ),
        *(st.lists(values | st.none(), min_size=count, max_size=count) for values in VALUES.values()),
    )
)


def read(table: pa.Table, condition: Any) -> tuple[list[int], list[int]]:
    """Return the numbers of the rows that the pipes yield, and of those that pyarrow does."""
    table = table.append_column("row", pa.array(range(table.num_rows)))
    url = put_table("memory://table-filters/t.parquet", table, rows=3)
    groups = IterableWrapper([url]).list_row_groups(filter=condition)
    return [one["row"] for one in groups.table_reader(filter=condition)], table.filter(condition)["row"].to_pylist()


GIVEN = pa.table({"x": [NAN, 4.0, 5.0], "y": pa.nulls(3, pa.float32()), "n": [0, 1, 2], "it's": ["a"] * 3})


@settings(deadline=None, max_examples=100)
@given(table=TABLES, condition=CONDITIONS)
@example(GIVEN, X.is_null(nan_is_null=True))
@example(GIVEN, operator.eq(X > 3, pc.scalar(False)))
@example(GIVEN, pc.xor(X > 3, pc.scalar(True)))
@example(GIVEN, pc.if_else(X > 3, pc.scalar(False), pc.scalar(True)))
@example(GIVEN, pc.and_not(pc.scalar(True), X > 3))
@example(GIVEN, X.isin([NAN]))
@example(GIVEN, X != 4)
@example(GIVEN, ~(X <= 9))
@example(GIVEN, pc.equal(X > 3, X > 100))
def test_rows_are_those_of_a_table_in_memory(table: pa.Table, condition: Any) -> None:
    """With NaN, null, infinities and both zeros in several row groups."""
    found, expected = read(table, condition)
    assert found == expected


@pytest.fixture(scope="module")
def shards() -> str:
    with ShardWriter("memory://table-filter-shards/{shard}.tar") as writer:
        for row in range(MOST_ROWS):
            writer.write({"__key__": str(row), "cls": row})
    return "memory://table-filter-shards/index.json"


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=TABLES, condition=CONDITIONS)
@example(GIVEN, X.is_null(nan_is_null=True))
@example(GIVEN, operator.eq(X > 3, pc.scalar(False)))
@example(GIVEN, X.isin([NAN]))
def test_keys_of_a_filtered_file_are_those_of_the_table_in_memory(shards: str, table: pa.Table, condition: Any) -> None:
    """``select(keys=url, where=expression)``."""
    table = table.append_column("__key__", pa.array(map(str, range(table.num_rows))))
    url = put_table("memory://table-filters/keys.parquet", table, rows=3)
    try:
        chosen = list(IterableWrapper([shards]).list_remote().select(keys=url, where=condition))
    except EmptyListingError:
        chosen = []
    found = [one["__key__"] for one in IterableWrapper(chosen).shard_tar_reader()] if chosen else []
    assert found == table.filter(condition)["__key__"].to_pylist()


def test_statistics_that_the_condition_cannot_be_compared_with_exclude_nothing(shards: str) -> None:
    """Those of ``uint64``, with integers that pyarrow makes ``int64``; what it refuses is not a damaged file."""
    table = pa.table({"h": pa.array([3, 2**64 - 1, 7], pa.uint64()), "__key__": ["3", "5", "7"]})
    url = put_table("memory://table-filters/unsigned.parquet", table, rows=2)
    condition = pc.field("h").isin([3, 7])
    groups = IterableWrapper([url]).list_row_groups(filter=condition)
    for pipe in (IterableWrapper([url]).table_reader(filter=condition), groups.table_reader(filter=condition)):
        assert [one["h"] for one in pipe] == table.filter(condition)["h"].to_pylist() == [3, 7]
    chosen = IterableWrapper([shards]).list_remote().select(keys=url, where=condition)
    assert [one["__key__"] for one in chosen.shard_tar_reader()] == ["3", "7"]
    refused = pc.field("h") == 3
    with pytest.raises(pa.ArrowInvalid, match="18446744073709551615 not in range"):
        table.filter(refused)
    with pytest.raises(SampleError, match=r"cannot be applied: .*18446744073709551615 not in range[^.]*\.$"):
        list(IterableWrapper([url]).table_reader(filter=refused))
    with pytest.raises(ValueError, match=r"where: .*18446744073709551615 not in range"):
        list(IterableWrapper([shards]).list_remote().select(keys=url, where=refused))


@pytest.mark.parametrize(
    ("condition", "groups"),
    [
        ((N >= 3) & (X < 9), [1, 2]),
        ((pc.scalar(8) == N) & Y.is_valid(), [2]),
        ((N < 1) | N.isin([7, 8]), [0, 2]),
        (pc.field("pair", "left") == 4, [1]),
        ([("n", "in", [0, 1]), ("x", "<=", 2.0)], [0]),
        ((N >= 3) & (X != 9), [0, 1, 2]),
    ],
    ids=str,
)
def test_comparisons_exclude_row_groups(memory_folder: str, condition: Any, groups: list[int]) -> None:
    """Also of a column of floating-point numbers, and of the fields of a struct."""
    numbers = range(9)
    pairs = [{"left": number, "right": 0} for number in numbers]
    floats = pa.array(map(float, numbers))
    table = pa.table({"n": numbers, "x": floats, "y": floats, "pair": pairs})
    url = put_table(f"{memory_folder}/t.parquet", table, rows=3)
    listed = list(IterableWrapper([url]).list_row_groups(filter=condition))
    assert [int(str(unit).split("+")[1].partition("-")[0]) // 3 for unit in listed] == groups
    assert tdr.RemoteUrl(url) not in listed
