"""This reader's share of the shards."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph_settings import apply_sharding

from tests.servers.s3 import S3Server
from torchdata_remote import Resumable, ShardingFilterRank, ShardWriter, World
from torchdata_remote.core.checksums import BLOCK_BYTES
from torchdata_remote.core.partition import EqualizeMode
from torchdata_remote.core.urls import RemoteUrl, split_sample_range
from torchdata_remote.core.world import counted, described
from torchdata_remote.errors import EmptyShareError, ManifestError, RemoteDataError
from torchdata_remote.pipes.base.datapipe import SharedList
from torchdata_remote.testing import FaultyStore, all_worlds, assert_resumes_everywhere

RANKS = WORKERS = st.integers(1, 4)
COPIES = "memory://copies/"


def urls_of(count: int) -> list[str]:
    return [f"memory://photos/{number}.tar" for number in range(count)]


def share_of(count: int, world: World | None = None) -> ShardingFilterRank:
    return ShardingFilterRank(IterableWrapper(urls_of(count)), world=world)


@given(num_urls=st.integers(0, 40), ranks=RANKS, workers=WORKERS)
def test_each_url_reaches_exactly_one_slot(num_urls: int, ranks: int, workers: int) -> None:
    """Over all ranks and workers the shares make up the listing; too few URLs are an error in every slot."""
    slots, shares, refused = ranks * workers, [], 0
    for world in all_worlds(ranks, workers):
        try:
            shares.append(list(share_of(num_urls, world)))
        except EmptyShareError as error:
            refused += f"{counted(num_urls, 'shard')} for {described(world)}: " in str(error)
    if num_urls < slots and slots > 1:
        assert (refused, shares) == (slots, [])
    else:
        assert refused == 0
        assert sorted(itertools.chain.from_iterable(shares)) == sorted(urls_of(num_urls))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert all(share == sorted(share, key=urls_of(num_urls).index) for share in shares)


class Reads(list[str]):
    """A list that counts how many of its items are taken."""

    num_reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_reads += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[str]:
        self.num_reads += len(self)
        return super().__iter__()


class Shared(SharedList[str]):
    """URLs as streams of one process share them."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls

    def urls(self) -> list[str]:
        return self._urls


@given(
    counts=st.lists(st.integers(0, 5), max_size=12),
    num_slots=st.integers(1, 14),
    start=st.integers(0, 6),
    epoch=st.integers(0, 5),
    mode=st.sampled_from([None, *EqualizeMode]),
    data=st.data(),
)
def test_share_of_a_shared_list_equals_that_of_an_iterated_source(
    counts: list[int], num_slots: int, start: int, epoch: int, mode: EqualizeMode | None, data: st.DataObject
) -> None:
    """Taken by number, from any place on, it is what a walk through the source finds, errors included."""
    world = World(data.draw(st.integers(0, num_slots - 1)), num_slots)
    urls: list[str] = [RemoteUrl(f"memory://m/{n}.tar", num_samples=count) for n, count in enumerate(counts)]

    def share(source: Any, *, in_stream: bool) -> list[str] | str:
        pipe = ShardingFilterRank(source, world=None if in_stream else world)
        if mode is not None:
            pipe.share_equally(mode)
        if in_stream:
            pipe.prepare_copy(1)
            pipe = copy.copy(pipe)
            pipe.bind_stream(world)
        pipe.set_epoch(epoch)
        pipe.load_state_dict({"next": start})
        try:
            return list(pipe)
        except EmptyShareError as error:
            return str(error).partition(" for ")[0]  # what follows are readers, or the streams of a Resumable

    expected = share(IterableWrapper(urls), in_stream=False)
    assert share(Shared(urls), in_stream=True) == share(Shared(urls), in_stream=False) == expected
    if mode is None and len(urls) >= num_slots:
        assert expected == urls[world.slot :: num_slots][start:]


