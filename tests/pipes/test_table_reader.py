from __future__ import annotations

import ast
import io
import pickle
import re
import subprocess
import sys
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.servers.files_over_http import files_over_http
from tests.servers.hub import TOKEN, running_hub
from tests.support.tables import FORMATS, file_bytes, numbered, put_table
from torchdata_remote import RetryPolicy, TableReader, World, skip_with_warning
from torchdata_remote.errors import (
    EmptyShareError,
    ManifestError,
    MissingMemberError,
    ObjectChangedError,
    RemoteDataError,
    SampleError,
    ShardReadError,
    StateError,
)
from torchdata_remote.fetch.tables.row_groups import TableFetcher
from torchdata_remote.testing import Faults, FaultyStore, assert_resumes_everywhere


def wrapped(*urls: str) -> Any:
    return IterableWrapper(list(urls))


def same(one: Any, other: Any) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("form", FORMATS)
def test_each_row_is_a_sample(memory_folder: str, form: str) -> None:
    """Keys are path and row, columns are entries, in each format, which is detected by content."""
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


@settings(deadline=None, max_examples=40)
@given(
    form=st.sampled_from(FORMATS),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    rows=st.integers(1, 17),
    ranks=st.integers(1, 3),
    workers=st.integers(1, 2),
    interleave=st.integers(1, 3),
    threshold=st.none() | st.integers(0, 60),
    lists_groups=st.booleans(),
)
def test_each_row_reaches_exactly_one_reader(
    form: str,
    sizes: list[int],
    rows: int,
    ranks: int,
    workers: int,
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
    expected = [n for n in range(starts[-1]) if threshold is None or n >= threshold]
    found = []
    for rank in range(ranks):
        for worker in range(workers):
            pipe: Any = wrapped(*urls)
            if lists_groups:
                pipe = pipe.list_row_groups(filter=condition).shuffle_shards(seed=1)
            pipe = pipe.sharding_filter_rank(world=World(rank, ranks, worker, workers))
            try:
                found += [
                    int(sample["text"].removeprefix("row "))
                    for sample in pipe.table_reader(columns=["text"], filter=condition, interleave=interleave)
                ]
            except EmptyShareError:
                total = sum(url.num_samples or 0 for url in wrapped(*urls).list_row_groups(filter=condition))
                assert (total if lists_groups else len(urls)) < ranks * workers
                return
    assert sorted(found) == expected


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("interleave", [1, 3])
def test_resumes_after_every_row(memory_folder: str, form: str, interleave: int) -> None:
    """Whole files, with rows that the filter drops: also after whole row groups of them."""
    urls = [put_table(f"{memory_folder}/{at}", numbered(9, 9 * at), form, rows=4) for at in range(3)]
    condition = ~pc.field("n").isin([0, 4, 5, 6, 7, 12, 17])
    assert_resumes_everywhere(
        lambda: wrapped(*urls).table_reader(columns=["n", "vector"], filter=condition, interleave=interleave),
        same=same,
    )


def test_two_streams_resume_after_every_row(memory_folder: str) -> None:
    """Row groups in a shuffled order, split over the streams, then shuffled samples and batches."""
    urls = [put_table(f"{memory_folder}/{at}", numbered(7, 7 * at), rows=3) for at in range(2)]

    def chained() -> Any:
        groups = wrapped(*urls).list_row_groups().shuffle_shards(seed=3).sharding_filter_rank()
        return groups.table_reader(columns=["n"]).shuffle_samples(buffer_size=3, seed=1)

    assert_resumes_everywhere(chained, num_streams=2)
    assert_resumes_everywhere(lambda: chained().batch(2), num_streams=2)


def test_snapshots_are_the_states(memory_folder: str) -> None:
    """``parallel_map`` takes samples ahead, and its state is that of the sample handed out."""
    url = put_table(f"{memory_folder}/t", numbered(9), rows=4)
    assert_resumes_everywhere(
        lambda: (
            wrapped(url)
            .table_reader(columns=["n"], filter=[("n", "!=", 4)], interleave=2)
            .parallel_map(dict, num_threads=2)
        )
    )


@pytest.mark.parametrize("mode", ["drop", "repeat"])
def test_ranks_get_equally_many_rows(memory_folder: str, mode: Any) -> None:
    """Parts of row groups are parts of the file, and lengths are known before."""
    urls = [put_table(f"{memory_folder}/{at}", numbered(11, 11 * at), rows=4) for at in range(2)]
    counts, found = [], []
    for rank in range(3):
        groups = wrapped(*urls).list_row_groups().shuffle_shards().sharding_filter_rank(world=World(rank, 3))
        pipe = groups.table_reader().equalize_ranks(mode=mode)
        rows = [sample["n"] for sample in pipe]
        counts.append((len(pipe), len(rows)))
        found += rows
    assert counts == [(7, 7)] * 3 if mode == "drop" else [(8, 8)] * 3
    assert set(found) <= set(range(22))
    assert len(set(found)) >= 21


def test_equal_ranks_refuse_what_drops_rows(memory_folder: str) -> None:
    """A filter is refused when the chain is built; files without numbers of rows name the pipe that counts them."""
    url = put_table(f"{memory_folder}/t.parquet", numbered(4))
    share = wrapped(url).list_row_groups().sharding_filter_rank(world=World(0, 2))
    with pytest.raises(ValueError, match=r"TableReader\(filter=\) drops some"):
        share.table_reader(filter=[("n", ">", 1)]).equalize_ranks()
    files = wrapped(url).sharding_filter_rank(world=World(0, 2))
    with pytest.raises(ManifestError, match=r"list_row_groups\(\)"):
        list(files.table_reader().equalize_ranks())


def test_fewer_files_than_readers_name_the_pipe_that_splits_them(memory_folder: str) -> None:
    url = put_table(f"{memory_folder}/t.parquet", numbered(4))
    with pytest.raises(EmptyShareError, match=r"1 table for 2 .*list_row_groups\(\)"):
        list(wrapped(url).sharding_filter_rank(world=World(0, 2)).table_reader())


def test_only_the_chosen_columns_are_fetched(memory_folder: str) -> None:
    """Of 20 columns, the bytes of one and the footer."""
    rng = np.random.default_rng(0)
    table = pa.table({f"c{i}": rng.integers(0, 2**60, 20_000) for i in range(20)})
    url = put_table(f"{memory_folder}/t.parquet", table, rows=5_000, use_dictionary=False, compression="none")
    column_bytes = 20_000 * 8
    before = tdr.stats().fetch
    samples = list(wrapped(url).table_reader(columns=["c7"]))
    after = tdr.stats().fetch
    assert [sample["c7"] for sample in samples] == table["c7"].to_pylist()
    assert column_bytes < after.num_bytes - before.num_bytes < column_bytes * 1.1 + (64 << 10)


def test_statistics_spare_row_groups(memory_folder: str) -> None:
    """Those that cannot match are not fetched, and not listed."""
    noise = np.random.default_rng(1).integers(0, 2**60, 50_000)
    table = pa.table({"n": range(50_000), "noise": noise})
    url = put_table(f"{memory_folder}/t.parquet", table, rows=10_000)
    condition = pc.field("n") == 31_234
    (unit,) = wrapped(url).list_row_groups(filter=condition)
    assert (str(unit), unit.num_samples) == (f"samples+30000-40000+{url}+samples+30000-40000", 10_000)
    before = tdr.stats().fetch.num_bytes
    (sample,) = wrapped(url).table_reader(filter=condition)
    assert sample["noise"] == table["noise"][31_234].as_py()
    assert tdr.stats().fetch.num_bytes - before < len(fsspec.filesystem("memory").cat(url)) / 2


def test_columns_are_renamed_and_taken_from_structs(memory_folder: str) -> None:
    """An image of a Hugging Face data set becomes a member that other pipes know, and so do rows that have none."""
    images = [{"bytes": b"\xff\xd8%d" % i, "path": f"{i}.jpg"} for i in range(5)]
    table = pa.table({"image": [*images, None], "label": [0, 1, 0, 1, 0, 1], "id": list("abcdef")})
    url = put_table(f"{memory_folder}/t.parquet", table, rows=2)
    first, *_, last = wrapped(url).table_reader(columns={"image.bytes": "jpg", "label": "cls"}, key="id")
    assert first == {"__key__": "a", "__url__": url, "jpg": b"\xff\xd80", "cls": 0}
    assert last == {"__key__": "f", "__url__": url, "jpg": None, "cls": 1}
    assert next(iter(wrapped(url).table_reader()))["image"] == images[0]


def test_rows_become_shards(memory_folder: str) -> None:
    images = [{"bytes": b"\xff\xd8%d" % i, "path": None} for i in range(5)]
    url = put_table(f"{memory_folder}/t.parquet", pa.table({"image": images, "label": range(5)}), rows=2)
    samples = wrapped(url).table_reader(columns={"image.bytes": "jpg", "label": "cls"})
    list(samples.write_shards(f"{memory_folder}/out/{{shard}}.tar"))
    written = list(tdr.IterableWrapper([f"{memory_folder}/out/0.tar"]).shard_tar_reader())
    assert [(one["__key__"][-4:], one["jpg"], one["cls"]) for one in written] == [
        (f"000{i}", images[i]["bytes"], b"%d" % i) for i in range(5)
    ]


def test_own_keys_are_used(memory_folder: str) -> None:
    """A column ``__key__`` gives the keys, or the column that is named."""
    table = pa.table({"__key__": ["a/1", "b/2"], "n": [1, 2]})
    url = put_table(f"{memory_folder}/t.parquet", table)
    assert list(wrapped(url).table_reader())[1] == {"__key__": "b/2", "__url__": url, "n": 2}
    assert [s["__key__"] for s in wrapped(url).table_reader(key="n", columns=["n"])] == ["1", "2"]
    only_keys = put_table(f"{memory_folder}/k.parquet", table.select(["__key__"]))
    assert [list(s) for s in wrapped(only_keys).table_reader()] == [["__key__", "__url__"]] * 2


def test_mistakes_about_columns_name_them(memory_folder: str) -> None:
    url = put_table(f"{memory_folder}/t.parquet", pa.table({"image": [{"bytes": b"1"}], "label": [1], "key": [None]}))
    with pytest.raises(
        MissingMemberError, match=r"no column 'lable'; did you mean 'label'\? Its columns are: image, label"
    ):
        list(wrapped(url).table_reader(columns=["lable"]))
    with pytest.raises(MissingMemberError, match=r"no column 'image\.data'; did you mean 'image'\? Its columns"):
        list(wrapped(url).table_reader(columns=["image.data"]))
    for name in ("__url__", "__key__"):
        advice = re.escape(f"Rename it by columns={ {name: name.strip('_')}!r}; key= chooses")
        with pytest.raises(ValueError, match=rf"'{name}' is set by the reader\. {advice}"):
            wrapped(url).table_reader(columns=[name, "label"])
    with pytest.raises(MissingMemberError, match=r"no column 'x'\. Its columns"):
        list(wrapped(url).table_reader(columns=["x"]))
    with pytest.raises(SampleError, match="key='image' must be a column of strings or integers"):
        list(wrapped(url).table_reader(key="image"))
    with pytest.raises(SampleError, match=r"cannot be applied: No match for.*image, label"):
        list(wrapped(url).table_reader(filter=pc.field("lable") == 1))
    with pytest.raises(SampleError, match="cannot be applied"):
        list(wrapped(url).list_row_groups(filter=pc.field("label") == "one"))
    twice = put_table(f"{memory_folder}/2.arrow", pa.table([[1], [2]], names=["a", "a"]), "arrow")
    with pytest.raises(ShardReadError, match="2 columns are named 'a'"):
        list(wrapped(twice).table_reader())
    nulls = put_table(f"{memory_folder}/n.parquet", pa.table({"id": ["a", None]}))
    with pytest.raises(ShardReadError, match="row 1 has no key"):
        list(wrapped(nulls).table_reader(key="id"))


def test_streams_are_refused(memory_folder: str) -> None:
    url = put_table(f"{memory_folder}/t.parquet", numbered(2))
    with pytest.raises(RemoteDataError, match=r"Remove async_prefetch\(\)"):
        list(wrapped(url).async_prefetch().table_reader())


@pytest.mark.parametrize("form", FORMATS)
def test_empty_tables_yield_nothing(memory_folder: str, form: str) -> None:
    """Files without rows, and without row groups."""
    urls = [put_table(f"{memory_folder}/{at}", numbered(size), form) for at, size in enumerate([0, 3, 0])]
    assert [sample["n"] for sample in wrapped(*urls).table_reader()] == [0, 1, 2]
    assert len(list(wrapped(*urls).list_row_groups())) == 1


def test_damaged_files_name_what_cannot_be_read(memory_folder: str) -> None:
    """Each damage is an error of the file, which a policy may skip."""
    memory = fsspec.filesystem("memory")
    data = file_bytes(numbered(100), rows=50)
    damaged = {
        "cut": data[:-100],
        "long": data[:-8] + (10**9).to_bytes(4, "little") + data[-4:],
        "zeros": data[:-200] + bytes(192) + data[-8:],
        "text": b"no table at all, but a text",
        "empty": b"",
        "encrypted": data[:-4] + b"PARE",
    }
    for name, content in damaged.items():
        memory.pipe(f"{memory_folder}/{name}.parquet", content)
        with pytest.raises(ShardReadError, match=rf"{name}\.parquet"):
            list(wrapped(f"{memory_folder}/{name}.parquet").table_reader())
    memory.pipe(f"{memory_folder}/page.parquet", data[:4] + b"\xff" * 60 + data[64:])
    memory.pipe(f"{memory_folder}/good.parquet", file_bytes(numbered(3)))
    with pytest.raises(ShardReadError, match=r"page\.parquet: row group 0 cannot be read"):
        list(wrapped(f"{memory_folder}/page.parquet").table_reader())
    reader: Any = wrapped(f"{memory_folder}/page.parquet", f"{memory_folder}/good.parquet").table_reader(
        on_bad_shard=skip_with_warning
    )
    with pytest.warns(RuntimeWarning, match=r"page\.parquet"):
        assert [sample["n"] for sample in reader] == [0, 1, 2]
    assert list(reader.skipped.shards) == [f"{memory_folder}/page.parquet"]


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
    for where in (None, [("text", "==", "bb")], [("split", "in", ["a", "bb"])], pc.field("part", "name") != "x"):
        wanted = [row for row in frame.iter_rows(named=True) if where is None or row["text"] == "bb"]
        if isinstance(where, list) and where[0][0] == "split":
            wanted = [row for row in frame.iter_rows(named=True) if row["split"] != "ccc"]
        elif where is not None and not isinstance(where, list):
            wanted = []
        found = [dict(sample) for sample in wrapped(url).table_reader(filter=where)]
        assert [{name: sample[name] for name in frame.columns} for sample in found] == wanted


def test_no_byte_of_a_damaged_footer_ends_the_process() -> None:
    """pyarrow does it for some, where it reads the metadata of columns and not their pages."""
    script = """if True:
        import io, fsspec
        from tests.support.tables import file_bytes, numbered
        from torch.utils.data.datapipes.iter import IterableWrapper
        import torchdata_remote
        data = file_bytes(numbered(4))
        length = int.from_bytes(data[-8:-4], "little") + 8
        for at in range(len(data) - length, len(data)):
            fsspec.filesystem("memory").pipe("/footer/t", data[:at] + bytes([0x2B]) + data[at + 1 :])
            for where in (None, [("n", ">", 3)]):
                try:
                    list(IterableWrapper(["memory://footer/t"]).table_reader(columns=["n"], filter=where))
                except torchdata_remote.errors.RemoteDataError:
                    pass
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@settings(deadline=None, max_examples=150)
@given(form=st.sampled_from(FORMATS), at=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.booleans())
@example(form=FORMATS[0], at=157, value=128, cut=False)
def test_any_damaged_byte_is_an_error_of_this_package_or_other_values(
    form: str, at: int, value: int, cut: bool
) -> None:
    """Formats without checksums may yield other values; nothing else is raised, and the process lives."""
    table = pa.table({"n": range(20), "text": pa.array(["a", "bb"] * 10).dictionary_encode(), "v": [[1, 2]] * 20})
    data = bytearray(file_bytes(table, form, rows=7))
    at %= len(data)
    data[at] = value
    fsspec.filesystem("memory").pipe("memory://damaged/t", bytes(data[:at] if cut else data))
    try:
        for _ in wrapped("memory://damaged/t").table_reader(filter=[("n", ">=", 0)]):
            pass
    except RemoteDataError:
        pass


def test_replaced_file_is_noticed(tmp_path: Path) -> None:
    """By size or etag of the listing, and by its number of rows."""
    path = tmp_path / "t.parquet"
    path.write_bytes(file_bytes(numbered(30)))
    groups = list(wrapped(str(path)).list_row_groups())
    path.write_bytes(file_bytes(numbered(40)))
    with pytest.raises(ObjectChangedError):
        list(IterableWrapper(groups).table_reader())
    with pytest.raises(ObjectChangedError, match="no rows 30 to 50 in a file of 40 rows"):
        list(wrapped(f"samples+30-50+{path}+samples+30-50").table_reader())


@pytest.mark.parametrize("interleave", [1, 2])
@pytest.mark.parametrize("groups_held", [0, 1, 3])
def test_row_groups_ahead_are_bounded_by_the_budget(
    memory_folder: str, monkeypatch: pytest.MonkeyPatch, groups_held: int, interleave: int
) -> None:
    """Those being read are always allowed, and no more than the budget else."""
    urls = [put_table(f"{memory_folder}/{at}", numbered(50), rows=5) for at in range(3)]
    held, start = [], TableFetcher._start

    def recorded(fetcher: TableFetcher, stream: Any, group: Any) -> None:
        start(fetcher, stream, group)
        held.append((fetcher._held_bytes, group.num_bytes))

    monkeypatch.setattr(TableFetcher, "_start", recorded)
    list(wrapped(*urls).table_reader())
    most = max(num_bytes for _, num_bytes in held)
    held.clear()
    budget = max(1, groups_held * most)
    rows = [sample["n"] for sample in wrapped(*urls).table_reader(max_buffer_bytes=budget, interleave=interleave)]
    assert sorted(rows) == sorted(3 * list(range(50)))
    assert max(num_bytes for num_bytes, _ in held) <= max(budget, most) + (interleave - 1) * most
    if groups_held == 3:
        assert max(num_bytes for num_bytes, _ in held) > most


def test_rows_survive_a_store_that_breaks(tmp_path: Path) -> None:
    """Requests are repeated, also those of footers."""
    for form in ("parquet", "arrow", "stream"):
        (tmp_path / form).write_bytes(file_bytes(numbered(400), form, rows=50))
    retry = RetryPolicy(first_wait_s=0.001, max_wait_s=0.01)
    with files_over_http(tmp_path) as server, FaultyStore(server, Faults.storm(0.2), seed=1) as store:
        urls = [f"{store.endpoint_url}/{form}" for form in FORMATS]
        pipe = wrapped(*urls).list_row_groups(retry=retry).table_reader(retry=retry)
        assert [sample["n"] for sample in pipe] == 3 * list(range(400))
        assert sum(store.counts.values()) > store.counts["well"]


def test_a_file_in_a_bucket_costs_a_request_for_its_footer_and_one_for_close_row_groups(tmp_path: Path) -> None:
    """Row groups that were listed do not need the footer again."""
    table = pa.table({"n": np.random.default_rng(0).integers(0, 2**60, 100_000)})
    (tmp_path / "t.parquet").write_bytes(file_bytes(table, rows=50_000, use_dictionary=False, compression="none"))
    with files_over_http(tmp_path) as server, FaultyStore(server) as store:
        groups = list(wrapped(f"{store.endpoint_url}/t.parquet").list_row_groups())
        assert len(list(IterableWrapper(groups).table_reader())) == 100_000
        assert [request.method for request in store.requests] == ["HEAD", "GET", "GET", "GET"]


def test_a_data_set_of_the_hub_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """``hf://`` URLs chain like others: listed, split by row groups, read by ranges."""
    monkeypatch.setenv("HF_TOKEN_PATH", "/nonexistent/token")
    with running_hub() as hub:
        files = {f"data/train-{at}.parquet": file_bytes(numbered(20, 20 * at), rows=5) for at in range(2)}
        hub.repository("tests/photos").commit(files)
        options = {"endpoint": hub.url, "token": TOKEN}
        listed = wrapped("hf://datasets/tests/photos/data").list_remote(pattern="*.parquet", storage_options=options)
        groups = listed.list_row_groups(storage_options=options)
        found = [
            [s["n"] for s in groups.sharding_filter_rank(world=World(rank, 2)).table_reader(storage_options=options)]
            for rank in range(2)
        ]
    assert [len(share) for share in found] == [20, 20]
    assert sorted(chain(*found)) == list(range(40))


def test_local_files_are_mapped(tmp_path: Path) -> None:
    (tmp_path / "t.arrow").write_bytes(file_bytes(numbered(30), "arrow"))
    assert [s["n"] for s in wrapped(str(tmp_path / "t.arrow")).list_row_groups().table_reader()] == list(range(30))


def test_stopping_early_ends_the_pass(memory_folder: str) -> None:
    urls = [put_table(f"{memory_folder}/{at}", numbered(100), rows=5) for at in range(5)]
    pipe = wrapped(*urls).table_reader()
    for _ in range(3):
        assert next(iter(pipe))["n"] == 0
    assert len(list(pipe)) == 500


def test_workers_read_each_row_once(tmp_path: Path) -> None:
    """Real processes, with a filter, which is pickled."""
    for at in range(2):
        (tmp_path / f"{at}.parquet").write_bytes(file_bytes(numbered(20, 20 * at), rows=5))
    groups = wrapped(str(tmp_path)).list_remote(pattern="*.parquet").list_row_groups(filter=pc.field("n") > 3)
    pipe = groups.shuffle_shards(seed=0).sharding_filter_rank().table_reader(filter=pc.field("n") > 3)
    loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    rows = [sample["n"] for sample in loader]
    assert sorted(rows) == list(range(4, 40))
    assert isinstance(pickle.loads(pickle.dumps(pipe)), TableReader)


def test_a_forked_worker_reads_what_its_parent_has_read(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(file_bytes(numbered(20), rows=5))
    pipe = wrapped(str(tmp_path / "t.parquet")).list_row_groups().sharding_filter_rank().table_reader(columns=["n"])
    assert len(list(pipe)) == 20
    loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(sample["n"] for sample in chain(loader)) == list(range(20))


def test_a_filter_that_is_no_condition_is_not_a_damaged_file() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2]}), file)
    fsspec.filesystem("memory").pipe("/no-condition/a.parquet", file.getvalue())
    pipe = IterableWrapper(["memory://no-condition/a.parquet"]).table_reader(filter=pc.field("a") + 1)
    with pytest.raises(SampleError, match="it is int64 in place of bool"):
        list(pipe)


