"""Readers of tar and zip shards: samples as they were written; what is wrong is raised, or skipped and counted."""

from __future__ import annotations

import contextlib
import gc
import gzip
import importlib
import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.archive_bytes import pack_tar
from tests.support.waiting import wait_for
from torchdata_remote import IterDataPipe, accept_missing_end, raise_error, skip_with_warning
from torchdata_remote.errors import (
    ObjectNotFoundError,
    ShardReadError,
    StorageError,
)

URL = "s3://b/train/t-000.shard"
END_BYTES = 1024  # of the blocks that end an archive
Sample = dict[str, Any]


def tar(*members: tuple[str, bytes]) -> bytes:
    return pack_tar(members)


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, value in members:
            archive.writestr(name, value)
    return data.getvalue()


def stored(*members: tuple[str, bytes]) -> bytes:
    return zipped(*members, method=zipfile.ZIP_STORED)


def reader_of(pack: Any, source: Any, **options: Any) -> Any:
    return source.shard_tar_reader(**options) if pack is tar else source.shard_zip_reader(**options)


def opened(*shards: bytes, urls: str = "s3://b/{}.shard") -> Any:
    pairs = [(urls.format(number), io.BytesIO(data)) for number, data in enumerate(shards)]
    return IterableWrapper(pairs, deepcopy=False)


def keys(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


FORMATS = pytest.mark.parametrize("pack", [tar, zipped, stored])


# What is read


@FORMATS
def test_consecutive_members_with_one_key_are_a_sample(pack: Any) -> None:
    """The key ends at the first dot of the base name; extensions are in lower case; a leading ./ is dropped."""
    members = [("v1.0/a.JPG", b"1"), ("./v1.0/a.Seg.PNG", b"2"), ("v1.0/b.jpg", b"3"), ("v2/b.jpg", b"4")]
    assert list(reader_of(pack, opened(pack(*members), pack(members[0]), urls=URL))) == [
        {"__key__": "v1.0/a", "__url__": URL, "jpg": b"1", "seg.png": b"2"},
        {"__key__": "v1.0/b", "__url__": URL, "jpg": b"3"},
        {"__key__": "v2/b", "__url__": URL, "jpg": b"4"},
        {"__key__": "v1.0/a", "__url__": URL, "jpg": b"1"},  # of another shard: equal keys are two samples
    ]


@FORMATS
def test_every_source_of_shards_gives_the_same_samples_in_each_epoch(
    pack: Any, memory_folder: str, tmp_path: Path
) -> None:
    """URLs, listed ones, streams of ``async_prefetch`` and of torchdata's opener, local files."""
    shards = {f"{number}.x": pack(*((f"{number}{at}.txt", b"x" * at * 99) for at in range(4))) for number in range(3)}
    fsspec.filesystem("memory").pipe({f"{memory_folder}/{name}": data for name, data in shards.items()})
    for name, data in shards.items():
        (tmp_path / name).write_bytes(data)
    expected = [
        {"__key__": f"{number}{at}", "__url__": f"{memory_folder}/{number}.x", "txt": b"x" * at * 99}
        for number in range(3)
        for at in range(4)
    ]
    urls = IterableWrapper([sample["__url__"] for sample in expected[::4]])
    sources = [urls, IterableWrapper([memory_folder]).list_remote(), urls.async_prefetch(part_bytes=300)]
    with contextlib.suppress(ImportError):  # DataPipes left torchdata in 0.10
        importlib.import_module("torchdata.datapipes.iter")
        sources.append(urls.open_files_by_fsspec(mode="rb"))
    for source in sources:
        pipe = reader_of(pack, source)
        assert [list(pipe), list(pipe)] == [expected, expected]
        assert {type(sample["__url__"]) for sample in pipe} == {str}
    local = reader_of(pack, IterableWrapper([str(tmp_path / name) for name in shards]))
    assert [sample["txt"] for sample in local] == [sample["txt"] for sample in expected]


def in_turn(lengths: list[int], interleave: int) -> list[tuple[int, int]]:
    """One item of each open source in turn; the next source replaces one that is exhausted when its turn comes."""
    waiting: list[int] = []
    found: list[tuple[int, int]] = []
    upcoming, read = list(range(len(lengths))), [0] * len(lengths)
    while upcoming or waiting:
        source = upcoming.pop(0) if upcoming and len(waiting) < interleave else waiting.pop(0)
        if read[source] < lengths[source]:
            found.append((source, read[source]))
            read[source] += 1
            waiting.append(source)
    return found if interleave > 1 else sorted(found)


@FORMATS
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), interleave=st.integers(1, 4))
def test_interleaved_shards_take_turns(pack: Any, lengths: list[int], interleave: int) -> None:
    shards = [pack(*((f"{number}-{at}.x", b"") for at in range(length))) for number, length in enumerate(lengths)]
    expected = [f"{number}-{at}" for number, at in in_turn(lengths, interleave)]
    assert keys(reader_of(pack, opened(*shards), interleave=interleave)) == expected


# What is wrong


