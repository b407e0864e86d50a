"""A shuffle of samples that flows."""

from __future__ import annotations

import collections
import gc
import itertools
import json
import pickle
import random
import tracemalloc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote import ShuffleSamples, Skipped
from torchdata_remote.errors import StateError
from torchdata_remote.formats.sample_size import sample_bytes
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

SIZES, BUFFERS = st.integers(0, 60), st.integers(1, 70)


def shuffled(num_samples: int, buffer_size: int, seed: int = 0) -> ShuffleSamples[int]:
    return ShuffleSamples(IterableWrapper(range(num_samples)), buffer_size=buffer_size, seed=seed)


def counting(num_samples: int, buffer_size: int, seed: int = 0) -> Any:
    """The same with a source that has a state."""
    return (
        IterableWrapper(range(num_samples)).sharding_filter_rank().shuffle_samples(buffer_size=buffer_size, seed=seed)
    )


@given(num_samples=SIZES, buffer_size=BUFFERS, seed=st.integers(), epoch=st.integers(0, 1000))
def test_each_sample_is_yielded_once_within_a_buffer_of_its_position(
    num_samples: int, buffer_size: int, seed: int, epoch: int
) -> None:
    """No sample comes more than a buffer earlier or later than it would have."""
    pipe = shuffled(num_samples, buffer_size, seed)
    pipe.set_epoch(epoch)
    items = list(pipe)
    assert sorted(items) == list(range(num_samples))
    assert all(abs(place - item) <= buffer_size for place, item in enumerate(items))


def test_neighbours_are_drawn_from_a_window_of_two_buffers() -> None:
    """In equal parts: twice as wide as what is held."""
    items = list(shuffled(40_000, 1000))[10_000:30_000]
    ages = [place - item for place, item in enumerate(items, 10_000)]
    shares = [sum(low <= age < low + 200 for age in ages) / len(ages) for low in range(-1000, 1000, 200)]
    assert all(0.05 < share < 0.15 for share in shares[1:-1]), shares
    assert sum(shares) > 0.999


class Recorded(IterDataPipe[int]):
    """Numbers, and how many of them were taken."""

    def __init__(self, num_items: int) -> None:
        self.num_items, self.num_taken = num_items, 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.num_items):
            self.num_taken += 1
            yield number


def shuffled_chain(num_samples: int, buffer_size: int) -> tuple[Any, Recorded]:
    """A chain that can be resumed, and its source, which counts."""
    source = Recorded(num_samples)
    return source.sharding_filter_rank().shuffle_samples(buffer_size=buffer_size), source


@given(num_samples=SIZES, buffer_size=BUFFERS)
def test_source_is_read_at_an_even_rate(num_samples: int, buffer_size: int) -> None:
    """Each sample that leaves pulls one, so the source is always as far ahead, at most by the buffer, and over half."""
    source = Recorded(num_samples)
    held = set()
    for count, _ in enumerate(ShuffleSamples(source, buffer_size=buffer_size), 1):
        if source.num_taken < num_samples:
            held.add(source.num_taken - count)
    assert len(held) <= 1
    assert all(buffer_size / 2 <= num_held <= buffer_size for num_held in held)
    assert source.num_taken == num_samples


def fails(number: int) -> float:
    return 1 / number


class Item:
    """Something that can be counted while it lives."""


class Items(IterDataPipe[Item]):
    def __init__(self, num_items: int) -> None:
        self.num_items = num_items
        self.alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def __iter__(self) -> Iterator[Item]:
        for _ in range(self.num_items):
            item = Item()
            self.alive.add(item)
            yield item
            del item

    def state_dict(self) -> dict[str, Any]:
        return {}


@given(num_samples=SIZES, buffer_size=st.integers(1, 20))
def test_memory_holds_at_most_buffer_size_samples(num_samples: int, buffer_size: int) -> None:
    """Beside what was just handed out, and what just came in, there are ``buffer_size`` samples in memory."""
    source = Items(num_samples)
    most, items = 0, iter(ShuffleSamples(source, buffer_size=buffer_size))
    while next(items, None) is not None:
        most = max(most, len(source.alive))
    assert most <= buffer_size + 1
    del items
    gc.collect()
    assert len(source.alive) == 0


