"""The usual chains in one call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from torchdata_remote import Resumable, ShardWriter, World, mix, skip_with_warning, stream_files, stream_shards
from torchdata_remote.errors import EmptyListingError, EmptyShareError
from torchdata_remote.testing import all_worlds, assert_resumes_everywhere, write_small_shards


def put(folder: str, objects: dict[str, bytes]) -> None:
    path = folder.removeprefix("memory:/")
    fsspec.filesystem("memory").pipe({f"{path}/{name}": data for name, data in objects.items()})


def test_shards_come_as_they_were_written(memory_folder: str) -> None:
    """Without a seed, samples come in the order in which they were written; the manifest is no shard."""
    written = write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    assert list(stream_shards(memory_folder, seed=None)) == written
    assert list(stream_shards(f"{memory_folder}/00000[02].tar", seed=None)) == written[:4] + written[8:]
    assert list(stream_shards([f"{memory_folder}/000002.tar", f"{memory_folder}/000000.tar"], seed=None)) == (
        written[8:] + written[:4]
    )


def test_shards_that_are_named_need_no_pattern(memory_folder: str) -> None:
    """A manifest, one shard, a brace range and a glob say themselves which shards they mean, compressed or not."""
    with ShardWriter(f"{memory_folder}/{{shard}}.tar.gz", max_shard_samples=2) as writer:
        for i in range(6):
            writer.write({"__key__": str(i), "cls": i})

    def keys(url: str | list[str], **options: Any) -> list[str]:
        return [sample["__key__"] for sample in stream_shards(url, seed=None, **options)]

    everything = list("012345")
    assert keys(f"{memory_folder}/index.json") == everything
    assert keys(f"{memory_folder}/{{0..2}}.tar.gz") == everything
    assert keys(f"{memory_folder}/*.tar.gz") == everything
    assert keys(f"{memory_folder}/1.tar.gz") == ["2", "3"]
    assert keys(memory_folder, pattern="*.gz") == everything
    assert keys(f"{memory_folder}/index.json", pattern="[02].*") == ["0", "1", "4", "5"]
    other = f"{memory_folder}-plain"
    with ShardWriter(f"{other}/{{shard}}.tar", max_shard_samples=1) as writer:
        writer.write({"__key__": "plain", "cls": 0})
    assert keys([f"{memory_folder}/index.json", other]) == [*everything, "plain"]
    assert keys(f"{other}/*") == ["plain"]
    assert keys(memory_folder) == everything


def test_the_training_loop_reads_a_manifest_of_compressed_shards(memory_folder: str) -> None:
    """Split over ranks, shuffled and resumed: nothing is lost on the way."""
    with ShardWriter(f"{memory_folder}/{{shard}}.tar.zst", max_shard_samples=2) as writer:
        for i in range(12):
            writer.write({"__key__": str(i), "cls": i})
    pipe = stream_shards(f"{memory_folder}/index.json").to_tuple("__key__")
    data = Resumable(pipe, num_streams=3)
    items = iter(data)
    first = [next(items) for _ in range(5)]
    again = Resumable(stream_shards(f"{memory_folder}/index.json").to_tuple("__key__"), num_streams=3)
    again.load_state_dict(data.state_dict())
    assert sorted(int(key) for (key,) in [*first, *again]) == list(range(12))


def test_shards_are_mixed_and_bad_ones_left_out_as_asked(memory_folder: str) -> None:
    """What the reader takes, the recipe takes: several shards by turns, and a policy about bad ones."""
    written = write_small_shards(memory_folder, num_shards=2, samples_per_shard=3)
    mixed = [sample for pair in zip(written[:3], written[3:], strict=True) for sample in pair]
    assert list(stream_shards(memory_folder, seed=None, interleave=2)) == mixed
    put(memory_folder, {"000009.tar": b"no tar"})
    pipe = stream_shards(memory_folder, seed=None, on_bad_shard=skip_with_warning)
    with pytest.warns(RuntimeWarning, match="000009.tar"):
        assert list(pipe) == written


def test_shards_only_are_shuffled_where_asked(memory_folder: str) -> None:
    """With ``shuffle="shards"`` shards come in another order each epoch, samples within a shard in theirs."""
    written = write_small_shards(memory_folder, num_shards=8, samples_per_shard=3)
    pipe = stream_shards(memory_folder, shuffle="shards")
    first, second = list(pipe), list(pipe)
    assert first != second
    for epoch in (first, second):
        shards = [list(group) for _, group in itertools.groupby(epoch, key=lambda sample: sample["__url__"])]
        assert len(shards) == 8
        assert [sample for shard in sorted(shards, key=lambda s: s[0]["__url__"]) for sample in shard] == written
    assert list(stream_shards(memory_folder, shuffle="shards", seed=0)) == first
    assert list(stream_shards(memory_folder, shuffle="shards", seed=1)) != first


def keys_of(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


def test_the_default_shuffles_samples_of_several_shards_each_epoch(memory_folder: str) -> None:
    """Each sample once, in another order each epoch and for each seed, and in the same one for the same seed."""
    written = keys_of(write_small_shards(memory_folder, num_shards=20, samples_per_shard=5))
    pipe = stream_shards(memory_folder)
    orders = [keys_of(pipe), keys_of(pipe), keys_of(stream_shards(memory_folder, seed=1))]
    assert all(sorted(order) == sorted(written) for order in orders)
    assert len(set(map(tuple, orders))) == 3
    assert keys_of(stream_shards(memory_folder, seed=0)) == orders[0]


@pytest.mark.parametrize("sample_bytes", [100, 100_000])
def test_batches_of_sorted_shards_mix_classes_by_default(memory_folder: str, sample_bytes: int) -> None:
    """Of 32 shards of one class each a batch has at least a dozen classes, whether its samples are small or large."""
    with ShardWriter(f"{memory_folder}/{{shard}}.tar", max_shard_samples=20) as writer:
        for i in range(640):
            writer.write({"__key__": f"{i:03d}", "cls": i // 20, "bin": bytes(sample_bytes)})
    labels = [int(sample["cls"]) for sample in stream_shards(memory_folder, shuffle_buffer_bytes=2 << 20)]
    assert min(len(set(labels[start : start + 64])) for start in range(0, 640, 64)) >= 12


@pytest.mark.parametrize("options", [{"shuffle": False}, {"seed": None}, {"shuffle": False, "seed": 3}])
def test_evaluation_reads_in_the_order_of_the_listing(memory_folder: str, options: dict[str, Any]) -> None:
    """Without a shuffle, or without a seed, each epoch has the order in which the samples were written."""
    written = write_small_shards(memory_folder, num_shards=20, samples_per_shard=2)
    pipe = stream_shards(memory_folder, **options)
    assert [list(pipe), list(pipe)] == [written, written]


def test_files_are_read_in_the_order_of_the_listing_where_asked(memory_folder: str) -> None:
    """``shuffle=False`` means the same for loose files."""
    put(memory_folder, {f"{number:02d}.txt": b"%d" % number for number in range(20)})
    pipe = stream_files(memory_folder, shuffle=False)
    assert [int(sample["txt"]) for _ in range(2) for sample in pipe] == [*range(20)] * 2


@pytest.mark.parametrize("shuffle", [5_000, "sample", None])
def test_other_ways_to_shuffle_are_refused(memory_folder: str, shuffle: Any) -> None:
    """A size, or a word that does not exist, is an error that names the options for sizes."""
    with pytest.raises(ValueError, match=r"expected True, False .* or 'shards'.*shuffle_buffer_size="):
        stream_shards(memory_folder, shuffle=shuffle)


@pytest.mark.parametrize("num_streams", [1, 3])
@pytest.mark.parametrize("shuffle_buffer_bytes", [2_000, 1 << 20])
def test_the_default_resumes_everywhere(memory_folder: str, num_streams: int, shuffle_buffer_bytes: int) -> None:
    """After each sample, with a buffer that holds a few samples or all of them."""
    write_small_shards(memory_folder, num_shards=6, samples_per_shard=4)
    assert_resumes_everywhere(
        lambda: stream_shards(memory_folder, shuffle_buffer_bytes=shuffle_buffer_bytes).to_tuple("__key__"),
        num_streams=num_streams,
    )


def test_the_default_tells_what_was_skipped_and_how_many_samples_there_are(memory_folder: str) -> None:
    """``skipped`` and ``len`` are those of the reader below the buffer."""
    written = write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    assert len(stream_shards(f"{memory_folder}/index.json", world=World(0, 1)).equalize_ranks(mode="drop")) == 12
    put(memory_folder, {"000009.tar": b"no tar"})
    pipe: Any = stream_shards(memory_folder, on_bad_shard=skip_with_warning)
    with pytest.warns(RuntimeWarning, match="000009.tar"):
        assert sorted(keys_of(pipe)) == sorted(keys_of(written))
    assert list(pipe.skipped.shards) == [f"{memory_folder}/000009.tar"]


def test_pipes_of_the_package_hand_on_what_was_skipped(memory_folder: str) -> None:
    """With and without a shuffle; several readers are added up."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    put(memory_folder, {"000009.tar": b"no tar"})
    bad: Any = [
        stream_shards(memory_folder, shuffle=shuffle, on_bad_shard=skip_with_warning).decode_sample().to_tuple("cls")
        for shuffle in (True, False)
    ]
    mixed = mix({"a": (bad[0], 1), "b": (stream_shards(f"{memory_folder}/000001.tar"), 1)}, stop="all_exhausted")
    for pipe in (bad[1], mixed):
        with pytest.warns(RuntimeWarning, match="000009.tar"):
            list(pipe)
        assert list(pipe.skipped.shards) == [f"{memory_folder}/000009.tar"]


