from __future__ import annotations

import bz2
import gc
import gzip
import io
import json
import lzma
import os
import pickle
import signal
import sys
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.archive_bytes import pack_tar
from tests.support.fake_store import store_of
from tests.support.shard_places import tar_of
from torchdata_remote import RemoteUrl, ShardTarReader, accept_missing_end, raise_error, skip_with_warning
from torchdata_remote.core.checksums import BlockSummer
from torchdata_remote.errors import MissingEndError, ObjectNotFoundError, RemoteDataError, ShardReadError, StorageError
from torchdata_remote.formats.error_policy import OnBadShard
from torchdata_remote.formats.sample_index import dump_index
from torchdata_remote.formats.tar import END_OF_ARCHIVE
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

URL = "s3://b/train/t-000.tar"
SIGNED = "https://host/t-000.tar?X-Amz-Signature=SECRET"
Sample = dict[str, Any]
SAMPLES = st.lists(
    st.builds(
        lambda key, members: {"__key__": key, **members},
        st.text("abcé/01", min_size=1, max_size=150).filter(lambda key: not key.startswith("/") and key[-1] != "/"),
        st.dictionaries(st.sampled_from(["jpg", "cls", "seg.png", "json"]), st.binary(max_size=1200), min_size=1),
    ),
    max_size=8,
    unique_by=lambda sample: sample["__key__"],
)


class _Stream(io.BytesIO):
    """A stream that hands out a few bytes at a time, as sockets do."""

    def __init__(self, data: bytes, at_most: int = 1 << 30) -> None:
        super().__init__(data)
        self._at_most = at_most

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._at_most if size is None or size < 0 else min(size, self._at_most))


def _tar(*members: tuple[str, bytes]) -> bytes:
    return pack_tar(members)


def _read(*members: tuple[str, bytes], url: str = URL) -> list[Sample]:
    return list(ShardTarReader(IterableWrapper([(url, io.BytesIO(_tar(*members)))])))


def _error(*members: tuple[str, bytes], url: str = URL) -> str:
    with pytest.raises(ShardReadError) as caught:
        _read(*members, url=url)
    assert caught.value.url == url.partition("?")[0]
    assert str(caught.value).startswith(url.partition("?")[0])
    return str(caught.value)


@given(samples=SAMPLES.filter(bool), at_most=st.sampled_from([1, 7, 511, 512, 513, 1 << 20]))
def test_samples_are_read_as_written(samples: list[Sample], at_most: int) -> None:
    """Key, members and order, whatever names and sizes they have and in what pieces the stream hands them out."""
    members = [(f"{s['__key__']}.{name}", s[name]) for s in samples for name in sorted(s) if name != "__key__"]
    got = list(ShardTarReader(IterableWrapper([(URL, _Stream(_tar(*members), at_most))])))
    assert got == [{**sample, "__url__": URL} for sample in samples]


@pytest.mark.parametrize("name", ["on_bad_shard", "on_bad_member"])
def test_policy_that_is_not_callable_is_refused(name: str) -> None:
    """When the pipe is built, not at the first bad shard of a long run."""
    with pytest.raises(TypeError, match=f"{name} must be a function such as .*, got 'skip'"):
        IterableWrapper(["s3://b/0.tar"]).shard_tar_reader(**{name: "skip"})


def test_bare_urls_are_opened_by_the_reader(memory_folder: str) -> None:
    """Bare URLs are opened by the reader: all shards, in order, each sample with the URL of its shard."""
    samples = write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    pipe = ShardTarReader(IterableWrapper([f"{memory_folder}/{i:06d}.tar" for i in range(3)]))
    assert list(pipe) == samples
    assert list(pipe) == samples, "the next epoch reads them again"
    assert list(IterableWrapper([samples[0]["__url__"]]).shard_tar_reader()) == samples[:4]


def test_streams_of_torchdata_are_read(memory_folder: str) -> None:
    """After torchdata's own opener the samples are the same."""
    pytest.importorskip("torchdata.datapipes.iter", reason="DataPipes left torchdata in 0.10")

    samples = write_small_shards(memory_folder, num_shards=2, samples_per_shard=3)
    urls: Any = IterableWrapper([f"{memory_folder}/{i:06d}.tar" for i in range(2)])
    assert list(urls.open_files_by_fsspec(mode="rb").shard_tar_reader()) == samples


@pytest.mark.parametrize("data", [b"ascii", "é".encode(), b"\xff\xd8\xff\xe0"])
def test_text_stream_is_refused(memory_folder: str, data: bytes) -> None:
    """torchdata's default; the error names the shard and the right mode, even if the bytes are no text at all."""
    pytest.importorskip("torchdata.datapipes.iter", reason="DataPipes left torchdata in 0.10")

    url = f"{memory_folder}/0.tar"
    fsspec.filesystem("memory").pipe(url, _tar(("a.jpg", data)))
    urls: Any = IterableWrapper([url])
    with pytest.raises(RemoteDataError, match=r"mode='rb'") as caught:
        list(urls.open_files_by_fsspec().shard_tar_reader())
    assert url in str(caught.value)