def test_orders_differ_by_epoch_and_seed() -> None:
    """Epochs and seeds each have an order of their own, at the beginning and later on."""
    orders = []
    for seed in (0, 1, -1, 2**70):
        pipe = shuffled(200, 20, seed)
        for _ in range(3):
            items = list(pipe)
            orders += [tuple(item - start for item in items[start : start + 20]) for start in (0, 100, 140)]
    assert len(set(orders)) == len(orders) == 36


def test_order_stays_the_same_in_later_versions() -> None:
    """An order that a run was recorded with can be had again."""
    pipe = shuffled(10, 4, seed=3)
    assert [list(pipe) for _ in range(2)] == [[2, 0, 4, 1, 3, 5, 6, 8, 7, 9], [1, 0, 2, 3, 6, 4, 5, 7, 8, 9]]


def test_orders_within_the_buffer_are_uniform() -> None:
    """What fits the buffer is shuffled as a whole: each sample is in each place about equally often."""
    pipe, num_epochs = shuffled(6, 10, seed=1), 6000
    counts = collections.Counter((place, item) for _ in range(num_epochs) for place, item in enumerate(pipe))
    assert len(counts) == 36
    assert all(abs(count - num_epochs / 6) < 6 * (num_epochs / 6) ** 0.5 for count in counts.values())


@pytest.mark.parametrize("buffer_size", [10**9, 2**80])
def test_cost_of_a_huge_buffer_is_that_of_the_data(buffer_size: int) -> None:
    """A huge number is a usual way to write "shuffle all": time and memory follow the samples, not the number."""
    tracemalloc.start()
    try:
        items = list(shuffled(1000, buffer_size))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert sorted(items) == list(range(1000))
    assert items == list(shuffled(1000, 36_000)), "the order of any buffer that holds all in its first block"


@given(seed=st.integers(), epoch=st.integers(0, 1000))
def test_order_is_a_function_of_seed_and_epoch(seed: int, epoch: int) -> None:
    """Another pipe has the same order in the same epoch, however it got there."""
    jumped, walked = shuffled(20, 6, seed), shuffled(20, 6, seed)
    jumped.set_epoch(epoch)
    walked.set_epoch(max(0, epoch - 1))
    *_, last = [list(walked) for _ in range(min(epoch, 1) + 1)]
    assert list(jumped) == last


def test_length_does_not_affect_the_order() -> None:
    """A longer dataset begins as a shorter one does, until that has come to its end."""
    assert list(shuffled(42, 9))[:33] == list(shuffled(400, 9))[:33]


def test_buffer_of_one_keeps_the_order() -> None:
    """There is one order of a single sample."""
    assert list(shuffled(9, 1)) == list(range(9))


def test_buffer_larger_than_the_data_shuffles_all() -> None:
    """All samples are shuffled as a whole."""
    items = list(shuffled(30, 1000))
    assert sorted(items) == list(range(30)) != items


@given(num_samples=SIZES, buffer_size=BUFFERS, num_passed=SIZES)
def test_resuming_reads_at_most_two_buffers_again(num_samples: int, buffer_size: int, num_passed: int) -> None:
    """Behind a loaded state comes the rest; before its first sample leaves, at most two buffers are read again."""
    whole = list(counting(num_samples, buffer_size))
    stopped, source = shuffled_chain(num_samples, buffer_size)
    head = list(islice(iter(stopped), num_passed))
    state = json.loads(json.dumps(stopped.state_dict()))
    assert source.num_taken <= num_passed + buffer_size
    again, source = shuffled_chain(num_samples, buffer_size)
    again.load_state_dict(state)
    rest = iter(again)
    first = list(islice(rest, 1))
    begins = 0 if state["began"] is None else state["began"]["next"]
    assert source.num_taken <= begins + 2 * buffer_size + 1  # which the first sample pulls
    assert source.num_taken <= len(head) + buffer_size + 1
    assert head + first + list(rest) == whole


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 4, 5, 9, 15, 16, 40, 100])
def test_resumes_everywhere(buffer_size: int) -> None:
    """Within a phase, at its end and after the last one: what comes next is the same."""
    assert_resumes_everywhere(lambda: counting(15, buffer_size))


