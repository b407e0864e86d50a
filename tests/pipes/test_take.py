"""The first items: exactly so many over all ranks, also of an endless source."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.counted_items import Counted
from tests.support.resumed_loaders import assert_loader_continues
from tests.support.shuffled_keys import shuffled_keys
from torchdata_remote import Resumable, Take, World, stateful_loader, thread_loader
from torchdata_remote.errors import EmptyShareError, StateError
from torchdata_remote.loaders.stream_counts import end_together
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    write_small_shards("memory://taken/", num_shards=4, samples_per_shard=3)


def shards(world: World | None = None, folder: str = "memory://taken/") -> Any:
    return shuffled_keys(folder, world)


@given(num_items=st.integers(0, 30), number=st.integers(1, 40))
def test_the_first_items_of_a_chain_that_is_not_split(num_items: int, number: int) -> None:
    pipe = Take(IterableWrapper(range(num_items)), number)
    assert list(pipe) == list(range(num_items))[:number]
    assert len(pipe) == min(num_items, number)


@given(number=st.integers(6, 60), ranks=st.integers(1, 3), workers=st.integers(1, 2))
def test_all_ranks_together_have_the_number(number: int, ranks: int, workers: int) -> None:
    """Each the first items of its part, one more or less at most; together no item twice."""
    taken = []
    for rank in range(ranks):
        for worker in range(workers):
            world = World(rank, ranks, worker, workers)
            items = IterableWrapper(range(100)).sharding_filter_rank(world=world)
            taken.append(list(items.take(number)))
            assert taken[-1] == list(items)[: len(taken[-1])]
    lengths = [len(part) for part in taken]
    assert sum(lengths) == len({*chain.from_iterable(taken)}) == number
    assert max(lengths) - min(lengths) <= 1


def test_before_the_split_all_ranks_take_the_same() -> None:
    urls = IterableWrapper([f"memory://taken/{i}.tar" for i in range(9)]).take(4)
    shares = [list(urls.sharding_filter_rank(world=World(slot, 2))) for slot in range(2)]
    assert [[url[-5] for url in share] for share in shares] == [["0", "2"], ["1", "3"]]


def test_each_reader_takes_all_where_each_reads_all() -> None:
    assert list(IterableWrapper(range(9)).sharding_filter_rank(split=False).take(3)) == [0, 1, 2]


def test_torchs_own_split_counts() -> None:
    loader = DataLoader(IterableWrapper(range(20)).sharding_filter().take(6), batch_size=None, num_workers=2)
    assert sorted(loader) == [0, 1, 2, 3, 4, 5]


def test_nothing_is_read_after_the_last_item() -> None:
    counted = Counted()
    assert list(Take(IterableWrapper(range(9)).map(counted), 3)) == counted.taken == [0, 1, 2]


def test_streams_take_the_same_samples_in_each_world() -> None:
    def taken(num_slots: int) -> list[str]:
        parts = (Resumable(shards(World(slot, num_slots)).take(8), num_streams=4) for slot in range(num_slots))
        return sorted(chain.from_iterable(parts))

    assert taken(1) == taken(2) == taken(4)
    assert len(taken(1)) == 8


def test_more_readers_than_items_is_an_error_in_each_of_them() -> None:
    for slot in range(3):
        with pytest.raises(EmptyShareError, match=r"take\(2\) is divided .* some of 3 readers .* would have none"):
            list(IterableWrapper(range(9)).sharding_filter_rank(world=World(slot, 3)).take(2))


def test_resumes_in_chains() -> None:
    assert_resumes_everywhere(lambda: IterableWrapper(range(9)).sharding_filter_rank().take(5))
    for make in (
        lambda: shards().take(8),
        lambda: shards().shuffle_samples(buffer_size=4, seed=1).take(7).batch(2),
        lambda: shards().batch(2).take(4),
        lambda: shards().repeat_epochs().take(30),
        lambda: shards().take(8).repeat_epochs(2),
        lambda: shards().take(8).skip(3),
    ):
        assert_resumes_everywhere(make, num_streams=2)


def test_another_number_is_another_chain() -> None:
    data = Resumable(shards().take(8))
    next(iter(data))
    with pytest.raises(StateError, match="Take: number was 8, is 9"):
        Resumable(shards().take(9)).load_state_dict(data.state_dict())


def test_an_endless_source_gives_equal_counts_where_they_divide() -> None:
    """Whatever pipes are between: so a loader compares ranks in each epoch, and has a length."""
    endless = shards().repeat_epochs().filter(bool).flat_map(lambda key: [key, key]).take(24)
    for chain_of_ranks in (endless, endless.batch(2), endless.repeat_epochs(2)):
        assert end_together(Resumable(chain_of_ranks, num_streams=4))
    assert not end_together(Resumable(endless.filter(bool), num_streams=4))
    assert not end_together(Resumable(endless, num_streams=5))
    assert not end_together(Resumable(shards().take(24), num_streams=4))
    with pytest.raises(StateError, match="for all that take does"):
        list(Resumable(shards(World(0, 3)).repeat_epochs().take(24), num_streams=4))


@pytest.mark.parametrize("make_loader", [stateful_loader, thread_loader])
def test_loaders_continue_and_have_a_length(make_loader: Any) -> None:
    def loader() -> Any:
        return make_loader(shards().repeat_epochs().take(30), batch_size=4, num_streams=2)

    assert len(assert_loader_continues(loader, 3)) == len(loader()) == 8


def test_items_by_workers(tmp_path: Path) -> None:
    write_small_shards(str(tmp_path), num_shards=4, samples_per_shard=3)
    data = Resumable(shards(folder=str(tmp_path)).repeat_epochs().take(30), num_streams=2)
    loader = DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context="forkserver")
    assert len(loader) == 6
    assert [len(batch) for batch in loader] == [5] * 6