def test_consecutive_members_with_one_key_are_a_sample() -> None:
    """The key ends at the first dot of the base name; the extension is in lower case; a leading ./ is dropped."""
    got = _read(("./v1.0/a.JPG", b"1"), ("v1.0/a.Seg.PNG", b"2"), ("v1.0/b.jpg", b"3"), ("v2/b.jpg", b"4"))
    assert got == [
        {"__key__": "v1.0/a", "__url__": URL, "jpg": b"1", "seg.png": b"2"},
        {"__key__": "v1.0/b", "__url__": URL, "jpg": b"3"},
        {"__key__": "v2/b", "__url__": URL, "jpg": b"4"},
    ]


def test_equal_keys_in_two_shards_are_two_samples() -> None:
    """Samples never go over the border of a shard."""
    pairs = [(f"s3://b/{i}.tar", io.BytesIO(_tar(("a.cls", b"%d" % i)))) for i in range(2)]
    got = list(ShardTarReader(IterableWrapper(pairs, deepcopy=False)))
    assert [(s["__url__"], s["cls"]) for s in got] == [("s3://b/0.tar", b"0"), ("s3://b/1.tar", b"1")]


def test_meta_members_are_skipped() -> None:
    """WebDataset's metadata members are no samples; a name that only begins so is one."""
    got = _read(("__meta__", b"x"), ("a/__info__", b"x"), ("__a.cls", b"1"), ("__b__.cls", b"2"))
    assert [sample["__key__"] for sample in got] == ["__a", "__b__"]


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("README", "no extension"),
        ("a/.hidden", "dot"),
        ("/etc/passwd.txt", "absolute"),
        ("../a.jpg", '".."'),
        ("a/../../b.jpg", '".."'),
    ],
)
def test_member_that_is_no_part_of_a_sample_is_an_error(name: str, fragments: str) -> None:
    """The message names shard and member and says why."""
    message = _error(("a.jpg", b""), (name, b""))
    assert repr(name) in message
    assert fragments in message


@pytest.mark.parametrize("second", ["a.jpg", "a.JPG", "./a.jpg"])
def test_repeated_extension_is_an_error(second: str) -> None:
    """One of the two would be lost; shard, key and extension are named."""
    message = _error(("a.jpg", b"1"), (second, b"2"))
    assert "'a'" in message
    assert "'jpg' twice" in message
    assert repr(second) in message


def test_repeated_key_is_an_error() -> None:
    """Members of a sample that lie apart would make two halves; shard and key are named."""
    assert "'a' was already read" in _error(("a.jpg", b""), ("b.jpg", b""), ("a.cls", b""))


def test_truncated_shard_gives_complete_samples_and_an_error() -> None:
    """At every 100th byte: samples that come are complete, and the end is never silent."""
    members = [(f"{i}.{name}", bytes([i]) * 300) for i in range(6) for name in ("cls", "jpg")]
    data, whole = _tar(*members), _read(*members)
    for end in range(0, len(data), 100):
        got: list[Sample] = []
        with pytest.raises(ShardReadError, match=r"cut short"):
            got.extend(ShardTarReader(IterableWrapper([(URL, io.BytesIO(data[:end]))])))
        assert got == whole[: len(got)], f"cut at byte {end}"
    assert len(got) == 5, "the last one may lack members"


def test_errors_and_samples_show_no_url_signature() -> None:
    """The query of a signed URL opens the object for whoever reads a log, or a sample that was kept."""
    assert "SECRET" not in _error(("README", b""), url=SIGNED)
    (sample,) = _read(("a.jpg", b""), url=SIGNED)
    assert sample["__url__"] == "https://host/t-000.tar"


def test_missing_object_is_an_error(memory_folder: str) -> None:
    """It names the URL and is a ``FileNotFoundError``."""
    url = f"{memory_folder}/none.tar"
    with pytest.raises(ObjectNotFoundError, match=url) as caught:
        list(ShardTarReader(IterableWrapper([url])))
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, StorageError)


@pytest.mark.parametrize(
    ("items", "fragments"),
    [
        ([3], "int"),
        ([None], "NoneType"),
        ([b"s3://b/a.tar"], "bytes"),
        ([(URL, "text")], "tuple"),
        ([(URL, io.BytesIO(), 3)], "tuple"),
        ([(URL, io.BytesIO(_tar(("a.txt", b"")))), URL], "str"),
    ],
)
def test_items_that_are_neither_url_nor_stream_are_refused(items: list[Any], fragments: str) -> None:
    """The error names the type that came and what was expected."""
    with pytest.raises(RemoteDataError, match=rf"Expected a URL.*{fragments}"):
        list(ShardTarReader(IterableWrapper(items, deepcopy=False)))


