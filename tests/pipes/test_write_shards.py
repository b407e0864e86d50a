"""``write_shards``: samples into shards while it is iterated; each shard whole or not at all, the manifest last."""

from __future__ import annotations

import gc
import hashlib
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

from tests.support.loaders import read_all
from torchdata_remote import IterableWrapper, ShardWriter, WriteShards
from torchdata_remote.errors import EncodeError, ObjectExistsError, ShardWriteError

Sample = dict[str, Any]


def samples_of(count: int) -> list[Sample]:
    return [{"__key__": f"{i:03d}", "cls": i, "txt": f"line {i}\n" * i} for i in range(count)]


def files_in(folder: str) -> dict[str, bytes]:
    """Path below a folder -> bytes, temporary files included."""
    filesystem, path = fsspec.core.url_to_fs(folder)
    return {str(name)[len(path) + 1 :]: filesystem.cat_file(name) for name in filesystem.find(path)}


def with_indexes(count: int) -> list[str]:
    """The names of shards and of the indexes beside them, sorted."""
    return sorted(f"{number}.tar{ending}" for number in range(count) for ending in ("", ".idx", ".keys"))


class Source(IterDataPipe[Sample]):
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


@settings(max_examples=20)
@given(count=st.integers(1, 12), max_shard_samples=st.integers(1, 5), max_shard_bytes=st.integers(3072, 12_000))
def test_shards_are_those_of_a_shard_writer_byte_by_byte(
    count: int, max_shard_samples: int, max_shard_bytes: int
) -> None:
    """One ``ShardInfo`` for each, in order, that says what is stored; the samples are read back."""
    folders = [f"memory://{uuid.uuid4().hex}" for _ in range(2)]
    limits: Any = {"max_shard_samples": max_shard_samples, "max_shard_bytes": max_shard_bytes}
    shards = list(WriteShards(IterableWrapper(samples_of(count)), f"{folders[0]}/{{shard:02d}}.tar", **limits))
    with ShardWriter(f"{folders[1]}/{{shard:02d}}.tar", **limits) as writer:
        for sample in samples_of(count):
            writer.write(sample)
    files = files_in(folders[0])
    assert files == files_in(folders[1])
    for i, shard in enumerate(shards):
        data = files[f"{i:02d}.tar"]
        assert (shard.url, shard.num_bytes) == (f"{folders[0]}/{i:02d}.tar", len(data))
        assert shard.md5 == hashlib.md5(data).hexdigest()
        assert f'"{shard.md5}"'.encode() in files["index.json"]
        assert shard.checksums is not None
        assert zlib.crc32(data) in shard.checksums.crc32s
        assert shard.num_bytes <= max_shard_bytes
        assert shard.num_samples <= max_shard_samples
    assert sum(shard.num_samples for shard in shards) == count
    listed = IterableWrapper([f"{folders[0]}/index.json"]).list_remote()
    again = list(listed.shard_tar_reader())
    assert [sample["__key__"] for sample in again] == [sample["__key__"] for sample in samples_of(count)]
    list(IterableWrapper(again).write_shards(f"{folders[0]}-copy/{{shard}}.tar"))
    copied = IterableWrapper([f"{folders[0]}-copy/index.json"]).list_remote().shard_tar_reader()
    assert [{**sample, "__url__": ""} for sample in copied] == [{**sample, "__url__": ""} for sample in again]


def test_a_shard_is_told_once_it_is_stored_and_the_manifest_comes_before_the_last_one(memory_folder: str) -> None:
    """The source is read no further than needed."""
    source = Source(samples_of(7))
    shards = iter(WriteShards(source, f"{memory_folder}/{{shard}}.tar", max_shard_samples=2))
    assert source.pulled == 0
    assert next(shards).num_samples == 2
    assert 3 <= source.pulled <= 5, "to the sample that did not fit into the next one, at the latest"
    # Another thread may be storing the next shard, and fsspec's memory cannot be listed meanwhile.
    memory, names = fsspec.filesystem("memory"), ("0.tar", "0.tar.idx", "0.tar.keys", "index.json")
    assert [memory.exists(f"{memory_folder}/{name}") for name in names] == [True, True, True, False]
    assert [next(shards).num_samples for _ in range(3)] == [2, 2, 1]
    assert sorted(files_in(memory_folder)) == [*with_indexes(4), "index.json"]
    assert next(shards, None) is None