@pytest.mark.parametrize("num_urls", [5, 40, 400])
@pytest.mark.parametrize("num_slots", [1, 7, 70])
@pytest.mark.parametrize("mode", [None, EqualizeMode.DROP])
def test_all_shares_together_access_each_url_a_few_times(
    num_urls: int, num_slots: int, mode: EqualizeMode | None
) -> None:
    """Counted are the URLs that are looked at: a few times each, and not once for each share."""
    urls = Reads(RemoteUrl(f"memory://m/{n:03d}.tar", num_samples=100) for n in range(num_urls))
    template = ShardingFilterRank(Shared(urls))
    if mode is not None:
        template.share_equally(mode)
    template.prepare_copy(num_slots)
    for number in range(num_slots):
        stream = copy.copy(template)
        stream.bind_stream(World(number, num_slots))
        if mode is not None:
            assert stream.share_length() == 100 * num_urls // num_slots
        assert next(iter(stream))
    assert urls.num_reads <= 4 * num_urls + num_slots
    before = urls.num_reads
    num_items = 0
    for number in range(num_slots):
        stream = copy.copy(template)
        stream.bind_stream(World(number, num_slots))
        num_items += len(list(stream))
    assert urls.num_reads - before <= 2 * num_urls + num_items
    assert num_items <= num_urls + num_slots


@given(num_urls=st.integers(16, 40), ranks=RANKS, workers=WORKERS, data=st.data())
def test_share_does_not_depend_on_how_the_world_is_passed(
    num_urls: int, ranks: int, workers: int, data: st.DataObject
) -> None:
    """DataLoader's and DataLoader2's calls, the environment and an explicit ``World`` give the same share."""
    rank, worker = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, workers - 1))
    expected = list(share_of(num_urls, World(rank, ranks, worker, workers)))

    by_loader2 = share_of(num_urls)
    apply_sharding(by_loader2, ranks, rank, SHARDING_PRIORITIES.DISTRIBUTED)
    apply_sharding(by_loader2, workers, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(by_loader2) == expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchdata_remote.core.world.get_worker_info", lambda: WorkerInfo(worker, workers))
        by_loader = share_of(num_urls)
        apply_sharding(by_loader, ranks * workers, worker * ranks + rank)
        assert list(by_loader) == expected
        patch.setenv("RANK", str(rank))
        patch.setenv("WORLD_SIZE", str(ranks))
        by_environment = share_of(num_urls)
        assert list(by_environment) == expected
        apply_sharding(by_environment, workers, worker)
        assert list(by_environment) == expected


class WorkerInfo:
    """What torch tells inside a worker."""

    def __init__(self, worker: int, num_workers: int) -> None:
        self.id, self.num_workers = worker, num_workers


@settings(max_examples=5)
@given(num_urls=st.integers(3, 20))
def test_three_workers_read_each_url_once(num_urls: int) -> None:
    """Three worker processes read each URL once, each epoch, and the main process reads all."""
    pipe = share_of(num_urls)
    loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=3)
    assert sorted(loader) == sorted(loader) == sorted(urls_of(num_urls))
    assert list(pipe) == urls_of(num_urls)
    by_itself: DataLoader[str] = DataLoader(pipe, batch_size=None)
    assert list(by_itself) == urls_of(num_urls)


def test_explicit_world_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit ``World`` is not overruled by the environment or by a loader."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    pipe = share_of(6, World(rank=2, world_size=3))
    apply_sharding(pipe, 4, 1)
    assert list(pipe) == [urls_of(6)[2], urls_of(6)[5]]


def test_empty_source_yields_nothing_to_one_reader() -> None:
    """One reader of an empty source reads nothing; whoever lists has complained before."""
    assert list(share_of(0)) == []


def test_too_few_urls_error_has_the_numbers_and_both_solutions() -> None:
    """The error counts, and gives both ways out."""
    with pytest.raises(
        EmptyShareError, match=r"3 shards for 4 readers .* Use fewer readers, or more .*write_shards.*index\.json"
    ):
        list(share_of(3, World(rank=1, world_size=4)))


def test_too_few_shards_are_an_error_before_the_first_url() -> None:
    """With too few shards no slot reads any, so that no rank trains while another one fails."""
    for world in all_worlds(2, 2):
        with pytest.raises(EmptyShareError):
            next(iter(share_of(3, world)))


def test_source_is_read_lazily() -> None:
    """An endless source is fine."""
    endless: IterDataPipe[str] = IterableWrapper(Endless(), deepcopy=False)
    share = iter(ShardingFilterRank(endless, world=World(1, 3)))
    assert [next(share) for _ in range(3)] == ["1", "4", "7"]


class Endless:
    def __iter__(self) -> Iterator[str]:
        return map(str, itertools.count())