class _Opener(IterDataPipe[Any]):
    """Streams over one shard, remembered."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.streams: list[io.BytesIO] = []

    def __iter__(self) -> Iterator[tuple[str, io.BytesIO]]:
        for _ in range(2):
            self.streams.append(io.BytesIO(self.data))
            yield URL, self.streams[-1]


def test_streams_are_closed_after_reading() -> None:
    """Each one before the next is opened, and the one at hand on an error or when iteration is given up."""
    opener = _Opener(_tar(("a.jpg", b"1"), ("b.jpg", b"2")))
    iterator = iter(ShardTarReader(opener))
    next(iterator)
    assert [stream.closed for stream in opener.streams] == [False]
    assert [sample["__key__"] for sample in iterator] == ["b", "a", "b"]
    assert [stream.closed for stream in opener.streams] == [True, True]

    opener = _Opener(_tar(("a.jpg", b"1"), ("b.jpg", b"2")))
    iterator = iter(ShardTarReader(opener))
    next(iterator)
    del iterator
    assert [stream.closed for stream in opener.streams] == [True]

    opener = _Opener(_tar(("a", b"1")))
    with pytest.raises(ShardReadError):
        list(ShardTarReader(opener))
    assert [stream.closed for stream in opener.streams] == [True]


def test_pipe_pickles_before_and_after_a_pass(memory_folder: str) -> None:
    """It goes to worker processes with what it needs, and shows none of it."""
    samples = write_small_shards(memory_folder, num_shards=1, samples_per_shard=2)
    pipe = ShardTarReader(IterableWrapper([f"{memory_folder}/000000.tar"]))
    assert list(pickle.loads(pickle.dumps(pipe))) == samples
    assert list(pipe) == samples
    assert list(pickle.loads(pickle.dumps(pipe))) == samples


def test_storage_options_are_not_in_errors() -> None:
    """torch adds the pipe's attributes to the message of an error: storage options are none of them."""
    pipe = ShardTarReader(IterableWrapper[Any]([3]), storage_options={"key": "k", "secret": "HUSH"})
    with pytest.raises(RemoteDataError) as caught:
        list(pipe)
    assert "HUSH" not in f"{caught.value} {pipe!r} {pipe}"


def _shards(*datas: bytes) -> IterDataPipe[Any]:
    return IterableWrapper([(f"s3://b/{i}.tar", io.BytesIO(data)) for i, data in enumerate(datas)], deepcopy=False)


def test_bad_shard_can_be_skipped() -> None:
    """The rest of it, with a warning; whole samples before come, and the reader tells what it left out and why."""
    bad = _tar(("a.x", b"1"), ("b.x", b"2"), ("b.y", b"3"))[:1200]
    reader = ShardTarReader(_shards(_tar(("a.x", b"")), bad, _tar(("c.x", b""))), on_bad_shard=skip_with_warning)
    with pytest.warns(RuntimeWarning, match=r"^s3://b/1.tar: at byte 1,024.*left out") as warned:
        assert [sample["__key__"] for sample in reader] == ["a", "c"], "the sample at the cut may lack members"
    assert len(warned) == 1
    assert list(reader.skipped.shards) == ["s3://b/1.tar"]
    assert "in a header" in reader.skipped.shards["s3://b/1.tar"]


def test_policy_may_be_a_function() -> None:
    """It is asked once for each bad shard, with the error; what it raises comes out."""
    bad = _tar(("a.x", b"1"))[:600]
    asked: list[ShardReadError] = []
    assert list(ShardTarReader(_shards(bad, bad), on_bad_shard=asked.append)) == []
    assert [error.url for error in asked] == ["s3://b/0.tar", "s3://b/1.tar"]

    def give_up(error: ShardReadError) -> None:
        raise KeyError("mine") from error

    with pytest.raises(KeyError, match="mine"):
        list(ShardTarReader(_shards(bad), on_bad_shard=give_up))


def test_missing_end_of_archive_can_be_accepted() -> None:
    """By policy, and then it is whole: the last sample comes and nothing is left out. Other faults are errors still."""
    endless = _tar(("a.x", b"1"), ("b.x", b"2"))[: -len(END_OF_ARCHIVE)]
    with pytest.raises(MissingEndError, match=r"at byte 2,048.*accept_missing_end"):
        list(ShardTarReader(_shards(endless)))
    reader = ShardTarReader(_shards(endless), on_bad_shard=accept_missing_end)
    assert [sample["__key__"] for sample in reader] == ["a", "b"]
    assert reader.skipped.shards == {}
    for end in (len(endless) - 1, len(endless) - 600, len(endless) + 512):
        with pytest.raises(ShardReadError, match="cut short"):
            list(ShardTarReader(_shards(_tar(("a.x", b"1"), ("b.x", b"2"))[:end]), on_bad_shard=accept_missing_end))


