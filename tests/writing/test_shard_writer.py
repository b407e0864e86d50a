from __future__ import annotations

import contextlib
import gc
import gzip
import hashlib
import io
import os
import stat
import struct
import sys
import tarfile
import threading
import tracemalloc
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from tests.support.waiting import new_threads
from torchdata_remote import ListRemote, ShardInfo, ShardTarReader, ShardWriter
from torchdata_remote.errors import (
    EncodeError,
    ManifestError,
    ObjectExistsError,
    RemoteDataError,
    ShardWriteError,
    StorageError,
    UrlError,
)
from torchdata_remote.formats.manifest import MANIFEST_NAME, load_manifest
from torchdata_remote.storage.local.writer import LocalWriter
from torchdata_remote.testing import FaultyStore
from torchdata_remote.writing.claim import CLAIM_NAME

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Sample = dict[str, Any]
MEMBER = st.sampled_from([0, 1, 511, 512, 513]).flatmap(lambda size: st.just(b"x" * size)) | st.binary(max_size=2000)
# Some keys are too long for ustar's name field, or not ASCII, so that their headers take more bytes.
KEYS = st.builds(
    lambda folder, base: f"{folder}{base}",
    st.sampled_from(["", "a/", "p" * 99 + "/", "p" * 160 + "/", "é/"]),
    st.text("abcd01é ", min_size=1, max_size=6),
)
SAMPLES = st.lists(
    st.builds(
        lambda key, members: {"__key__": key, **members},
        KEYS,
        st.dictionaries(st.sampled_from(["jpg", "cls", "seg.png"]), MEMBER, min_size=1),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda sample: sample["__key__"],
)


@pytest.fixture(params=["memory", "local"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, memory_folder: str) -> str:
    """An empty folder in each store that needs no server."""
    return memory_folder if request.param == "memory" else f"file://{tmp_path}/shards"


@contextlib.contextmanager
def _new_folder() -> Iterator[str]:
    """A folder for one example of a property."""
    folder = f"memory://{uuid.uuid4().hex}"
    yield folder
    fsspec.filesystem("memory").rm(folder, recursive=True)


def _files(folder: str) -> dict[str, bytes]:
    """Path below a folder -> bytes of all files, temporary ones included."""
    filesystem, path = fsspec.core.url_to_fs(folder)
    return {str(name)[len(path) + 1 :]: filesystem.cat_file(name) for name in filesystem.find(path)}


def _with_indexes(*shards: str) -> list[str]:
    """Names of shards and their indexes, sorted."""
    return sorted(shard + ending for shard in shards for ending in ("", ".idx", ".keys"))


def _put(url: str, data: bytes) -> None:
    with fsspec.open(url, "wb", auto_mkdir=True) as file:
        file.write(data)


def _write(folder: str, samples: list[Sample], name: str = "t-{shard:03d}.tar", **options: Any) -> ShardWriter:
    with ShardWriter(f"{folder}/{name}", **options) as writer:
        for sample in samples:
            writer.write(sample)
    return writer


def _fail(writer: ShardWriter, samples: list[Sample], error: BaseException) -> None:
    """Write samples, then raise within the ``with`` block."""
    with writer:
        for sample in samples:
            writer.write(sample)
        raise error


def _numbered(count: int, size: int = 10) -> list[Sample]:
    return [{"__key__": f"{i:03d}", "bin": bytes([i]) * size} for i in range(count)]


def _read(shards: tuple[ShardInfo, ...]) -> list[Sample]:
    return list(ShardTarReader(IterableWrapper([shard.url for shard in shards])))


def _without_url(samples: list[Sample]) -> list[Sample]:
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


# Limits and contents


@given(samples=SAMPLES, max_shard_bytes=st.integers(1, 12_000), max_shard_samples=st.integers(1, 5))
@example(samples=_numbered(2, 512), max_shard_bytes=1024 + 2 * 1024, max_shard_samples=5)
@example(samples=_numbered(2, 512), max_shard_bytes=1024 + 2 * 1024 - 1, max_shard_samples=5)
def test_limits_are_kept_and_samples_come_back(
    samples: list[Sample], max_shard_bytes: int, max_shard_samples: int
) -> None:
    """No object exceeds the limit in bytes unless it holds one sample, none the limit in samples; none ends early.

    All samples are read back, in order.
    """
    with _new_folder() as folder:
        shards = _write(folder, samples, max_shard_bytes=max_shard_bytes, max_shard_samples=max_shard_samples).shards
        files = _files(folder)
        assert _without_url(_read(shards)) == samples
    for shard in shards:
        num_bytes = len(files[shard.url.rpartition("/")[2]])
        assert num_bytes == shard.num_bytes
        assert num_bytes <= max_shard_bytes or shard.num_samples == 1
        assert 1 <= shard.num_samples <= max_shard_samples
    with _new_folder() as folder:
        alone = [shard.num_bytes - 1024 for shard in _write(folder, samples, max_shard_samples=1).shards]
    first = 0
    for shard in shards[:-1]:
        first += shard.num_samples
        fits = shard.num_bytes + alone[first] <= max_shard_bytes and shard.num_samples < max_shard_samples
        assert not fits, "the next sample had room in this shard"


@given(samples=SAMPLES, max_shard_samples=st.integers(1, 5))
@settings(max_examples=30)
def test_same_samples_give_same_bytes(samples: list[Sample], max_shard_samples: int) -> None:
    """Into another folder, at another time, with members in another order: files and MD5 are equal."""
    turned = [dict(reversed(sample.items())) for sample in samples]
    with _new_folder() as folder, _new_folder() as other:
        first = _write(folder, samples, max_shard_samples=max_shard_samples).shards
        second = _write(other, turned, max_shard_samples=max_shard_samples).shards
        assert _files(folder) == _files(other)
    assert [shard.md5 for shard in first] == [shard.md5 for shard in second]


@given(samples=SAMPLES, max_shard_samples=st.integers(1, 5))
@settings(max_examples=30)
def test_the_manifest_lists_all_shards_with_true_sizes_and_sums(samples: list[Sample], max_shard_samples: int) -> None:
    """It lists all shards in order, with the MD5, size and number of samples of the objects; so does ``shards``."""
    with _new_folder() as folder:
        writer = _write(folder, samples, max_shard_samples=max_shard_samples)
        files = _files(folder)
        assert [len(_read((shard,))) for shard in writer.shards] == [shard.num_samples for shard in writer.shards]
    shards = load_manifest(files.pop(MANIFEST_NAME), f"{folder}/{MANIFEST_NAME}")
    assert tuple(shards) == writer.shards
    assert _with_indexes(*(shard.url.rpartition("/")[2] for shard in shards)) == sorted(files)
    for shard in shards:
        data = files[shard.url.rpartition("/")[2]]
        assert shard.md5 == hashlib.md5(data).hexdigest()
        assert shard.num_bytes == len(data)
    assert sum(shard.num_samples for shard in shards) == len(samples)


def test_each_finished_shard_is_returned_once_by_write_or_close(folder: str) -> None:
    """At the latest when the next one is full; then it is published."""
    writer = ShardWriter(f"{folder}/{{shard}}.tar", max_shard_samples=2)
    returned: list[ShardInfo] = []
    for number, sample in enumerate(_numbered(9)):
        shard = writer.write(sample)
        if shard is not None:
            returned.append(shard)
            filesystem, path = fsspec.core.url_to_fs(shard.url)
            assert filesystem.size(path) == shard.num_bytes
        assert max(0, number // 2 - 1) <= len(returned) <= number // 2
        assert tuple(returned) == writer.shards
    assert (*returned, *writer.close()) == writer.shards
    assert [shard.url for shard in writer.shards] == [f"{folder}/{i}.tar" for i in range(5)]
    assert [shard.num_samples for shard in writer.shards] == [2, 2, 2, 2, 1]
    assert writer.close() == ()


def test_values_are_encoded_by_extension_and_bytes_stay(folder: str) -> None:
    """Decoders read an int, a str and an image back; the bytes of a JPEG are stored unchanged."""
    jpeg = b"\xff\xd8 whatever \xff\xd9"
    sample = {"__key__": "a", "cls": 3, "txt": "é", "png": Image.new("RGB", (2, 2)), "jpg": jpeg, "npy": np.arange(2)}
    (got,) = _read(_write(folder, [sample]).shards)
    assert (got["cls"], got["txt"], got["jpg"]) == (b"3", "é".encode(), jpeg)
    assert got["png"].startswith(b"\x89PNG")
    assert got["npy"].startswith(b"\x93NUMPY")


def test_names_that_begin_with_underscores_are_not_written(folder: str) -> None:
    """A sample that was read from a shard is written without its old URL."""
    sample = {"__key__": "a", "__url__": "s3://b/old.tar", "__epoch__": 3, "txt": b"hi"}
    (got,) = _read(_write(folder, [sample]).shards)
    assert got == {"__key__": "a", "__url__": f"{folder}/t-000.tar", "txt": b"hi"}


def test_a_shard_is_a_plain_tar(tmp_path: Path) -> None:
    """tarfile reads it: members sorted by extension, samples in order, no owner, no time."""
    _write(str(tmp_path), [{"__key__": "b/1", "txt": "x", "cls": 1}, {"__key__": "a/2", "cls": 2}])
    with tarfile.open(tmp_path / "t-000.tar") as archive:
        assert [info.name for info in archive] == ["b/1.cls", "b/1.txt", "a/2.cls"]
        assert {(info.mtime, info.uid, info.gid, info.uname, info.mode) for info in archive} == {(0, 0, 0, "", 0o644)}


def test_large_shards_are_whole(folder: str) -> None:
    """More than what is buffered at once arrives in order."""
    samples = _numbered(5, 700_000)
    writer = _write(folder, samples)
    assert len(writer.shards) == 1
    assert _without_url(_read(writer.shards)) == samples


# Whole or not at all


def test_objects_are_published_whole_and_the_manifest_last(tmp_path: Path) -> None:
    """An object with its final name has all its bytes."""
    seen: list[dict[str, bytes]] = []
    with ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2) as writer:
        for sample in _numbered(6, 2_000_000):
            writer.write(sample)
            names = [name for name in sorted(os.listdir(tmp_path)) if not name.startswith((".", CLAIM_NAME))]
            seen.append({name: (tmp_path / name).read_bytes() for name in names})
        assert sorted(seen[-1])[:2] == ["0.tar", "0.tar.idx"]
    files = _files(str(tmp_path))
    assert sorted(files) == [*_with_indexes("0.tar", "1.tar", "2.tar"), MANIFEST_NAME]
    assert all(early.items() <= files.items() and MANIFEST_NAME not in early for early in seen)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("written", range(6))
def test_an_exception_leaves_whole_shards_only(folder: str, error: BaseException, written: int) -> None:
    """Anywhere: no unfinished shard, no temporary file, no manifest; it is raised unchanged."""
    writer = ShardWriter(f"{folder}/{{shard}}.tar", max_shard_samples=2)
    with pytest.raises(type(error)) as caught:
        _fail(writer, _numbered(written, 600_000), error)
    assert caught.value is error
    finished = max(0, (written - 1) // 2)
    assert sorted(_files(folder)) == _with_indexes(*(f"{i}.tar" for i in range(finished)))
    assert _without_url(_read(writer.shards)) == _numbered(finished * 2, 600_000)


def test_a_refused_sample_leaves_no_trace(folder: str) -> None:
    """A caller that catches the error gets a shard of all other samples."""
    good = _numbered(4)
    refused: list[Any] = [
        {"__key__": "x", "a": b"1", "b": None},
        {"__key__": "x.y", "a": b"1"},
        {"__key__": "000", "a": b"1"},
        {"__key__": "x"},
        None,
    ]
    with ShardWriter(f"{folder}/{{shard}}.tar") as writer:
        for sample in good:
            writer.write(sample)
            for bad in refused:
                with pytest.raises((ShardWriteError, EncodeError)):
                    writer.write(bad)
    assert _without_url(_read(writer.shards)) == good
    assert writer.shards[0].num_samples == 4


def test_a_failed_shard_prevents_the_manifest(tmp_path: Path) -> None:
    """Its samples are lost, so that no manifest may say that the rest is the dataset, even if the error was caught.

    It is told by one of the next calls; the shard that was begun meanwhile is dropped.
    """
    writer = ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=1)
    writer.write({"__key__": "a", "x": b""})
    (tmp_path / "0.tar").write_bytes(b"of somebody else")
    with pytest.raises(ObjectExistsError):
        _write_all(writer, [{"__key__": "b", "x": b""}, {"__key__": "c", "x": b""}])
    (tmp_path / "0.tar").unlink()
    with contextlib.suppress(RemoteDataError, ValueError):
        writer.write({"__key__": "c", "x": b""})
    with pytest.raises((RemoteDataError, ValueError)):
        writer.close()
    assert _files(str(tmp_path)) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_disk_that_was_full_for_a_while_prevents_the_shard(tmp_path: Path) -> None:
    """Bytes are missing within the shard then: it must not appear, even if the error was caught and there is room."""
    import resource

    writer = ShardWriter(f"{tmp_path}/{{shard}}.tar")
    writer.write({"__key__": "a", "x": bytes(1_500_000)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(StorageError, match=r"0\.tar"):
            _write_all(writer, _numbered(10, 5_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with contextlib.suppress(RemoteDataError, ValueError):
        writer.write({"__key__": "c", "x": bytes(1_500_000)})
    with pytest.raises((RemoteDataError, ValueError)):
        writer.close()
    assert _files(str(tmp_path)) == {}


def test_an_object_written_meanwhile_is_not_overwritten(folder: str) -> None:
    """Two writers on one folder: the later one gets an error, the bytes of the earlier one stay."""
    writer = ShardWriter(f"{folder}/{{shard}}.tar")
    writer.write({"__key__": "a", "x": b"mine"})
    _put(f"{folder}/0.tar", b"of somebody else")
    with pytest.raises(ObjectExistsError, match=r"0\.tar"):
        writer.close()
    assert _files(folder) == {"0.tar": b"of somebody else"}


def test_a_closed_writer_refuses_samples(folder: str) -> None:
    """It would never be written."""
    writer = _write(folder, _numbered(1))
    before = _files(folder)
    with pytest.raises((RemoteDataError, ValueError)):
        writer.write({"__key__": "later", "x": b""})
    assert _files(folder) == before


def test_an_aborted_writer_refuses_samples(folder: str) -> None:
    """After an exception in the ``with`` block as well."""
    writer = ShardWriter(f"{folder}/{{shard}}.tar")
    with pytest.raises(LookupError):
        _fail(writer, _numbered(1), LookupError())
    with pytest.raises((RemoteDataError, ValueError)):
        writer.write({"__key__": "later", "x": b""})
    assert _files(folder) == {}


def test_closing_twice_is_no_error(folder: str) -> None:
    """As with files: an explicit ``close`` inside the ``with`` block is no error."""
    with ShardWriter(f"{folder}/{{shard}}.tar") as writer:
        writer.write({"__key__": "a", "x": b""})
        writer.close()
    assert sorted(_files(folder)) == [*_with_indexes("0.tar"), MANIFEST_NAME]


def test_no_samples_are_an_error(folder: str) -> None:
    """Nothing is written."""
    with pytest.raises(ShardWriteError, match="no sample"), ShardWriter(f"{folder}/{{shard}}.tar"):
        pass
    assert _files(folder) == {}


# Finished while the next one is packed


class _Gate:
    """Holds up each shard before it appears, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting, self._open = threading.Semaphore(0), threading.Semaphore(0)
        commit = LocalWriter.commit

        def held(pending: LocalWriter) -> None:
            if pending._path.endswith(".tar"):
                self.waiting.release()
                assert self._open.acquire(timeout=60)
            commit(pending)

        monkeypatch.setattr(LocalWriter, "commit", held)

    def open(self, times: int = 1) -> None:
        self._open.release(times)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> _Gate:
    return _Gate(monkeypatch)


def test_the_next_shard_is_packed_while_one_is_finished(tmp_path: Path, gate: _Gate) -> None:
    """A slow upload delays the writer only when the next shard is full as well."""
    writer = ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    samples = iter(_numbered(5))
    assert [writer.write(next(samples)) for _ in range(3)] == [None] * 3
    assert gate.waiting.acquire(timeout=60)
    assert writer.write(next(samples)) is None
    assert writer.shards == ()
    gate.open(3)
    first = writer.write(next(samples))
    assert first is not None
    assert first.url == f"file://{tmp_path}/0.tar"
    assert [shard.num_samples for shard in writer.close()] == [2, 1]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_abort_waits_for_the_full_shard(tmp_path: Path, gate: _Gate, error: BaseException) -> None:
    """It stays with its index; the open one is dropped, and no thread is left."""
    writer = ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    before = set(threading.enumerate())

    def let_through() -> None:
        assert gate.waiting.acquire(timeout=60)
        gate.open()

    opening = threading.Thread(target=let_through)
    opening.start()
    with pytest.raises(type(error)):
        _fail(writer, _numbered(4, 5_000_000), error)
    opening.join()
    assert not new_threads(before)
    assert sorted(_files(str(tmp_path))) == _with_indexes("0.tar")
    assert [shard.num_samples for shard in writer.shards] == [2]


def test_a_forgotten_writer_leaves_whole_shards_only(tmp_path: Path) -> None:
    """Without ``close`` and without ``with``: what is full appears, the rest is removed, threads end."""
    before = set(threading.enumerate())
    writer = ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    for sample in _numbered(3, 5_000_000):
        writer.write(sample)
    del writer
    gc.collect()
    while left := new_threads(before):
        for thread in left:
            with contextlib.suppress(RuntimeError):  # it is about to be started
                thread.join()
    assert sorted(_files(str(tmp_path))) == _with_indexes("0.tar")


@pytest.mark.parametrize("sample_bytes", [50_000, 3_000_000, 12_000_000])
def test_memory_is_bounded(tmp_path: Path, sample_bytes: int) -> None:
    """As documented: 32 MiB and eight samples, on a local disk."""
    tracemalloc.start()
    try:
        with ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_bytes=40_000_000) as writer:
            for i in range(300_000_000 // sample_bytes):
                writer.write({"__key__": f"{i}", "bin": bytes([i % 256]) * sample_bytes})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(writer.shards) > 6
    assert peak_bytes < (32 << 20) + 8 * sample_bytes


def test_parts_are_sent_while_the_next_shard_is_packed(moto: S3Server) -> None:
    """Several parts per shard, to S3: no upload is left open, also after an abort."""
    bucket = moto.new_bucket()
    template, samples = f"s3://{bucket}/t-{{shard}}.tar", _numbered(14, 6_000_000)
    writer = ShardWriter(template, max_shard_samples=7, storage_options=moto.storage_options)
    _write_all(writer, samples)
    source = IterableWrapper([shard.url for shard in writer.shards])
    assert _without_url(list(ShardTarReader(source, storage_options=moto.storage_options))) == samples
    again = ShardWriter(f"s3://{bucket}/b/{{shard}}.tar", max_shard_samples=7, storage_options=moto.storage_options)
    with pytest.raises(LookupError):
        _fail(again, samples, LookupError())
    assert [shard.num_samples for shard in again.shards] == [7]
    assert "Uploads" not in moto.client().list_multipart_uploads(Bucket=bucket)


# Compressed


@given(samples=SAMPLES, max_shard_bytes=st.integers(1, 12_000), ending=st.sampled_from([".tar.gz", ".tgz", ".tar.zst"]))
@settings(max_examples=40)
def test_compressed_shards_hold_what_plain_ones_do(samples: list[Sample], max_shard_bytes: int, ending: str) -> None:
    """Limits count tar bytes; manifest and MD5 are of the compressed object; there is no index."""
    with _new_folder() as folder, _new_folder() as other:
        plain = _write(folder, samples, max_shard_bytes=max_shard_bytes)
        packed = _write(other, samples, f"t-{{shard:03d}}{ending}", max_shard_bytes=max_shard_bytes)
        files, packed_files = _files(folder), _files(other)
        assert _without_url(_read(packed.shards)) == samples
        listed = ListRemote(IterableWrapper([f"{other}/"]), pattern=f"*{ending}")
        assert [str(url) for url in listed] == [shard.url for shard in packed.shards]
    manifest = packed_files.pop(MANIFEST_NAME)
    assert tuple(load_manifest(manifest, f"{other}/{MANIFEST_NAME}")) == packed.shards
    assert len(packed_files) == len(packed.shards) == len(plain.shards)
    for shard, original in zip(packed.shards, plain.shards, strict=True):
        data = packed_files[shard.url.rpartition("/")[2]]
        assert (shard.num_bytes, shard.md5) == (len(data), hashlib.md5(data).hexdigest())
        assert shard.num_samples == original.num_samples
        decompress = zstd.decompress if ending == ".tar.zst" else gzip.decompress
        assert decompress(data) == files[original.url.rpartition("/")[2]]


def test_tarfile_reads_a_compressed_shard(tmp_path: Path) -> None:
    """As every program does that knows ``.tar.gz``."""
    _write(str(tmp_path), _numbered(3), "{shard}.tgz")
    with tarfile.open(tmp_path / "0.tgz") as archive:
        assert archive.getnames() == ["000.bin", "001.bin", "002.bin"]


def test_the_bytes_of_shards_do_not_change(memory_folder: str) -> None:
    """Else each finished shard of an earlier release would look damaged."""
    samples = [
        {
            "__key__": f"n{i % 3}/{'long/' * (i % 60)}{i:04d}{'é' if i % 17 == 0 else ''}",
            "cls": i,
            "txt": "wren\n" * i,
            "seg.png": bytes([i]) * (i * 37),
            "jpg": bytes(range(256)) * (i % 50),
        }
        for i in range(200)
    ]
    assert [shard.md5 for shard in _write(memory_folder, samples, max_shard_samples=120).shards] == [
        "e55538a1c89deda65dc22371805a5347",
        "645978592943d6d831fe40a8d3d9ec81",
    ]


# What is there already


@pytest.mark.parametrize("existing", ["t-000.tar", "t-007.tar", "t-003.tar.idx", "t-003.tar.keys", "manifest"])
def test_nothing_is_overwritten_unless_asked_for(folder: str, existing: str) -> None:
    """A shard, an index or a manifest refuses the writer on entering; the message names it and the way out."""
    if existing == "manifest":
        _write(folder, _numbered(1))
        for name in _with_indexes("t-000.tar"):
            fsspec.core.url_to_fs(folder)[0].rm_file(f"{folder}/{name}".removeprefix("file://"))
    else:
        _put(f"{folder}/{existing}", b"of somebody else")
    before = _files(folder)
    with (
        pytest.raises(ObjectExistsError, match=r"overwrite=True") as caught,
        ShardWriter(f"{folder}/t-{{shard:03d}}.tar"),
    ):
        pytest.fail("the writer was entered")
    assert (MANIFEST_NAME if existing == "manifest" else existing) in str(caught.value)
    assert isinstance(caught.value, FileExistsError)
    assert _files(folder) == before


def test_every_write_after_a_refusal_is_refused(folder: str) -> None:
    """Without a ``with`` block each ``write`` is refused, not the first one only."""
    _put(f"{folder}/t-007.tar", b"of somebody else")
    writer = ShardWriter(f"{folder}/t-{{shard:03d}}.tar")
    for _ in range(2):
        with pytest.raises(ObjectExistsError):
            writer.write({"__key__": "a", "x": b""})


def test_overwrite_replaces_a_longer_run(folder: str) -> None:
    """The folder is what a first run would have made: no shard of the earlier run is left to be read."""
    _write(folder, _numbered(9, 50), max_shard_samples=2)
    _write(folder, _numbered(3), max_shard_samples=2, overwrite=True)
    with _new_folder() as fresh:
        _write(fresh, _numbered(3), max_shard_samples=2)
        assert _files(folder) == _files(fresh)


def test_overwrite_keeps_files_that_do_not_match_the_template(folder: str) -> None:
    """Other names, and other spellings of a number."""
    others = [
        "notes.txt",
        "v-000.tar",
        "t-x.tar",
        "t-7.tar",
        "t-0000007.tar",
        "t-007.tar.gz",
        "t-\u0660\u0660\u0667.tar",
        "at-007.tar",
    ]
    for name in others:
        _put(f"{folder}/{name}", name.encode())
    _put(f"{folder}/t-007.tar", b"left over")
    _write(folder, _numbered(1), overwrite=True)
    assert sorted(_files(folder)) == sorted([*others, *_with_indexes("t-000.tar"), MANIFEST_NAME])


def test_shards_in_subfolders_are_ignored(folder: str) -> None:
    """``overwrite=True`` removes nothing there, and without it nothing there is in the way."""
    _put(f"{folder}/val/t-007.tar", b"of somebody else")
    _write(folder, _numbered(1))
    _write(folder, _numbered(1), overwrite=True)
    assert _files(f"{folder}/val") == {"t-007.tar": b"of somebody else"}


def test_a_broken_rewrite_leaves_no_old_manifest(folder: str) -> None:
    """It would describe shards that are no longer the same."""
    _write(folder, _numbered(4), max_shard_samples=1)
    writer = ShardWriter(f"{folder}/t-{{shard:03d}}.tar", max_shard_samples=1, overwrite=True)
    with pytest.raises(LookupError):
        _fail(writer, _numbered(3, 77), LookupError())
    assert sorted(_files(folder)) == _with_indexes(*(f"t-{i:03d}.tar" for i in range(4)))


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_manifest_of_other_shards_is_kept(folder: str, overwrite: bool) -> None:
    """A second dataset in the folder is refused, with and without ``overwrite``."""
    _write(folder, _numbered(1), "train-{shard}.tar")
    before = _files(folder)
    with pytest.raises(ObjectExistsError, match=r"train-0\.tar.*another folder"):
        _write(folder, _numbered(1), "val-{shard}.tar", overwrite=overwrite)
    assert _files(folder) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_index_of_something_else_is_kept(folder: str, overwrite: bool) -> None:
    """An ``index.json`` that is no manifest of shards is not ours to replace."""
    _put(f"{folder}/{MANIFEST_NAME}", b'{"pages": 3}')
    with pytest.raises(ManifestError, match=MANIFEST_NAME):
        _write(folder, _numbered(1), overwrite=overwrite)
    assert _files(folder) == {MANIFEST_NAME: b'{"pages": 3}'}


# Indexes


@given(samples=SAMPLES, max_shard_samples=st.integers(1, 5))
@settings(max_examples=40)
def test_the_index_tells_where_each_sample_begins(samples: list[Sample], max_shard_samples: int) -> None:
    """Beside each shard: the byte of its first header, as tarfile sees it, long names too; then the archive's end."""
    with _new_folder() as folder:
        shards = _write(folder, samples, max_shard_samples=max_shard_samples).shards
        files = _files(folder)
    for shard in shards:
        name = shard.url.rpartition("/")[2]
        begins: dict[str, int] = {}
        with tarfile.open(fileobj=io.BytesIO(files[name])) as archive:
            for member in archive:
                head, slash, base = member.name.rpartition("/")
                begins.setdefault(head + slash + base.partition(".")[0], member.offset)
        assert len(begins) == shard.num_samples
        assert files[f"{name}.idx"] == struct.pack(f"<{len(begins) + 1}Q", *begins.values(), shard.num_bytes - 1024)


def test_a_shard_its_index_and_its_keys_are_there_before_the_manifest(moto: S3Server) -> None:
    """So what a manifest names is complete, index and keys included."""
    bucket = moto.new_bucket()
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        _write(f"s3://{bucket}", _numbered(5), max_shard_samples=2, storage_options=options)
        put = [request.path.rpartition("/")[2] for request in store.requests if request.method == "PUT"]
    assert put.pop(0) == CLAIM_NAME
    names = [f"t-{i:03d}.tar{ending}" for i in range(3) for ending in ("", ".idx", ".keys")]
    assert put == [*names, MANIFEST_NAME]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("ending", ["idx", "keys"])
def test_without_its_index_or_keys_there_is_no_manifest(
    tmp_path: Path, overwrite: bool, number: int, ending: str
) -> None:
    """The error names the object; the writer refuses further samples."""
    (tmp_path / f"{number}.tar.{ending}").mkdir()
    (tmp_path / f"{number}.tar.{ending}" / "in the way").touch()
    writer = ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=1, overwrite=overwrite)
    with pytest.raises(StorageError, match=rf"{number}\.tar\.{ending}"):
        _write_all(writer, _numbered(3))
    with pytest.raises((RemoteDataError, ValueError)):
        writer.close()
    assert MANIFEST_NAME not in os.listdir(tmp_path)


def _write_all(writer: ShardWriter, samples: list[Sample]) -> None:
    for sample in samples:
        writer.write(sample)
    writer.close()


def test_overwrite_leaves_no_index_of_a_shard_that_is_gone(folder: str) -> None:
    """The indexes of leftover shards are removed with them, those of the shards that are new replaced."""
    _write(folder, _numbered(9, 3000), max_shard_samples=2)
    _write(folder, _numbered(3), max_shard_samples=2, overwrite=True)
    files = _files(folder)
    assert sorted(files) == [MANIFEST_NAME, *_with_indexes("t-000.tar", "t-001.tar")]
    assert struct.unpack("<3Q", files["t-000.tar.idx"]) == (0, 1024, 2048)
    assert struct.unpack("<2Q", files["t-001.tar.idx"]) == (0, 1024)


# Bad input


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        ({"__key__": "a.b", "x": b""}, "'a.b'"),
        ({"__key__": "a", "JPG": b""}, "'JPG'"),
        ({"__key__": "../a", "x": b""}, "leaves its folder"),
        ({"__key__": "a/../../b", "x": b""}, "leaves its folder"),
        ({"__key__": "/a", "x": b""}, "absolute"),
        ({"__key__": "", "x": b""}, "no key"),
        ({"__key__": "a"}, "no members"),
        ({"x": b""}, "__key__"),
        ({"__key__": "__a", "x__": b""}, "__a"),
        ({"__key__": "\ud800", "x": b""}, "ud800"),
        ({"__key__": "a", "txt": "\ud800"}, "'txt'"),
        ({"__key__": "a", "cls": True}, "bool"),
        ({"__key__": "a", "cls": None}, "NoneType"),
        ({"__key__": "a", "cls": 0.5}, "float"),
    ],
)
def test_a_sample_that_cannot_be_a_part_is_refused(folder: str, sample: Sample, says: str) -> None:
    """The error says what is wrong with which sample, and nothing is written."""
    with pytest.raises((ShardWriteError, EncodeError)) as caught:
        _write(folder, [sample])
    assert says in str(caught.value)
    if isinstance(sample.get("__key__"), str):
        assert repr(sample["__key__"]) in str(caught.value)
    assert _files(folder) == {}


def test_a_key_twice_in_a_shard_is_refused(folder: str) -> None:
    """A reader would take both for one sample; the error names key and shard. In another shard it is no fault."""
    with pytest.raises(ShardWriteError, match=r"t-000\.tar.*'000'"):
        _write(folder, [*_numbered(2), *_numbered(1)])
    writer = _write(folder, [*_numbered(1), *_numbered(1)], max_shard_samples=1)
    assert len(_read(writer.shards)) == 2


@pytest.mark.parametrize("options", [{"max_shard_bytes": 0}, {"max_shard_samples": 0}, {"max_shard_bytes": -1}])
def test_limits_that_cannot_be_kept_are_refused(options: dict[str, int]) -> None:
    """When the writer is built, with the values."""
    with pytest.raises(ValueError, match="must be an int of at least 1") as caught:
        ShardWriter("memory://x/{shard}.tar", **options)  # type: ignore[arg-type]  # mypy takes them for any keyword
    assert str(next(iter(options.values()))) in str(caught.value)


def test_a_read_only_store_is_refused_on_entering() -> None:
    """Not after an hour of encoding."""
    with pytest.raises(UrlError, match="nosuchscheme"), ShardWriter("nosuchscheme://b/{shard}.tar"):
        pytest.fail("the writer was entered")


# Local disk


def test_a_bare_path_is_a_file_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``file://``, absolute and relative paths write the same files and report the same URLs."""
    monkeypatch.chdir(tmp_path)
    names = ["url", "absolute", "relative"]
    folders = [f"file://{tmp_path}/url", f"{tmp_path}/absolute", "relative"]
    for name, folder in zip(names, folders, strict=True):
        writer = _write(folder, _numbered(3), max_shard_samples=2)
        assert [shard.url for shard in writer.shards] == [f"file://{tmp_path}/{name}/t-00{i}.tar" for i in range(2)]
    assert _files(f"{tmp_path}/url") == _files(f"{tmp_path}/absolute") == _files(f"{tmp_path}/relative")


def test_files_have_the_rights_of_other_files(tmp_path: Path) -> None:
    """The umask's, not those of a temporary file."""
    before = os.umask(0o022)
    try:
        _write(str(tmp_path), _numbered(1))
    finally:
        os.umask(before)
    for name in (*_with_indexes("t-000.tar"), MANIFEST_NAME):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o644


@pytest.mark.parametrize("base", ["漢" * 80, "n" * 245], ids=["three bytes a character", "one"])
def test_the_longest_name_of_the_disk_is_accepted(tmp_path: Path, base: str) -> None:
    """Up to 255 bytes, although temporary names are longer."""
    _write(str(tmp_path), _numbered(1), base + "{shard}.tar")
    assert sorted(os.listdir(tmp_path)) == sorted([*_with_indexes(f"{base}0.tar"), MANIFEST_NAME])