def test_another_loader_replaces_the_sharding_of_the_first() -> None:
    """A pipe that one loader sharded can be sharded by another kind of loader."""
    pipe = share_of(8)
    apply_sharding(pipe, 2, 1, SHARDING_PRIORITIES.DISTRIBUTED)
    apply_sharding(pipe, 2, 1, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(pipe) == [urls_of(8)[3], urls_of(8)[7]]
    apply_sharding(pipe, 1, 0)
    assert list(pipe) == urls_of(8)
    apply_sharding(pipe, 2, 0, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(pipe) == urls_of(8)[::2]


def test_pickled_copy_has_the_same_share() -> None:
    """A copy in another process has the same share."""
    pipe = share_of(8, World(1, 2))
    assert list(pickle.loads(pickle.dumps(pipe))) == list(pipe)


def test_torch_finds_the_pipe_once() -> None:
    """torch finds the pipe, and finds it once."""
    assert share_of(1).is_shardable()


# Fewer shards than slots: a share of the samples


def write_shards(folder: str, counts: list[int]) -> list[str]:
    """Shards of so many samples; returns all keys in order."""
    keys = []
    with ShardWriter(f"{folder}/{{shard:02d}}.tar", max_shard_bytes=1024 * 1024) as writer:
        for shard, count in enumerate(counts):
            for number in range(count):
                keys.append(f"{shard}-{number}")
                writer.write({"__key__": keys[-1], "bin": bytes((900 << 10) // count)})  # the next shard begins anew
    assert [shard.num_samples for shard in writer.shards] == counts
    return keys


def samples_of(folder: str, world: World | None = None, **options: Any) -> Any:
    """The chain, from the manifest to samples."""
    urls: Any = IterableWrapper([f"{folder}/index.json"]).list_remote(**options)
    return urls.sharding_filter_rank(world=world).shard_tar_reader(**options)


def keys_in(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


def key_of(sample: dict[str, Any]) -> str:
    key: str = sample["__key__"]
    return key


@settings(max_examples=30)
@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=5), ranks=RANKS, workers=WORKERS)
def test_each_sample_reaches_exactly_one_slot(counts: list[int], ranks: int, workers: int) -> None:
    """By a manifest, few shards are split by samples: in order, as evenly as can be; too few samples are an error."""
    folder, slots = f"memory://{uuid.uuid4().hex}", ranks * workers
    keys = write_shards(folder, counts)
    worlds = sorted(all_worlds(ranks, workers), key=lambda world: world.slot)
    if len(keys) < slots:
        for world in worlds:
            refused = re.escape(f"{counted(len(keys), 'sample')} for {described(world)}: ")
            with pytest.raises(EmptyShareError, match=refused):
                list(samples_of(folder, world))
    else:
        shares = [keys_in(samples_of(folder, world)) for world in worlds]
        assert sorted(itertools.chain.from_iterable(shares)) == sorted(keys)
        if len(counts) < slots:
            assert list(itertools.chain.from_iterable(shares)) == keys
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
    fsspec.filesystem("memory").rm(folder, recursive=True)


def test_ranges_keep_size_and_etag_of_their_shard(memory_folder: str) -> None:
    """A part knows what the manifest told of its shard; a whole shard stays what it was."""
    write_shards(memory_folder, [4, 2])
    listed = list(IterableWrapper([f"{memory_folder}/index.json"]).list_remote())
    world = World(0, 3)
    for slot, samples in enumerate([(0, 2), (2, 4), None]):
        (part,) = ShardingFilterRank(IterableWrapper(listed), world=replace(world, rank=slot))
        assert isinstance(part, RemoteUrl)
        whole = listed[slot // 2]
        assert split_sample_range(part) == (whole, samples)
        assert (part.size, part.checksums, part.num_samples) == (whole.size, whole.checksums, whole.num_samples)


def cleaned(url: str) -> str:
    return url[: url.index(".tar") + 4]


def rebuilt(url: str) -> str:
    return f"{COPIES}{urlsplit(url).path.rpartition('/')[2]}"


def plain(url: str) -> str:
    return str(url)


def mirrored(url: str) -> str:
    return str(url).replace("memory://from/", COPIES)


@pytest.mark.parametrize("edit", [plain, mirrored, rebuilt, cleaned])
def test_map_on_urls_loses_no_range(edit: Callable[[str], str]) -> None:
    """Each sample comes once over all readers, or the first reader raises: none of them reads a whole shard."""
    files = fsspec.filesystem("memory")
    for folder in ("memory://from/", COPIES):
        write_shards(folder.rstrip("/"), [7])
    listed = list(IterableWrapper(["memory://from/index.json"]).list_remote())
    keys: list[str] = []
    try:
        for rank in range(3):
            urls = ShardingFilterRank(IterableWrapper(listed), world=World(rank, 3)).map(edit)
            keys += keys_in(urls.shard_tar_reader())
    except RemoteDataError:
        assert not keys
    else:
        assert len(keys) == len(set(keys)) == 7
    finally:
        files.rm("/from", recursive=True)
        files.rm("/copies", recursive=True)


def is_tar(url: str) -> bool:
    return url.endswith(".tar")


def is_tar_stream(pair: tuple[str, Any]) -> bool:
    return is_tar(pair[0])


@pytest.mark.parametrize("behind", ["urls", "streams"])
def test_filter_after_a_split_of_shards_is_refused(behind: str, memory_folder: str) -> None:
    """It would leave out the URLs of parts, and with them all samples in silence; before the split it is welcome."""
    write_shards(memory_folder, [4, 2])

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
    assert len(list(samples_of(memory_folder, World(0, 3)))) == 2


def test_shards_are_not_split_if_there_is_one_per_slot(memory_folder: str) -> None:
    """With a manifest too: a shard for each slot is not cut, and its index not asked for."""
    write_shards(memory_folder, [4, 2, 3])
    for number in range(3):
        fsspec.filesystem("memory").rm(f"{memory_folder}/{number:02d}.tar.idx".removeprefix("memory:/"))
    for rank, count in enumerate([4, 2, 3]):
        assert len(list(samples_of(memory_folder, World(rank, 3)))) == count


def test_only_the_bytes_of_the_share_are_requested(moto: S3Server) -> None:
    """Of a shard that four slots split, each asks for the bytes of its samples, in blocks whose checksums are known."""
    folder, num_bytes = f"s3://{moto.new_bucket()}", 3 << 20
    with ShardWriter(f"{folder}/{{shard}}.tar", storage_options=moto.storage_options) as writer:
        for number in range(8):
            writer.write({"__key__": f"{number}", "bin": bytes([number]) * num_bytes})
    keys, extra_bytes = [], []
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        for rank in range(4):
            before = len(store.requests)
            keys += keys_in(samples_of(folder, World(rank, 4), storage_options=options))
            seen = [request for request in store.requests[before:] if request.path.endswith(".tar")]
            ranges = [(request.range or "").removeprefix("bytes=").split("-") for request in seen]
            extra_bytes.append(sum(int(last) + 1 - int(first) for first, last in ranges) - 2 * (num_bytes + 512))
    assert keys == [f"{number}" for number in range(8)]
    assert all(0 <= extra <= 2 * BLOCK_BYTES for extra in extra_bytes), extra_bytes


@pytest.mark.parametrize("num_streams", [3, 5])
def test_range_of_a_shard_resumes_after_any_sample(memory_folder: str, num_streams: int) -> None:
    """The middle of a part is a place as any other."""
    write_shards(memory_folder, [5, 4])
    assert_resumes_everywhere(lambda: samples_of(memory_folder).map(key_of), num_streams=num_streams)


def test_shares_resume_after_any_sample(memory_folder: str) -> None:
    """With whole shards as well, by one stream and by several."""
    write_shards(memory_folder, [2, 3, 1, 2])
    for num_streams in (1, 2, 4):
        assert_resumes_everywhere(lambda: samples_of(memory_folder).map(key_of), num_streams=num_streams)


def test_share_resumes_after_any_url(memory_folder: str) -> None:
    """The pipe by itself: a fresh one with a loaded state hands out exactly what was left."""
    write_shards(memory_folder, [3, 5])
    listed = list(IterableWrapper([f"{memory_folder}/index.json"]).list_remote())
    for urls, world in [(urls_of(9), World(1, 2)), (urls_of(4), World()), (listed, World(1, 3))]:
        whole = list(ShardingFilterRank(IterableWrapper(urls), world=world))
        for stop in range(len(whole) + 1):
            stopped, resumed = (ShardingFilterRank(IterableWrapper(urls), world=world) for _ in range(2))
            head = list(itertools.islice(stopped, stop))
            resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
            assert resumed.state_dict() == stopped.state_dict()
            assert head + list(resumed) == whole
            assert list(resumed) == whole, "the next pass begins anew"


def test_shards_without_counts_are_not_split(memory_folder: str) -> None:
    """Of a listing, or where a single URL does not tell: the error names the manifest."""
    write_shards(memory_folder, [3, 3])
    listed = list(IterableWrapper([f"{memory_folder}/index.json"]).list_remote())
    for urls in ([f"{memory_folder}/00.tar", f"{memory_folder}/01.tar"], [listed[0], str(listed[1])]):
        with pytest.raises(EmptyShareError, match=r"2 shards for 3 readers .*index\.json"):
            list(ShardingFilterRank(IterableWrapper(urls), world=World(0, 3)))


def test_split_of_a_shard_without_an_index_is_an_error(memory_folder: str) -> None:
    """Rather than the whole shard, or none of it."""
    write_shards(memory_folder, [5])
    fsspec.filesystem("memory").rm(f"{memory_folder}/00.tar.idx".removeprefix("memory:/"))
    for rank in range(2):
        with pytest.raises(ManifestError, match=r"00\.tar\.idx is missing"):
            list(samples_of(memory_folder, World(rank, 2)))


@pytest.mark.parametrize("interleave", [1, 3])
def test_three_workers_split_one_shard(tmp_path: Path, interleave: int) -> None:
    """One shard for three workers: each epoch is whole."""
    keys = write_shards(f"file://{tmp_path}", [10])
    urls: Any = IterableWrapper([f"file://{tmp_path}/index.json"]).list_remote().sharding_filter_rank()
    pipe = urls.async_prefetch(interleave=interleave).shard_tar_reader(interleave=interleave).map(key_of)
    loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=3)
    assert sorted(loader) == sorted(loader) == sorted(keys)


def test_second_split_is_refused() -> None:
    """A share of a share would leave data out."""
    with pytest.raises(ValueError, match="split already"):
        share_of(4).sharding_filter_rank()


def test_readers_without_support_for_ranges_find_no_object(memory_folder: str) -> None:
    """Rather than all of its samples, once in each slot."""
    write_shards(memory_folder, [6])
    listed = list(IterableWrapper([f"{memory_folder}/index.json"]).list_remote())
    for rank in range(3):
        (part,) = ShardingFilterRank(IterableWrapper(listed), world=World(rank, 3))
        with pytest.raises(ValueError, match="Protocol not known"):
            fsspec.open(part, "rb").open()
        keys = [sample["__key__"] for sample in IterableWrapper([str(part)]).shard_tar_reader()]
        assert len(keys) == 2, "a bare str knows it too"


def test_world_of_a_rank_is_split_over_its_workers() -> None:
    """Workers of a rank share what the rank was given; none reads all of it."""
    pipe = ShardingFilterRank(IterableWrapper(urls_of(8)), world=World(1, 2))
    loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(loader) == sorted(urls_of(8)[1::2])


@given(num_urls=st.integers(0, 12), ranks=RANKS, workers=WORKERS)
def test_split_false_yields_all_urls_to_every_reader(num_urls: int, ranks: int, workers: int) -> None:
    """However few there are: none is too few, in any world."""
    for world in all_worlds(ranks, workers):
        pipe = IterableWrapper(urls_of(num_urls)).sharding_filter_rank(split=False)
        pipe.bind_stream(world)
        assert list(pipe) == list(pipe) == urls_of(num_urls)


def test_split_false_resumes_after_any_url() -> None:
    """The state of a chain that is repeated is that of one that is split."""
    assert_resumes_everywhere(lambda: ShardingFilterRank(IterableWrapper(urls_of(7)), split=False))


def test_split_false_with_a_world_is_refused() -> None:
    """A place in the world tells which share is read."""
    with pytest.raises(ValueError, match=r"split=False.*World\(rank=1.*one of the two"):
        IterableWrapper(urls_of(3)).sharding_filter_rank(split=False, world=World(1, 2))


def test_split_false_after_a_split_keeps_the_share() -> None:
    """Takes nothing from a share; another split would."""
    pipe = share_of(6, World(1, 2)).sharding_filter_rank(split=False)
    assert list(pipe) == urls_of(6)[1::2]
    with pytest.raises(ValueError, match="split already"):
        pipe.sharding_filter_rank()


def test_torch_does_not_treat_split_false_as_a_split() -> None:
    """It refuses two splits in a chain; a loader finds one here, and applies it, also to a copy."""
    pipe = IterableWrapper(urls_of(6)).sharding_filter_rank(split=False).sharding_filter()
    for chain in (pipe, pickle.loads(pickle.dumps(pipe))):
        apply_sharding(chain, 3, 1)
        assert list(chain) == urls_of(6)[1::3]
    assert not pipe.source_datapipe.is_shardable()
