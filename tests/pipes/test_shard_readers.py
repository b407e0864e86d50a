"""Readers of tar and zip shards: samples as they were written; what is wrong is raised, or skipped and counted."""

from __future__ import annotations

import bz2
import contextlib
import gc
import gzip
import importlib
import io
import lzma
import os
import signal
import tarfile
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

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.waiting import wait_for
from torchdata_remote import IterDataPipe, accept_missing_end, raise_error, skip_with_warning
from torchdata_remote.errors import (
    BadMemberError,
    MissingEndError,
    ObjectNotFoundError,
    RemoteDataError,
    ShardReadError,
    StorageError,
)
from torchdata_remote.testing import write_small_shards

URL = "s3://b/train/t-000.shard"
END_BYTES = 1024  # of the blocks that end an archive
Sample = dict[str, Any]
Members = list[tuple[str, bytes]]
SAMPLES = st.lists(
    st.builds(
        lambda key, members: {"__key__": key, **members},
        st.text("abcé/01", min_size=1, max_size=150).filter(lambda key: key[0] != "/" and key[-1] != "/"),
        st.dictionaries(st.sampled_from(["jpg", "cls", "seg.png", "json"]), st.binary(max_size=1200), min_size=1),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda sample: sample["__key__"],
)


class Stream(io.BytesIO):
    """Hands out a few bytes at a time, as sockets do."""

    def __init__(self, data: bytes, at_most: int = 1 << 30) -> None:
        super().__init__(data)
        self._at_most = at_most

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._at_most if size is None or size < 0 else min(size, self._at_most))


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


def opened(*shards: bytes, urls: str = "s3://b/{}.shard", at_most: int = 1 << 30) -> Any:
    pairs = [(urls.format(number), Stream(data, at_most)) for number, data in enumerate(shards)]
    return IterableWrapper(pairs, deepcopy=False)


def keys(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


FORMATS = pytest.mark.parametrize("pack", [tar, zipped, stored])


# What is read


@FORMATS
@given(samples=SAMPLES, at_most=st.sampled_from([1, 7, 511, 512, 513, 1 << 20]))
def test_samples_are_read_as_they_were_written_in_whatever_pieces_the_bytes_come(
    pack: Any, samples: list[Sample], at_most: int
) -> None:
    members = [(f"{one['__key__']}.{name}", one[name]) for one in samples for name in sorted(one) if name != "__key__"]
    got = list(reader_of(pack, opened(pack(*members), urls=URL, at_most=at_most if pack is tar else 1 << 30)))
    assert got == [{**sample, "__url__": URL} for sample in samples]


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


def test_without_copy_members_are_views_of_equal_bytes_which_decoders_take() -> None:
    members = [(f"{number}.txt", b"%d" % number * 600) for number in range(9)]
    for at_most in (700, 1 << 20):
        got = list(opened(tar(*members), at_most=at_most).shard_tar_reader(copy=False))
        assert all(isinstance(sample["txt"], memoryview) for sample in got)
        assert [bytes(sample["txt"]) for sample in got] == [data for _, data in members]
    decoded = opened(tar(*members)).shard_tar_reader(copy=False).decode_sample()
    assert [sample["txt"] for sample in decoded] == [data.decode() for _, data in members]


def test_compression_is_detected_by_content() -> None:
    data = tar(("a.x", b"1" * 5000), ("b.x", b"2"))
    shards = opened(data, gzip.compress(data), bz2.compress(data), lzma.compress(data))
    assert keys(shards.shard_tar_reader()) == ["a", "b"] * 4
    for shard, options, message in (
        (gzip.compress(data)[:-9], {}, "gzip data end early"),
        (gzip.compress(tar(("a.x", bytes(20 << 20)))), {}, "max_ratio"),
        (gzip.compress(data), {"max_decompressed_bytes": 3000}, "max_decompressed_bytes=3000"),
    ):
        with pytest.raises(ShardReadError, match=message):
            list(opened(shard).shard_tar_reader(**options))


# Archives in archives


def test_keys_of_nested_archives_begin_with_the_name_of_the_inner_one() -> None:
    inner = [
        (f"{name}.tar", tar(*((f"{name}_{at}.JPEG", at.encode()) for at in ats)))
        for name, ats in (("n1", "01"), ("n2", "7"))
    ]
    for at_most in (100, 513, 1 << 20):
        got = list(
            opened(tar(("__meta__.json__", b""), *inner), urls=URL, at_most=at_most).shard_tar_reader(nested=True)
        )
        assert [sample["__key__"] for sample in got] == ["n1/n1_0", "n1/n1_1", "n2/n2_7"]
        assert got[0] == {"__key__": "n1/n1_0", "__url__": URL, "jpeg": b"0"}
    for name in ("v1.0.tar", "v1.0.tar.gz", "v1.0.tgz", "v1.0.tar.zst", "./v1.0.txz", "v1.0.tbz2"):
        assert keys(opened(tar((name, tar(("a.x", b""))))).shard_tar_reader(nested=True)) == ["v1.0/a"]


# What is wrong


@FORMATS
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("README", "no extension"),
        ("a/.hidden", "dot"),
        ("/etc/passwd.txt", "absolute"),
        ("../a.jpg", '".."'),
        ("a/../../b.jpg", '".."'),
        ("a.JPG", "'jpg' twice"),
    ],
)
def test_a_member_that_cannot_be_part_of_a_sample_is_an_error_or_skipped_by_policy(
    pack: Any, name: str, message: str
) -> None:
    data = pack(("a.jpg", b""), (name, b""), ("b.jpg", b""))
    with pytest.raises(BadMemberError, match=rf"^s3://b/0\.shard.*{message}") as caught:
        list(reader_of(pack, opened(data)))
    assert repr(name) in str(caught.value)
    assert caught.value.url == "s3://b/0.shard"
    pipe = reader_of(pack, opened(data), on_bad_member=skip_with_warning)
    with pytest.warns(RuntimeWarning):
        assert keys(pipe) == ["a", "b"]
    assert sum(pipe.skipped.bad_members.values()) == 1


