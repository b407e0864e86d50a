from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.fake_store import store_of
from torchdata_remote import ShardZipReader, skip_with_warning
from torchdata_remote.errors import ObjectNotFoundError, RemoteDataError, ShardReadError
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

URL = "s3://b/t-000.zip"
MEMBERS = [("a/1.JPG", b"\xff\xd8" * 700), ("a/1.cls", b"3"), ("b/2.cls", b"5" * 3000)]
SAMPLES = [
    {"__key__": "a/1", "__url__": URL, "jpg": b"\xff\xd8" * 700, "cls": b"3"},
    {"__key__": "b/2", "__url__": URL, "cls": b"5" * 3000},
]


def _zip(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, value in members:
            archive.writestr(name, value)
    return data.getvalue()


def _read(data: bytes, **options: Any) -> list[dict[str, Any]]:
    return list(ShardZipReader(IterableWrapper([(URL, io.BytesIO(data))], deepcopy=False), **options))


def _put(url: str, data: bytes) -> str:
    fsspec.filesystem("memory").pipe(url, data)
    return url


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_consecutive_members_with_one_key_are_a_sample(method: int) -> None:
    """Keys and extensions are as in tar shards, stored or deflated."""
    assert _read(_zip(MEMBERS, method)) == SAMPLES


@given(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=6), method=st.sampled_from([0, 8]))
def test_samples_are_read_as_written(sizes: list[int], method: int) -> None:
    """Data of any size, in order."""
    members = [(f"{i}.bin", bytes(j * i % 251 for j in range(size))) for i, size in enumerate(sizes)]
    assert [(f"{s['__key__']}.bin", s["bin"]) for s in _read(_zip(members, method))] == members


def test_every_source_of_shards_gives_the_same_samples(memory_folder: str, tmp_path: Path) -> None:
    """Bare URLs, listed ones, streams of ``async_prefetch``, local files: the same samples, each epoch."""
    urls = [_put(f"{memory_folder}/{i}.zip", _zip(MEMBERS)) for i in range(2)]
    expected = [{**sample, "__url__": url} for url in urls for sample in SAMPLES]
    bare = IterableWrapper(urls).shard_zip_reader()
    assert list(bare) == expected
    assert list(bare) == expected
    listed = IterableWrapper([memory_folder + "/"]).list_remote(pattern="*.zip")
    assert list(listed.shard_zip_reader()) == expected
    assert list(IterableWrapper(urls).async_prefetch(part_bytes=1000).shard_zip_reader()) == expected
    (tmp_path / "t.zip").write_bytes(_zip(MEMBERS))
    (first, second) = IterableWrapper([str(tmp_path / "t.zip")]).shard_zip_reader()
    assert [first["__key__"], second["__key__"]] == ["a/1", "b/2"]


def test_large_directory_is_read_by_a_second_request(memory_folder: str) -> None:
    """One that does not fit the first ranged read takes a second one."""
    members = [(f"{i:05d}.cls", b"%d" % i) for i in range(3000)]
    url = _put(f"{memory_folder}/0.zip", _zip(members))
    assert [sample["cls"] for sample in IterableWrapper([url]).shard_zip_reader()] == [data for _, data in members]