def test_shards_are_split(memory_folder: str) -> None:
    """All readers together get every sample once, in each epoch; too few shards are an error for each."""
    written = write_small_shards(memory_folder, num_shards=6, samples_per_shard=2)
    pipes = [stream_shards(memory_folder, world=world) for world in all_worlds(2, 3)]
    for _ in range(2):
        keys = sorted(sample["__key__"] for pipe in pipes for sample in pipe)
        assert keys == sorted(sample["__key__"] for sample in written)
    for world in all_worlds(7, 1):
        with pytest.raises(EmptyShareError):
            list(stream_shards(memory_folder, world=world))


def test_files(memory_folder: str) -> None:
    """Loose files are samples of one member; a pattern chooses among them."""
    put(memory_folder, {"1/a.txt": b"A", "2/b.txt": b"B", "2/c.md": b"C"})
    pipe = stream_files(memory_folder, pattern="*.txt", seed=None).label_from_path().to_tuple("txt", "cls")
    assert list(pipe) == [(b"A", 1), (b"B", 2)]
    everything = [sample["__key__"].rpartition("/")[2] for sample in stream_files(memory_folder, seed=None)]
    assert everything == ["a", "b", "c"]


def test_files_are_shuffled_and_split(memory_folder: str) -> None:
    """Loose files too come in another order each epoch, over all readers exactly once."""
    put(memory_folder, {f"{number:02d}.txt": b"%d" % number for number in range(20)})
    pipe = stream_files(memory_folder)
    first, second = ([sample["txt"] for sample in pipe] for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)
    shares = [stream_files(memory_folder, world=World(rank, 3)) for rank in range(3)]
    for _ in range(2):
        assert sorted(sample["txt"] for share in shares for sample in share) == sorted(first)