def test_storage_errors_are_not_bad_shards(memory_folder: str) -> None:
    """The policy is not asked: an object that is not there, or a store that is down, is something else."""
    pipe = ShardTarReader(IterableWrapper([f"{memory_folder}/none.tar"]), on_bad_shard=skip_with_warning)
    with pytest.raises(ObjectNotFoundError):
        list(pipe)


def test_skipped_members_are_counted_by_kind() -> None:
    """Directories, links, devices and meta members, by kind; anew with each pass."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, kind in [("d", b"5"), ("l", b"2"), ("h", b"1"), ("f", b"6"), ("c", b"3"), ("e", b"5")]:
            member = tarfile.TarInfo(name)
            member.type = kind
            archive.addfile(member)
        for name in ("a.x", "__meta__"):
            archive.addfile(tarfile.TarInfo(name))
    reader = ShardTarReader(_Opener(data.getvalue()))
    for _ in range(2):
        assert [sample["__key__"] for sample in reader] == ["a", "a"]
        assert reader.skipped.members == {"directory": 4, "link": 4, "device": 4, "meta": 2}


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), interleave=st.integers(1, 4))
def test_interleaved_shards_take_turns(lengths: list[int], interleave: int) -> None:
    """Each sample once, in an order that is the same each time; neighbours in a shard do not follow each other."""
    datas = [_tar(*[(f"{i}-{j}.x", b"") for j in range(length)]) for i, length in enumerate(lengths)]
    first, second = (
        [sample["__key__"] for sample in ShardTarReader(_shards(*datas), interleave=interleave)] for _ in range(2)
    )
    assert first == second
    assert sorted(first) == sorted(f"{i}-{j}" for i, length in enumerate(lengths) for j in range(length))
    if interleave >= len(lengths) > 1 and len(set(lengths)) == 1:
        assert all(a[0] != b[0] for a, b in pairwise(first))


def test_interleaved_shards_may_exceed_the_byte_bound(memory_folder: str) -> None:
    """Larger shards than the byte bound holds, several at once: all samples, and each stream is closed."""
    urls = [f"{memory_folder}/{i}.tar" for i in range(5)]
    for number, url in enumerate(urls):
        members = [(f"{number}-{j}.x", bytes([j]) * 5000) for j in range(40)]
        fsspec.filesystem("memory").pipe(url, _tar(*members))
    streams = IterableWrapper(urls).async_prefetch(max_in_flight=4, max_buffer_bytes=300_000, part_bytes=50_000)
    got = list(streams.shard_tar_reader(interleave=3))
    assert sorted(s["__key__"] for s in got) == sorted(f"{i}-{j}" for i in range(5) for j in range(40))
    assert {s["__url__"] for s in got[:3]} == set(urls[:3])


def test_without_copy_members_are_memoryviews() -> None:
    """Equal bytes, as ``memoryview``, also of a member that lies in two parts; ``decode_sample`` takes them."""
    members = [(f"{i}.txt", b"%d" % i * 600) for i in range(9)]
    for at_most in (700, 1 << 20):
        pairs: IterDataPipe[Any] = IterableWrapper([(URL, _Stream(_tar(*members), at_most))], deepcopy=False)
        got = list(ShardTarReader(pairs, copy=False))
        assert all(isinstance(sample["txt"], memoryview) for sample in got)
        assert [bytes(sample["txt"]) for sample in got] == [data for _, data in members]
    pairs = IterableWrapper([(URL, io.BytesIO(_tar(*members)))], deepcopy=False)
    texts = [sample["txt"] for sample in ShardTarReader(pairs, copy=False).decode_sample()]
    assert texts == [data.decode() for _, data in members]


def _of_classes(**classes: list[str]) -> list[tuple[str, bytes]]:
    return [(f"{name}.tar", _tar(*[(f"{name}_{n}.JPEG", n.encode()) for n in keys])) for name, keys in classes.items()]


def test_nested_archives_prefix_the_keys() -> None:
    """ImageNet's training images: the inner archive's name comes before the key."""
    data = _tar(*_of_classes(n01=["10", "11"], n02=["7"]))
    for at_most in (100, 513, 1 << 20):
        pairs = IterableWrapper([(URL, _Stream(data, at_most))], deepcopy=False)
        got = list(ShardTarReader(pairs, nested=True))
        assert [sample["__key__"] for sample in got] == ["n01/n01_10", "n01/n01_11", "n02/n02_7"]
        assert got[0] == {"__key__": "n01/n01_10", "__url__": URL, "jpeg": b"10"}


@pytest.mark.parametrize("name", ["v1.0.tar", "v1.0.tar.gz", "v1.0.tgz", "v1.0.tar.zst", "./v1.0.txz", "v1.0.tbz2"])
def test_prefix_is_the_name_without_its_extension(name: str) -> None:
    """A dot in the name itself stays."""
    (sample,) = ShardTarReader(_shards(_tar((name, _tar(("a.x", b""))))), nested=True)
    assert sample["__key__"] == "v1.0/a"


@pytest.mark.parametrize(
    ("members", "fragments"),
    [
        ([("n01.tar", _tar(("a.x", b""))), ("sub/n01.txt", b"no tar")], "in 'sub/n01.txt'"),
        (
            [("n01.tar", _tar(("a.x", b""))), ("n01.tar.gz", _tar(("b.x", b"")))],
            "keys of 'n01.tar.gz' would begin with 'n01/'",
        ),
        ([("../n01.tar", _tar(("a.x", b"")))], "leaves its folder"),
        ([("n01.tar", _tar(("a.x", b""))[:-1100])], "in 'n01.tar': at byte"),
    ],
)
def test_damaged_inner_archive_is_an_error(members: list[tuple[str, bytes]], fragments: str) -> None:
    """It is named, and the shard around it too."""
    with pytest.raises(ShardReadError, match=rf"^s3://b/0.tar.*{fragments}") as caught:
        list(ShardTarReader(_shards(_tar(*members)), nested=True))
    assert caught.value.url == "s3://b/0.tar"


def test_compression_is_detected_by_content() -> None:
    """It is recognised by its content; a wrong claim of a size, known from the listing, is none of the archive's."""
    data = _tar(("a.x", b"1" * 5000), ("b.x", b"2"))
    got = list(ShardTarReader(_shards(data, gzip.compress(data), bz2.compress(data), lzma.compress(data))))
    assert [sample["__key__"] for sample in got] == ["a", "b"] * 4
    with pytest.raises(ShardReadError, match="gzip data end early"):
        list(ShardTarReader(_shards(gzip.compress(data)[:-9])))
    with pytest.raises(ShardReadError, match="max_ratio"):
        list(ShardTarReader(_shards(gzip.compress(_tar(("a.x", bytes(20 << 20)))))))
    with pytest.raises(ShardReadError, match="max_decompressed_bytes=3000"):
        list(ShardTarReader(_shards(gzip.compress(data)), max_decompressed_bytes=3000))


