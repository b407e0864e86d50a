"""Rows of Parquet and Arrow files as samples: each once, by the filters of pyarrow, of the columns asked for."""

from __future__ import annotations

import io
import multiprocessing
import operator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.files_over_http import files_over_http
from tests.support.tables import FORMATS, file_bytes, numbered, put_table
from torchdata_remote import IterableWrapper, RemoteUrl, ShardWriter, World, skip_with_warning
from torchdata_remote.errors import (
    EmptyListingError,
    EmptyShareError,
    ManifestError,
    MissingMemberError,
    ObjectChangedError,
    ObjectNotFoundError,
    RemoteDataError,
    SampleError,
    ShardReadError,
)
from torchdata_remote.testing import FaultyStore

EACH_FORMAT = pytest.mark.parametrize("form", FORMATS)


def wrapped(*urls: str) -> Any:
    return IterableWrapper(list(urls))


def ranges(groups: Any) -> list[tuple[int, int] | None]:
    """The rows that the URLs of row groups stand for; ``None`` for a whole file."""
    return [getattr(url, "samples", None) for url in groups]


# Rows


@EACH_FORMAT
def test_each_row_is_a_sample_whose_key_is_path_and_row(memory_folder: str, form: str) -> None:
    """The format is detected by content."""
    url = put_table(f"{memory_folder}/t.data", numbered(25), form)
    samples = list(wrapped(url).table_reader())
    assert [sample["n"] for sample in samples] == list(range(25))
    stem = url.removeprefix("memory://").removesuffix(".data")
    assert {name: samples[24][name] for name in ("__key__", "__url__", "text")} == {
        "__key__": f"{stem}/000000024",
        "__url__": url,
        "text": "row 24",
    }
    assert samples[3]["vector"].tolist() == [3, 4]
    assert samples[3]["vector"].dtype == np.int32
    torch.from_numpy(samples[3]["vector"])  # writable, so without a warning


@settings(max_examples=20)
@given(
    form=st.sampled_from(FORMATS),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    rows=st.integers(1, 17),
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    interleave=st.integers(1, 3),
    threshold=st.none() | st.integers(0, 60),
    lists_groups=st.booleans(),
)
def test_each_row_reaches_exactly_one_reader(
    form: str,
    sizes: list[int],
    rows: int,
    worlds: tuple[int, int],
    interleave: int,
    threshold: int | None,
    lists_groups: bool,
) -> None:
    """Over files, row groups, columns, filters, ranks and workers."""
    starts = np.cumsum([0, *sizes]).tolist()
    urls = [
        put_table(f"memory://each-row/{at}.{form}", numbered(size, starts[at]), form, rows=rows)
        for at, size in enumerate(sizes)
    ]
    condition = None if threshold is None else pc.field("n") >= threshold
    found = []
    for world in tdr.testing.all_worlds(*worlds):
        pipe: Any = wrapped(*urls)
        if lists_groups:
            pipe = pipe.list_row_groups(filter=condition).shuffle_shards(seed=1)
        pipe = pipe.sharding_filter_rank(world=world)
        try:
            samples = list(pipe.table_reader(columns=["text"], filter=condition, interleave=interleave))
        except EmptyShareError:
            total = sum(url.num_samples or 0 for url in wrapped(*urls).list_row_groups(filter=condition))
            assert (total if lists_groups else len(urls)) < worlds[0] * worlds[1]
            return
        found += [int(sample["text"].removeprefix("row ")) for sample in samples]
    assert sorted(found) == [n for n in range(starts[-1]) if threshold is None or n >= threshold]


@pytest.mark.parametrize(("mode", "count"), [("drop", 7), ("repeat", 8)])
def test_ranks_get_equally_many_rows(memory_folder: str, mode: Any, count: int) -> None:
    urls = [put_table(f"{memory_folder}/{at}", numbered(11, 11 * at), rows=4) for at in range(2)]
    found = []
    for rank in range(3):
        groups = wrapped(*urls).list_row_groups().shuffle_shards().sharding_filter_rank(world=World(rank, 3))
        pipe = groups.table_reader().equalize_ranks(mode=mode)
        found.append([sample["n"] for sample in pipe])
        assert len(pipe) == len(found[-1]) == count
    assert set(chain(*found)) <= set(range(22))
    assert len(set(chain(*found))) == (21 if mode == "drop" else 22)


