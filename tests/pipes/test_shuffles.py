"""Shuffles of URLs and samples: each item once, in an order that depends on seed and epoch alone, in bounded memory."""

from __future__ import annotations

import collections
import itertools
import pickle
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe

import torchdata_remote as tdr
from torchdata_remote import IterableWrapper
from torchdata_remote.pipes import ShuffleSamples, ShuffleShards

URLS = [f"memory://photos/{number}.tar" for number in range(12)]
SIZES, BUFFERS = st.integers(0, 60), st.integers(1, 70)


def urls_of(seed: int = 0, urls: Sequence[str] = URLS) -> ShuffleShards:
    return ShuffleShards(IterableWrapper(list(urls)), seed=seed)


def samples_of(num_samples: int = 20, buffer_size: int = 6, seed: int = 0) -> ShuffleSamples[int]:
    return ShuffleSamples(IterableWrapper(range(num_samples)), buffer_size=buffer_size, seed=seed)


def mixture_of(seed: int = 0) -> Any:
    sources = {name: (IterableWrapper([f"{name}{number}" for number in range(20)]), 1.0) for name in "ab"}
    return tdr.mix(sources, seed=seed, stop=30)


BY_SEED: dict[str, Callable[[int], Any]] = {
    "URLs": urls_of,
    "samples": lambda seed: samples_of(seed=seed),
    "samples by bytes": lambda seed: IterableWrapper([bytes(9)] * 9 + [bytes(at) for at in range(20)]).shuffle_samples(
        buffer_size=9, max_buffer_bytes=2_000, seed=seed
    ),
    "a mixture": mixture_of,
}


def epochs(pipe: Any, count: int) -> list[list[Any]]:
    return [list(pipe) for _ in range(count)]


# Orders of all that is shuffled


@pytest.mark.parametrize("name", BY_SEED)
@given(seed=st.integers(), epoch=st.integers(1, 10**6))
def test_an_order_is_a_function_of_seed_and_epoch_however_the_epoch_was_reached(
    name: str, seed: int, epoch: int
) -> None:
    jumped, walked = BY_SEED[name](seed), BY_SEED[name](seed)
    jumped.set_epoch(epoch)
    walked.set_epoch(epoch - 1)
    expected = epochs(walked, 3)[1:]
    assert epochs(jumped, 2) == expected
    assert epochs(pickle.loads(pickle.dumps(jumped)), 2) == expected, "a copy begins where the epoch was set"
    jumped.set_epoch(epoch)
    assert list(jumped) == expected[0]


@pytest.mark.parametrize("name", BY_SEED)
def test_orders_differ_by_epoch_and_seed(name: str) -> None:
    orders = [tuple(order) for seed in (0, 1, -1, 2**70) for order in epochs(BY_SEED[name](seed), 3)]
    assert len(set(orders)) == len(orders) == 12


@pytest.mark.parametrize("name", BY_SEED)
def test_global_random_states_are_neither_read_nor_changed(name: str) -> None:
    def states() -> list[str]:
        return [repr(random.getstate()), repr(np.random.get_state()), repr(torch.get_rng_state().tolist())]

    before, first = states(), list(BY_SEED[name](0))
    assert states() == before
    random.seed(2)
    torch.manual_seed(2)
    np.random.seed(2)
    assert list(BY_SEED[name](0)) == first


def test_an_order_within_a_bound_in_bytes_stays_the_same_in_later_versions() -> None:
    recorded = "2 0 1 3 4 8 6 11 7 9 5 10 16 15 18 13 12 17 14 19 20 22 21 23"
    assert " ".join(map(str, indexes(by_bytes([500] * 24, 7_000)))) == recorded


# URLs


@given(urls=st.lists(st.text(), max_size=30), seed=st.integers(), epoch=st.integers(0, 10**6))
def test_each_epoch_is_a_permutation_of_the_urls(urls: list[str], seed: int, epoch: int) -> None:
    pipe = urls_of(seed, urls)
    pipe.set_epoch(epoch)
    assert [collections.Counter(order) for order in epochs(pipe, 2)] == [collections.Counter(urls)] * 2


def test_urls_without_end_are_refused_where_all_are_listed() -> None:
    urls = IterableWrapper(URLS).repeat_epochs()
    for build in (
        urls.shuffle_shards,
        lambda: urls.select(keys=["a"]),
        lambda: tdr.join({"a": urls, "b": IterableWrapper(URLS)}),
    ):
        with pytest.raises(ValueError, match=r"repeat_epochs\(\) above has no end: put it after the reader"):
            build()
    assert len(list(IterableWrapper(URLS).repeat_epochs().take(9).shuffle_shards())) == 9


# Samples


