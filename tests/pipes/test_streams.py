"""Objects as byte streams and as samples of one member: ``list_remote``, ``async_prefetch``, ``file_reader``."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote import IterableWrapper, IterDataPipe
from torchdata_remote.errors import SampleError


def put(folder: str, objects: dict[str, bytes]) -> list[str]:
    path = folder.removeprefix("memory:/")
    fsspec.filesystem("memory").pipe({f"{path}/{name}": data for name, data in objects.items()})
    return [f"{folder}/{name}" for name in objects]


# list_remote


def test_sources_keep_their_order_each_with_its_objects_sorted_and_their_sizes(memory_folder: str) -> None:
    put(memory_folder, {"b/z": b"123", "b/a": b"1", "a/c": b""})
    sources = [f"{memory_folder}/b", f"{memory_folder}/a/c", f"{memory_folder}/b/"]
    pipe = IterableWrapper(sources).list_remote()
    listed = list(pipe)
    assert listed == [f"{memory_folder}/{path}" for path in ("b/a", "b/z", "a/c", "b/a", "b/z")]
    assert [url.size for url in listed] == [1, 3, 0, 1, 3]
    put(memory_folder, {"b/n": b""})
    assert len(list(pipe)) == 7, "each pass lists again"


# async_prefetch


class Numbered(IterDataPipe[str]):
    """Counts what is pulled."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.pulled = 0

    def __iter__(self) -> Iterator[str]:
        for url in self.urls:
            self.pulled += 1
            yield url


def test_building_and_pickling_start_nothing_and_send_no_request(memory_folder: str) -> None:
    urls = put(memory_folder, {"a": b"1"})
    before, source = set(threading.enumerate()), Numbered(urls)
    pipe = source.async_prefetch(storage_options={})
    copy = pickle.loads(pickle.dumps(pipe))
    assert (source.pulled, set(threading.enumerate()) - before) == (0, set())
    assert [stream.read() for _, stream in copy] == [b"1"]
    unreachable = IterableWrapper(["s3://bucket/"]).list_remote(storage_options={"endpoint_url": "http://127.0.0.1:1"})
    pickle.dumps(unreachable.sharding_filter_rank().async_prefetch().shard_tar_reader())


# file_reader


class Slow(io.BytesIO):
    """Hands out a few bytes at a time."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(5)


@given(st.lists(st.tuples(st.sampled_from(["jpg", "JPG", "seg.png"]), st.binary(max_size=30)), max_size=6))
def test_each_object_is_a_sample_with_one_member(files: list[tuple[str, bytes]]) -> None:
    """All its bytes, in whatever pieces they come, under the extension in lower case; streams are closed."""
    pairs = [(f"s3://b/v1.0/{i}.{extension}", Slow(data)) for i, (extension, data) in enumerate(files)]
    assert list(IterableWrapper(pairs, deepcopy=False).file_reader()) == [
        {"__key__": f"v1.0/{i}", "__url__": f"s3://b/v1.0/{i}.{extension}", extension.lower(): data}
        for i, (extension, data) in enumerate(files)
    ]
    assert all(stream.closed for _, stream in pairs)


def test_every_source_of_files_gives_the_same_samples(memory_folder: str, tmp_path: Path) -> None:
    """URLs with and without sizes, streams, torchdata's opener; local paths; names with any characters."""
    urls = put(memory_folder, {**{f"{i}.txt": b"x" * i for i in range(20)}, "@home/what?/a@b#c.txt": b"odd"})
    sized = IterableWrapper([memory_folder]).list_remote()
    expected = [(url, len(fsspec.filesystem("memory").cat(url.removeprefix("memory:/")))) for url in urls]
    for source in (IterableWrapper(urls), sized, IterableWrapper(urls).async_prefetch(part_bytes=7)):
        pipe = source.file_reader()
        for _ in range(2):
            found = [(sample["__url__"], len(sample["txt"])) for sample in pipe]
            assert sorted(found) == sorted(expected)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.bin").write_bytes(b"12")
    path = str(tmp_path / "cat" / "1.bin")
    bare, url = IterableWrapper([path, f"file://{path}"]).file_reader()
    assert bare["__key__"] == url["__key__"] == path.removeprefix("/").removesuffix(".bin")
    assert bare["bin"] == url["bin"] == b"12"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("README", "has no extension"),
        (".hidden", "has no key"),
        ("a.", "has no extension"),
        ("a.__url__", "has the extension '__url__'"),
        ("a.__key__", "has the extension '__key__'"),
    ],
)
def test_a_name_that_cannot_be_part_of_a_sample_is_an_error(name: str, fault: str) -> None:
    stream, url = io.BytesIO(b"x"), f"s3://b/v1.0/{name}"
    with pytest.raises(SampleError, match=f"the name {fault}, so it cannot be part of a sample.*pattern=") as caught:
        list(IterableWrapper([(url, stream)], deepcopy=False).file_reader())
    assert caught.value.url == url
    assert stream.closed
