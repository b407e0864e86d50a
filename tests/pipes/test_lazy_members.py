"""Lazy members: files that are fetched where they are read, of the same bytes as members that are read at once."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.servers.files_over_http import files_over_http
from tests.support.archive_bytes import pack_tar
from tests.support.memory_objects import put
from tests.support.requested_bytes import requested_bytes
from tests.support.waiting import wait_for
from torchdata_remote import IterableWrapper, ShardWriter, World, decoders, stats, stream_shards
from torchdata_remote.errors import CollateError, MissingEndError, ObjectChangedError, ShardReadError
from torchdata_remote.testing import FaultyStore

LAZY = {"mp4", "wav"}
VIDEO_BYTES = 300_000
MEMBERS = [("a.json", b"{}"), ("a.mp4", b"a" * 100_000), ("b.json", b"{}"), ("b.mp4", b"b" * 200_000)]


def sample_of(number: int) -> dict[str, Any]:
    video = random.Random(number).randbytes(VIDEO_BYTES if number % 5 else 1000)
    return {"__key__": f"v/{number:03d}", "cls": number, "mp4": video, "wav": b"w" * (number * 997 % 90_000)}


def write(folder: str, num_samples: int, per_shard: int = 3) -> None:
    with ShardWriter(f"{folder}/{{shard:03d}}.tar", max_shard_samples=per_shard) as writer:
        for number in range(num_samples):
            writer.write(sample_of(number))


@pytest.fixture(scope="module")
def folder() -> str:
    """11 samples in four shards."""
    url = f"memory://{uuid.uuid4().hex}"
    write(url, 11)
    return url


def lazily(folder: str, **options: Any) -> Any:
    return stream_shards(folder, **{"shuffle": False, "lazy": LAZY, "world": World(), **options})


def read_whole(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, str) else bytes(value) for name, value in sample.items()}


def assert_all(samples: list[dict[str, Any]], num_samples: int) -> None:
    found = {sample["__key__"]: read_whole(sample) for sample in samples}
    assert len(samples) == len(found) == num_samples
    for sample in found.values():
        del sample["__url__"]
    expected = [sample_of(number) | {"cls": str(number).encode()} for number in range(num_samples)]
    assert found == {sample["__key__"]: sample for sample in expected}


def test_lazy_members_are_seekable_files_of_the_same_bytes(folder: str) -> None:
    """Members that are not named stay bytes."""
    samples = list(lazily(folder))
    assert_all(samples, 11)
    assert all(isinstance(sample["cls"], bytes) for sample in samples)
    file, data = samples[1]["mp4"], sample_of(1)["mp4"]
    assert (file.name, file.size, file.seekable(), file.readable(), file.writable()) == (
        "v/001.mp4",
        len(data),
        True,
        True,
        False,
    )
    assert file.seek(-1000, os.SEEK_END) == len(data) - 1000
    assert file.read(10) == data[-1000:-990]
    assert file.tell() == len(data) - 990
    assert (file.seek(70_000), file.read(5), bytes(file)) == (70_000, data[70_000:70_005], data)
    assert_all(list(pickle.loads(pickle.dumps(lazily(folder)))), 11)


def test_names_are_complete_extensions_or_last_parts_in_any_case(folder: str) -> None:
    archive = put(pack_tar([("a.left.MP4", b"1" * 99), ("a.right.mp4", b"2"), ("a.mp4", b"3")]))
    for lazy, expected in (({"mp4"}, {"left.mp4", "right.mp4", "mp4"}), ({"LEFT.mp4"}, {"left.mp4"})):
        (sample,) = IterableWrapper([archive]).shard_tar_reader(lazy=lazy)
        assert {name for name, value in sample.items() if hasattr(value, "seek")} == expected


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """20 videos of 1 MB in five shards, over http."""
    folder = tmp_path_factory.mktemp("videos")
    with ShardWriter(f"{folder}/{{shard}}.tar", max_shard_samples=4) as writer:
        for number in range(20):
            writer.write({"__key__": f"{number:02d}", "json": {"n": number}, "mp4": os.urandom(1_000_000)})
    with files_over_http(folder) as address:
        yield folder, address


def test_data_that_are_passed_over_are_not_requested(served: tuple[Path, str]) -> None:
    """The headers, then what is read of one video; the beginnings of the next shards are requested together."""
    with FaultyStore(served[1]) as store:
        items = iter(lazily(f"{store.endpoint_url}/index.json").decode_sample())
        samples = [next(items)]
        wait_for(
            lambda: (
                {request.path for request in store.requests if request.path.endswith("tar")}
                == {f"/{number}.tar" for number in range(5)}
            )
        )
        samples += items
        passed_over = requested_bytes(store, ".tar")
        samples[3]["mp4"].seek(500_000)
        samples[3]["mp4"].read(1000)
        assert requested_bytes(store, ".tar") == passed_over + 65_536
    assert [sample["json"]["n"] for sample in samples] == list(range(20))
    assert passed_over < 0.02 * 20_000_000


def test_what_is_fetched_is_counted(folder: str) -> None:
    before = stats()
    list(lazily(folder))
    difference = stats() - before
    assert difference.fetch.items == 4
    assert 0 < difference.fetch.num_bytes < 11 * (VIDEO_BYTES + 90_000) / 2
    assert difference.read.items == 11


@settings(max_examples=8)
@given(ranks=st.integers(1, 3), num_shards=st.integers(1, 3), interleave=st.integers(1, 3))
def test_each_sample_reaches_one_rank_also_where_shards_are_split(ranks: int, num_shards: int, interleave: int) -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    write(folder, 6, -(-6 // num_shards))
    worlds = [World(rank, ranks) for rank in range(ranks)]
    shares = [list(lazily(f"{folder}/index.json", interleave=interleave, world=world)) for world in worlds]
    assert_all([sample for share in shares for sample in share], 6)


@pytest.mark.parametrize("kind", ["compressed", "nested", "opened by others"])
def test_files_are_in_memory_where_the_archive_has_no_places(kind: str) -> None:
    data = pack_tar(MEMBERS)
    sources: dict[str, Any] = {
        "compressed": lambda: IterableWrapper([put(gzip.compress(data))]).shard_tar_reader(lazy=LAZY),
        "nested": lambda: IterableWrapper([put(pack_tar([("x.tar", data)]))]).shard_tar_reader(lazy=LAZY, nested=True),
        "opened by others": lambda: IterableWrapper([("0.tar", io.BytesIO(data))]).shard_tar_reader(lazy=LAZY),
    }
    files = [sample["mp4"] for sample in sources[kind]()]
    assert [(file.size, bytes(file)) for file in files] == [(100_000, b"a" * 100_000), (200_000, b"b" * 200_000)]


def test_a_shard_that_is_cut_short_is_an_error() -> None:
    data = pack_tar(MEMBERS)
    with pytest.raises(ShardReadError, match=r"'b\.mp4' claims 200,000 bytes where the object has 101,576 left"):
        list(IterableWrapper([put(data[:205_000])]).shard_tar_reader(lazy=LAZY))
    with pytest.raises(MissingEndError):
        list(IterableWrapper([put(data[:-1024])]).shard_tar_reader(lazy=LAZY))


def test_a_replaced_shard_is_an_error_where_its_file_is_read(tmp_path: Path) -> None:
    """Also in ``decode_sample``, which does not call it undecodable."""
    write(str(tmp_path), 4, 4)
    with files_over_http(tmp_path) as address:
        items = iter(lazily(f"{address}/000.tar"))
        samples = [next(items) for _ in range(3)]
        (tmp_path / "000.tar").write_bytes(b"2" * 1_000_000)
        with pytest.raises(ObjectChangedError):
            samples[1]["mp4"].read()
        with pytest.raises(ObjectChangedError):
            list(IterableWrapper(samples[2:], deepcopy=False).decode_sample({"mp4": lambda file: file.read()}))
        items.close()


def test_the_default_collate_refuses_a_file(folder: str) -> None:
    with pytest.raises(CollateError, match=r"'mp4' is a \w*File.*decode_sample"):
        next(iter(DataLoader(lazily(folder).to_tuple("mp4", "cls"), batch_size=2)))


def last_bytes(file: Any) -> int:
    file.seek(-4, os.SEEK_END)
    return int.from_bytes(file.read(4), "little")


def test_workers_decode_files_and_send_them(tmp_path: Path) -> None:
    """A file that is sent to the training process is read there."""
    write(f"file://{tmp_path}", 12)
    pipe = stream_shards(f"file://{tmp_path}/", shuffle=False, lazy=LAZY).decode_sample({"mp4": last_bytes})
    loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")
    found = {sample["cls"]: (sample["mp4"], bytes(sample["wav"])) for sample in loader}
    samples = map(sample_of, range(12))
    assert found == {one["cls"]: (int.from_bytes(one["mp4"][-4:], "little"), one["wav"]) for one in samples}


def test_lazy_members_are_written_as_they_are(folder: str, memory_folder: str) -> None:
    list(lazily(folder).write_shards(memory_folder + "/{shard}.tar"))
    assert_all(list(lazily(memory_folder, lazy=None)), 11)


def test_decoders_of_the_package_get_bytes_and_functions_of_users_the_file(folder: str) -> None:
    sample = next(
        iter(lazily(folder, lazy={"cls", *LAZY}).decode_sample({"wav": bytes, "mp4": lambda file: file.name}))
    )
    assert (sample["cls"], sample["wav"], sample["mp4"]) == (0, b"", "v/000.mp4")
    sample = next(iter(lazily(folder, lazy={"cls"}).decode_sample({"cls": decoders.text})))
    assert sample["cls"] == "0"


def test_threads_end_with_the_pass_and_files_are_read_after_it(folder: str) -> None:
    others = set(threading.enumerate())
    items = iter(lazily(folder))
    sample = next(items)
    assert set(threading.enumerate()) - others
    items.close()
    assert sample["wav"].read() == b""
    wait_for(lambda: all(thread.name != "torchdata_remote" for thread in set(threading.enumerate()) - others))
