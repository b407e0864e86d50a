"""The usual chains in one call: ``stream_shards`` and ``stream_files`` list, shuffle, split, prefetch and read."""

from __future__ import annotations

import itertools
from typing import Any

import fsspec
import pytest

from tests.support.archive_bytes import pack_tar
from torchdata_remote import ShardWriter, stream_files, stream_shards
from torchdata_remote.testing import write_small_shards


def put(folder: str, objects: dict[str, bytes]) -> None:
    path = folder.removeprefix("memory:/")
    fsspec.filesystem("memory").pipe({f"{path}/{name}": data for name, data in objects.items()})


def keys_of(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


def test_shards_come_as_they_were_written_without_a_shuffle_or_a_seed(memory_folder: str) -> None:
    """In the order of the listing, or of the URLs, in each epoch; the manifest is no shard."""
    written = write_small_shards(memory_folder, num_shards=20, samples_per_shard=2)
    for options in ({"shuffle": False}, {"seed": None}, {"shuffle": False, "seed": 3}):
        pipe = stream_shards(memory_folder, **options)
        assert [list(pipe), list(pipe)] == [written, written]
    assert list(stream_shards(f"{memory_folder}/00000[02].tar", seed=None)) == written[:2] + written[4:6]
    two = [f"{memory_folder}/000002.tar", f"{memory_folder}/000000.tar"]
    assert list(stream_shards(two, seed=None)) == written[4:6] + written[:2]
    in_turn = [sample for pair in zip(written[:2], written[2:4], strict=True) for sample in pair]
    assert list(stream_shards(f"{memory_folder}/00000[01].tar", seed=None, interleave=2)) == in_turn


def test_shards_that_are_named_need_no_pattern_compressed_or_not(memory_folder: str) -> None:
    """A manifest, one shard, a brace range and a glob say themselves which they mean; a folder means its tars."""
    with ShardWriter(f"{memory_folder}/{{shard}}.tar.gz", max_shard_samples=2) as writer:
        for i in range(6):
            writer.write({"__key__": str(i), "cls": i})
    other = f"{memory_folder}-plain"
    put(other, {"0.TAR": pack_tar([("plain.cls", b"0")]), "README.txt": b"no shard"})

    def keys(url: str | list[str], **options: Any) -> str:
        return "".join(keys_of(stream_shards(url, seed=None, **options)))

    for url in ("index.json", "{0..2}.tar.gz", "*.tar.gz", ""):
        assert keys(f"{memory_folder}/{url}") == "012345"
    assert keys(f"{memory_folder}/1.tar.gz") == "23"
    assert keys(memory_folder, pattern="*.gz") == "012345"
    assert keys(f"{memory_folder}/index.json", pattern="[02].*") == "0145"
    assert keys([f"{memory_folder}/index.json", other]) == "012345plain"
    assert keys(f"{other}/*.TAR") == "plain"
    put(other, {"a.zip": b""})
    with pytest.warns(RuntimeWarning, match=r"a\.zip"):
        assert keys(other) == "plain"
    with pytest.raises(TypeError, match="select: expected arguments of select, such as"):
        keys(other, select="a.parquet")


def test_the_default_shuffles_samples_of_several_shards_by_seed_and_epoch(memory_folder: str) -> None:
    written = keys_of(write_small_shards(memory_folder, num_shards=20, samples_per_shard=5))
    pipe = stream_shards(memory_folder)
    orders = [keys_of(pipe), keys_of(pipe), keys_of(stream_shards(memory_folder, seed=1))]
    assert all(sorted(order) == sorted(written) for order in orders)
    assert len(set(map(tuple, orders))) == 3
    assert keys_of(stream_shards(memory_folder, seed=0)) == orders[0]


def test_shards_only_are_shuffled_on_request(memory_folder: str) -> None:
    written = write_small_shards(memory_folder, num_shards=8, samples_per_shard=3)
    pipe = stream_shards(memory_folder, shuffle="shards")
    epochs = [list(pipe), list(pipe), list(stream_shards(memory_folder, shuffle="shards", seed=1))]
    assert len({str(epoch) for epoch in epochs}) == 3
    for epoch in epochs:
        shards = [list(group) for _, group in itertools.groupby(epoch, key=lambda sample: sample["__url__"])]
        assert [sample for shard in sorted(shards, key=lambda s: s[0]["__url__"]) for sample in shard] == written


@pytest.mark.parametrize("sample_bytes", [100, 100_000])
def test_batches_of_sorted_shards_mix_classes_by_default(memory_folder: str, sample_bytes: int) -> None:
    """Of 32 shards of one class each a batch has at least a dozen classes, whether its samples are small or large."""
    with ShardWriter(f"{memory_folder}/{{shard}}.tar", max_shard_samples=20) as writer:
        for i in range(640):
            writer.write({"__key__": f"{i:03d}", "cls": i // 20, "bin": bytes(sample_bytes)})
    labels = [int(sample["cls"]) for sample in stream_shards(memory_folder, shuffle_buffer_bytes=2 << 20)]
    assert min(len(set(labels[start : start + 64])) for start in range(0, 640, 64)) >= 12


def test_loose_files_are_samples_of_one_member_fully_shuffled_or_in_order(memory_folder: str) -> None:
    put(memory_folder, {"1/a.txt": b"A", "2/b.txt": b"B", "2/c.md": b"C"})
    pipe = stream_files(memory_folder, pattern="*.txt", seed=None).label_from_path().to_tuple("txt", "cls")
    assert list(pipe) == [(b"A", 1), (b"B", 2)]
    assert [key[-1] for key in keys_of(stream_files(memory_folder, shuffle=False))] == ["a", "b", "c"]
    put(f"{memory_folder}-many", {f"{number:02d}.txt": b"" for number in range(40)})
    files = stream_files(f"{memory_folder}-many")
    first, second = keys_of(files), keys_of(files)
    assert sorted(first) == sorted(second) == sorted(keys_of(stream_files(f"{memory_folder}-many", seed=None)))
    assert len({tuple(first), tuple(second), tuple(sorted(first))}) == 3
    assert max(abs(place - sorted(first).index(key)) for place, key in enumerate(first)) > 25