def test_what_cannot_be_counted_or_split_names_the_pipe_that_does_it(memory_folder: str) -> None:
    url = put_table(f"{memory_folder}/t.parquet", numbered(4))
    share = wrapped(url).list_row_groups().sharding_filter_rank(world=World(0, 2))
    with pytest.raises(ValueError, match=r"TableReader\(filter=\) drops some"):
        share.table_reader(filter=[("n", ">", 1)]).equalize_ranks()
    files = wrapped(url).sharding_filter_rank(world=World(0, 2)).table_reader()
    with pytest.raises(EmptyShareError, match=r"1 table for 2 .*list_row_groups\(\)"):
        list(files)
    with pytest.raises(ManifestError, match=r"list_row_groups\(\)"):
        list(files.equalize_ranks())


# Row groups


@EACH_FORMAT
def test_each_row_group_is_a_part_of_its_file(memory_folder: str, form: str) -> None:
    """In the order of files and rows, with size and etag of the file, which its only row group stays."""
    urls = [put_table(f"{memory_folder}/{at}", numbered(count), form, rows=10) for at, count in enumerate([25, 10, 0])]
    groups = list(wrapped(*urls).list_row_groups())
    assert ranges(groups) == [(0, 10), (10, 20), (20, 25), None]
    assert [group.num_samples for group in groups] == [10, 10, 5, 10]
    assert groups[3] == urls[1]
    listed = list(wrapped(urls[0]).list_remote())
    assert all((group.size, group.etag) == (listed[0].size, listed[0].etag) for group in groups[:3])


def test_an_error_of_a_listing_follows_the_files_before_it(memory_folder: str) -> None:
    good = put_table(f"{memory_folder}/t.parquet", numbered(10))
    pipe = iter(wrapped(good, f"{memory_folder}/missing.parquet").list_row_groups())
    assert next(pipe) == good
    with pytest.raises(ObjectNotFoundError):
        next(pipe)


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    """By size or etag of the listing, and by its number of rows."""
    path = tmp_path / "t.parquet"
    path.write_bytes(file_bytes(numbered(30)))
    groups = list(wrapped(str(path)).list_row_groups())
    path.write_bytes(file_bytes(numbered(40)))
    with pytest.raises(ObjectChangedError):
        list(IterableWrapper(groups).table_reader())
    with pytest.raises(ObjectChangedError, match="no rows 30 to 50 in a file of 40 rows"):
        list(wrapped(RemoteUrl(f"file://{path}").part(30, 50)).table_reader())


# Requests


def test_only_the_chosen_columns_and_groups_are_fetched(memory_folder: str) -> None:
    """Of 20 columns, the bytes of one and the footer; of the row groups, those that the statistics do not exclude."""
    rng = np.random.default_rng(0)
    table = pa.table({"n": range(20_000), **{f"c{i}": rng.integers(0, 2**60, 20_000) for i in range(20)}})
    url = put_table(f"{memory_folder}/t.parquet", table, rows=5_000, use_dictionary=False, compression="none")
    column_bytes = 20_000 * 8

    def fetched(**options: Any) -> tuple[list[Any], int]:
        before = tdr.stats().fetch.num_bytes
        samples = list(wrapped(url).table_reader(**options))
        return samples, tdr.stats().fetch.num_bytes - before

    samples, num_bytes = fetched(columns=["c7"])
    assert [sample["c7"] for sample in samples] == table["c7"].to_pylist()
    assert column_bytes < num_bytes < column_bytes * 1.1 + (64 << 10)
    ((sample,), num_bytes) = fetched(filter=pc.field("n") == 11_234)
    assert sample["c3"] == table["c3"][11_234].as_py()
    assert num_bytes < 21 * column_bytes / 2


def test_row_groups_ahead_are_bounded_by_the_budget(tmp_path: Path) -> None:
    """Those that are being read are always allowed, and no more than the budget else."""
    noise = np.random.default_rng(0).integers(0, 2**60, 400_000)
    (tmp_path / "t.parquet").write_bytes(
        file_bytes(pa.table({"n": noise}), rows=40_000, use_dictionary=False, compression="none")
    )
    group_bytes = 40_000 * 8
    for budget in (1, 3 * group_bytes):
        with files_over_http(tmp_path) as server, FaultyStore(server) as store:
            before = tdr.stats().fetch.num_bytes
            rows = wrapped(f"{store.endpoint_url}/t.parquet").table_reader(max_buffer_bytes=budget)
            most = 0
            for number, row in enumerate(rows):
                assert row["n"] == noise[number]
                if number % 1_000 == 0:
                    most = max(most, tdr.stats().fetch.num_bytes - before - number * 8)
            assert most < 64 * 1024 + max(budget, group_bytes) + 3 * group_bytes


# Columns