def test_nothing_there(memory_folder: str) -> None:
    """An empty source is an error that names it and what was looked for."""
    put(memory_folder, {"a.jpg": b""})
    with pytest.raises(EmptyListingError, match=rf"{memory_folder}.*are tars"):
        list(stream_shards(memory_folder))


def test_from_s3(s3: S3Server) -> None:
    """The whole chain against each S3 server: written, listed, split and read."""
    folder = f"s3://{s3.new_bucket()}/train"
    written = write_small_shards(folder, num_shards=3, samples_per_shard=4, storage_options=s3.storage_options)
    assert list(stream_shards(folder, seed=None, storage_options=s3.storage_options, max_in_flight=2)) == written
    samples = list(stream_files(folder, pattern="*.tar", seed=None, storage_options=s3.storage_options))
    assert [sample["__key__"] for sample in samples] == ["train/000000", "train/000001", "train/000002"]


@pytest.mark.parametrize("stream", [stream_shards, stream_files])
def test_the_second_epoch_is_read_from_the_cache(stream: Callable[..., Any], moto: S3Server, tmp_path: Path) -> None:
    """With a cache the second epoch asks the store for the listing alone."""
    folder = f"s3://{moto.new_bucket()}/shards"
    write_small_shards(folder, num_shards=2, samples_per_shard=3, storage_options=moto.storage_options)
    with faulty(moto) as (seen, store):
        pipe = stream(
            folder + "/",
            pattern="*.tar",
            seed=None,
            cache_dir=str(tmp_path),
            cache_bytes=1 << 20,
            storage_options=seen.storage_options,
        )
        epochs = [list(pipe), list(pipe)]
        assert epochs[0] == epochs[1] != []
        asked = [request.path.rpartition("/")[2] for request in store.requests if "list-type" not in request.query]
        assert sorted(asked) == ["000000.tar", "000001.tar"]