@given(num_samples=SIZES, buffer_size=BUFFERS, seed=st.integers(), epoch=st.integers(0, 1000))
def test_each_sample_comes_once_within_a_buffer_of_its_position(
    num_samples: int, buffer_size: int, seed: int, epoch: int
) -> None:
    pipe = samples_of(num_samples, buffer_size, seed)
    pipe.set_epoch(epoch)
    items = list(pipe)
    assert len(pipe) == len(items)
    assert sorted(items) == list(range(num_samples))
    assert all(abs(place - item) <= buffer_size for place, item in enumerate(items))


def test_neighbours_are_drawn_from_a_window_of_two_buffers_in_equal_parts() -> None:
    items = list(samples_of(40_000, 1000))[10_000:30_000]
    ages = [place - item for place, item in enumerate(items, 10_000)]
    shares = [sum(low <= age < low + 200 for age in ages) / len(ages) for low in range(-1000, 1000, 200)]
    assert all(0.05 < share < 0.15 for share in shares[1:-1]), shares
    assert sum(shares) > 0.999


def test_what_fits_the_buffer_is_shuffled_uniformly_as_a_whole() -> None:
    pipe, num_epochs = samples_of(6, 10, seed=1), 6000
    counts = collections.Counter(pair for order in epochs(pipe, num_epochs) for pair in enumerate(order))
    assert len(counts) == 36
    assert all(abs(count - num_epochs / 6) < 6 * (num_epochs / 6) ** 0.5 for count in counts.values())


def test_a_huge_buffer_costs_what_the_data_cost() -> None:
    tracemalloc.start()
    try:
        items = list(samples_of(1000, 10**9))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert sorted(items) == list(range(1000)) != items
    assert items == list(samples_of(1000, 36_000)), "the order of any buffer that holds all in its first block"


class Recorded(IterDataPipe[int]):
    """Numbers, and how many of them were taken."""

    def __init__(self, num_items: int) -> None:
        self.num_items, self.taken = num_items, list[int]()  # which copies of this pipe share

    def __iter__(self) -> Iterator[int]:
        for number in range(self.num_items):
            self.taken.append(number)
            yield number

    @property
    def num_taken(self) -> int:
        return len(self.taken)


@given(num_samples=SIZES, buffer_size=BUFFERS)
def test_the_source_is_read_at_an_even_rate(num_samples: int, buffer_size: int) -> None:
    """Each sample that leaves pulls one: so many are held all the time, more than half of the buffer."""
    source = Recorded(num_samples)
    held = set()
    for count, _ in enumerate(ShuffleSamples(source, buffer_size=buffer_size), 1):
        if source.num_taken < num_samples:
            held.add(source.num_taken - count)
    assert len(held) <= 1
    assert all(buffer_size / 2 <= num_held <= buffer_size for num_held in held)
    assert source.num_taken == num_samples
    with pytest.raises(TypeError, match="Recorded"):
        len(ShuffleSamples(source, buffer_size=buffer_size))