@FORMATS
def test_a_bad_member_is_skipped_by_policy_and_a_key_that_is_repeated_later_in_the_shard_is_an_error(pack: Any) -> None:
    members = [("a.jpg", b""), ("README", b""), ("__meta__", b""), ("b.jpg", b"")]
    reader = reader_of(pack, opened(pack(*members)), on_bad_member=lambda error: None)
    assert keys(reader) == ["a", "b"]
    assert (reader.skipped.bad_members.total(), reader.skipped.members) == (1, {"meta": 1})
    data = pack(*members, ("a.cls", b""))
    with pytest.raises(ShardReadError, match=r"^s3://b/0\.shard.*'a' was already read"):
        list(reader_of(pack, opened(data), on_bad_member=lambda error: None))


def test_a_member_of_a_zip_that_grows_more_than_a_hundredfold_is_refused() -> None:
    bomb = zipped(("a.bin", bytes(20 << 20)))
    assert len(list(opened(bomb).shard_zip_reader(max_ratio=2000))) == 1
    with pytest.raises(ShardReadError, match="max_ratio=100"):
        list(opened(bomb).shard_zip_reader())


@pytest.mark.parametrize(("pack", "cut"), [(tar, 1200), (zipped, 99)])
@pytest.mark.parametrize("interleave", [1, 3])
def test_a_bad_shard_is_skipped_by_policy_with_a_warning_and_named(pack: Any, cut: int, interleave: int) -> None:
    """The whole samples before the damage come; what was left out is told anew after each pass."""
    bad = pack(("b.x", b"1"), ("c.x", b"2"), ("c.y", b"3"))[:cut]
    shards = [pack(("a.x", b"")), bad, pack(("d.x", b""))]
    sources = [opened(*shards), opened(*shards[::2])]
    reader = reader_of(pack, sources[0], on_bad_shard=skip_with_warning, interleave=interleave)
    with pytest.warns(RuntimeWarning, match=r"^s3://b/1\.shard.*left out") as warned:
        assert keys(reader) == ["a", "d"]
    assert len(warned) == 1
    assert list(reader.skipped.shards) == ["s3://b/1.shard"]
    reader.source_datapipe = sources[1]
    assert keys(reader) == ["a", "d"]
    assert reader.skipped.shards == {}


@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_missing_object_is_no_bad_shard(pack: Any, memory_folder: str) -> None:
    pipe = reader_of(pack, IterableWrapper([f"{memory_folder}/none"]), on_bad_shard=skip_with_warning)
    with pytest.raises(ObjectNotFoundError, match=f"{memory_folder}/none") as caught:
        list(pipe)
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, StorageError)


# What a reader takes, and gives back


class Opener(IterDataPipe[Any]):
    """Streams, remembered."""

    def __init__(self, *shards: bytes) -> None:
        self.shards = shards
        self.streams: list[io.BytesIO] = []

    def __iter__(self) -> Iterator[tuple[str, io.BytesIO]]:
        for data in self.shards:
            self.streams.append(io.BytesIO(data))
            yield URL, self.streams[-1]


@pytest.mark.parametrize("pack", [tar, zipped])
@pytest.mark.parametrize("interleave", [1, 2])
def test_each_stream_is_closed_at_its_end_after_an_error_and_where_a_pass_is_given_up(
    pack: Any, interleave: int
) -> None:
    good, bad = pack(("a.jpg", b"1"), ("b.jpg", b"2")), pack(("a", b"1"))
    whole = Opener(good, good)
    samples = iter(reader_of(pack, whole, interleave=interleave))
    next(samples)
    assert [stream.closed for stream in whole.streams] == [False]
    assert len(list(samples)) == 3
    damaged = Opener(good, bad, good)
    with pytest.raises(ShardReadError):
        list(reader_of(pack, damaged, interleave=interleave))
    given_up = Opener(good, good, good)
    samples = iter(reader_of(pack, given_up, interleave=interleave))
    for _ in range(interleave):
        next(samples)
    del samples
    for opener, num_opened in ((whole, 2), (damaged, 2), (given_up, interleave)):
        assert [stream.closed for stream in opener.streams] == [True] * num_opened


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "torchdata_remote"}


@pytest.mark.parametrize(("policy", "end"), [(raise_error, 2000), (raise_error, 2048), (accept_missing_end, 2000)])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_threads_end_although_the_error_is_kept(
    memory_folder: str, policy: Any, end: int, compress: Callable[[bytes], bytes]
) -> None:
    """As a debugger does; and it does not take a garbage collection."""
    data = compress(tar(*((f"{number}.x", b"") for number in range(9)))[:end])
    urls = [f"{memory_folder}/{number:02d}.tar" for number in range(30)]
    fsspec.filesystem("memory").pipe(dict.fromkeys(urls, data))
    before = engine_threads()
    gc.disable()
    try:
        with pytest.raises(ShardReadError, match=r"00\.tar") as caught:
            list(IterableWrapper(urls).shard_tar_reader(on_bad_shard=policy))
        wait_for(lambda: engine_threads() <= before)
        assert caught.value.__traceback__ is not None
    finally:
        gc.enable()