def test_interleave_below_1_is_refused() -> None:
    """When the pipe is made."""
    with pytest.raises(ValueError, match="at least 1, got 0"):
        ShardTarReader(_shards(), interleave=0)


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "torchdata_remote"}


@pytest.mark.parametrize("policy", [raise_error, accept_missing_end])
@pytest.mark.parametrize("end", [2000, 2048])
@pytest.mark.parametrize("compressed", [False, True])
def test_threads_end_while_the_error_is_referenced(
    memory_folder: str, policy: OnBadShard, end: int, compressed: bool
) -> None:
    """Whoever keeps the error, as a debugger does, keeps no threads; and it does not take a garbage collection."""
    if (policy, end) == (accept_missing_end, 2048):
        pytest.skip("no error")
    data = _tar(*[(f"{i}.x", b"") for i in range(9)])[:end]
    for i in range(30):
        fsspec.filesystem("memory").pipe(f"{memory_folder}/{i:02d}.tar", gzip.compress(data) if compressed else data)
    before = _threads()
    urls = IterableWrapper([f"{memory_folder}/{i:02d}.tar" for i in range(30)])
    gc.disable()
    try:
        with pytest.raises(ShardReadError, match=r"00\.tar") as caught:
            list(urls.shard_tar_reader(on_bad_shard=policy))
        for thread in _threads() - before:
            thread.join(20)
        assert _threads() <= before
        assert caught.value.__traceback__ is not None
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_continuing_a_pass_in_a_forked_child_is_refused(memory_folder: str, compress: Callable[[bytes], bytes]) -> None:
    """Compressed or not, the child gets an error at once and does not wait for threads of its parent."""
    members = [(f"{i}.x", os.urandom(100_000)) for i in range(200)]
    fsspec.filesystem("memory").pipe(f"{memory_folder}/0.tar", compress(_tar(*members)))
    iterator = iter(IterableWrapper([f"{memory_folder}/0.tar"]).async_prefetch(part_bytes=300_000).shard_tar_reader())
    next(iterator)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            for _ in iterator:
                pass
        except RuntimeError as error:
            os._exit(7 if "another process" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(iterator)) == 199


