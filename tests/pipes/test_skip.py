"""All but the first items: the rest of what ``take`` takes, skipped once."""

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
from torchdata_remote import Resumable, Skip, World, stateful_loader, thread_loader
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    write_small_shards("memory://skipped/", num_shards=4, samples_per_shard=3)


def shards(world: World | None = None, folder: str = "memory://skipped/") -> Any:
    return shuffled_keys(folder, world)


@given(num_items=st.integers(0, 30), number=st.integers(0, 40))
def test_the_first_items_are_left_out(num_items: int, number: int) -> None:
    pipe = Skip(IterableWrapper(range(num_items)), number)
    assert list(pipe) == list(range(num_items))[number:]
    assert len(pipe) == max(0, num_items - number)


@given(number=st.integers(4, 60), num_slots=st.integers(1, 4))
def test_take_and_skip_divide_the_items(number: int, num_slots: int) -> None:
    parts = []
    for slot in range(num_slots):
        items = IterableWrapper(range(50)).sharding_filter_rank(world=World(slot, num_slots))
        parts += [list(items.take(number)), list(items.skip(number))]
    assert sorted(chain.from_iterable(parts)) == list(range(50))


def test_a_resumed_pass_does_not_skip_again() -> None:
    def chain_of(counted: Counted) -> Resumable:
        return Resumable(IterableWrapper(range(9)).sharding_filter_rank().map(counted).skip(4))

    first, counted = chain_of(Counted()), Counted()
    items = iter(first)
    assert [next(items), next(items)] == [4, 5]
    again = chain_of(counted)
    again.load_state_dict(first.state_dict())
    assert list(again) == counted.taken == [6, 7, 8]
    assert list(again) == [4, 5, 6, 7, 8]


def test_resumes_in_chains() -> None:
    assert_resumes_everywhere(lambda: IterableWrapper(range(9)).sharding_filter_rank().skip(5))
    for make in (
        lambda: shards().skip(5),
        lambda: shards().shuffle_samples(buffer_size=4, seed=1).skip(3).batch(2),
        lambda: shards().skip(3).repeat_epochs(2),
        lambda: shards().repeat_epochs(2).skip(15),
    ):
        assert_resumes_everywhere(make, num_streams=2)


@pytest.mark.parametrize("make_loader", [stateful_loader, thread_loader])
def test_loaders_continue(make_loader: Any) -> None:
    def loader() -> Any:
        return make_loader(shards().skip(3), batch_size=2, num_streams=2)

    assert_loader_continues(loader, 2)


def test_items_by_workers(tmp_path: Path) -> None:
    write_small_shards(str(tmp_path), num_shards=4, samples_per_shard=3)
    data = Resumable(shards(folder=str(tmp_path)).skip(4), num_streams=2)
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    expected = sorted(data)
    data.set_epoch(0)
    assert len(expected) == 8
    assert sorted(loader) == expected


def test_any_number_is_skipped() -> None:
    assert list(IterableWrapper(range(3)).skip(10**30)) == []