@FORMATS
def test_a_key_that_is_repeated_later_in_the_shard_is_an_error(pack: Any) -> None:
    data = pack(("a.jpg", b""), ("b.jpg", b""), ("a.cls", b""))
    with pytest.raises(ShardReadError, match=r"^s3://b/0\.shard.*'a' was already read"):
        list(reader_of(pack, opened(data), on_bad_member=skip_with_warning))


def test_a_shard_that_ends_early_gives_complete_samples_and_an_error() -> None:
    members = [(f"{number}.{name}", bytes([number]) * 300) for number in range(6) for name in ("cls", "jpg")]
    data = tar(*members)
    whole = list(opened(data).shard_tar_reader())
    for end in range(0, len(data), 100):
        got: list[Sample] = []
        with pytest.raises(ShardReadError, match=r"cut short"):
            got.extend(opened(data[:end]).shard_tar_reader())
        assert got == whole[: len(got)], f"cut at byte {end}"
    assert len(got) == 5, "the last one may lack members"
    archive = zipped(*members)
    for end in range(0, len(archive), 50):
        with pytest.raises(ShardReadError, match=r"s3://b/0\.shard"):
            list(opened(archive[:end]).shard_zip_reader())


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


def test_a_missing_end_of_archive_is_accepted_by_policy_and_nothing_else_is() -> None:
    endless = tar(("a.x", b"1"), ("b.x", b"2"))[:-END_BYTES]
    with pytest.raises(MissingEndError, match=r"at byte 2,048.*accept_missing_end"):
        list(opened(endless).shard_tar_reader())
    reader = opened(endless).shard_tar_reader(on_bad_shard=accept_missing_end)
    assert keys(reader) == ["a", "b"]
    assert reader.skipped.shards == {}
    for end in (len(endless) - 1, len(endless) - 600, len(endless) + 512):
        with pytest.raises(ShardReadError, match="cut short"):
            list(opened(tar(("a.x", b"1"), ("b.x", b"2"))[:end]).shard_tar_reader(on_bad_shard=accept_missing_end))


@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_missing_object_is_no_bad_shard(pack: Any, memory_folder: str) -> None:
    pipe = reader_of(pack, IterableWrapper([f"{memory_folder}/none"]), on_bad_shard=skip_with_warning)
    with pytest.raises(ObjectNotFoundError, match=f"{memory_folder}/none") as caught:
        list(pipe)
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, StorageError)


