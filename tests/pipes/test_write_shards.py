from __future__ import annotations

import gc
import hashlib
import pickle
import threading
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.loaders import read_all
from tests.support.waiting import new_threads
from torchdata_remote import ShardInfo, ShardTarReader, ShardWriter, WriteShards
from torchdata_remote.core.checksums import BLOCK_BYTES, BlockSummer, Checksums
from torchdata_remote.errors import EncodeError, ObjectExistsError, ShardWriteError
from torchdata_remote.formats.manifest import MANIFEST_NAME, load_manifest

Sample = dict[str, Any]


def _samples(count: int) -> list[Sample]:
    return [{"__key__": f"{i:03d}", "cls": i, "txt": f"line {i}\n" * i} for i in range(count)]


def _files(folder: str) -> dict[str, bytes]:
    """Path below a folder -> bytes, temporary files included."""
    filesystem, path = fsspec.core.url_to_fs(folder)
    return {str(name)[len(path) + 1 :]: filesystem.cat_file(name) for name in filesystem.find(path)}


def _with_indexes(*shards: str) -> list[str]:
    """The names of shards and of the indexes beside them, sorted."""
    return sorted(shard + ending for shard in shards for ending in ("", ".idx", ".keys"))


class _Source(IterDataPipe[Sample]):
    """Samples one at a time, counted; may raise in the place of one."""

    def __init__(self, samples: list[Sample], fails_at: int | None = None) -> None:
        self.samples, self.fails_at = samples, fails_at
        self.pulled = 0

    def __iter__(self) -> Iterator[Sample]:
        for i, sample in enumerate(self.samples):
            if i == self.fails_at:
                raise LookupError("from the source")
            self.pulled += 1
            yield sample


@given(count=st.integers(1, 12), max_shard_samples=st.integers(1, 5), max_shard_bytes=st.integers(3072, 12_000))
@settings(max_examples=40)
def test_shards_equal_those_of_shard_writer(count: int, max_shard_samples: int, max_shard_bytes: int) -> None:
    """The same files, byte by byte; one ``ShardInfo`` for each shard, in order; the samples are read back."""
    memory = fsspec.filesystem("memory")
    folders = [f"memory://{uuid.uuid4().hex}" for _ in range(2)]
    limits = {"max_shard_samples": max_shard_samples, "max_shard_bytes": max_shard_bytes}
    pipe = WriteShards(IterableWrapper(_samples(count)), f"{folders[0]}/{{shard:02d}}.tar", **limits)  # type: ignore[arg-type]
    shards = list(pipe)
    with ShardWriter(f"{folders[1]}/{{shard:02d}}.tar", **limits) as writer:  # type: ignore[arg-type]
        for sample in _samples(count):
            writer.write(sample)
    files = _files(folders[0])
    assert files == _files(folders[1])
    assert shards == load_manifest(files[MANIFEST_NAME], f"{folders[0]}/{MANIFEST_NAME}")
    for i, shard in enumerate(shards):
        data = files[f"{i:02d}.tar"]
        md5, crc32s = hashlib.md5(data).hexdigest(), (zlib.crc32(data),)
        assert shard == ShardInfo(
            f"{folders[0]}/{i:02d}.tar",
            shard.num_samples,
            len(data),
            md5,
            Checksums(BLOCK_BYTES, crc32s),
            zlib.crc32(files[f"{i:02d}.tar.idx"]),
            zlib.crc32(files[f"{i:02d}.tar.keys"]),
        )
        assert shard.num_bytes <= max_shard_bytes
        assert shard.num_samples <= max_shard_samples
    keys = [sample["__key__"] for sample in ShardTarReader(IterableWrapper([shard.url for shard in shards]))]
    assert keys == [sample["__key__"] for sample in _samples(count)]
    for folder in folders:
        memory.rm(folder, recursive=True)


def test_shard_info_is_yielded_once_the_shard_is_stored(memory_folder: str) -> None:
    """While one of the next two is being filled: the source is read no further than needed, the manifest comes last."""
    source = _Source(_samples(7))
    iterator = iter(WriteShards(source, f"{memory_folder}/{{shard}}.tar", max_shard_samples=2))
    assert source.pulled == 0
    assert next(iterator).num_samples == 2
    assert 3 <= source.pulled <= 5, "to the sample that did not fit into the next one, at the latest"
    # Another thread may be storing the next shard, and fsspec's memory cannot be listed meanwhile.
    memory = fsspec.filesystem("memory")
    names = ("0.tar", "0.tar.idx", "0.tar.keys", MANIFEST_NAME)
    assert [memory.exists(f"{memory_folder}/{name}") for name in names] == [True, True, True, False]
    assert [shard.num_samples for shard in iterator] == [2, 2, 1]
    assert sorted(_files(memory_folder)) == [*_with_indexes(*(f"{i}.tar" for i in range(4))), MANIFEST_NAME]


