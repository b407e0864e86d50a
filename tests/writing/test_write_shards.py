"""``write_shards``: the writer of shards as the last pipe of a chain."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from tests.support.audited import audited
from tests.support.loaders import read_all
from tests.support.shard_places import Place, memory_place
from tests.support.waiting import new_threads
from tests.support.written import listed, read, told, with_beside, without_url
from torchdata_remote.errors import EncodeError, ObjectExistsError, ShardWriteError

Sample = dict[str, Any]


def samples(count: int) -> list[Sample]:
    return [{"__key__": f"{i:03d}", "cls": i, "txt": f"line {i}\n" * i} for i in range(count)]


class Source(tdr.IterDataPipe[Sample]):
    """Samples one at a time, counted; may raise in the place of one."""

    def __init__(self, items: list[Sample], fails_at: int | None = None) -> None:
        self.items, self.fails_at = items, fails_at
        self.numbers = list[int]()  # which copies of this pipe share

    def __iter__(self) -> Iterator[Sample]:
        for i, sample in enumerate(self.items):
            if i == self.fails_at:
                raise LookupError("from the source")
            self.numbers.append(i)
            yield sample

    @property
    def pulled(self) -> int:
        return len(self.numbers)


@given(count=st.integers(1, 12), max_shard_samples=st.integers(1, 5), max_shard_bytes=st.integers(3072, 12_000))
def test_it_writes_the_bytes_of_shard_writer_and_yields_each_shard_once(
    count: int, max_shard_samples: int, max_shard_bytes: int
) -> None:
    to, by_writer = memory_place(), memory_place()
    limits: dict[str, Any] = {"max_shard_samples": max_shard_samples, "max_shard_bytes": max_shard_bytes}
    shards = list(tdr.IterableWrapper(samples(count)).write_shards(to.template(), **limits))
    with tdr.ShardWriter(by_writer.template(), **limits) as writer:
        for sample in samples(count):
            writer.write(sample)
    assert to.files() == by_writer.files()
    assert told(shards) == listed(to)
    assert tuple(shard.checksums for shard in shards) == tuple(shard.checksums for shard in writer.shards)
    assert [sample["__key__"] for sample in read(to)] == [sample["__key__"] for sample in samples(count)]


def test_a_shard_is_yielded_once_it_is_stored_and_the_source_is_read_no_further_than_needed(tmp_path: Path) -> None:
    source = Source(samples(7))
    iterator = iter(source.write_shards(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2))
    assert source.pulled == 0
    assert next(iterator).num_samples == 2
    assert 3 <= source.pulled <= 5, "to the sample that did not fit into the next one, at the latest"
    assert {*with_beside("0.tar")} <= {*os.listdir(tmp_path)}
    assert "index.json" not in os.listdir(tmp_path)
    assert [next(iterator).num_samples for _ in range(3)] == [2, 2, 1]
    assert "index.json" in os.listdir(tmp_path), "when the last one is yielded"


@pytest.mark.parametrize("taken", [1, 2])
def test_whoever_stops_early_has_complete_shards_and_no_manifest(tmp_path: Path, taken: int) -> None:
    source = Source(samples(9))
    iterator = iter(source.write_shards(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2))
    for _ in range(taken):
        next(iterator)
    del iterator
    gc.collect()
    full = (source.pulled - 1) // 2
    assert taken <= full <= taken + 1
    assert sorted(os.listdir(tmp_path)) == with_beside(*(f"{i}.tar" for i in range(full)))
    assert len(Place(f"{tmp_path}/").members()) == 2 * 2 * full


def test_the_thread_that_stores_a_shard_may_be_the_one_in_which_the_pipe_is_given_up(tmp_path: Path) -> None:
    """The garbage collector runs in any thread: there, waiting for that thread would be for ever."""
    yielded, given_up, left = threading.Event(), threading.Event(), list[Any]()

    def collected(event: str, args: tuple[Any, ...]) -> None:
        if event in ("os.link", "os.rename") and str(args[1]).endswith("1.tar"):
            assert yielded.wait(60)
            left.pop().close()
            given_up.set()

    before = set(threading.enumerate())
    with audited(collected):
        left.append(iter(Source(samples(9)).write_shards(f"{tmp_path}/{{shard}}.tar", max_shard_samples=1)))
        assert next(left[0]).num_samples == 1
        yielded.set()
        assert given_up.wait(60), "deadlock"
        for thread in new_threads(before):
            thread.join(60)
    assert sorted(os.listdir(tmp_path)) == with_beside("0.tar", "1.tar")


@pytest.mark.parametrize("fails_at", range(6))
def test_an_error_of_the_source_goes_on_as_it_is_and_leaves_no_manifest(tmp_path: Path, fails_at: int) -> None:
    pipe = Source(samples(6), fails_at).write_shards(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    with pytest.raises(LookupError, match="from the source"):
        list(pipe)
    assert sorted(os.listdir(tmp_path)) == with_beside(*(f"{i}.tar" for i in range(max(0, (fails_at - 1) // 2))))


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ({"__key__": "a.b", "x": b""}, ShardWriteError, "'a.b'"),
        ({"__key__": "000", "x": b""}, ShardWriteError, "two samples"),
        ({"__key__": "a", "cls": None}, EncodeError, "NoneType"),
    ],
)
def test_a_bad_sample_is_an_error_that_shows_no_option(
    tmp_path: Path, bad: Sample, kind: type[Exception], message: str
) -> None:
    pipe = tdr.IterableWrapper([*samples(2), bad]).write_shards(
        f"{tmp_path}/{{shard}}.tar", storage_options={"secret": "HUSH"}
    )
    with pytest.raises(kind, match=message) as caught:
        list(pipe)
    assert repr(bad["__key__"]) in str(caught.value)
    assert "HUSH" not in f"{caught.value} {pipe!r} {pipe} {vars(pipe)}"
    assert os.listdir(tmp_path) == []


def test_no_samples_templates_and_limits_that_cannot_be_kept_are_refused() -> None:
    to, none = memory_place(), Source([])
    with pytest.raises(ShardWriteError, match="no sample"):
        list(none.write_shards(to.template()))
    assert to.files() == {}
    with pytest.raises(ShardWriteError, match=r"\{shard\}"):
        none.write_shards("memory://x/t.tar")
    limits: list[dict[str, Any]] = [{"max_shard_samples": 0}, {"max_shard_bytes": 0}, {"max_member_bytes": 0}]
    for limit in limits:
        with pytest.raises(ValueError, match=next(iter(limit))):
            none.write_shards("memory://x/{shard}.tar", **limit)


def test_existing_shards_are_refused_at_the_first_sample_and_replaced_in_each_pass_with_overwrite() -> None:
    to, source = memory_place(), Source(samples(50))
    list(tdr.IterableWrapper(samples(5)).write_shards(to.template(), max_shard_samples=1))
    before = to.files()
    with pytest.raises(ObjectExistsError, match="overwrite=True"):
        list(source.write_shards(to.template()))
    assert source.pulled <= 1
    assert to.files() == before
    pipe = tdr.IterableWrapper(samples(2)).write_shards(to.template(), overwrite=True, max_member_bytes=100)
    for again in (pipe, pipe, pickle.loads(pickle.dumps(pipe))):
        assert len(list(again)) == 1
        assert sorted(to.files()) == [*with_beside("000000.tar"), "index.json"]


def test_a_loader_drives_it_in_one_process_and_several_workers_are_refused(tmp_path: Path) -> None:
    pipe: Any = tdr.IterableWrapper(samples(5)).write_shards(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    assert [shard.num_samples for shard in DataLoader(pipe, batch_size=None)] == [2, 2, 1]
    two: DataLoader[Any] = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(ShardWriteError, match="2 DataLoader workers"):
        read_all(two)


def test_reading_shards_into_other_shards_changes_no_member() -> None:
    first, second = memory_place(), memory_place()
    list(tdr.IterableWrapper(samples(6)).write_shards(first.template(), max_shard_samples=4))
    reader = tdr.stream_shards(first.url, seed=None)
    list(reader.write_shards(second.template(".tar.zst"), max_shard_samples=1))
    assert len(second.files()) == 7
    assert without_url(tdr.stream_shards(f"{second.url}index.json", seed=None)) == read(first)
