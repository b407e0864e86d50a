"""Shares of readers: ``sharding_filter_rank`` gives each URL or sample to one reader, ``equalize_ranks`` as many."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph_settings import apply_sharding

from tests.servers.files_over_http import files_over_http
from tests.support.requested_bytes import requested_bytes
from torchdata_remote import (
    IterableWrapper,
    Resumable,
    ShardWriter,
    World,
    skip_with_warning,
)
from torchdata_remote.errors import EmptyShareError, ManifestError, RemoteDataError, SampleError
from torchdata_remote.pipes import EqualizeRanks, ShardingFilterRank
from torchdata_remote.testing import FaultyStore, all_worlds

RANKS = WORKERS = st.integers(1, 4)
COPIES = "memory://copies/"
BLOCK_BYTES = 4 << 20  # of the checksums in a manifest


def urls_of(count: int) -> list[str]:
    return [f"memory://photos/{number}.tar" for number in range(count)]


def share_of(count: int, world: World | None = None) -> ShardingFilterRank:
    return ShardingFilterRank(IterableWrapper(urls_of(count)), world=world)


def write(folder: str, counts: list[int]) -> list[str]:
    """Write shards of so many samples; return all keys in order."""
    keys = []
    with ShardWriter(f"{folder}/{{shard:03d}}.tar", max_shard_samples=1_000, max_shard_bytes=48_000) as writer:
        for shard, count in enumerate(counts):
            for number in range(count):
                keys.append(f"{shard}/{number}")
                writer.write(
                    {"__key__": keys[-1], "txt": "x" * (40_000 // count)}
                )  # so that the next shard begins anew
    assert [shard.num_samples for shard in writer.shards] == counts
    return keys


def samples_of(folder: str, world: World | None = None, seed: int | None = None, **options: Any) -> Any:
    urls: Any = IterableWrapper([f"{folder}/index.json"]).list_remote()
    shuffled = urls if seed is None else urls.shuffle_shards(seed=seed)
    return shuffled.sharding_filter_rank(world=world).shard_tar_reader(**options)


def key_of(sample: Any) -> str:
    key: str = sample["__key__"]
    return key


def keys_in(pipe: Any) -> list[str]:
    return list(map(key_of, pipe))


def remove_indexes(folder: str, count: int) -> None:
    for number in range(count):
        fsspec.filesystem("memory").rm(f"{folder}/{number:03d}.tar.idx".removeprefix("memory:/"))


# Shares of URLs


def test_workers_of_a_rank_split_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a world from the environment and of an explicit one, in each epoch; the main process has all of it."""
    expected = [list(share_of(16, World(1, 2, worker, 2))) for worker in range(2)]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for pipe in (share_of(16), share_of(16, World(1, 2))):
        loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")
        for _ in range(2):
            found = list(loader)
            assert [found[worker::2] for worker in range(2)] == expected
        assert list(DataLoader(pipe, batch_size=None)) == urls_of(16)[1::2]