@pytest.mark.parametrize("num_streams", [1, 3])
def test_resumes_in_a_chain(num_streams: int, memory_folder: str) -> None:
    """Also over shards that are read by turns, and two shuffles in a chain."""
    write_small_shards(memory_folder, num_shards=6, samples_per_shard=4)
    urls = IterableWrapper([memory_folder]).list_remote(pattern="*.tar").shuffle_shards().sharding_filter_rank()
    assert_resumes_everywhere(
        lambda: (
            urls.shard_tar_reader(interleave=2)
            .shuffle_samples(buffer_size=3, seed=1)
            .to_tuple("__key__")
            .shuffle_samples(buffer_size=4, seed=2)
        ),
        num_streams=num_streams,
    )


@pytest.mark.parametrize(("first", "second"), [({}, {"max_buffer_bytes": 700}), ({"max_buffer_bytes": 2000}, {})])
def test_a_shuffle_of_shuffled_samples_resumes_everywhere(first: dict[str, int], second: dict[str, int]) -> None:
    """The second one may ask the first for its position before it reads a sample: where a block was empty."""
    write_small_shards("memory://shuffled-twice/", num_shards=3, samples_per_shard=4)
    urls = ["memory://shuffled-twice/index.json"]
    for second_size in (3, 10):
        assert_resumes_everywhere(
            lambda: (
                tdr.IterableWrapper(urls)
                .list_remote()
                .shard_tar_reader()
                .shuffle_samples(buffer_size=10, seed=1, **first)
                .shuffle_samples(buffer_size=second_size, seed=2, **second)  # noqa: B023  # called here
            )
        )


def test_state_resumes_one_pass_without_resumable() -> None:
    """Without ``Resumable`` too, a fresh pipe with a loaded state hands out what was left, for one pass."""
    pipe, again = counting(10, 4), counting(10, 4)
    items: Any = iter(pipe)
    head = list(islice(items, 6))
    state: Any = pipe.state_dict()
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert head + list(again) == list(counting(10, 4))
    assert sorted(again) == list(range(10))


def test_source_without_a_state_can_be_shuffled() -> None:
    """It shuffles any pipe; a state is refused once it would have to tell where the source is."""
    pipe = shuffled(10, 4)
    items = iter(pipe)
    list(islice(items, 5))
    with pytest.raises(StateError, match=r"IterableWrapper.* does not count the items that it yields"):
        pipe.state_dict()


def test_length_is_that_of_the_source() -> None:
    """As many as the source has; a ``TypeError`` where that does not tell."""
    assert len(shuffled(17, 4)) == 17
    with pytest.raises(TypeError, match="Recorded"):
        len(ShuffleSamples(Recorded(3), buffer_size=2))