def test_columns_are_renamed_taken_from_structs_and_written_as_shards(memory_folder: str) -> None:
    images = [{"bytes": b"\xff\xd8%d" % i, "path": f"{i}.jpg"} for i in range(5)]
    table = pa.table({"image": [*images, None], "label": [0, 1, 0, 1, 0, 1], "id": list("abcdef")})
    url = put_table(f"{memory_folder}/t.parquet", table, rows=2)
    samples = wrapped(url).table_reader(columns={"image.bytes": "jpg", "label": "cls"}, key="id")
    first, *_, last = samples
    assert first == {"__key__": "a", "__url__": url, "jpg": b"\xff\xd80", "cls": 0}
    assert last == {"__key__": "f", "__url__": url, "jpg": None, "cls": 1}
    assert next(iter(wrapped(url).table_reader()))["image"] == images[0]
    list(samples.take(5).write_shards(f"{memory_folder}/out/{{shard}}.tar"))
    written = list(wrapped(f"{memory_folder}/out/0.tar").shard_tar_reader())
    assert [(one["__key__"], one["jpg"], one["cls"]) for one in written] == [
        (key, images[i]["bytes"], b"%d" % (i % 2)) for i, key in enumerate("abcde")
    ]


def test_a_column_of_keys_gives_the_keys(memory_folder: str) -> None:
    table = pa.table({"__key__": ["a/1", "b/2"], "n": [1, 2]})
    url = put_table(f"{memory_folder}/t.parquet", table)
    assert list(wrapped(url).table_reader())[1] == {"__key__": "b/2", "__url__": url, "n": 2}
    assert [s["__key__"] for s in wrapped(url).table_reader(key="n", columns=["n"])] == ["1", "2"]
    only_keys = put_table(f"{memory_folder}/k.parquet", table.select(["__key__"]))
    assert [list(s) for s in wrapped(only_keys).table_reader()] == [["__key__", "__url__"]] * 2


@EACH_FORMAT
def test_columns_that_some_files_lack_are_none_on_request(memory_folder: str, form: str) -> None:
    """Also fields of structs, and where a file has none of the columns; a name that nobody asked for is an error."""
    tables = [
        pa.table({"n": [0], "image": [{"bytes": b"0", "path": "0.jpg"}]}),
        pa.table({"n": [1], "image": [{"bytes": b"1"}]}),
        pa.table({"other": [2]}),
    ]
    urls = [put_table(f"{memory_folder}/{at}", table, form) for at, table in enumerate(tables)]
    columns = {"n": "n", "image.path": "txt"}
    found = list(wrapped(*urls).table_reader(columns=columns, optional=["n", "image.path"]))
    assert [(one["n"], one["txt"]) for one in found] == [(0, "0.jpg"), (1, None), (None, None)]
    with pytest.raises(MissingMemberError, match=r"/1 has no column 'image\.path'.* optional=\['image\.path'\]"):
        list(wrapped(*urls).table_reader(columns=columns, optional=["n"]))
    with pytest.raises(MissingMemberError, match=r"/2 has no column 'n'.*other\.$"):
        list(wrapped(*urls).table_reader(columns=columns, optional=["n", "image.path"], key="n"))
    with pytest.raises(ValueError, match=r"optional must be a list of names that columns has too, got \['path'\]"):
        wrapped(*urls).table_reader(columns=columns, optional=["path"])


def test_a_file_of_polars_is_read_and_filtered(memory_folder: str) -> None:
    """It has its schema in the footer only, and views of strings, with which pyarrow can hardly compute."""
    frame = pl.DataFrame(
        {
            "n": range(30),
            "text": ["a", "bb", "ccc"] * 10,
            "part": [{"name": "x", "raw": b"\0"}] * 30,
            "words": [["one", "two"], [], ["three"]] * 10,
            "pair": pl.Series([["l", "r"]] * 30, dtype=pl.Array(pl.String, 2)),
        }
    ).with_columns(split=pl.col("text").cast(pl.Categorical), kind=pl.col("text").cast(pl.Enum(["a", "bb", "ccc"])))
    file = io.BytesIO()
    frame.write_ipc(file, record_batch_size=7)
    url = f"{memory_folder}/polars.arrow"
    fsspec.filesystem("memory").pipe(url, file.getvalue())
    for where, kept in (
        (None, {"a", "bb", "ccc"}),
        ([("text", "==", "bb")], {"bb"}),
        ([("split", "in", ["a", "bb"])], {"a", "bb"}),
    ):
        found = [{name: sample[name] for name in frame.columns} for sample in wrapped(url).table_reader(filter=where)]
        assert found == [row for row in frame.iter_rows(named=True) if row["text"] in kept]


