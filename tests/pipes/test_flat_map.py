"""Several items, or none, for each item: order, state, random numbers, errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.counted_items import Counted
from tests.support.resumed_loaders import assert_loader_continues
from torchdata_remote import FlatMap, Resumable, World, stateful_loader, thread_loader
from torchdata_remote.errors import SampleError, StateError
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

COUNTS = st.lists(st.integers(0, 4), max_size=12)


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    write_small_shards("memory://clips/", num_shards=4, samples_per_shard=3)


def lines_of(sample: dict[str, Any]) -> Iterator[str]:
    for number, _ in enumerate(sample["txt"].splitlines()):
        if number % 3 != 1:
            yield f"{sample['__key__']}:{number}"


def crops_of(sample: dict[str, Any], rng: np.random.Generator) -> list[tuple[str, float]]:
    return [(sample["__key__"], rng.random()) for _ in range(2)]


def numbers_below(item: tuple[int, int]) -> list[tuple[int, int]]:
    return [(item[0], number) for number in range(item[1])]


def shards(world: World | None = None, interleave: int = 1, folder: str = "memory://clips/") -> Any:
    urls = IterableWrapper([folder]).list_remote(pattern="*.tar").shuffle_shards(seed=2)
    return urls.sharding_filter_rank(world=world).shard_tar_reader(interleave=interleave)


@given(counts=COUNTS)
def test_items_follow_each_other_in_order(counts: list[int]) -> None:
    expected = [(index, number) for index, count in enumerate(counts) for number in range(count)]
    assert list(FlatMap(IterableWrapper(list(enumerate(counts))), numbers_below)) == expected


@settings(max_examples=20, deadline=None)
@given(counts=COUNTS.filter(any))
def test_resumes_after_each_item(counts: list[int]) -> None:
    assert_resumes_everywhere(
        lambda: IterableWrapper(list(enumerate(counts))).sharding_filter_rank().flat_map(numbers_below)
    )


@pytest.mark.parametrize("options", [(lines_of, {}), (crops_of, {"seed": 3})])
def test_resumes_in_chains(options: Any) -> None:
    function, seed = options

    def clips(source: Any) -> Any:
        return source.flat_map(function, **seed)

    for make in (
        lambda: clips(shards(interleave=2)),
        lambda: clips(shards().shuffle_samples(buffer_size=4, seed=1)),
        lambda: clips(shards()).shuffle_samples(buffer_size=4, seed=1).batch(2),
        lambda: clips(shards().repeat_epochs()).take(16),
    ):
        assert_resumes_everywhere(make, num_streams=2)


def test_random_numbers_differ_by_item_epoch_seed_and_pass_but_not_by_worlds() -> None:
    def crops(num_slots: int, seed: int = 3) -> list[Any]:
        parts = [
            Resumable(shards(World(slot, num_slots)).flat_map(crops_of, seed=seed), num_streams=4)
            for slot in range(num_slots)
        ]
        return [sorted(crop for part in parts for crop in part) for _ in range(2)]

    first, second = crops(1)
    numbers = [number for _, number in [*first, *second, *crops(1, seed=4)[0]]]
    assert len(set(numbers)) == len(numbers)
    assert crops(2) == crops(4) == [first, second]
    twice = list(shards(World()).repeat_epochs(2).flat_map(crops_of, seed=3))
    assert len({number for _, number in twice}) == len(twice)


def test_a_torch_generator_is_made_of_the_random_numbers() -> None:
    def noise(_: Any, rng: np.random.Generator) -> Any:
        yield torch.rand(1, generator=torch.Generator().manual_seed(int(rng.integers(2**63)))).item()

    samples = [{"__key__": key} for key in "ab"]
    one, other = (list(FlatMap(IterableWrapper(samples), noise, seed=5)) for _ in range(2))
    assert one == other
    assert one[0] != one[1]


def test_a_resumed_pass_reads_one_item_again() -> None:
    def chain_of(counted: Counted) -> Resumable:
        items = IterableWrapper(list(enumerate([3] * 9))).sharding_filter_rank().map(counted)
        return Resumable(items.flat_map(numbers_below))

    first, counted = chain_of(Counted()), Counted()
    items = iter(first)
    for _ in range(11):
        next(items)
    again = chain_of(counted)
    again.load_state_dict(first.state_dict())
    assert next(iter(again)) == (3, 2)
    assert counted.taken == [(3, 3)]


def test_a_function_that_returns_less_than_before_is_noticed() -> None:
    left = [3, 1]

    def fewer(item: int) -> list[int]:
        return [item] * left.pop(0)

    chain = Resumable(IterableWrapper([7, 8]).sharding_filter_rank().flat_map(fewer))
    items = iter(chain)
    next(items), next(items)
    chain.load_state_dict(chain.state_dict())
    with pytest.raises(StateError, match=r"returned 2 or more items for a sample before .*, and 1 now"):
        next(iter(chain))


@pytest.mark.parametrize("wrong", [3, None, "abc", b"abc", {"a": 1}, torch.tensor(3), list])
def test_what_is_no_list_is_named(wrong: Any) -> None:
    samples = IterableWrapper([{"__key__": "k", "__url__": "s3://b/0.tar"}])
    with pytest.raises(SampleError, match=r"flat_map: the function must .* for sample 'k' of s3://b/0\.tar\. Ret"):
        list(samples.flat_map(lambda sample: wrong))


def fails(item: Any) -> Iterator[int]:
    yield 1
    raise KeyError(item)


def test_errors_of_the_function_are_raised_in_their_place_with_their_arguments() -> None:
    items = iter(Resumable(IterableWrapper([5]).sharding_filter_rank().flat_map(fails)))
    assert next(items) == 1
    with pytest.raises(KeyError) as raised:
        next(items)
    assert raised.value.args == (5,)


def test_nothing_gives_nothing() -> None:
    assert list(FlatMap(IterableWrapper([]), list)) == []
    assert list(FlatMap(IterableWrapper([[], []]), list)) == []


def test_items_by_workers(tmp_path: Path) -> None:
    write_small_shards(str(tmp_path), num_shards=4, samples_per_shard=3)
    data = Resumable(shards(folder=str(tmp_path)).flat_map(crops_of, seed=1), num_streams=2)
    expected = sorted(data)
    data.set_epoch(0)
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(map(tuple, loader)) == expected


@pytest.mark.parametrize("make_loader", [stateful_loader, thread_loader])
def test_loaders_continue(make_loader: Any) -> None:
    def loader() -> Any:
        return make_loader(shards().flat_map(lines_of), batch_size=2, num_streams=2)

    assert_loader_continues(loader, 3)


def test_batches_are_taken_apart() -> None:
    assert_resumes_everywhere(lambda: IterableWrapper(range(7)).sharding_filter_rank().batch(3).flat_map(list))
    assert list(IterableWrapper(range(5)).batch(2).flat_map(list)) == list(range(5))