def test_manifest_exists_when_the_last_shard_is_yielded(memory_folder: str) -> None:
    """Whoever takes as many as there are, and no more, has a complete dataset."""
    iterator = iter(WriteShards(IterableWrapper(_samples(3)), f"{memory_folder}/{{shard}}.tar", max_shard_samples=2))
    next(iterator)
    next(iterator)
    assert MANIFEST_NAME in _files(memory_folder)


@pytest.mark.parametrize("taken", [1, 2])
def test_early_stop_leaves_complete_shards_and_no_manifest(tmp_path: Path, taken: int) -> None:
    """Full shards stay whole; there is no unfinished one, no temporary file and no manifest."""
    source = _Source(_samples(9))
    iterator = iter(WriteShards(source, f"{tmp_path}/{{shard}}.tar", max_shard_samples=2))
    for _ in range(taken):
        next(iterator)
    del iterator
    gc.collect()
    full = (source.pulled - 1) // 2
    assert taken <= full <= taken + 1
    assert sorted(_files(str(tmp_path))) == _with_indexes(*(f"{i}.tar" for i in range(full)))
    urls = [f"file://{tmp_path}/{i}.tar" for i in range(full)]
    assert len(list(ShardTarReader(IterableWrapper(urls)))) == 2 * full


def test_upload_thread_may_finalize_the_iterator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector runs in any thread: in the one that stores the full shard, too, for which finalizing would wait."""
    update, yielded, finalized = BlockSummer.update, threading.Event(), threading.Event()
    left: list[Any] = []
    before = set(threading.enumerate())

    def collected(summer: BlockSummer, data: bytes | memoryview) -> None:
        update(summer, data)
        if len(chunks := [*chunk_of, data]) == 2:  # the second shard is being stored
            assert yielded.wait(20)
            left.pop().close()
            finalized.set()
        chunk_of[:] = chunks

    chunk_of: list[Any] = []
    monkeypatch.setattr(BlockSummer, "update", collected)
    left.append(iter(WriteShards(_Source(_samples(9)), f"{tmp_path}/{{shard}}.tar", max_shard_samples=1)))
    assert next(left[0]).num_samples == 1
    yielded.set()
    assert finalized.wait(20), "deadlock"
    for thread in new_threads(before):
        thread.join(20)
    assert sorted(_files(str(tmp_path))) == _with_indexes("0.tar", "1.tar")


@pytest.mark.parametrize("fails_at", range(6))
def test_an_error_of_the_source_leaves_no_manifest(tmp_path: Path, fails_at: int) -> None:
    """Wherever it comes; it goes on as it is."""
    pipe = WriteShards(_Source(_samples(6), fails_at), f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    with pytest.raises(LookupError, match="from the source"):
        list(pipe)
    assert sorted(_files(str(tmp_path))) == _with_indexes(*(f"{i}.tar" for i in range(max(0, (fails_at - 1) // 2))))


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ({"__key__": "a.b", "x": b""}, ShardWriteError, "'a.b'"),
        ({"__key__": "a", "X": b""}, ShardWriteError, "'X'"),
        ({"__key__": "a"}, ShardWriteError, "no members"),
        ({"__key__": "000", "x": b""}, ShardWriteError, "two samples"),
        ({"__key__": "a", "cls": None}, EncodeError, "NoneType"),
        ({"__key__": "a", "jpg": 1.5}, EncodeError, "float"),
    ],
)
def test_a_bad_sample_is_an_error(tmp_path: Path, bad: Sample, kind: type[Exception], message: str) -> None:
    """It says which and why; nothing unfinished is left."""
    with pytest.raises(kind) as caught:
        list(WriteShards(IterableWrapper([*_samples(2), bad]), f"{tmp_path}/{{shard}}.tar"))
    assert message in str(caught.value)
    assert repr(bad["__key__"]) in str(caught.value)
    assert _files(str(tmp_path)) == {}


def test_no_samples_are_an_error(memory_folder: str) -> None:
    """An empty source is a mistake somewhere before; nothing is written."""
    with pytest.raises(ShardWriteError, match="no sample"):
        list(WriteShards(IterableWrapper([]), f"{memory_folder}/{{shard}}.tar"))
    assert _files(memory_folder) == {}


def test_invalid_template_and_limits_are_refused_when_the_pipe_is_built() -> None:
    """And limits that cannot be kept: not after an hour of decoding."""
    with pytest.raises(ShardWriteError, match=r"\{shard\}"):
        WriteShards(IterableWrapper([]), "memory://x/t.tar")
    with pytest.raises(ValueError, match="max_shard_samples"):
        WriteShards(IterableWrapper([]), "memory://x/{shard}.tar", max_shard_samples=0)


def test_existing_shards_are_kept_without_overwrite(memory_folder: str) -> None:
    """A second pass is an error that says how; with ``overwrite=True`` it replaces the first."""
    template = f"{memory_folder}/{{shard}}.tar"
    list(WriteShards(IterableWrapper(_samples(5)), template, max_shard_samples=1))
    before = _files(memory_folder)
    with pytest.raises(ObjectExistsError, match=r"overwrite=True"):
        list(WriteShards(IterableWrapper(_samples(2)), template))
    assert _files(memory_folder) == before
    pipe = WriteShards(IterableWrapper(_samples(2)), template, overwrite=True)
    for _ in range(2):
        assert len(list(pipe)) == 1
        assert sorted(_files(memory_folder)) == [*_with_indexes("0.tar"), MANIFEST_NAME]


def test_existing_shard_is_an_error_at_the_first_sample(memory_folder: str) -> None:
    """At the first sample, not at the last."""
    fsspec.filesystem("memory").pipe(f"{memory_folder}/7.tar", b"of somebody else")
    source = _Source(_samples(50))
    with pytest.raises(ObjectExistsError, match=r"7\.tar"):
        list(WriteShards(source, f"{memory_folder}/{{shard}}.tar"))
    assert source.pulled <= 1


def test_write_shards_works_under_data_loader(tmp_path: Path) -> None:
    """As the end of a chain that a loader drives."""
    pipe: Any = IterableWrapper(_samples(5)).write_shards(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    shards = list(DataLoader(pipe, batch_size=None))
    assert [shard.num_samples for shard in shards] == [2, 2, 1]
    assert sorted(_files(str(tmp_path))) == [*_with_indexes("0.tar", "1.tar", "2.tar"), MANIFEST_NAME]


def test_samples_that_were_read_can_be_written(memory_folder: str) -> None:
    """Reading shards into other shards and back changes no member."""
    first = list(WriteShards(IterableWrapper(_samples(6)), f"{memory_folder}/a/{{shard}}.tar", max_shard_samples=4))
    samples = ShardTarReader(IterableWrapper([shard.url for shard in first]))
    second = list(WriteShards(samples, f"{memory_folder}/b/{{shard}}.tar", max_shard_samples=1))
    assert [
        {**sample, "__url__": ""} for sample in ShardTarReader(IterableWrapper([shard.url for shard in second]))
    ] == [{**sample, "__url__": ""} for sample in samples]


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst"])
def test_compressed_shards_are_written_and_read(memory_folder: str, ending: str) -> None:
    """By the template's ending, like all others."""
    pipe = WriteShards(IterableWrapper(_samples(5)), f"{memory_folder}/{{shard}}{ending}", max_shard_samples=2)
    shards = list(pipe)
    assert sorted(_files(memory_folder)) == [*(f"{i}{ending}" for i in range(3)), MANIFEST_NAME]
    samples = list(ShardTarReader(IterableWrapper([shard.url for shard in shards])))
    assert [sample["__key__"] for sample in samples] == [f"{i:03d}" for i in range(5)]