class Sized(IterDataPipe[dict[str, Any]]):
    """Samples of given sizes, and where it is."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.position, self.num_taken, self._loaded = sizes, 0, 0, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        start, self._loaded = self._loaded, 0
        for index in range(start, len(self.sizes)):
            self.position = index + 1
            self.num_taken += 1
            yield {"__key__": str(index), "bin": bytes(self.sizes[index])}

    def state_dict(self) -> int:
        return self.position

    def load_state_dict(self, state: int) -> None:
        self.position = self._loaded = state


def bounded(sizes: Sequence[int], max_buffer_bytes: int, buffer_size: int = 1_000) -> Any:
    return ShuffleSamples(Sized(sizes), buffer_size=buffer_size, max_buffer_bytes=max_buffer_bytes)


def indexes(samples: Iterable[dict[str, Any]]) -> list[int]:
    return [int(sample["__key__"]) for sample in samples]


SAMPLE_SIZES = st.lists(st.sampled_from([0, 100, 1_000, 10_000, 100_000]), max_size=60)
BOUNDS = st.sampled_from([1, 3_000, 30_000, 300_000, 10_000_000])


@given(sizes=SAMPLE_SIZES, max_buffer_bytes=BOUNDS, buffer_size=st.integers(1, 70))
def test_samples_in_memory_keep_within_the_bound_in_bytes(
    sizes: list[int], max_buffer_bytes: int, buffer_size: int
) -> None:
    """Each sample is yielded once; what is held is less than the bound without its largest sample."""
    pipe = bounded(sizes, max_buffer_bytes, buffer_size)
    taken = list(itertools.accumulate((sample_bytes(sample) for sample in Sized(sizes)), initial=0))
    yielded, keys = 0, []
    for count, sample in enumerate(pipe, 1):
        yielded += sample_bytes(sample)
        keys.append(int(sample["__key__"]))
        num_taken = pipe.source_datapipe.num_taken
        assert num_taken - count <= buffer_size
        assert taken[num_taken] - yielded < max_buffer_bytes + 100_000 + 1_000
    assert sorted(keys) == list(range(len(sizes)))


@given(sizes=SAMPLE_SIZES, max_buffer_bytes=BOUNDS, buffer_size=st.integers(1, 70), stop=st.integers(0, 60))
def test_a_bound_in_bytes_resumes_exactly_and_reads_two_buffers_again(
    sizes: list[int], max_buffer_bytes: int, buffer_size: int, stop: int
) -> None:
    """What follows a state is the same, and what is read for its first sample is two buffers and some samples."""
    whole = indexes(bounded(sizes, max_buffer_bytes, buffer_size))
    stopped = bounded(sizes, max_buffer_bytes, buffer_size)
    head = indexes(islice(iter(stopped), stop))
    state = json.loads(json.dumps(stopped.state_dict()))
    again = bounded(sizes, max_buffer_bytes, buffer_size)
    again.load_state_dict(state)
    rest = iter(again)
    first = indexes(islice(rest, 1))
    began, source = state["began"] or 0, again.source_datapipe
    read_again = [sample_bytes({"__key__": "", "bin": bytes(size)}) + 2 for size in sizes[began : source.position]]
    assert len(read_again) <= 2 * buffer_size + 2
    assert sum(read_again) <= 2 * max_buffer_bytes + 9 * 2 * 102_000
    assert [*head, *first, *indexes(rest)] == whole


@pytest.mark.parametrize("max_buffer_bytes", [1, 2_000, 8_000, 50_000])
def test_a_bound_in_bytes_resumes_everywhere(max_buffer_bytes: int) -> None:
    """Also with samples of very different sizes, and in the second epoch."""
    sizes = [0, 3_000, 10, 10, 900, 40_000, 0, 0, 500, 500, 7_000, 1, 2_000, 0]
    assert_resumes_everywhere(lambda: bounded(sizes, max_buffer_bytes, 9).map(itemgetter("__key__")))


@pytest.mark.parametrize(("size", "num_samples"), [(100, 12_000), (10_000, 4_000), (3_000_000, 40)])
def test_a_bound_in_bytes_is_made_use_of(size: int, num_samples: int) -> None:
    """The buffer fills with as many samples as the bound allows, be they small or of a quarter of it."""
    pipe = bounded([size] * num_samples, 12_000_000, 2_000)
    held = [pipe.source_datapipe.num_taken - count for count, _ in enumerate(pipe, 1)]
    fitting = min(2_000, 12_000_000 // size)
    middle = held[num_samples // 3 : num_samples // 2]
    assert sum(middle) / len(middle) >= 0.75 * fitting


def test_the_first_sample_leaves_when_a_quarter_of_the_bytes_is_read() -> None:
    """A slow store delays the first batch by a quarter of the buffer; what fits it is shuffled as a whole."""
    pipe = bounded([10_000] * 400, 1_000_000)
    next(iter(pipe))
    assert 20 <= pipe.source_datapipe.num_taken <= 28
    pipe = bounded([1_000] * 40, 1_000_000)
    places = [indexes(pipe).index(0) for _ in range(200)]
    assert max(places) > 35
    assert 15 < sum(places) / len(places) < 25


def test_small_samples_after_large_ones_fill_the_buffer() -> None:
    """The number of samples grows again where samples become small."""
    pipe = bounded([1_000_000] * 20 + [10] * 3_000, 4_000_000, 500)
    held = [pipe.source_datapipe.num_taken - count for count, _ in enumerate(pipe, 1)]
    assert max(held[:12]) <= 4
    assert max(held) >= 460


def test_a_bound_that_is_not_reached_is_no_bound_of_the_number() -> None:
    """The buffer then holds as many samples as without it."""
    pipe = bounded([0] * 500, 1 << 40, 40)
    held = [pipe.source_datapipe.num_taken - count for count, _ in enumerate(pipe, 1)]
    assert set(held[:400]) == {36}


def test_order_with_a_bound_in_bytes_stays_the_same_in_later_versions() -> None:
    """An order that a run was recorded with can be had again."""
    recorded = "2 0 1 3 4 8 6 11 7 9 5 10 16 15 18 13 12 17 14 19 20 22 21 23"
    assert " ".join(map(str, indexes(bounded([500] * 24, 7_000)))) == recorded


def test_memory_of_a_bounded_buffer_is_what_it_says() -> None:
    """Measured with Python's own account of its memory, for samples of 100 bytes and of 100 kB."""
    for size, num_samples in ((100, 20_000), (100_000, 100)):
        pipe = ShuffleSamples(Sized([size] * num_samples), buffer_size=100_000, max_buffer_bytes=5_000_000)
        tracemalloc.start()
        try:
            assert sum(1 for _ in pipe) == num_samples
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert 2_000_000 < peak < 5_600_000, (size, peak)