def test_the_checksum_of_a_page_is_compared() -> None:
    file = io.BytesIO()
    table = pa.table({"a": np.arange(1000) + (1 << 40)})
    pq.write_table(table, file, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(file.getvalue())
    data[2000] ^= 1
    fsspec.filesystem("memory").pipe("/page-checksum/a.parquet", bytes(data))
    with pytest.raises(ShardReadError, match="row group 0"):
        list(IterableWrapper(["memory://page-checksum/a.parquet"]).table_reader())


@pytest.mark.parametrize("name", [b"outer", b"inner"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_column_whose_name_is_no_text_is_damage(form: str, name: bytes) -> None:
    data = file_bytes(pa.table({"outer": [{"inner": 1}]}), form)
    fsspec.filesystem("memory").pipe("/no-text/a", data.replace(name, b"\xd7" + name[1:]))
    with pytest.raises(ShardReadError, match="UnicodeDecodeError"):
        list(IterableWrapper(["memory://no-text/a"]).table_reader())


def test_a_filter_names_its_columns(tmp_path: Path) -> None:
    """The place of a column among those that are read is another one than in the file."""
    pq.write_table(pa.table({"a": ["x", "y"], "b": ["y", "x"]}), tmp_path / "x.parquet")
    for condition in [pc.field(0) == "x", (pc.field("b") == "x") & (pc.field(0, "c") == 1)]:
        with pytest.raises(ValueError, match="by its position: write its name"):
            wrapped(f"{tmp_path}/x.parquet").table_reader(columns=["b"], filter=condition)
    quoted = pc.field("b") != 'no "FieldPath(0)"'
    assert [row["b"] for row in wrapped(f"{tmp_path}/x.parquet").table_reader(filter=quoted)] == ["y", "x"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "condition",
    [pc.field("time") > pa.scalar(0, pa.timestamp("us")), pc.field("text").cast("int64") > 1],
    ids=["naive time", "text as number"],
)
def test_a_filter_that_does_not_fit_a_value_is_not_a_damaged_file(
    memory_folder: str, form: str, condition: Any
) -> None:
    """``skip_with_warning`` skips damaged files, not those that a filter does not fit."""
    times = pa.array([1, 2], pa.timestamp("us", "UTC"))
    url = put_table(f"{memory_folder}/a.{form}", pa.table({"time": times, "text": ["1", "b"]}), form)
    for pipe in (wrapped(url), wrapped(url).list_remote().list_row_groups(filter=condition)):
        with pytest.raises(SampleError, match="cannot be applied"):
            list(pipe.table_reader(filter=condition, on_bad_shard=skip_with_warning))


@pytest.mark.parametrize("form", ["arrow", "stream"])
def test_rows_of_run_end_encoded_columns_are_filtered(memory_folder: str, form: str) -> None:
    runs = pa.RunEndEncodedArray.from_arrays([2, 4], ["x", "y"])
    url = put_table(f"{memory_folder}/a.{form}", pa.table({"runs": runs, "n": [0, 1, 2, 3]}), form)
    found = wrapped(url).table_reader(filter=(pc.field("n") > 0) & (pc.field("n") < 3))
    assert [row["runs"] for row in found] == ["x", "y"]


@pytest.mark.parametrize("before", [[0], list(range(60))])
def test_a_state_loads_only_with_its_filter(memory_folder: str, before: list[int]) -> None:
    """A shuffle behind it reads rows again, by their number: with another filter some came twice and others never."""
    url = f"{memory_folder}/t.parquet"
    with fsspec.open(url, "wb") as file:
        pq.write_table(pa.table({"n": list(range(100))}), file, row_group_size=10)

    def loader(left_out: list[int]) -> Any:
        rows = IterableWrapper([url]).list_row_groups().sharding_filter_rank()
        rows = rows.table_reader(filter=~pc.field("n").isin(left_out)).shuffle_samples(buffer_size=9, seed=0)
        return tdr.stateful_loader(rows, batch_size=None)

    saved = loader(before)
    batches = iter(saved)
    first = [next(batches)["n"] for _ in range(20)]
    state = saved.state_dict()
    other = [number if number != 30 else 70 for number in before] if len(before) > 1 else [0, 5]
    with pytest.raises(StateError, match="TableReader: filter was"):
        loader(other).load_state_dict(state)
    again = loader(before)
    again.load_state_dict(state)
    assert sorted(first + [row["n"] for row in again]) == sorted(set(range(100)) - set(before))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("first", "other", "told"),
    [
        (pa.array([None, None]), pa.array(["a", "b"]), "'v' is string, and null in"),
        (pa.array([b"a", b"b"]), pa.array(["a", "b"]), "'v' is string, and binary in"),
        (pa.array([1, 2], pa.int32()), pa.array([2**40, 3]), "'v' is int64, and int32 in"),
        (pa.array([[1]], pa.list_(pa.int32())), pa.array([[2]]), "'v' is list<int64>, and list<int32> in"),
        (pa.array(["a"]), pa.array(["b"], pa.large_string()), None),
        (pa.array(["a"]), pa.array(["b"]).dictionary_encode(), None),
    ],
)
def test_files_whose_types_differ_keep_their_values_and_are_named_once(
    memory_folder: str, form: str, first: pa.Array, other: pa.Array, told: str | None
) -> None:
    """Not where the values are of one kind, however Arrow stores them."""
    urls = [
        put_table(f"{memory_folder}/{at}", pa.table({"v": values}), form, rows=1)
        for at, values in enumerate([first, other, first])
    ]
    pipe = wrapped(*urls).list_row_groups().table_reader()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert [one["v"] for one in pipe] == [*first.to_pylist(), *other.to_pylist(), *first.to_pylist()]
    expected = [] if told is None else [f"{urls[1]}: {told} {urls[0]}."]
    assert [str(warning.message).partition(" The values")[0] for warning in caught] == expected


@pytest.mark.parametrize("form", FORMATS)
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


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("name", "value", "key"), [("__url__", "x", None), ("__key__", 7, None), ("__key__", "a", "n")]
)
def test_a_column_that_the_reader_would_replace_is_an_error_that_renames_it(
    memory_folder: str, form: str, name: str, value: Any, key: str | None
) -> None:
    url = put_table(f"{memory_folder}/t", pa.table({"n": [1], name: [value]}), form)
    with pytest.raises(SampleError, match=rf"t has a column '{name}'.* Rename it by columns=") as caught:
        list(wrapped(url).table_reader(key=key, on_bad_shard=skip_with_warning))
    columns = ast.literal_eval(re.findall(r"columns=(\{.*?\})", str(caught.value))[0])
    (sample,) = wrapped(url).table_reader(key=key, columns=columns)
    assert (sample["n"], sample[name.strip("_")]) == (1, value)
    assert ("key='__key__' takes the keys" in str(caught.value)) == (name == "__key__")
