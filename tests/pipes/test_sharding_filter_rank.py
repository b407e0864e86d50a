"""This reader's share of the shards."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph_settings import apply_sharding

from torchdata_remote import ShardingFilterRank, World
from torchdata_remote.errors import EmptyShareError
from torchdata_remote.testing import all_worlds

RANKS = WORKERS = st.integers(1, 4)


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
            refused += f"{num_urls} shards for {slots} readers ({ranks} ranks x {workers} workers)" in str(error)
    if num_urls < slots and slots > 1:
        assert (refused, shares) == (slots, [])
    else:
        assert refused == 0
        assert sorted(itertools.chain.from_iterable(shares)) == sorted(urls_of(num_urls))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert all(share == sorted(share, key=urls_of(num_urls).index) for share in shares)


@given(num_urls=st.integers(16, 40), ranks=RANKS, workers=WORKERS, data=st.data())
def test_same_share_however_it_is_told(num_urls: int, ranks: int, workers: int, data: st.DataObject) -> None:
    """DataLoader's and DataLoader2's calls, the environment and an explicit ``World`` give the same share."""
    rank, worker = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, workers - 1))
    expected = list(share_of(num_urls, World(rank, ranks, worker, workers)))

    by_loader2 = share_of(num_urls)
    apply_sharding(by_loader2, ranks, rank, SHARDING_PRIORITIES.DISTRIBUTED)
    apply_sharding(by_loader2, workers, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(by_loader2) == expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchdata_remote.world.get_worker_info", lambda: WorkerInfo(worker, workers))
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
def test_in_real_workers(num_urls: int) -> None:
    """Three worker processes read each URL once, each epoch, and the main process reads all."""
    pipe = share_of(num_urls)
    loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=3)
    assert sorted(loader) == sorted(loader) == sorted(urls_of(num_urls))
    assert list(pipe) == urls_of(num_urls)
    by_itself: DataLoader[str] = DataLoader(pipe, batch_size=None)
    assert list(by_itself) == urls_of(num_urls)


def test_explicit_world_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit ``World`` is not overruled by the environment or by a loader."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    pipe = share_of(6, World(rank=2, world_size=3))
    apply_sharding(pipe, 4, 1)
    assert list(pipe) == [urls_of(6)[2], urls_of(6)[5]]


def test_no_urls_at_all() -> None:
    """One reader of an empty source reads nothing; whoever lists has complained before."""
    assert list(share_of(0)) == []


def test_the_error_says_what_to_do() -> None:
    """The error counts, and gives both ways out."""
    with pytest.raises(EmptyShareError, match=r"3 shards for 4 readers .* Use at most 3 readers, or write more"):
        list(share_of(3, World(rank=1, world_size=4)))


def test_no_share_is_begun_before_it_is_known_to_be_whole() -> None:
    """With too few shards no slot reads any, so that no rank trains while another one fails."""
    for world in all_worlds(2, 2):
        with pytest.raises(EmptyShareError):
            next(iter(share_of(3, world)))


def test_source_is_read_no_further_than_needed() -> None:
    """An endless source is fine."""
    endless: IterDataPipe[str] = IterableWrapper(Endless(), deepcopy=False)
    share = iter(ShardingFilterRank(endless, world=World(1, 3)))
    assert [next(share) for _ in range(3)] == ["1", "4", "7"]


class Endless:
    def __iter__(self) -> Iterator[str]:
        return map(str, itertools.count())


def test_other_loader_forgets_the_first() -> None:
    """A pipe that one loader sharded can be sharded by another kind of loader."""
    pipe = share_of(8)
    apply_sharding(pipe, 2, 1, SHARDING_PRIORITIES.DISTRIBUTED)
    apply_sharding(pipe, 2, 1, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(pipe) == [urls_of(8)[3], urls_of(8)[7]]
    apply_sharding(pipe, 1, 0)
    assert list(pipe) == urls_of(8)
    apply_sharding(pipe, 2, 0, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(pipe) == urls_of(8)[::2]


def test_pickles() -> None:
    """A copy in another process has the same share."""
    pipe = share_of(8, World(1, 2))
    assert list(pickle.loads(pickle.dumps(pipe))) == list(pipe)


def test_is_shardable() -> None:
    """torch finds the pipe, and finds it once."""
    assert share_of(1).is_shardable()
