"""A new order of URLs each epoch, the same in every process."""

from __future__ import annotations

import collections
import itertools
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote import ShuffleShards
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

URLS = [f"memory://photos/{number}.tar" for number in range(12)]


def shuffled(seed: int = 0, urls: list[str] = URLS) -> ShuffleShards:
    return ShuffleShards(IterableWrapper(urls), seed=seed)


def epochs(pipe: IterDataPipe[str], count: int) -> list[list[str]]:
    return [list(pipe) for _ in range(count)]


@given(urls=st.lists(st.text(), max_size=30), seed=st.integers(), epoch=st.integers(0, 10**6))
def test_each_epoch_is_a_permutation(urls: list[str], seed: int, epoch: int) -> None:
    """Every URL comes exactly as often as it came in, in each epoch."""
    pipe = shuffled(seed, urls)
    pipe.set_epoch(epoch)
    assert collections.Counter(pipe) == collections.Counter(urls)
    assert collections.Counter(pipe) == collections.Counter(urls)


@given(seed=st.integers(), epoch=st.integers(0, 1000))
def test_order_is_a_function_of_seed_and_epoch(seed: int, epoch: int) -> None:
    """Another pipe with the same seed has the same order in the same epoch, however it got there."""
    jumped, walked = shuffled(seed), shuffled(seed)
    jumped.set_epoch(epoch)
    walked.set_epoch(max(0, epoch - 2))
    *_, last = epochs(walked, min(epoch, 2) + 1)
    assert list(jumped) == last


def test_orders_differ_by_epoch_and_seed() -> None:
    """Epochs and seeds each bring another order."""
    orders = [tuple(order) for seed in (0, 1, -1, 2**70) for order in epochs(shuffled(seed), 5)]
    assert len(set(orders)) == len(orders)


def test_order_stays_the_same_in_later_versions() -> None:
    """An order that a run was recorded with can be had again."""
    pipe = ShuffleShards(IterableWrapper(list("abcdefgh")), seed=3)
    assert ["".join(pipe) for _ in range(3)] == ["dbafehcg", "bfeagchd", "dghbface"]


def test_orders_are_uniform() -> None:
    """Over many epochs every URL is in every place about equally often."""
    urls, num_epochs = list("abcd"), 4000
    counts: collections.Counter[tuple[int, str]] = collections.Counter()
    orders: collections.Counter[str] = collections.Counter()
    for order in epochs(shuffled(1, urls), num_epochs):
        counts.update(enumerate(order))
        orders["".join(order)] += 1
    expected = num_epochs / 4
    assert all(abs(counts[place, url] - expected) < 6 * expected**0.5 for place in range(4) for url in urls)
    assert len(orders) == 24
    expected = num_epochs / 24
    assert all(abs(count - expected) < 6 * expected**0.5 for count in orders.values())


def random_states() -> list[str]:
    with np.printoptions(threshold=10**6):
        return [repr(random.getstate()), repr(np.random.get_state()), repr(torch.get_rng_state().tolist())]


