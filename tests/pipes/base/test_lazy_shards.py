"""Chains that hand out members as files."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe

from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from tests.support.memory_objects import put
from tests.support.requested_bytes import requested_bytes
from torchdata_remote import IterableWrapper, RemoteUrl, ShardWriter, World, decoders, stats, stream_shards
from torchdata_remote.core.shard_view import ShardView, view_url
from torchdata_remote.errors import CollateError, MissingEndError, ObjectChangedError, ShardReadError
from torchdata_remote.fetch.lazy_members.lazy_file import LazyFile
from torchdata_remote.formats.member_file import BytesFile, MemberFile
from torchdata_remote.testing import assert_resumes_everywhere

LAZY = {"mp4", "wav"}
VIDEO_BYTES = 300_000


def sample_of(number: int) -> dict[str, Any]:
    video = random.Random(number).randbytes(VIDEO_BYTES if number % 5 else 1000)
    return {"__key__": f"v/{number:03d}", "cls": number, "mp4": video, "wav": b"w" * (number * 997 % 90_000)}


def write(folder: str, num_samples: int, per_shard: int = 3, **options: Any) -> None:
    with ShardWriter(f"{folder}/{{shard:03d}}.tar", max_shard_samples=per_shard, **options) as writer:
        for number in range(num_samples):
            writer.write(sample_of(number))


@pytest.fixture(scope="module")
def folder() -> str:
    """11 samples in four shards."""
    url = f"memory://{uuid.uuid4().hex}"
    write(url, 11)
    return url


def read_whole(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: bytes(value) if isinstance(value, MemberFile) else value for name, value in sample.items()}


def expected(num_samples: int) -> dict[str, dict[str, Any]]:
    samples = [sample_of(number) | {"cls": str(number).encode()} for number in range(num_samples)]
    return {sample["__key__"]: sample for sample in samples}


def assert_all(samples: list[dict[str, Any]], num_samples: int) -> None:
    found = {sample["__key__"]: read_whole(sample) for sample in samples}
    assert len(samples) == len(found) == num_samples
    for sample in found.values():
        del sample["__url__"]
    assert found == expected(num_samples)


def test_lazy_members_are_files_of_the_same_bytes(folder: str) -> None:
    """Members that are not named stay bytes; small ones are in memory."""
    samples = list(stream_shards(folder, shuffle=False, lazy=LAZY, world=World()))
    assert_all(samples, 11)
    for sample in samples:
        assert isinstance(sample["cls"], bytes)
        for file in (sample["mp4"], sample["wav"]):
            assert isinstance(file, LazyFile if file.size > 65_536 else BytesFile)
    assert samples[1]["mp4"].name == "v/001.mp4"


def test_data_that_are_passed_over_are_not_requested(moto: S3Server) -> None:
    """Of 20 videos of 1 MB, the headers; then what is read of one."""
    bucket = moto.new_bucket()
    with ShardWriter(
        f"s3://{bucket}/{{shard}}.tar", max_shard_samples=5, storage_options=moto.storage_options
    ) as writer:
        for number in range(20):
            writer.write({"__key__": f"{number:02d}", "json": {"n": number}, "mp4": os.urandom(1_000_000)})
    with faulty(moto) as (server, store):
        pipe = stream_shards(
            f"s3://{bucket}/", lazy=LAZY, seed=0, world=World(), storage_options=server.storage_options
        )
        samples = list(pipe.decode_sample())
        passed_over = requested_bytes(store, ".tar")
        samples[3]["mp4"].seek(500_000)
        samples[3]["mp4"].read(1000)
        assert requested_bytes(store, ".tar") == passed_over + 65_536
    assert sorted(sample["json"]["n"] for sample in samples) == list(range(20))
    assert passed_over < 0.02 * 20_000_000
    assert len([request for request in store.requests if request.path.endswith(".tar")]) <= 4 + 20 + 4 + 1


def test_the_beginnings_of_the_next_shards_are_requested_together(moto: S3Server) -> None:
    """A shard that is opened waits for no request of its own, unless it is the first."""
    bucket = moto.new_bucket()
    write(f"s3://{bucket}", 6, 1, storage_options=moto.storage_options)
    with faulty(moto) as (server, store):
        pipe = stream_shards(f"s3://{bucket}/", shuffle=False, lazy=LAZY, storage_options=server.storage_options)
        items = iter(pipe)
        next(items)
        next(items)
        assert {request.path[-7:] for request in store.requests if request.path.endswith(".tar")} == {
            f"00{number}.tar" for number in range(6)
        }


@pytest.mark.parametrize("interleave", [1, 3])
@pytest.mark.parametrize("bare", [False, True])
def test_a_chain_resumes_everywhere(folder: str, interleave: int, bare: bool) -> None:
    """Also where the reader opens URLs itself."""

    def make() -> IterDataPipe[Any]:
        urls: Any = IterableWrapper([folder + "/"]).list_remote(pattern="*.tar").sharding_filter_rank(world=World())
        streams = urls if bare else urls.async_prefetch()
        samples: IterDataPipe[Any] = streams.shard_tar_reader(lazy=LAZY, interleave=interleave).map(read_whole)
        return samples

    assert_resumes_everywhere(make)


def test_a_shuffled_chain_resumes_everywhere(folder: str) -> None:
    assert_resumes_everywhere(
        lambda: stream_shards(folder, lazy=LAZY, shuffle_buffer_size=4, world=World()).map(read_whole)
    )


@settings(max_examples=15)
@given(ranks=st.integers(1, 3), num_shards=st.integers(1, 3), interleave=st.integers(1, 3))
def test_each_sample_reaches_one_rank(ranks: int, num_shards: int, interleave: int) -> None:
    """Also where shards are split by samples, because there are fewer of them than ranks."""
    folder = f"memory://{uuid.uuid4().hex}"
    write(folder, 6, -(-6 // num_shards))
    shares = [
        list(
            stream_shards(
                f"{folder}/index.json", lazy=LAZY, shuffle=False, interleave=interleave, world=World(rank, ranks)
            )
        )
        for rank in range(ranks)
    ]
    assert_all([sample for share in shares for sample in share], 6)


def test_a_part_of_a_shard_resumes_everywhere() -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    write(folder, 7, 7)
    assert_resumes_everywhere(
        lambda: stream_shards(f"{folder}/index.json", lazy=LAZY, shuffle=False).map(read_whole), num_streams=2
    )


MEMBERS = [("a.json", b"{}"), ("a.mp4", b"a" * 100_000), ("b.json", b"{}"), ("b.mp4", b"b" * 200_000)]


@pytest.mark.parametrize("kind", ["compressed", "nested", "opened by others"])
def test_files_are_in_memory_where_the_archive_has_no_places(kind: str) -> None:
    """The interface is the same, and so are position and state."""
    data = pack_tar(MEMBERS)
    compressed, nested = put(gzip.compress(data)), put(pack_tar([("x.tar", data), ("y.tar", data)]))

    def make() -> Any:
        if kind == "compressed":
            return IterableWrapper([compressed]).shard_tar_reader(lazy=LAZY)
        if kind == "nested":
            return IterableWrapper([nested]).shard_tar_reader(lazy=LAZY, nested=True)
        return IterableWrapper([("0.tar", io.BytesIO(data))]).shard_tar_reader(lazy=LAZY)

    samples = list(make())
    assert [(sample["mp4"].size, sample["mp4"].read(1)) for sample in samples[:2]] == [(100_000, b"a"), (200_000, b"b")]
    assert {type(sample["mp4"]) for sample in samples} == {BytesFile}
    if kind != "opened by others":
        assert_resumes_everywhere(lambda: make().map(read_whole))


def test_a_view_is_read_from_its_objects() -> None:
    """Files refer to the real objects; samples are those of the view, in its order; it resumes everywhere."""
    first, second = pack_tar(MEMBERS), pack_tar([("c.txt", b"joined"), ("a.txt", b"to a")])
    borders = [0, 1024, 1024 + 512 + 100_352, 1024 * 2 + 512 + 100_352]
    urls = (RemoteUrl(put(first), len(first)), RemoteUrl(put(second, "1.tar"), len(second)))
    b_end = borders[3] + 512 + 200_192
    view = ShardView(
        urls,
        counts=np.array([1, 2]),
        objects=np.array([0, 0, 1]),
        starts=np.array([borders[2], 0, 1024]),
        stops=np.array([b_end, borders[2], 2048]),
    )

    def make() -> Any:
        return IterableWrapper([view_url(view)]).async_prefetch().shard_tar_reader(lazy=LAZY)

    samples = list(make())
    assert [sorted(sample) for sample in samples] == [
        ["__key__", "__url__", "json", "mp4"],
        ["__key__", "__url__", "json", "mp4", "txt"],
    ]
    assert [bytes(sample["mp4"]) for sample in samples] == [b"b" * 200_000, b"a" * 100_000]
    assert {sample["mp4"].url for sample in samples} == {str(urls[0])}
    assert_resumes_everywhere(lambda: make().map(read_whole))
    parts = IterableWrapper([view_url(view).part(1, 2)]).async_prefetch().shard_tar_reader(lazy=LAZY)
    assert [read_whole(sample)["txt"] for sample in parts] == [b"to a"]


def test_a_shard_that_is_cut_short_is_an_error() -> None:
    data = pack_tar(MEMBERS)
    with pytest.raises(ShardReadError, match=r"'b\.mp4' claims 200,000 bytes where the object has 101,576 left"):
        list(IterableWrapper([put(data[:205_000])]).shard_tar_reader(lazy=LAZY))
    with pytest.raises(MissingEndError):
        list(IterableWrapper([put(data[:-1024])]).shard_tar_reader(lazy=LAZY))


def test_a_replaced_shard_is_an_error_where_its_file_is_read(moto: S3Server) -> None:
    """Also in ``decode_sample``, which does not call it undecodable."""
    bucket, options = moto.new_bucket(), moto.storage_options
    write(f"s3://{bucket}", 4, 4, storage_options=options)
    items = iter(stream_shards(f"s3://{bucket}/", shuffle=False, lazy=LAZY, storage_options=options))
    samples = [next(items) for _ in range(3)]
    moto.client().put_object(Bucket=bucket, Key="000.tar", Body=b"2" * 1_000_000)
    with pytest.raises(ObjectChangedError):
        samples[1]["mp4"].read()
    with pytest.raises(ObjectChangedError):
        list(IterableWrapper(samples[2:]).decode_sample({"mp4": lambda file: file.read()}))


def test_a_default_collate_refuses_a_file(folder: str) -> None:
    """Like other values that it makes no batch of; the message says how to decode it."""
    pipe = stream_shards(folder, shuffle=False, lazy=LAZY, world=World()).to_tuple("mp4", "cls")
    with pytest.raises(CollateError, match=r"'mp4' is a BytesFile.*decode_sample"):
        next(iter(DataLoader(pipe, batch_size=2)))


def first_bytes(file: MemberFile) -> int:
    file.seek(-4, os.SEEK_END)
    return int.from_bytes(file.read(4), "little") >> 8


@pytest.mark.parametrize("decoded", [True, False])
def test_workers_decode_files_or_send_them(tmp_path: Path, decoded: bool) -> None:
    """With forkserver: a file that is sent to the training process is read there."""
    write(f"file://{tmp_path}", 12)
    pipe = stream_shards(f"file://{tmp_path}/", shuffle=False, lazy={"mp4"})
    if decoded:
        pipe = pipe.decode_sample({"mp4": first_bytes, "wav": len})
    loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    samples = list(loader)
    if not decoded:
        assert_all(samples, 12)
        return
    found = {sample["cls"]: sample["mp4"] for sample in samples}
    assert found == {number: int.from_bytes(sample_of(number)["mp4"][-4:], "little") >> 8 for number in range(12)}


def test_lazy_members_are_written_as_they_are(folder: str) -> None:
    target = f"memory://{uuid.uuid4().hex}"
    pipe = stream_shards(folder, shuffle=False, lazy=LAZY, world=World())
    list(pipe.write_shards(target + "/{shard}.tar"))
    assert_all(list(stream_shards(target, shuffle=False, world=World())), 11)


def test_default_decoders_get_the_bytes_of_a_lazy_member(folder: str) -> None:
    """So do those of the package where they are named; functions of users get the file."""
    pipe = stream_shards(folder, shuffle=False, lazy={"cls", "wav", "mp4"}, world=World())
    sample = next(iter(pipe.decode_sample({"wav": bytes, "mp4": type})))
    assert sample["cls"] == 0
    assert sample["wav"] == b""
    assert issubclass(sample["mp4"], MemberFile)
    sample = next(iter(stream_shards(folder, shuffle=False, lazy={"cls"}).decode_sample({"cls": decoders.text})))
    assert sample["cls"] == "0"


def test_the_pipe_can_be_pickled(folder: str) -> None:
    pipe = stream_shards(folder, shuffle=False, lazy=LAZY, world=World())
    assert_all(list(pickle.loads(pickle.dumps(pipe))), 11)


def test_threads_end_with_the_pass(folder: str) -> None:
    """Also where it is left before its end."""
    others = set(threading.enumerate())  # of tests before
    items = iter(stream_shards(folder, shuffle=False, lazy=LAZY, world=World()))
    sample = next(items)
    threads = set(threading.enumerate()) - others
    assert threads
    items.close()  # type: ignore[attr-defined]
    assert sample["wav"].read() == b""
    for thread in threads | set(threading.enumerate()) - others:
        thread.join(10)
        assert not thread.is_alive()


def test_requests_are_counted(folder: str) -> None:
    before = stats()
    list(stream_shards(folder, shuffle=False, lazy=LAZY, world=World()))
    difference = stats() - before
    assert difference.fetch.items == 4
    assert 0 < difference.fetch.num_bytes < 11 * (VIDEO_BYTES + 90_000) / 2
    assert difference.read.items == 11


@pytest.mark.parametrize(
    ("lazy", "error", "message"),
    [
        ("mp4", TypeError, r"lazy must be a set of extensions such as \{'mp4', 'wav'\}, got 'mp4' \(str\)\. Write"),
        ({".mp4"}, ValueError, r"no member has the extension '\.mp4'.*Write 'mp4'"),
        ({3}, TypeError, "lazy must be a str such as 'mp4', got 3"),
        (True, TypeError, "got True"),
    ],
)
def test_wrong_extensions_are_refused(lazy: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        IterableWrapper(["memory://a/0.tar"]).shard_tar_reader(lazy=lazy)


def test_a_cache_is_refused(tmp_path: Path) -> None:
    """It would silently store nothing."""
    with pytest.raises(ValueError, match="Leave out cache_dir= and cache_bytes=, or lazy="):
        stream_shards("memory://a/", lazy=LAZY, cache_dir=str(tmp_path), cache_bytes=1 << 20)