def test_meta_members_beside_inner_archives_are_counted() -> None:
    """They are passed over, as everywhere."""
    reader = ShardTarReader(_shards(_tar(("__meta__.json__", b""), ("n01.tar", _tar(("a.x", b""))))), nested=True)
    assert [sample["__key__"] for sample in reader] == ["n01/a"]
    assert reader.skipped.members == {"meta": 1}


@given(paths=st.lists(st.text("ab/", min_size=1, max_size=5).map(lambda name: f"p/{name}x.tar"), max_size=6))
def test_ambiguous_prefixes_of_inner_archives_are_refused(paths: list[str]) -> None:
    """Two inner archives of which the keys could be the same are refused; others are read."""
    prefixes = [path.removesuffix(".tar") + "/" for path in paths]
    meet = any(a.startswith(b) for i, a in enumerate(prefixes) for j, b in enumerate(prefixes) if i != j)
    data = _tar(*[(path, _tar(("k.x", b""))) for path in paths])
    if meet:
        with pytest.raises(ShardReadError, match="would begin with"):
            list(ShardTarReader(_shards(data), nested=True))
    elif paths:
        got = [sample["__key__"] for sample in ShardTarReader(_shards(data), nested=True)]
        assert got == [prefix + "k" for prefix in prefixes]


def test_memory_of_keys_is_bounded() -> None:
    """Names of up to 4,096 characters are read, and told apart; longer ones are errors, before they fill memory."""
    members = [("d/" * 900 + f"{i}.x", b"") for i in range(300)]
    tracemalloc.start()
    try:
        assert sum(1 for _ in ShardTarReader(_shards(tar_of(members)))) == 300
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 << 20
    with pytest.raises(ShardReadError, match=r"'d/d/.*was already read"):
        list(ShardTarReader(_shards(tar_of([*members, members[0]]))))
    with pytest.raises(ShardReadError, match=r"a name of 5,000 characters \(limit 4,096\)"):
        list(ShardTarReader(_shards(tar_of([("n" * 4998 + ".x", b"")]))))