@pytest.mark.parametrize("taken", [1, 2])
def test_an_early_stop_leaves_complete_shards_and_no_manifest(tmp_path: Path, taken: int) -> None:
    source = Source(samples_of(9))
    shards = iter(WriteShards(source, f"{tmp_path}/{{shard}}.tar", max_shard_samples=2))
    for _ in range(taken):
        next(shards)
    del shards
    gc.collect()
    full = (source.pulled - 1) // 2
    assert taken <= full <= taken + 1
    assert sorted(files_in(str(tmp_path))) == with_indexes(full)
    urls = IterableWrapper([f"{tmp_path}/{i}.tar" for i in range(full)])
    assert len(list(urls.shard_tar_reader())) == 2 * full


@pytest.mark.parametrize("fails_at", range(6))
def test_an_error_of_the_source_leaves_complete_shards_and_no_manifest(tmp_path: Path, fails_at: int) -> None:
    pipe = WriteShards(Source(samples_of(6), fails_at), f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    with pytest.raises(LookupError, match="from the source"):
        list(pipe)
    assert sorted(files_in(str(tmp_path))) == with_indexes(max(0, (fails_at - 1) // 2))


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ({"__key__": "a.b", "x": b""}, ShardWriteError, "'a.b'"),
        ({"__key__": "a", "X": b""}, ShardWriteError, "'X'"),
        ({"__key__": "a"}, ShardWriteError, "no members"),
        ({"__key__": "000", "x": b""}, ShardWriteError, "two samples"),
        ({"__key__": "a", "cls": None}, EncodeError, "NoneType"),
        ({"__key__": "a", "jpg": 1.5}, EncodeError, "float"),
        (None, ShardWriteError, "no sample"),
    ],
)
def test_a_sample_that_cannot_be_written_is_an_error_and_nothing_is_left(
    tmp_path: Path, bad: Sample | None, kind: type[Exception], message: str
) -> None:
    samples = [] if bad is None else [*samples_of(2), bad]
    with pytest.raises(kind, match=message) as caught:
        list(IterableWrapper(samples).write_shards(f"{tmp_path}/{{shard}}.tar"))
    assert bad is None or repr(bad["__key__"]) in str(caught.value)
    assert files_in(str(tmp_path)) == {}


def test_a_loader_may_drive_it_but_not_in_several_workers(tmp_path: Path) -> None:
    pipe: Any = IterableWrapper(samples_of(5)).write_shards(f"{tmp_path}/{{shard}}.tar", max_shard_samples=2)
    assert [shard.num_samples for shard in DataLoader(pipe, batch_size=None)] == [2, 2, 1]
    assert sorted(files_in(str(tmp_path))) == [*with_indexes(3), "index.json"]
    loader: DataLoader[Any] = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(ShardWriteError, match="2 DataLoader workers"):
        read_all(loader)
    with pytest.raises(ShardWriteError, match=r"\{shard\}"):
        IterableWrapper([]).write_shards("memory://x/t.tar")
    with pytest.raises(ValueError, match="max_shard_samples"):
        IterableWrapper([]).write_shards("memory://x/{shard}.tar", max_shard_samples=0)


def test_existing_shards_are_an_error_at_the_first_sample_unless_they_are_to_be_replaced(memory_folder: str) -> None:
    template = f"{memory_folder}/{{shard}}.tar"
    list(WriteShards(IterableWrapper(samples_of(5)), template, max_shard_samples=1))
    before, source = files_in(memory_folder), Source(samples_of(50))
    with pytest.raises(ObjectExistsError, match=r"overwrite=True"):
        list(WriteShards(source, template))
    assert source.pulled <= 1
    assert files_in(memory_folder) == before
    pipe = WriteShards(IterableWrapper(samples_of(2)), template, overwrite=True)
    for _ in range(2):
        assert len(list(pipe)) == 1
        assert sorted(files_in(memory_folder)) == [*with_indexes(1), "index.json"]
