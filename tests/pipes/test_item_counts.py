"""Pipes that change the number of items, ``take``, ``skip``, ``repeat_epochs``, ``flat_map``; passes within passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.counted_items import Counted
from torchdata_remote import Resumable, World, mix
from torchdata_remote.pipes import FlatMap, Skip, Take


def shuffled(num_items: int = 20, world: World | None = None) -> Any:
    return IterableWrapper(range(num_items)).sharding_filter_rank(world=world).shuffle_samples(buffer_size=50, seed=1)


# Take and skip


@given(num_items=st.integers(0, 30), number=st.integers(0, 40))
def test_take_and_skip_divide_the_items_of_one_reader(num_items: int, number: int) -> None:
    items = list(range(num_items))
    skipped = Skip(IterableWrapper(items), number)
    assert list(skipped) == list(skipped) == items[number:]
    assert len(skipped) == len(items[number:])
    if number:
        taken = Take(IterableWrapper(items), number)
        assert list(taken) == list(taken) == items[:number]
        assert len(taken) == len(items[:number])


@given(number=st.integers(6, 60), ranks=st.integers(1, 3), workers=st.integers(1, 2))
def test_all_ranks_together_take_or_skip_the_number(number: int, ranks: int, workers: int) -> None:
    """Each the first items of its part, one more or less at most; together no item twice, and none is lost."""
    taken, skipped = [], []
    for rank in range(ranks):
        for worker in range(workers):
            world = World(rank, ranks, worker, workers)
            items = IterableWrapper(range(100)).sharding_filter_rank(world=world)
            taken.append(list(items.take(number)))
            skipped.append(list(items.skip(number)))
            assert [*taken[-1], *skipped[-1]] == list(items)
    lengths = [len(part) for part in taken]
    assert sum(lengths) == number
    assert max(lengths) - min(lengths) <= 1
    assert sorted(chain.from_iterable([*taken, *skipped])) == list(range(100))


def test_before_a_split_or_without_one_each_process_takes_the_same() -> None:
    urls = IterableWrapper([f"memory://taken/{number}.tar" for number in range(9)])
    for pipe, expected in ((urls.take(4), ["02", "13"]), (urls.skip(5), ["57", "68"])):
        shares = [list(pipe.sharding_filter_rank(world=World(slot, 2))) for slot in range(2)]
        assert ["".join(url[-5] for url in share) for share in shares] == expected
    assert list(IterableWrapper(range(9)).sharding_filter_rank(split=False).take(3)) == [0, 1, 2]


def test_nothing_is_read_after_the_last_item() -> None:
    counted = Counted()
    assert list(Take(IterableWrapper(range(9)).map(counted), 3)) == counted.taken == [0, 1, 2]
    assert list(IterableWrapper(range(3)).skip(10**30)) == []


def test_streams_of_an_endless_source_have_a_length_where_their_numbers_divide() -> None:
    """Whatever pipes are between; also after batches, and repeated."""
    endless = shuffled(12).repeat_epochs().flat_map(lambda key: [key, key])
    for pipe, length in (
        (endless.take(24), 24),
        (endless.take(24).batch(2), 12),
        (endless.take(24).repeat_epochs(2), 48),
    ):
        assert len(list(Resumable(pipe, num_streams=4))) == length
    assert len(Resumable(endless.take(24), num_streams=4)) == 24


# Repeat


@pytest.mark.parametrize(
    "make",
    [
        lambda: shuffled().repeat_epochs(3),
        lambda: shuffled().repeat_epochs(2).repeat_epochs(2).repeat_epochs(2),
        lambda: mix({"a": (shuffled().repeat_epochs(2), 1)}, stop=120),
        lambda: mix({"a": (shuffled(), 1)}, stop=40).repeat_epochs(3),
        lambda: mix({"a": (mix({"b": (shuffled(), 1)}, stop=40), 1)}, stop=120),
    ],
)
def test_passes_within_passes_have_orders_of_their_own_in_each_epoch(make: Callable[[], Any]) -> None:
    pipe = make()
    first, second = list(pipe), list(pipe)
    items = first + second
    orders = [tuple(items[start : start + 20]) for start in range(0, len(items), 20)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len(set(orders)) == len(orders)
    pipe.set_epoch(1)
    assert list(pipe) == second


def test_a_mixture_that_stops_at_a_number_has_an_end() -> None:
    def make() -> Any:
        sources = {name: (IterableWrapper(range(5)).sharding_filter_rank().repeat_epochs(), 1.0) for name in "ab"}
        return mix(sources, stop=10).take(100)

    assert len(make()) == len(list(make())) == 10
    assert len(Resumable(make(), num_streams=2)) == len(list(Resumable(make(), num_streams=2))) == 10


# Flat map


def numbers_below(item: tuple[int, int]) -> list[tuple[int, int]]:
    return [(item[0], number) for number in range(item[1])]


@given(counts=st.lists(st.integers(0, 4), max_size=12))
def test_items_of_an_item_follow_each_other_in_order(counts: list[int]) -> None:
    expected = [(index, number) for index, count in enumerate(counts) for number in range(count)]
    pipe = FlatMap(IterableWrapper(list(enumerate(counts))), numbers_below)
    assert list(pipe) == list(pipe) == expected
    assert list(IterableWrapper(counts).batch(2).flat_map(list)) == counts


def fails(item: Any) -> Iterator[int]:
    yield 1
    raise KeyError(item)


def test_errors_of_a_generator_are_raised_in_their_place_with_their_arguments() -> None:
    items = iter(Resumable(IterableWrapper([5]).sharding_filter_rank().flat_map(fails)))
    assert next(items) == 1
    with pytest.raises(KeyError) as raised:
        next(items)
    assert raised.value.args == (5,)