def test_members_that_are_no_data_are_counted_by_kind_anew_in_each_pass() -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, kind in [("d", b"5"), ("l", b"2"), ("h", b"1"), ("f", b"6"), ("c", b"3"), ("e", b"5")]:
            member = tarfile.TarInfo(name)
            member.type = kind
            archive.addfile(member)
        for name in ("a.x", "__meta__", "a/__info__", "._a.x", "__b.x"):
            archive.addfile(tarfile.TarInfo(name))

    class Opener(IterDataPipe[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from ((URL, io.BytesIO(data.getvalue())) for _ in range(2))

    reader = Opener().shard_tar_reader()
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="link"):
            assert keys(reader) == ["a", "__b"] * 2
        assert reader.skipped.members == {"directory": 4, "link": 4, "device": 4, "meta": 4, "macos": 2}
    archive_with_folder = opened(zipped(("a.x", b""), ("__meta.json__", b""), ("folder/", b"")))
    zips = archive_with_folder.shard_zip_reader()
    assert keys(zips) == ["a"]
    assert zips.skipped.members == {"directory": 1, "meta": 1}


def test_pipes_hand_on_what_the_readers_above_have_skipped(memory_folder: str) -> None:
    """Through a shuffle, decoding, a mixture: readers are added up."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    fsspec.filesystem("memory").pipe(f"{memory_folder}/000009.tar", b"no tar")
    bad = [
        tdr.stream_shards(memory_folder, shuffle=shuffle, on_bad_shard=skip_with_warning)
        .decode_sample()
        .to_tuple("cls")
        for shuffle in (True, False)
    ]
    good = tdr.stream_shards(f"{memory_folder}/000001.tar")
    for pipe in (bad[0], tdr.mix({"a": (bad[1], 1), "b": (good, 1)}, stop="all_exhausted")):
        with pytest.warns(RuntimeWarning, match="000009.tar"):
            list(pipe)
        assert list(pipe.skipped.shards) == [f"{memory_folder}/000009.tar"]


# What a reader takes, and gives back


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([3], "int"),
        ([None], "NoneType"),
        ([b"s3://b/a.tar"], "bytes"),
        ([(URL, "text")], "tuple"),
        ([(URL, io.BytesIO(), 3)], "tuple"),
        ([(URL, io.BytesIO(tar(("a.txt", b"")))), URL], "str"),
    ],
)
@pytest.mark.parametrize("reader", ["shard_tar_reader", "file_reader"])
def test_items_that_are_neither_urls_nor_streams_are_refused(items: list[Any], message: str, reader: str) -> None:
    with pytest.raises(RemoteDataError, match=rf"Expected a URL.*{message}"):
        list(getattr(IterableWrapper(items), reader)())


@pytest.mark.parametrize("data", [b"ascii", "é".encode(), b"\xff\xd8\xff\xe0"])
@pytest.mark.parametrize("reader", ["shard_tar_reader", "file_reader"])
def test_a_text_stream_is_refused_with_the_right_mode(memory_folder: str, data: bytes, reader: str) -> None:
    pytest.importorskip("torchdata.datapipes.iter", reason="DataPipes left torchdata in 0.10")
    url = f"{memory_folder}/0.tar"
    fsspec.filesystem("memory").pipe(url, tar(("a.jpg", data)) if "shard" in reader else data)
    urls: Any = IterableWrapper([url])
    with pytest.raises(RemoteDataError, match=rf"{url}.*mode='rb'"):
        list(getattr(urls.open_files_by_fsspec(), reader)())


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_continuing_a_pass_in_a_forked_child_is_refused(memory_folder: str, compress: Callable[[bytes], bytes]) -> None:
    """The child gets an error at once, and does not wait for threads of its parent."""
    data = compress(tar(*((f"{number}.x", os.urandom(20_000)) for number in range(100))))
    fsspec.filesystem("memory").pipe(f"{memory_folder}/0.tar", data)
    iterator = iter(IterableWrapper([f"{memory_folder}/0.tar"]).async_prefetch(part_bytes=50_000).shard_tar_reader())
    next(iterator)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(120)
            for _ in iterator:
                pass
        except RuntimeError as error:
            os._exit(7 if "another process" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(iterator)) == 99


def test_limits_of_sizes_apply_exactly() -> None:
    members = [("a.bin", bytes(3000))]
    for pack in (tar, zipped):
        assert len(list(reader_of(pack, opened(pack(*members)), max_member_bytes=3000))) == 1
        with pytest.raises(ShardReadError, match="max_member_bytes=2,999"):
            list(reader_of(pack, opened(pack(*members)), max_member_bytes=2999))
    bomb = zipped(("a.bin", bytes(20 << 20)))
    assert len(list(opened(bomb).shard_zip_reader(max_ratio=2000))) == 1
    with pytest.raises(ShardReadError, match="max_ratio=100"):
        list(opened(bomb).shard_zip_reader())


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("n01.tar", tar(("a.x", b""))), ("sub/n01.txt", b"no tar")], "in 'sub/n01.txt'"),
        (
            [("n01.tar", tar(("a.x", b""))), ("n01.tar.gz", tar(("b.x", b"")))],
            "keys of 'n01.tar.gz' would begin with 'n01/'",
        ),
        ([("../n01.tar", tar(("a.x", b"")))], "leaves its folder"),
        ([("n01.tar", tar(("a.x", b""))[:-1100])], "in 'n01.tar': at byte"),
    ],
)
def test_a_damaged_inner_archive_is_an_error_that_names_it_and_the_shard(members: Members, message: str) -> None:
    with pytest.raises(ShardReadError, match=rf"^s3://b/0.shard.*{message}") as caught:
        list(opened(tar(*members)).shard_tar_reader(nested=True))
    assert caught.value.url == "s3://b/0.shard"