def _named(shard: int, *sizes: int, folder: str = "") -> list[tuple[str, bytes]]:
    """Members of samples, two of each."""
    return [
        (f"{folder}{shard}-{i}.{extension}", bytes([shard, i]) * (size // 2))
        for i, size in enumerate(sizes)
        for extension in ("cls", "jpg")
    ]


def _written(members: list[tuple[str, bytes]], tar_format: int) -> bytes:
    """By Python's own writer, with a directory and a link before each second member."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tar_format) as archive:
        for number, (name, value) in enumerate(members):
            if number % 4 == 2:
                for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
                    other = tarfile.TarInfo(f"{'é' * 60}/{number}/{kind!r}")
                    other.type, other.linkname = kind, "t" * 120
                    archive.addfile(other)
            member = tarfile.TarInfo(name)
            member.size = len(value)
            archive.addfile(member, io.BytesIO(value))
    return data.getvalue()


_LONG = "very-long-é/" * 12
_PLAIN = [_tar(*_named(shard, *sizes)) for shard, sizes in enumerate([(0, 10, 700), (3,), (1500, 2, 2, 2), (5, 5)])]
_NESTED = [
    _tar(("a.tar", _PLAIN[0]), ("b.tar", _PLAIN[1])),
    _tar(("c.tar.gz", gzip.compress(_PLAIN[2])), ("d.tar", _PLAIN[0]), ("e/f.tar.xz", lzma.compress(_PLAIN[1]))),
    _tar(("g.tar", _PLAIN[3])),
]
_DAMAGED = [_PLAIN[0], _PLAIN[2][:4000], _PLAIN[1], b"x" * 2000, _PLAIN[3]]
_RESUMED: dict[str, tuple[list[bytes], dict[str, Any]]] = {
    "plain": (_PLAIN, {}),
    "pax": ([_written(_named(n, 5, 900, 0, folder=_LONG), tarfile.PAX_FORMAT) for n in range(3)], {}),
    "gnu": ([_written(_named(n, 5, 900, 0, folder=_LONG), tarfile.GNU_FORMAT) for n in range(3)], {}),
    "meta": ([_tar(("__meta__", b"x"), *_named(n, 5, 9), ("a/__b__", b"y" * 600)) for n in range(3)], {}),
    "bad members": (
        [
            _tar(("README", b"x"), *_named(n, 5, 9), (".backup", b"y" * 600), *_named(n + 3, 2), ("LICENSE", b""))
            for n in range(3)
        ],
        {"on_bad_member": skip_with_warning},
    ),
    "bad members nested": (
        [_tar(("README", b"x"), ("n.tar", _tar(("a", b""), *_named(0, 1, 2))), ("m.tar", _PLAIN[3]))],
        {"on_bad_member": skip_with_warning, "nested": True},
    ),
    "bad members in gzip": (
        [gzip.compress(_tar(*_named(n, 5), ("README", b"x"), *_named(n + 3, 2))) for n in range(3)],
        {"on_bad_member": skip_with_warning},
    ),
    "gzip": ([gzip.compress(data) for data in _PLAIN], {}),
    "xz, bzip2": ([lzma.compress(_PLAIN[0]), _PLAIN[3], bz2.compress(_PLAIN[2])], {}),
    "zstd": ([zstd.compress(data) for data in _PLAIN], {}),
    "nested": (_NESTED, {"nested": True}),
    "nested in gzip": ([gzip.compress(data) for data in _NESTED], {"nested": True}),
    "nested with meta": (
        [_tar(("__a__", b"x"), ("n.tar", data), ("__b__", b"y")) for data in _PLAIN],
        {"nested": True},
    ),
    "damaged": (_DAMAGED, {"on_bad_shard": skip_with_warning}),
    "damaged nested": ([*_NESTED, _NESTED[0][:9000]], {"on_bad_shard": skip_with_warning, "nested": True}),
    "endless": ([data[: -len(END_OF_ARCHIVE)] for data in _PLAIN], {"on_bad_shard": accept_missing_end}),
}


def _put(folder: str, shards: list[bytes]) -> list[str]:
    urls = [f"{folder}/{number}.tar" for number in range(len(shards))]
    fsspec.filesystem("memory").pipe(dict(zip(urls, shards, strict=True)))
    return urls


@pytest.mark.filterwarnings("ignore:.*left out:RuntimeWarning")
@pytest.mark.parametrize("interleave", [1, 2, 5])
@pytest.mark.parametrize("case", _RESUMED)
def test_it_resumes_after_any_sample(memory_folder: str, case: str, interleave: int) -> None:
    """However archives were written, compressed, nested or damaged, and however many are read at once."""
    shards, options = _RESUMED[case]
    urls = _put(memory_folder, shards)
    assert_resumes_everywhere(lambda: IterableWrapper(urls).shard_tar_reader(interleave=interleave, **options))


def test_it_resumes_among_small_members(memory_folder: str) -> None:
    """Of which many are found at once, and taken one by one."""
    members = [(f"{i}.cls", b"%d" % i) for i in range(90)]
    urls = _put(memory_folder, [_tar(*members, (f"{_LONG}a.cls", b"x"), *_named(7, 3, 3, 3)), _PLAIN[1]])
    assert_resumes_everywhere(lambda: IterableWrapper(urls).shard_tar_reader())


def _as_it_is(pair: tuple[str, Any]) -> tuple[str, Any]:
    return pair


def _is_wanted(pair: tuple[str, Any]) -> bool:
    return not pair[0].endswith("/2.tar")


@pytest.mark.parametrize(("part_bytes", "interleave"), [(400, 2), (1024, 1), (5000, 2)])
def test_it_resumes_behind_async_prefetch(memory_folder: str, part_bytes: int, interleave: int) -> None:
    """Where members lie in several parts, and where torch's own pipes stand between."""
    urls = _put(memory_folder, _PLAIN)
    options = {"part_bytes": part_bytes, "max_buffer_bytes": 3 * part_bytes, "interleave": interleave}

    def streams() -> IterDataPipe[Any]:
        pipe: IterDataPipe[Any] = IterableWrapper(urls).async_prefetch(**options)
        return pipe

    for make in (streams, lambda: streams().map(_as_it_is).filter(_is_wanted)):
        assert_resumes_everywhere(lambda make=make: make().shard_tar_reader(interleave=interleave))  # type: ignore[misc]
    decoded = {"cls": bytes, "jpg": bytes}
    assert_resumes_everywhere(
        lambda: streams().shard_tar_reader(interleave=interleave, copy=False).decode_sample(decoded)
    )


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_streams_of_one_process_resume(memory_folder: str, compress: Callable[[bytes], bytes]) -> None:
    """Each goes on in its own shards."""
    urls = _put(memory_folder, [compress(data) for data in _PLAIN])
    assert_resumes_everywhere(
        lambda: IterableWrapper(urls).sharding_filter_rank().shard_tar_reader(interleave=2), num_streams=2
    )


@pytest.mark.parametrize("interleave", [1, 2])
def test_it_resumes_in_local_files(tmp_path: Path, interleave: int) -> None:
    """Which are mapped into memory, and of which members may be slices."""
    for number, data in enumerate(_PLAIN):
        (tmp_path / f"{number}.tar").write_bytes(data)
    urls = [str(tmp_path / f"{number}.tar") for number in range(len(_PLAIN))]
    for copy in (True, False):
        assert_resumes_everywhere(
            lambda copy=copy: IterableWrapper(urls).shard_tar_reader(interleave=interleave, copy=copy)  # type: ignore[misc]
        )


@pytest.mark.parametrize(("checked", "interleave"), [(False, 1), (True, 2)])
def test_it_resumes_in_parts_of_shards(memory_folder: str, checked: bool, interleave: int) -> None:
    """A shard that several readers share, with checksums of blocks and without."""
    data = _tar(*_named(0, *range(900, 100, -100)))
    (url,) = _put(memory_folder, [data])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        begins = [member.offset for member in archive if member.name.endswith(".cls")]
    fsspec.filesystem("memory").pipe(f"{url}.idx", dump_index([*begins, len(data) - len(END_OF_ARCHIVE)]))
    summer = BlockSummer(700)
    summer.update(data)
    whole = RemoteUrl(url, len(data), None, summer.checksums() if checked else None, 8)
    urls = [whole.part(*samples) for samples in ((2, 5), (0, 2), (5, 8), (0, 8), (3, 4))]
    expected = [f"0-{i}" for i in (2, 3, 4, 0, 1, 5, 6, 7, *range(8), 3)]
    assert [sample["__key__"] for sample in IterableWrapper(urls).shard_tar_reader()] == expected
    assert_resumes_everywhere(
        lambda: IterableWrapper(urls).async_prefetch(part_bytes=800).shard_tar_reader(interleave=interleave)
    )


def test_it_resumes_behind_the_last_archive_of_one_without_its_end(memory_folder: str) -> None:
    """Nothing is left in it, also no end-of-archive blocks."""
    _put(memory_folder, [data[: -len(END_OF_ARCHIVE)] for data in _NESTED])
    urls = IterableWrapper([memory_folder]).list_remote()
    assert_resumes_everywhere(lambda: urls.shard_tar_reader(nested=True, on_bad_shard=accept_missing_end))


@pytest.mark.parametrize("stop", range(1, 6))
def test_resumed_pass_counts_skipped_members_from_its_start(memory_folder: str, stop: int) -> None:
    """``skipped`` tells of the latest pass, which met what lies behind its first sample."""
    (url,) = _put(memory_folder, [_tar(*[one for i in range(6) for one in (("__m__", b""), (f"{i}.x", b""))])])
    pipe = IterableWrapper([url]).shard_tar_reader()
    samples = iter(pipe)
    for _ in range(stop):
        next(samples)
    pipe.load_state_dict(pipe.state_dict())
    assert [sample["__key__"] for sample in pipe] == [str(i) for i in range(stop, 6)]
    assert pipe.skipped.members == ({"meta": 5 - stop} if stop < 5 else {})


@settings(max_examples=50)
@given(
    sizes=st.lists(st.lists(st.integers(0, 2000), min_size=1, max_size=6), min_size=1, max_size=4),
    tar_format=st.sampled_from([None, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    interleave=st.integers(1, 3),
    stop=st.integers(0, 24),
    listed=st.booleans(),
)
def test_resuming_requests_no_byte_of_yielded_samples(
    sizes: list[list[int]], tar_format: int | None, interleave: int, stop: int, listed: bool
) -> None:
    """An open shard is read from its next sample's header on, extended headers included; an ended one not at all."""
    objects, begins = {}, {}
    for shard, of_samples in enumerate(sizes):
        members = _named(shard, *of_samples, folder="" if tar_format is None else _LONG)
        objects[str(shard)] = data = _tar(*members) if tar_format is None else _written(members, tar_format)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            files = [member for member in archive if member.isfile()]
        begins.update({(str(shard), member.name.rpartition(".")[0]): member.offset for member in reversed(files)})
    with store_of(objects) as store:
        urls = [RemoteUrl(url, len(data) if listed else None) for url, data in objects.items()]

        def pipe() -> ShardTarReader:
            streams = IterableWrapper(urls).async_prefetch(part_bytes=700, max_buffer_bytes=2000)
            return ShardTarReader(streams, interleave=interleave)

        whole = [(sample["__url__"], sample["__key__"]) for sample in pipe()]
        stopped, resumed = pipe(), pipe()
        started = iter(stopped)
        head = [next(started) for _ in range(min(stop, len(whole)))]
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        del started
        store.reads.clear()
        assert [(sample["__url__"], sample["__key__"]) for sample in resumed] == whole[len(head) :]
        for url in objects:
            left = [place for place in whole[len(head) :] if place[0] == url]
            asked = [start for path, start, _, _ in store.reads if path == url]
            begun_before = any(sample["__url__"] == url for sample in head)
            if left:
                assert min(asked) == (begins[left[0]] if begun_before else 0)
                assert len(asked) == len(set(asked))
            else:
                assert asked == []