# Filters

NAN, INF = float("nan"), float("inf")
X, Y, N = pc.field("x"), pc.field("y"), pc.field("n")
FLOATS = st.sampled_from([NAN, INF, -INF, -0.0, 0.0, 1.0, 4.5])
KINDS = {"x": pa.float64(), "y": pa.float32(), "n": pa.int64(), "it's": pa.string()}
VALUES: dict[str, Any] = {
    "x": FLOATS,
    "y": FLOATS,
    "n": st.sampled_from([-1, 0, 1, 4]),
    "it's": st.sampled_from(["", "a", "b", "it's \"a"]),
}
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
GIVEN = pa.table({"x": [NAN, 4.0, 5.0], "y": pa.nulls(3, pa.float32()), "n": [0, 1, 2], "it's": ["a"] * 3})


@pytest.fixture(scope="module")
def shards() -> str:
    with ShardWriter("memory://table-filter-shards/{shard}.tar", overwrite=True) as writer:
        for row in range(MOST_ROWS):
            writer.write({"__key__": str(row), "cls": row})
    return "memory://table-filter-shards/index.json"


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
def test_rows_of_a_filter_are_those_of_the_table_in_memory_whatever_statistics_exclude(
    shards: str, table: pa.Table, condition: Any
) -> None:
    """With NaN, null, infinities and both zeros in several row groups; so are keys that ``select`` takes of a file."""
    expected = table.append_column("row", pa.array(range(table.num_rows)))
    url = put_table("memory://table-filters/t.parquet", expected, rows=3)
    groups = wrapped(url).list_row_groups(filter=condition)
    rows = expected.filter(condition)["row"].to_pylist()
    assert [one["row"] for one in groups.table_reader(filter=condition)] == rows
    keyed = table.append_column("__key__", pa.array(map(str, range(table.num_rows))))
    keys = put_table("memory://table-filters/keys.parquet", keyed, rows=3)
    try:
        chosen = list(wrapped(shards).list_remote().select(keys=keys, where=condition))
    except EmptyListingError:
        chosen = []
    found = [one["__key__"] for one in IterableWrapper(chosen).shard_tar_reader()] if chosen else []
    assert found == list(map(str, rows))


@pytest.mark.parametrize(
    ("condition", "groups"),
    [
        ((N >= 3) & (X < 9), [1, 2]),
        ((N < 1) | N.isin([7, 8]), [0, 2]),
        (pc.field("pair", "left") == 4, [1]),
        ([("n", "in", [0, 1]), ("x", "<=", 2.0)], [0]),
        ((N >= 3) & (X != 9), [0, 1, 2]),
    ],
    ids=str,
)
def test_comparisons_exclude_row_groups(memory_folder: str, condition: Any, groups: list[int]) -> None:
    """Also of floating-point numbers, and of the fields of a struct."""
    floats = pa.array(map(float, range(9)))
    pairs = pa.array([{"left": number, "right": 0} for number in range(9)])
    table = numbered(9).append_column("x", floats).append_column("y", floats).append_column("pair", pairs)
    url = put_table(f"{memory_folder}/t.parquet", table, rows=3)
    assert ranges(wrapped(url).list_row_groups(filter=condition)) == [(3 * at, 3 * at + 3) for at in groups]


@EACH_FORMAT
@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (pc.field("time") > pa.scalar(0, pa.timestamp("us")), "cannot be applied"),
        (pc.field("lable") == 1, r"cannot be applied: No match for.*time, text"),
        (pc.field("n") + 1, "cannot be applied: .*int64"),
    ],
    ids=["naive time", "no column", "no condition"],
)
def test_a_filter_that_does_not_fit_is_not_a_damaged_file(
    memory_folder: str, form: str, condition: Any, message: str
) -> None:
    """``skip_with_warning`` skips damaged files, not those that a filter does not fit."""
    times = pa.array([1, 2], pa.timestamp("us", "UTC"))
    url = put_table(f"{memory_folder}/a.{form}", pa.table({"time": times, "text": ["1", "b"], "n": [1, 2]}), form)
    for pipe in (wrapped(url), wrapped(url).list_remote().list_row_groups(filter=condition)):
        with pytest.raises(SampleError, match=message):
            list(pipe.table_reader(filter=condition, on_bad_shard=skip_with_warning))


# Damage


def with_length(data: bytes, mark: bytes, length: int) -> bytes:
    """A file whose footer claims another length."""
    return data[: -4 - len(mark)] + length.to_bytes(4, "little") + mark