class Sized(IterDataPipe[dict[str, Any]]):
    """Samples of given sizes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.taken = sizes, list[int]()  # which copies of this pipe share

    @property
    def num_taken(self) -> int:
        return len(self.taken)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.taken.clear()
        for index, size in enumerate(self.sizes):
            self.taken.append(index)
            yield {"__key__": str(index), "bin": bytes(size)}


def by_bytes(sizes: Sequence[int], max_buffer_bytes: int, buffer_size: int = 1_000) -> Any:
    return ShuffleSamples(Sized(sizes), buffer_size=buffer_size, max_buffer_bytes=max_buffer_bytes)


def indexes(samples: Any) -> list[int]:
    return [int(sample["__key__"]) for sample in samples]


def numbers_held(pipe: Any) -> list[int]:
    return [pipe.source_datapipe.num_taken - count for count, _ in enumerate(pipe, 1)]


@given(
    sizes=st.lists(st.sampled_from([0, 100, 1_000, 10_000, 100_000]), max_size=60),
    max_buffer_bytes=st.sampled_from([1, 3_000, 30_000, 300_000, 10_000_000]),
    buffer_size=st.integers(1, 70),
)
def test_samples_in_memory_keep_within_the_bound_in_bytes(
    sizes: list[int], max_buffer_bytes: int, buffer_size: int
) -> None:
    """Each sample comes once; what is held is less than the bound without its largest sample."""
    pipe = by_bytes(sizes, max_buffer_bytes, buffer_size)
    taken = list(itertools.accumulate(sizes, initial=0))
    handed_out, keys = 0, []
    for count, sample in enumerate(pipe, 1):
        handed_out += len(sample["bin"])
        keys.append(int(sample["__key__"]))
        num_taken = pipe.source_datapipe.num_taken
        assert num_taken - count <= buffer_size
        assert taken[num_taken] - handed_out < max_buffer_bytes + 101_000
    assert sorted(keys) == list(range(len(sizes)))


@pytest.mark.parametrize(("size", "num_samples"), [(100, 12_000), (10_000, 4_000), (3_000_000, 40)])
def test_a_bound_in_bytes_is_made_use_of(size: int, num_samples: int) -> None:
    held = numbers_held(by_bytes([size] * num_samples, 12_000_000, 2_000))
    middle = held[num_samples // 3 : num_samples // 2]
    assert sum(middle) / len(middle) >= 0.75 * min(2_000, 12_000_000 // size)


def fail(item: int) -> int:
    raise LookupError("no label")


# Epochs of loaders


@pytest.mark.parametrize("num_workers", [0, 1])
def test_set_epoch_before_a_pass_of_a_data_loader_decides_its_order(num_workers: int) -> None:
    expected, pipe = epochs(urls_of().map(str), 8), urls_of().map(str)
    loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=num_workers)
    for epoch in (4, 5, 0, 0):
        pipe.set_epoch(epoch)
        assert list(loader) == expected[epoch]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_passes_of_loaders_and_direct_passes_are_counted_separately(num_workers: int) -> None:
    """In a job of several ranks only one of them may look at its first sample."""
    expected, pipe = epochs(urls_of(), 3), urls_of()
    loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=num_workers)
    assert next(iter(pipe)) == expected[0][0]
    found = [list(loader), list(pipe), list(loader), list(loader), list(pipe)]
    assert found == [expected[0], expected[1], expected[1], expected[2], expected[2]]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("given_up", [1, 2])
def test_passes_of_a_loader_that_were_dropped_before_their_first_item_count_alike(
    num_workers: int, given_up: int
) -> None:
    expected, pipe = epochs(urls_of(), 6), urls_of()
    loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=num_workers)
    for _ in range(given_up):
        iter(loader)
    after = [list(loader), list(loader)]
    assert after[0] in expected[: given_up + 1]
    assert after[1] == expected[expected.index(after[0]) + 1]
    list(pipe)
    assert list(loader) == expected[expected.index(after[0]) + 2]


def key_of(sample: Any) -> str:
    return str(sample["__key__"])


CHAINS: dict[str, Callable[[Any], Any]] = {
    "stream_shards": lambda pipe: pipe.to_tuple("__key__").map(lambda item: item[0]),
    "torch's batch": lambda pipe: pipe.map(key_of).batch(1).unbatch(),
    "torch's zip": lambda pipe: pipe.map(key_of).zip(IterableWrapper(range(99))).map(lambda pair: pair[0]),
    "torch's concat": lambda pipe: IterableWrapper[Any]([]).concat(pipe).map(key_of),
    "torch's fork": lambda pipe: pipe.map(key_of).fork(2, buffer_size=99)[1],
    "a mixture": lambda pipe: tdr.mix({"a": (pipe, 1)}).map(key_of),
    "a second shuffle": lambda pipe: pipe.map(key_of).shuffle_samples(buffer_size=4, seed=5),
    "threads": lambda pipe: pipe.parallel_map(key_of, num_threads=2),
}


@pytest.mark.filterwarnings("ignore:Some child DataPipes", "ignore:Lambda function", "ignore:Local function")
@pytest.mark.parametrize("name", CHAINS)
def test_set_epoch_of_the_last_pipe_sets_the_whole_chain_and_so_all_ranks(name: str, memory_folder: str) -> None:
    """As often as it is set, through torch's pipes as well; also if only one rank has read before."""
    written = {key_of(one) for one in tdr.testing.write_small_shards(memory_folder, num_shards=6, samples_per_shard=4)}

    def chain(shuffle: Any = True, **options: Any) -> Any:
        shards = tdr.stream_shards(memory_folder, shuffle=shuffle, interleave=2, shuffle_buffer_size=6, **options)
        return CHAINS[name](shards)

    for shuffle in (True, False, "shards"):
        walked, jumped = chain(shuffle), chain(shuffle)
        passes = epochs(walked, 4)
        assert (len(set(map(str, passes))) == 1) is (shuffle is False and "shuffle" not in name)
        found = []
        for epoch in (2, 2, 0):
            jumped.set_epoch(epoch)
            found.append(list(jumped))
        assert [*found, list(jumped)] == [passes[2], passes[2], passes[0], passes[1]]
    fresh, used = (chain(world=tdr.World(rank, 2)) for rank in range(2))
    list(used)
    for pipe in (fresh, used):
        pipe.set_epoch(1)
    read = [*fresh, *used]
    assert (len(read), set(read)) == (len(written), written)