@pytest.mark.parametrize("max_buffer_bytes", [0, -1, 2.5, "8"])
def test_invalid_bounds_in_bytes_are_refused(max_buffer_bytes: Any) -> None:
    """A bound that holds nothing is an error that names the unit and the value."""
    with pytest.raises((TypeError, ValueError), match="max_buffer_bytes must be an int of at least 1 or None, got "):
        ShuffleSamples(IterableWrapper([]), buffer_size=1, max_buffer_bytes=max_buffer_bytes)


def test_nothing_is_skipped_without_a_reader() -> None:
    """A shuffle of numbers leaves nothing out; its errors are the user's, though torch reads ``skipped`` for them."""
    assert shuffled(3, 2).skipped == Skipped()
    with pytest.raises(ZeroDivisionError):
        list(IterableWrapper([0]).map(fails).shuffle_samples(buffer_size=2))


@pytest.mark.parametrize("buffer_size", [0, -1, 2.5, "8", None])
def test_invalid_buffer_sizes_are_refused(buffer_size: Any) -> None:
    """A buffer that holds nothing is an error that names the unit and the value."""
    with pytest.raises((TypeError, ValueError), match="a number of samples, an int of at least 1, got "):
        ShuffleSamples(IterableWrapper([]), buffer_size=buffer_size)


def test_global_random_state_is_left_alone() -> None:
    """Neither read nor changed."""

    def states() -> list[str]:
        return [repr(random.getstate()), repr(np.random.get_state()), repr(torch.get_rng_state().tolist())]

    before, first = states(), list(shuffled(20, 6))
    assert states() == before
    random.seed(2)
    torch.manual_seed(2)
    assert list(shuffled(20, 6)) == first


def test_pickled_copy_has_the_same_epochs() -> None:
    """A copy in another process has the same epochs."""
    pipe = shuffled(20, 6)
    list(pipe)
    copy = pickle.loads(pickle.dumps(pipe))
    assert [list(copy), list(copy)] == [list(pipe), list(pipe)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_each_pass_of_a_loader_is_the_next_epoch(num_workers: int) -> None:
    """Each pass of a ``DataLoader`` is the next epoch, as without one."""
    direct = shuffled(20, 6)
    loader: DataLoader[int] = DataLoader(shuffled(20, 6), batch_size=None, num_workers=num_workers)
    assert [list(loader) for _ in range(3)] == [list(direct) for _ in range(3)]


def fail(item: int) -> int:
    raise LookupError("no label")


def test_an_error_of_the_source_stays_what_it_is() -> None:
    """torch reads each property to describe the pipe in an error: none may raise where the chain has no reader."""
    shuffled = IterableWrapper([1, 2]).map(fail).shuffle_samples(buffer_size=2)
    with pytest.raises(LookupError, match=r"^no label"):
        next(iter(shuffled))
    assert shuffled.skipped == Skipped()