PARQUET_FILE, ARROW_FILE = file_bytes(numbered(100), rows=50), file_bytes(numbered(100), "arrow", rows=50)
DAMAGED = {
    "cut": PARQUET_FILE[:-100],
    "cut stream": file_bytes(numbered(100), "stream", rows=50)[:-100],
    "zeros": PARQUET_FILE[:-200] + bytes(192) + PARQUET_FILE[-8:],
    "text": b"no table at all, but a text",
    "empty": b"",
    "encrypted": PARQUET_FILE[:-4] + b"PARE",
    "page": PARQUET_FILE[:4] + b"\xff" * 60 + PARQUET_FILE[64:],
    "marks": b"ARROW1ARROW1",
    **{
        f"length {length} of {mark.decode()}": with_length(data, mark, length)
        for data, mark in ((PARQUET_FILE, b"PAR1"), (ARROW_FILE, b"ARROW1"))
        for length in (0, 1, len(data) - 4 - 2 * len(mark), len(data), (1 << 32) - 1)
    },
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_and_may_be_skipped(memory_folder: str, name: str) -> None:
    good, url = put_table(f"{memory_folder}/good.parquet", numbered(3)), f"{memory_folder}/bad.data"
    fsspec.filesystem("memory").pipe(url, DAMAGED[name])
    with pytest.raises(ShardReadError, match=r"bad\.data.* row group 0" if name == "page" else r"bad\.data"):
        list(wrapped(url).table_reader())
    reader = wrapped(url, good).table_reader(on_bad_shard=skip_with_warning)
    with pytest.warns(RuntimeWarning, match=r"bad\.data"):
        assert [sample["n"] for sample in reader][-3:] == [0, 1, 2]
    assert list(reader.skipped.shards) == [url]


def test_the_checksum_of_a_page_is_compared(memory_folder: str) -> None:
    table = pa.table({"a": np.arange(1000) + (1 << 40)})
    data = bytearray(file_bytes(table, rows=1000, write_page_checksum=True, compression="none", use_dictionary=False))
    data[2000] ^= 1
    fsspec.filesystem("memory").pipe(f"{memory_folder}/a.parquet", bytes(data))
    with pytest.raises(ShardReadError, match="row group 0"):
        list(wrapped(f"{memory_folder}/a.parquet").table_reader())


def read_damaged_files() -> None:
    table = pa.table({"n": range(20), "text": pa.array(["a", "bb"] * 10).dictionary_encode(), "v": [[1, 2]] * 20})
    page = bytearray(file_bytes(table, rows=7))
    page[157] = 128
    fsspec.filesystem("memory").pipe("/footer/t", bytes(page))
    with suppress(RemoteDataError):
        list(wrapped("memory://footer/t").table_reader(filter=[("n", ">=", 0)]))
    data = file_bytes(numbered(4))
    length = int.from_bytes(data[-8:-4], "little") + 8
    for at in range(len(data) - length, len(data)):
        fsspec.filesystem("memory").pipe("/footer/t", data[:at] + bytes([0x2B]) + data[at + 1 :])
        with suppress(RemoteDataError):
            list(wrapped("memory://footer/t").table_reader(columns=["n"], filter=[("n", ">", 2)]))


def test_neither_a_damaged_page_nor_any_byte_of_a_damaged_footer_ends_the_process() -> None:
    """pyarrow does it for some, where it reads the metadata of columns and not their pages."""
    process = multiprocessing.get_context("fork").Process(target=read_damaged_files)
    process.start()
    process.join(600)
    assert process.exitcode == 0


@EACH_FORMAT
def test_columns_that_cannot_be_members_or_keys_are_errors(memory_folder: str, form: str) -> None:
    """A name twice, a name that the reader sets, and rows without a key."""
    for name, table, options, message in (
        ("twice", pa.table([[1], [2]], names=["a", "a"]), {}, "2 columns are named 'a'"),
        ("keys", pa.table([["1"], ["2"]], names=["__key__", "__key__"]), {}, "2 columns are named '__key__'"),
        ("null", pa.table({"id": ["a", None]}), {"key": "id"}, "row 1 has no key"),
        ("url", pa.table({"n": [1], "__url__": ["x"]}), {}, "has a column '__url__'.* Rename it by columns="),
        ("key", pa.table({"n": [1], "__key__": [7.5]}), {}, "has a column '__key__'.* Rename it by columns="),
        ("kind", pa.table({"n": [[1]]}), {"key": "n"}, "key='n' must be a column of strings or integers"),
    ):
        url = put_table(f"{memory_folder}/{name}", table, form)
        with pytest.raises((SampleError, ShardReadError), match=message):
            list(wrapped(url).table_reader(**options))