def test_another_loader_replaces_the_sharding_of_the_first() -> None:
    pipe = share_of(8)
    apply_sharding(pipe, 2, 1, SHARDING_PRIORITIES.DISTRIBUTED)
    apply_sharding(pipe, 2, 1, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(pipe) == [urls_of(8)[3], urls_of(8)[7]]
    apply_sharding(pipe, 1, 0)
    assert list(pipe) == urls_of(8)
    apply_sharding(pipe, 2, 0, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(pipe) == urls_of(8)[::2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_a_split_every_reader_gets_all_urls_however_few(num_workers: int) -> None:
    pipe = IterableWrapper(urls_of(1)).sharding_filter_rank(split=False)
    assert list(DataLoader(pipe, batch_size=None, num_workers=num_workers)) == urls_of(1) * max(1, num_workers)
    kept = share_of(6, World(1, 2)).sharding_filter_rank(split=False)
    assert list(kept) == urls_of(6)[1::2], "it takes nothing from a share"
    with pytest.raises(ValueError, match="split already"):
        kept.sharding_filter_rank()


def test_torch_treats_a_pipe_that_splits_nothing_as_none() -> None:
    """It refuses two splits in a chain; a loader finds one here, and applies it, also to a copy."""
    pipe = IterableWrapper(urls_of(6)).sharding_filter_rank(split=False).sharding_filter()
    for made in (pipe, pickle.loads(pickle.dumps(pipe))):
        apply_sharding(made, 3, 1)
        assert list(made) == urls_of(6)[1::3]
    pipe = share_of(8, World(1, 2))
    assert list(pickle.loads(pickle.dumps(pipe))) == list(pipe)


# Shares of samples


@settings(max_examples=20)
@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=5), ranks=RANKS, workers=WORKERS)
def test_fewer_shards_than_readers_are_split_by_samples_where_a_manifest_counts_them(
    counts: list[int], ranks: int, workers: int
) -> None:
    """In order, as evenly as can be; too few samples are an error for each reader."""
    folder, slots = f"memory://{uuid.uuid4().hex}", ranks * workers
    keys = write(folder, counts)
    worlds = sorted(all_worlds(ranks, workers), key=lambda world: world.slot)
    if len(keys) < slots:
        for world in worlds:
            with pytest.raises(EmptyShareError, match=rf"{len(keys)} samples? for {slots} readers"):
                list(samples_of(folder, world))
        return
    shares = [keys_in(samples_of(folder, world)) for world in worlds]
    assert sorted(chain.from_iterable(shares)) == sorted(keys)
    if len(counts) < slots:
        assert list(chain.from_iterable(shares)) == keys
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def plain(url: str) -> str:
    return str(url)


def mirrored(url: str) -> str:
    return str(url).replace("memory://from/", COPIES)


def rebuilt(url: str) -> str:
    return f"{COPIES}{urlsplit(url).path.rpartition('/')[2]}"


def cleaned(url: str) -> str:
    return url[: url.index(".tar") + 4]


@pytest.mark.parametrize("edit", [plain, mirrored, rebuilt, cleaned])
def test_map_on_urls_of_parts_reads_each_sample_once_or_is_an_error(edit: Callable[[str], str]) -> None:
    for folder in ("memory://from", COPIES.rstrip("/")):
        if not fsspec.filesystem("memory").exists(folder.removeprefix("memory:/")):
            write(folder, [7])
    listed = list(IterableWrapper(["memory://from/index.json"]).list_remote())
    keys: list[str] = []
    try:
        for rank in range(3):
            keys += keys_in(
                ShardingFilterRank(IterableWrapper(listed), world=World(rank, 3)).map(edit).shard_tar_reader()
            )
    except RemoteDataError:
        assert not keys
    else:
        assert len(keys) == len(set(keys)) == 7


def is_tar(url: str) -> bool:
    return url.endswith(".tar")


def is_tar_stream(pair: tuple[str, Any]) -> bool:
    return is_tar(pair[0])


@pytest.mark.parametrize("behind", ["urls", "streams"])
def test_a_filter_after_a_split_by_samples_is_refused(behind: str, memory_folder: str) -> None:
    """It would leave out the URLs of parts, and with them all samples in silence; before the split it is welcome."""
    write(memory_folder, [4, 2])

    def pipe(ranks: int, rank: int = 0) -> Any:
        urls = IterableWrapper([f"{memory_folder}/index.json"]).list_remote().filter(is_tar)
        share: Any = urls.sharding_filter_rank(world=World(rank, ranks))
        passed = share.filter(is_tar) if behind == "urls" else share.async_prefetch().filter(is_tar_stream)
        return passed.shard_tar_reader()

    for rank in range(3):
        with pytest.raises(RemoteDataError, match=r"put it before sharding_filter_rank\(\)"):
            list(pipe(3, rank))
    with pytest.raises(RemoteDataError, match="put it before"):
        list(Resumable(pipe(1), num_streams=3))
    assert len(list(pipe(2))) == 4, "whole shards are listed as they are"


def test_shards_are_not_split_where_each_reader_has_one_and_their_indexes_not_read(memory_folder: str) -> None:
    write(memory_folder, [4, 2, 3])
    remove_indexes(memory_folder, 3)
    for rank, count in enumerate([4, 2, 3]):
        assert len(list(samples_of(memory_folder, World(rank, 3)))) == count
    for rank in range(5):
        with pytest.raises(ManifestError, match=r"\.tar\.idx is missing.*torchdata-remote manifest --overwrite"):
            list(samples_of(memory_folder, World(rank, 5)))


def test_shards_whose_samples_are_not_counted_are_not_split(memory_folder: str) -> None:
    write(memory_folder, [3, 3])
    listed = list(IterableWrapper([f"{memory_folder}/index.json"]).list_remote())
    for urls in ([str(url) for url in listed], [listed[0], str(listed[1])]):
        with pytest.raises(EmptyShareError, match=r"2 shards for 3 readers .*index\.json"):
            list(ShardingFilterRank(IterableWrapper(urls), world=World(0, 3)))


def test_only_the_bytes_of_a_part_are_requested(tmp_path: Path) -> None:
    """In blocks whose checksums are known."""
    num_bytes = 3 << 20
    with ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        for number in range(8):
            writer.write({"__key__": f"{number}", "bin": bytes([number]) * num_bytes})
    keys = []
    for rank in range(4):
        with files_over_http(tmp_path) as server, FaultyStore(server) as store:
            keys += keys_in(samples_of(store.endpoint_url, World(rank, 4)))
            extra_bytes = requested_bytes(store, ".tar") - 2 * (num_bytes + 512)
            assert 0 <= extra_bytes <= 2 * BLOCK_BYTES
    assert keys == [f"{number}" for number in range(8)]


# Equal shares


def test_a_length_starts_no_epoch_and_is_that_of_pipes_behind(memory_folder: str) -> None:
    write(memory_folder, [5, 6])
    asked, silent = (EqualizeRanks(samples_of(memory_folder, World(1, 2), seed=0), mode="drop") for _ in range(2))
    for _ in range(3):
        assert len(asked) == 5
        assert keys_in(asked) == keys_in(silent)
    started: Any = iter(asked)
    next(started)
    assert len(asked) == 5
    assert len(list(started)) == 4
    pipe: Any = EqualizeRanks(samples_of(memory_folder, World(1, 2)), mode="repeat")
    assert len(pipe.to_tuple("__key__")) == len(pipe.map(key_of)) == 6
    assert len(pipe.shuffle_samples(buffer_size=3, seed=0)) == len(pipe.decode_sample()) == 6
    assert len(pipe.batch(4)) == 2


def is_even(sample: Any) -> bool:
    return int(sample["__key__"][-1]) % 2 == 0


def is_not_the_first(url: str) -> bool:
    return not url.endswith("000.tar")


def test_what_changes_the_number_of_samples_above_is_refused_by_name(memory_folder: str) -> None:
    """When the chain is built; behind it, and on URLs before the split, it is welcome."""
    write(memory_folder, [4, 4, 4])
    samples = samples_of(memory_folder, World(0, 2))
    for pipe, name in (
        (samples.batch(2), "Batcher"),
        (samples.filter(is_even), "Filter"),
        (samples.repeat_epochs(2), "RepeatEpochs"),
        (samples.take(4), "Take"),
        (samples.skip(4), "Skip"),
        (samples.flat_map(lambda sample: [sample]), "FlatMap"),
        (samples.bucket(2, length="txt"), "Bucket"),
    ):
        with pytest.raises(ValueError, match=rf"{name}\w* changes their number: put it after equalize_ranks"):
            pipe.equalize_ranks()
    urls: Any = IterableWrapper([f"{memory_folder}/index.json"]).list_remote().filter(is_not_the_first)
    equal = urls.sharding_filter_rank(world=World(0, 2)).shard_tar_reader().equalize_ranks(mode="drop")
    assert keys_in(equal) == ["1/0", "1/1", "1/2", "1/3"]
    assert len(list(equal.batch(2))) == len(list(equal.filter(is_even))) == 2
    with pytest.raises(ValueError, match="equalize_ranks counts the samples of a pass, and repeat"):
        urls.repeat_epochs().sharding_filter_rank().shard_tar_reader().equalize_ranks()


class LeavesOut(IterDataPipe[Any]):
    """A pipe of somebody's that drops every third sample, or hands it out twice."""

    def __init__(self, source_datapipe: IterDataPipe[Any], times: int) -> None:
        self.source_datapipe, self.times = source_datapipe, times

    def __iter__(self) -> Any:
        for number, sample in enumerate(self.source_datapipe):
            yield from [sample] * (self.times if number % 3 == 2 else 1)


@pytest.mark.filterwarnings("ignore:.*left out:RuntimeWarning")
@pytest.mark.parametrize("change", ["dropped", "repeated", "skipped shard", "manifest"])
def test_another_number_of_samples_than_the_manifest_has_is_an_error_at_the_end(
    memory_folder: str, change: str
) -> None:
    write(memory_folder, [4, 4, 4])
    memory, folder = fsspec.filesystem("memory"), memory_folder.removeprefix("memory:/")
    if change == "manifest":
        manifest = memory.cat_file(f"{folder}/index.json")
        memory.pipe_file(f"{folder}/index.json", manifest.replace(b'"nsamples": 4', b'"nsamples": 5'))
    if change == "skipped shard":
        data = memory.cat_file(f"{folder}/001.tar")
        memory.pipe_file(f"{folder}/001.tar", data[:10] + b"\xff" + data[11:])
    samples = samples_of(memory_folder, World(), on_bad_shard=skip_with_warning)
    if change in ("dropped", "repeated"):
        samples = LeavesOut(samples, 0 if change == "dropped" else 2)
    numbers = {"dropped": (8, 12), "repeated": (16, 12), "skipped shard": (8, 12), "manifest": (12, 15)}[change]
    told = f"{numbers[0]} samples were read, and the manifest has {numbers[1]}"
    with pytest.raises(SampleError, match=told):
        list(EqualizeRanks(samples, mode="drop"))