def test_global_random_state_is_left_alone() -> None:
    """Neither read nor changed: training with the same seeds is the same with or without us."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = random_states()
    first = list(shuffled())
    assert random_states() == before
    random.seed(2)
    torch.manual_seed(2)
    assert list(shuffled()) == first


def test_set_epoch_sets_the_next_pass() -> None:
    """``set_epoch`` names the next pass; the ones after it count on."""
    expected = epochs(shuffled(), 6)
    pipe = shuffled()
    pipe.set_epoch(3)
    assert epochs(pipe, 3) == expected[3:]
    pipe.set_epoch(0)
    assert epochs(pipe, 2) == expected[:2]
    with pytest.raises(ValueError, match="-1"):
        pipe.set_epoch(-1)


def test_pass_that_is_stopped_early_counts() -> None:
    """An epoch that is broken off is over."""
    expected, pipe = epochs(shuffled(), 2), shuffled()
    assert next(iter(pipe)) == expected[0][0]
    assert list(pipe) == expected[1]


def test_seed_of_another_type_is_refused() -> None:
    """A seed of another type is refused when the pipe is built."""
    with pytest.raises(TypeError, match="seed must be an int"):
        ShuffleShards(IterableWrapper(URLS), seed="0")  # type: ignore[arg-type]


def test_pickled_copy_has_the_same_orders() -> None:
    """A copy in another place has the same orders."""
    pipe = shuffled(5)
    list(pipe)
    copy = pickle.loads(pickle.dumps(pipe))
    assert epochs(copy, 2) == epochs(pipe, 2)


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_data_loader_counts_epochs_one_by_one(num_workers: int, persistent_workers: bool) -> None:
    """Under a DataLoader the passes are epochs 0, 1, 2, ... in every worker, as in direct iteration."""
    expected = [order for order in epochs(shuffled(), 4) for _ in range(max(num_workers, 1))]
    loader: DataLoader[str] = DataLoader(
        shuffled(), batch_size=None, num_workers=num_workers, persistent_workers=persistent_workers and num_workers > 0
    )
    passes = epochs(loader, 4)  # type: ignore[arg-type]
    each = [sorted(one[worker :: max(num_workers, 1)] for worker in range(max(num_workers, 1))) for one in passes]
    assert [order for orders in each for order in orders] == expected


@pytest.mark.parametrize("num_workers", [0, 1])
def test_set_epoch_before_each_pass_of_a_data_loader(num_workers: int) -> None:
    """As with ``DistributedSampler``, ``set_epoch`` before each pass decides its order."""
    expected, pipe = epochs(shuffled(), 8), shuffled()
    loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=num_workers)
    for epoch in (4, 5, 0, 7):
        pipe.set_epoch(epoch)
        assert list(loader) == expected[epoch]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_direct_passes_do_not_advance_loaders(num_workers: int) -> None:
    """A look into the pipe does not move a loader on: in a job of several ranks only one of them may look."""
    expected, pipe = epochs(shuffled(), 3), shuffled()
    loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=num_workers)
    assert next(iter(pipe)) == expected[0][0]
    assert [list(loader), list(pipe), list(loader), list(loader), list(pipe)] == [
        expected[0],
        expected[1],
        expected[1],
        expected[2],
        expected[2],
    ]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("given_up", [1, 2, 3])
def test_loader_passes_dropped_before_the_first_item_count_alike(num_workers: int, given_up: int) -> None:
    """However many passes of a loader were begun and dropped before their first item, all ranks count alike."""
    expected, pipe = epochs(shuffled(), 6), shuffled()
    loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=num_workers)
    for _ in range(given_up):
        iter(loader)
    after = [list(loader), list(loader)]
    assert after[0] in expected[: given_up + 1]
    assert after[1] == expected[expected.index(after[0]) + 1]
    list(pipe)
    assert list(loader) == expected[expected.index(after[0]) + 2]


def test_two_shuffles_in_one_chain_are_independent() -> None:
    """Two pipes with the same seed over different URLs do not disturb each other."""
    one, two = shuffled(), shuffled(0, [url + ".gz" for url in URLS])
    expected = list(itertools.chain(one, two))
    assert list(shuffled().concat(shuffled(0, [url + ".gz" for url in URLS]))) == expected


def test_a_chain_resumes_after_any_sample(memory_folder: str) -> None:
    """In the order of its epoch; the next epoch has the order that it would have had."""
    samples = write_small_shards(memory_folder, num_shards=4, samples_per_shard=2)
    urls = sorted({sample["__url__"] for sample in samples})
    assert_resumes_everywhere(lambda: shuffled(3, urls).shard_tar_reader(interleave=2))
    assert_resumes_everywhere(
        lambda: shuffled(3, urls).sharding_filter_rank().async_prefetch().shard_tar_reader(), num_streams=2
    )


def test_urls_without_end_are_refused() -> None:
    """They would be listed until memory is used up."""
    urls = IterableWrapper(URLS).repeat_epochs()
    for build in (
        urls.shuffle_shards,
        lambda: urls.select(keys=["a"]),
        lambda: tdr.join({"a": urls, "b": IterableWrapper(URLS)}),
    ):
        with pytest.raises(ValueError, match=r"repeat_epochs\(\) above has no end: put it after the reader"):
            build()
    assert len(list(IterableWrapper(URLS).repeat_epochs().take(9).shuffle_shards())) == 9