def test_pipe_pickles_before_and_after_a_pass(tmp_path: Path) -> None:
    """With limits, template and options."""
    pipe = WriteShards(IterableWrapper(_samples(3)), f"{tmp_path}/{{shard}}.tar", max_shard_samples=2, overwrite=True)
    shards = list(pickle.loads(pickle.dumps(pipe)))
    assert [shard.num_samples for shard in shards] == [2, 1]
    assert list(pipe) == shards
    assert list(pickle.loads(pickle.dumps(pipe))) == shards


def test_storage_options_are_not_in_errors(memory_folder: str) -> None:
    """torch adds the pipe's attributes to the message of an error: storage options are none of them."""
    bad = IterableWrapper([{"__key__": "a.b", "x": b""}])
    pipe = WriteShards(bad, f"{memory_folder}/{{shard}}.tar", storage_options={"secret": "HUSH"})
    with pytest.raises(ShardWriteError) as caught:
        list(pipe)
    assert "HUSH" not in f"{caught.value} {pipe!r} {pipe} {vars(pipe)}"


def test_several_workers_are_refused(memory_folder: str) -> None:
    """Each of them would write every shard under the same names."""
    pipe = IterableWrapper([{"__key__": "a", "txt": "a"}]).write_shards(f"{memory_folder}/{{shard}}.tar")
    loader: DataLoader[Any] = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(ShardWriteError, match="2 DataLoader workers"):
        read_all(loader)
