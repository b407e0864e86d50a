"""Samples into shards, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shard_places import Place, header_places, members_of, memory_place
from tests.support.waiting import new_threads
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import ObjectExistsError, ShardWriteError
from torchdata_remote.formats.key_index import parse_keys
from torchdata_remote.formats.manifest import ShardInfo
from torchdata_remote.writing.packed_sample import pack_sample
from torchdata_remote.writing.rolling_writer import RollingShardWriter, SeriesState


def writer_in(place: Place, ending: str = ".tar", **options: Any) -> RollingShardWriter:
    limits = {"max_shard_bytes": 1 << 30, "max_shard_samples": 1 << 30, "overwrite": False, **options}
    return RollingShardWriter(lambda number: f"{place.url}{number}{ending}", options=StorageOptions(), **limits)


def sample(key: str, num_bytes: int = 3) -> dict[str, Any]:
    return {"__key__": key, "txt": b"x" * num_bytes}


def add_all(writer: RollingShardWriter, num_samples: int) -> None:
    for number in range(num_samples):
        writer.add(sample(str(number)))


def names_of(shards: list[ShardInfo]) -> list[str]:
    return [shard.url.rpartition("/")[2] for shard in shards]


@given(
    sizes=st.lists(st.sampled_from([0, 1, 511, 512, 513, 1024, 5000]), max_size=10),
    max_bytes=st.sampled_from([1, 1024, 2048, 2560, 3072, 4096, 6000, 10_000]),
    max_samples=st.integers(1, 5),
)
def test_shards_are_filled_up_to_their_limits(sizes: list[int], max_bytes: int, max_samples: int) -> None:
    """A shard ends only where the next sample did not fit, and is above its limit only if it is one sample."""
    place = memory_place()
    writer = writer_in(place, max_shard_bytes=max_bytes, max_shard_samples=max_samples)
    assert writer.is_empty
    for number, size in enumerate(sizes):
        writer.add(sample(f"{number:03d}", size))
        url, position = writer.last_position()
        assert url.startswith(place.url)
        assert position % 512 == 0
    writer.end()
    shards = writer.result()
    assert (writer.is_empty, writer.state) == (not sizes, SeriesState.ENDED)
    assert names_of(shards) == [f"{number}.tar" for number in range(len(shards))]
    found = place.shards()
    assert [name for shard in shards for name, _ in found[shard.url.rpartition("/")[2]]] == [
        f"{number:03d}.txt" for number in range(len(sizes))
    ]
    at = 0
    for shard in shards:
        last = at + shard.num_samples
        assert shard.num_samples == 1 or (shard.num_bytes <= max_bytes and shard.num_samples <= max_samples)
        if last < len(sizes):
            more = pack_sample(sample("next", sizes[last])).num_bytes
            assert shard.num_samples == max_samples or shard.num_bytes + more > max_bytes
        at = last


def test_the_index_holds_the_position_of_each_sample() -> None:
    """Its first header, as ``last_position`` reported it; a name may need several headers."""
    place = memory_place()
    writer = writer_in(place, max_shard_samples=3)
    reported = []
    for number in range(7):
        writer.add({"__key__": "long/" * 30 * (number % 2) + str(number), "txt": b"1" * 700 * number, "cls": 1})
        reported.append(writer.last_position())
    writer.end()
    shards = writer.result()
    files, at = place.files(), 0
    for shard in shards:
        name = shard.url.rpartition("/")[2]
        index = np.frombuffer(files[f"{name}.idx"], "<u8").tolist()
        headers = [start for member, start in header_places(files[name]) if member.endswith(".cls")]
        assert index == [*headers, shard.num_bytes - 1024]
        assert reported[at : at + shard.num_samples] == [(shard.url, start) for start in headers]
        at += shard.num_samples
    assert at == 7


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar.zst"])
def test_compressed_shards_have_no_index(ending: str) -> None:
    """Their limit is that of the tar."""
    place = memory_place()
    writer = writer_in(place, ending, max_shard_bytes=3 * 1024 + 1024)
    for number in range(5):
        writer.add(sample(str(number), 400))
    writer.end()
    assert [shard.num_samples for shard in writer.result()] == [3, 2]
    files = place.files()
    assert set(files) == {f"0{ending}", f"1{ending}"}
    name = f"1{ending}".replace(".tgz", ".gz")
    assert [member for member, _ in members_of(name, files[f"1{ending}"])] == ["3.txt", "4.txt"]


def test_no_shard_is_opened_before_the_first_sample() -> None:
    """``before_first`` is called once, with the first sample, and there are no empty shards."""
    place, called = memory_place(), list[object]()
    empty = writer_in(place, before_first=lambda: called.append("empty"))
    empty.end()
    assert (empty.result(), called, place.files()) == ([], [], {})
    writer = writer_in(place, max_shard_samples=1, before_first=lambda: called.append(len(place.files())))
    for number in range(3):
        writer.add(sample(str(number)))
    writer.end()
    assert (len(writer.result()), called) == (3, [0])


def test_each_finished_shard_is_returned_once() -> None:
    """By the calls of ``add`` and by ``shards``, in order; the rest by ``result``."""
    writer = writer_in(memory_place(), max_shard_samples=2)
    reported = [shard for number in range(9) if (shard := writer.add(sample(str(number)))) is not None]
    assert names_of(reported) == names_of(writer.shards)
    writer.end()
    assert names_of(writer.result()) == [f"{number}.tar" for number in range(5)]
    assert names_of(reported) == names_of(writer.shards)[: len(reported)]
    assert len(reported) >= 3


def test_an_existing_shard_is_an_error_unless_overwritten() -> None:
    """An error at the end of that shard, unless it may be replaced; then index and keys are replaced as well."""
    place = memory_place()
    place.put({"1.tar": b"old", "1.tar.idx": b"old", "1.tar.keys": b"old"})
    writer = writer_in(place, max_shard_samples=1)
    with pytest.raises(ObjectExistsError, match=r"1\.tar"):
        add_all(writer, 4)
    assert writer.state is SeriesState.ABORTED
    assert names_of(writer.shards) == ["0.tar"]
    assert set(place.files()) == {f"{number}.tar{ending}" for number in range(2) for ending in ("", ".idx", ".keys")}
    assert place.files()["1.tar"] == b"old"
    again = writer_in(place, max_shard_samples=1, overwrite=True)
    add_all(again, 2)
    again.end()
    again.result()
    files = place.files()
    assert members_of("1.tar", files["1.tar"]) == [("1.txt", b"xxx")]
    assert len(files["1.tar.idx"]) == 16
    assert parse_keys(files["1.tar.keys"]).keys == ["1"]


def test_an_abort_leaves_whole_shards_only(tmp_path: Path) -> None:
    """The open shard is dropped, the previous one stays with its index and keys, and no thread is left."""
    before = set(threading.enumerate())
    place = Place(f"{tmp_path}/")
    writer = writer_in(place, max_shard_samples=2)
    for number in range(3):
        writer.add(sample(str(number), 3_000_000))
    writer.abort()
    assert set(place.files()) == {"0.tar", "0.tar.idx", "0.tar.keys"}
    assert names_of(writer.shards) == ["0.tar"]
    assert set(threading.enumerate()) <= before
    writer.abort()
    assert set(place.files()) == {"0.tar", "0.tar.idx", "0.tar.keys"}


@pytest.mark.parametrize("close", [RollingShardWriter.abort, RollingShardWriter.end])
def test_a_sample_after_the_end_is_an_error(close: Any) -> None:
    """The error says why."""
    writer = writer_in(memory_place())
    writer.add(sample("a"))
    close(writer)
    with pytest.raises(ShardWriteError, match=r"was aborted|is closed"):
        writer.add(sample("b"))


def test_a_refused_sample_does_not_affect_others() -> None:
    """A bad key, a key repeated in a shard, or a value that is not bytes: other samples are written."""
    place = memory_place()
    writer = writer_in(place, max_shard_samples=3)
    writer.add(sample("a"))
    for bad in (sample("a"), sample("../b"), {"__key__": "c"}, {"__key__": "d", "jpg": object()}):
        with pytest.raises(ValueError, match=r"'a'|'\.\./b'|'c'|'d'"):
            writer.add(bad)
    writer.add(sample("b"))
    writer.end()
    assert [shard.num_samples for shard in writer.result()] == [2]
    assert place.members() == {"a.txt": b"xxx", "b.txt": b"xxx"}


def test_a_key_may_come_again_in_the_next_shard() -> None:
    """Only keys within a shard must differ."""
    writer = writer_in(memory_place(), max_shard_samples=1)
    for _ in range(2):
        writer.add(sample("a"))
    writer.end()
    assert len(writer.result()) == 2


@pytest.mark.parametrize("limit", [{"max_shard_bytes": 0}, {"max_shard_samples": 0}, {"max_shard_bytes": -1}])
def test_limits_are_positive(limit: dict[str, Any]) -> None:
    """Others are an error at once."""
    with pytest.raises(ValueError, match="must be an int of at least 1"):
        writer_in(memory_place(), **limit)


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in new_threads(before):
        thread.join(10)
        assert not thread.is_alive()
