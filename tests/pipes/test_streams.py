"""Objects as byte streams and as samples of one member: ``list_remote``, ``async_prefetch``, ``file_reader``."""

from __future__ import annotations

import gc
import io
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import wait_for
from torchdata_remote import IterableWrapper, IterDataPipe, RemoteUrl
from torchdata_remote.errors import EmptyListingError, ObjectNotFoundError, SampleError, UrlError


def put(folder: str, objects: dict[str, bytes]) -> list[str]:
    path = folder.removeprefix("memory:/")
    fsspec.filesystem("memory").pipe({f"{path}/{name}": data for name, data in objects.items()})
    return [f"{folder}/{name}" for name in objects]


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "torchdata_remote"}


# list_remote


def test_sources_keep_their_order_each_with_its_objects_sorted_and_their_sizes(memory_folder: str) -> None:
    put(memory_folder, {"b/z": b"123", "b/a": b"1", "a/c": b""})
    sources = [f"{memory_folder}/b", f"{memory_folder}/a/c", f"{memory_folder}/b/"]
    pipe = IterableWrapper(sources).list_remote()
    listed = list(pipe)
    assert listed == [f"{memory_folder}/{path}" for path in ("b/a", "b/z", "a/c", "b/a", "b/z")]
    assert [url.size for url in listed] == [1, 3, 0, 1, 3]
    copy = pickle.loads(pickle.dumps(listed[1]))
    assert (type(copy), copy, copy.size, copy.etag) == (RemoteUrl, listed[1], 3, listed[1].etag)
    put(memory_folder, {"b/n": b""})
    assert len(list(pipe)) == 7, "each pass lists again"


def test_each_source_must_have_objects_that_match(memory_folder: str) -> None:
    put(memory_folder, {"a.tar": b""})
    urls = iter(IterableWrapper([memory_folder, memory_folder + "/none"]).list_remote(pattern="*.tar"))
    assert next(urls) == f"{memory_folder}/a.tar"
    with pytest.raises(EmptyListingError, match=rf"{memory_folder}/none: .*pattern='\*\.tar'") as caught:
        next(urls)
    assert isinstance(caught.value, FileNotFoundError)


# async_prefetch


@given(objects=st.lists(st.binary(max_size=50), max_size=6), part_bytes=st.integers(1, 60))
def test_streams_have_the_order_of_the_urls_and_all_bytes_in_each_pass(objects: list[bytes], part_bytes: int) -> None:
    """Also when a URL comes twice, and of empty objects; of an item of any type that is a URL."""
    urls = put(f"memory://{os.urandom(8).hex()}", {f"{number}": data for number, data in enumerate(objects)})
    pipe = IterableWrapper(urls * 2).async_prefetch(part_bytes=part_bytes, max_in_flight=3)
    for _ in range(2):
        assert [(url, stream.read()) for url, stream in pipe] == list(zip(urls, objects, strict=True)) * 2


def test_an_error_comes_from_the_stream_whose_object_cannot_be_read(memory_folder: str) -> None:
    [first, last] = put(memory_folder, {"a": b"1", "c": b"3"})
    streams = list(IterableWrapper([first, f"{memory_folder}/b", last]).async_prefetch())
    assert streams[0][1].read() == b"1"
    with pytest.raises(ObjectNotFoundError, match=f"{memory_folder}/b"):
        streams[1][1].read()
    assert streams[2][1].read() == b"3"
    got = []
    with pytest.raises(UrlError, match="nope"):  # noqa: PT012  # the loop is what raises, at its end
        for _, stream in IterableWrapper([first, "nope://bucket/a"]).async_prefetch():
            got.append(stream.read())
    assert got == [b"1"], "a wrong URL is an error of the pipe, after the streams before it"


@pytest.mark.parametrize("end", ["exhausted", "break", "next only", "error", "dropped", "new pass"])
def test_threads_end_however_iteration_ends(memory_folder: str, end: str) -> None:
    urls = put(memory_folder, {f"{number}": bytes(100) for number in range(50)})
    before = engine_threads()
    pipe = IterableWrapper(urls).async_prefetch(part_bytes=10)

    def run() -> None:
        if end in ("next only", "new pass"):
            first = iter(pipe)
            next(first)
            if end == "new pass":
                assert len(list(pipe)) == 50
                with pytest.raises(RuntimeError, match="invalidated"):
                    next(first)
            return
        for _, stream in pipe:
            if end != "dropped":
                stream.read()
            if end == "break":
                break
            if end == "error":
                raise ZeroDivisionError

    try:
        run()
    except ZeroDivisionError:
        assert end == "error"
    gc.collect()
    wait_for(lambda: engine_threads() <= before)


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
    before, source = engine_threads(), Numbered(urls)
    pipe = source.async_prefetch(storage_options={})
    copy = pickle.loads(pickle.dumps(pipe))
    assert (source.pulled, engine_threads() - before) == (0, set())
    assert [stream.read() for _, stream in copy] == [b"1"]
    unreachable = IterableWrapper(["s3://bucket/"]).list_remote(storage_options={"endpoint_url": "http://127.0.0.1:1"})
    pickle.dumps(unreachable.sharding_filter_rank().async_prefetch().shard_tar_reader())


def test_without_an_order_all_objects_come_once(memory_folder: str) -> None:
    urls = put(memory_folder, {f"{number}": b"%d" % number for number in range(30)})
    pipe = IterableWrapper(urls).async_prefetch(in_order=False)
    assert sorted(stream.read() for _, stream in pipe) == sorted(b"%d" % number for number in range(30))


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
    ("split_name", "expected"),
    [
        ("first", ("22", "05.png")),
        ("last", ("22_05", "png")),
        (os.path.splitext, ("22_05", "png")),
        (lambda name: (name[:2], name[-3:]), ("22", "png")),
    ],
)
def test_names_are_split_at_the_first_dot_the_last_one_or_by_a_function(
    split_name: Any, expected: tuple[str, str]
) -> None:
    pairs = [("s3://b/v1.0/22.05.PNG", io.BytesIO(b"x"))]
    (sample,) = IterableWrapper(pairs).file_reader(split_name=split_name)
    assert sample == {"__key__": f"v1.0/{expected[0]}", "__url__": pairs[0][0], expected[1]: b"x"}


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


@pytest.mark.parametrize("end", ["#samples=3-9", "+samples+3-9"])
def test_a_name_that_looks_like_a_range_is_a_name(memory_folder: str, end: str) -> None:
    put(memory_folder, {f"1.txt{end}": b"whole"})
    listed = IterableWrapper([f"{memory_folder}/"]).list_remote()
    for source in (listed, listed.async_prefetch()):
        (sample,) = source.file_reader()
        assert (sample["__url__"], sample[f"txt{end}"]) == (f"{memory_folder}/1.txt{end}", b"whole")