def test_stream_that_is_not_seekable_is_refused() -> None:
    """The error says what to chain instead."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with pytest.raises(RemoteDataError, match=r"not seekable.*async_prefetch"):
        list(ShardZipReader(IterableWrapper([(URL, Pipe(_zip(MEMBERS)))], deepcopy=False)))


def test_truncated_shard_is_an_error() -> None:
    """At every 50th byte; the directory lies at the end, so not one sample comes."""
    data = _zip(MEMBERS)
    for end in range(0, len(data), 50):
        with pytest.raises(ShardReadError, match=URL):
            _read(data[:end])


def test_bad_shard_can_be_skipped() -> None:
    """With a warning; the others are read, and the reader knows which it was."""
    shards = [(f"s3://b/{i}.zip", io.BytesIO(_zip(MEMBERS)[: None if i != 1 else 99])) for i in range(3)]
    reader = ShardZipReader(IterableWrapper(shards, deepcopy=False), on_bad_shard=skip_with_warning)
    with pytest.warns(RuntimeWarning, match="s3://b/1.zip"):
        samples = list(reader)
    assert [sample["__url__"] for sample in samples] == ["s3://b/0.zip"] * 2 + ["s3://b/2.zip"] * 2
    assert list(reader.skipped.shards) == ["s3://b/1.zip"]


def test_directories_and_meta_members_are_counted() -> None:
    """They are passed over, and so are names between underscores."""
    data = io.BytesIO(_zip([*MEMBERS, ("__meta.json__", b"")]))
    with zipfile.ZipFile(data, "a") as archive:
        archive.writestr("folder/", b"")
    reader = ShardZipReader(IterableWrapper([(URL, data)], deepcopy=False))
    assert list(reader) == SAMPLES
    assert reader.skipped.members == {"directory": 1, "meta": 1}


def test_interleaved_shards_take_turns() -> None:
    """A sample of each."""
    shards = [(f"s3://b/{i}.zip", io.BytesIO(_zip(MEMBERS))) for i in range(2)]
    got = list(ShardZipReader(IterableWrapper(shards, deepcopy=False), interleave=2))
    assert [(s["__url__"][7:8], s["__key__"]) for s in got] == [("0", "a/1"), ("1", "a/1"), ("0", "b/2"), ("1", "b/2")]


def test_limits_apply_exactly() -> None:
    """A member of exactly so many bytes is read; ratios count beyond 16 MiB."""
    data = _zip([("a.bin", bytes(20 << 20))])
    assert len(_read(data, max_ratio=2000)[0]["bin"]) == 20 << 20
    with pytest.raises(ShardReadError, match="max_ratio=100"):
        _read(data)
    with pytest.raises(ShardReadError, match="max_member_bytes=2,999"):
        _read(_zip(MEMBERS), max_member_bytes=2999)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        _read(data, interleave=0)


def test_missing_object_is_an_error(memory_folder: str) -> None:
    """It is a ``FileNotFoundError`` with the URL, which no policy about bad shards hides."""
    pipe = ShardZipReader(IterableWrapper([f"{memory_folder}/none.zip"]), on_bad_shard=skip_with_warning)
    with pytest.raises(ObjectNotFoundError, match=f"{memory_folder}/none.zip"):
        list(pipe)


def test_pipe_pickles_before_and_after_a_pass(memory_folder: str) -> None:
    """It goes to worker processes, also after it was read."""
    pipe = ShardZipReader(IterableWrapper([_put(f"{memory_folder}/0.zip", _zip(MEMBERS))]))
    samples = list(pickle.loads(pickle.dumps(pipe)))
    assert list(pipe) == samples
    assert list(pickle.loads(pickle.dumps(pipe))) == samples


def _shards_of(method: int) -> list[bytes]:
    """Of any sizes, directories between them and bytes before the first member in some."""
    shards = []
    for shard, sizes in enumerate([(0, 4000, 9), (5,), (70, 70, 1500, 2)]):
        data = io.BytesIO(bytes(100 * shard))
        data.seek(0, io.SEEK_END)
        with zipfile.ZipFile(data, "a", method) as archive:
            for number, size in enumerate(sizes):
                if number != 2:
                    archive.writestr(f"{number}/", b"")
                archive.writestr(f"{number}.JPG", bytes(i * i % 251 for i in range(size)))
                archive.writestr(f"{number}.cls", b"%d" % number)
        shards.append(data.getvalue())
    return shards


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("interleave", [1, 2, 5])
def test_it_resumes_after_any_sample(memory_folder: str, method: int, interleave: int) -> None:
    """Stored or deflated, after URLs or streams, however many are read at once."""
    urls = [_put(f"{memory_folder}/{number}.zip", data) for number, data in enumerate(_shards_of(method))]
    assert_resumes_everywhere(lambda: IterableWrapper(urls).shard_zip_reader(interleave=interleave))
    options = {"part_bytes": 300, "max_buffer_bytes": 900, "interleave": interleave}
    assert_resumes_everywhere(
        lambda: IterableWrapper(urls).async_prefetch(**options).shard_zip_reader(interleave=interleave)
    )


@pytest.mark.filterwarnings("ignore:.*left out:RuntimeWarning")
def test_it_resumes_where_a_shard_is_skipped(memory_folder: str) -> None:
    """One whose directory cannot be read, and one with a member that is not what it says."""
    (first, second, third) = _shards_of(zipfile.ZIP_STORED)
    spoiled = bytearray(third)
    spoiled[third.index(b"2.JPG") + 100] ^= 1
    shards = [first, second[:50], bytes(spoiled), first]
    assert [sample["__key__"] for sample in _read(bytes(spoiled), on_bad_shard=lambda error: None)] == ["0"]
    urls = [_put(f"{memory_folder}/{number}.zip", data) for number, data in enumerate(shards)]
    for interleave in (1, 3):
        assert_resumes_everywhere(
            lambda interleave=interleave: IterableWrapper(urls).shard_zip_reader(  # type: ignore[misc]
                interleave=interleave, on_bad_shard=skip_with_warning
            )
        )


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6), stop=st.integers(0, 6), method=st.sampled_from([0, 8])
)
def test_resuming_requests_no_byte_of_yielded_samples(sizes: list[int], stop: int, method: int) -> None:
    """Streamed is from the local header of the next sample on; the directory is read apart."""
    data = _zip([(f"{i}.bin", bytes(j * i % 251 for j in range(size))) for i, size in enumerate(sizes)], method)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        begins = [info.header_offset for info in archive.infolist()]
    with store_of({"a": data}) as store:
        stop = min(stop, len(sizes))
        stopped, resumed = (IterableWrapper(["a"]).async_prefetch(part_bytes=500).shard_zip_reader() for _ in "12")
        started = iter(stopped)
        for _ in range(stop):
            next(started)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        del started
        store.reads.clear()
        assert [sample["__key__"] for sample in resumed] == [str(i) for i in range(stop, len(sizes))]
        reads = [(start, end) for _, start, end, _ in store.reads]
        if stop == len(sizes):
            assert reads == []
        else:
            assert begins[stop] in [start for start, _ in reads]
            assert all(end == len(data) for start, end in reads if start < begins[stop]), "only the directory's"


def test_range_of_a_shard_is_refused(memory_folder: str) -> None:
    """The members of a zip cannot be read without its directory, and nobody writes an index of it."""
    write_small_shards(memory_folder, num_shards=1, samples_per_shard=4)
    (shard,) = IterableWrapper([f"{memory_folder}/index.json"]).list_remote()
    with pytest.raises(RemoteDataError, match=r"split by samples.* ShardZipReader reads whole objects only"):
        list(ShardZipReader(IterableWrapper([shard.part(0, 2)])))
