"""Weights that change with the number of samples."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import (
    Mixed,
    Resumable,
    ShardingFilterRank,
    ShardWriter,
    Stop,
    World,
    merge_states,
    mix,
    stateful_loader,
)
from torchdata_remote.pipes.compose.mix_phases import Phase
from torchdata_remote.pipes.compose.mix_schedule import SlotSamples
from torchdata_remote.testing import assert_resumes_everywhere

STOPS = [Stop.FIRST_EXHAUSTED, Stop.ALL_EXHAUSTED, 24]
CURRICULUM = {0: {"a": 1}, 10: {"a": 1, "b": 1}, 18: {"b": 3, "c": 1}}

weights = st.fixed_dictionaries({name: st.sampled_from([0, 0, 1, 2.5]) for name in "abc"}).filter(
    lambda found: any(found.values())
)
schedules = st.dictionaries(st.integers(1, 60), weights, max_size=4).flatmap(
    lambda points: weights.map(lambda first: {0: first, **points})
)
worlds = st.integers(1, 3).flatmap(lambda ranks: st.integers(1, 2).map(lambda workers: (ranks, workers)))


def source(name: str, num_items: int, world: World | None = None) -> Any:
    items = IterableWrapper([f"{name}{number:03d}" for number in range(num_items)])
    return items.shuffle_shards(0).sharding_filter_rank(world=world)


def scheduled(schedule: Any, stop: Any, world: World | None = None, size: int = 12, seed: int = 0) -> Mixed[Any]:
    return mix({name: source(name, size, world) for name in "abc"}, schedule=schedule, stop=stop, seed=seed)


def all_slots(ranks: int, workers: int) -> list[World]:
    return [World(rank, ranks, worker, workers) for worker in range(workers) for rank in range(ranks)]


def weights_at(schedule: dict[int, dict[str, float]], position: int) -> dict[str, float]:
    return schedule[max(start for start in schedule if start <= position)]


@given(start=st.integers(0, 50), num_slots=st.integers(1, 7), slot=st.integers(0, 6), position=st.integers(0, 120))
def test_a_slot_counts_its_samples_before_a_position(start: int, num_slots: int, slot: int, position: int) -> None:
    """As many as there are when they are counted one by one; without an end, all."""
    samples = SlotSamples(start, slot % num_slots, num_slots)
    positions = list(itertools.takewhile(lambda at: at < position, map(samples.position, itertools.count())))
    assert samples.num_before(position) == len(positions)
    assert samples.num_before(float("inf")) == float("inf")


@given(num_slots=st.integers(1, 7), position=st.integers(0, 120))
def test_slots_have_each_position_once(num_slots: int, position: int) -> None:
    """So a phase has exactly as many samples as the schedule says, over all ranks."""
    slots = [SlotSamples(0, slot, num_slots) for slot in range(num_slots)]
    assert sum(slot.num_before(position) for slot in slots) == position


def test_a_phase_starts_at_its_point_or_where_it_was_reached_otherwise() -> None:
    """A phase that began by a loaded state starts at the next sample."""
    samples, phase = SlotSamples(0, 1, 4), Phase(10, {"a": 1.0})
    assert [samples.begun(phase, passed).start for passed in (2, 3, 4)] == [9, 10, 17]


@settings(max_examples=40, deadline=None)
@given(schedule=schedules, num_samples=st.integers(6, 60), world=worlds, epoch=st.integers(0, 2))
def test_each_sample_is_drawn_by_the_weights_of_its_position(
    schedule: dict[int, dict[str, float]], num_samples: int, world: tuple[int, int], epoch: int
) -> None:
    """In each world, and counted over epochs; a source with the weight 0 gives nothing."""
    slots = all_slots(*world)
    for slot in slots:
        pipe = scheduled(schedule, num_samples, slot)
        pipe.set_epoch(epoch)
        items = list(pipe)
        assert len(items) == len(pipe)
        for number, item in enumerate(items):
            position = epoch * num_samples + number * len(slots) + slot.slot
            assert weights_at(schedule, position)[item[0]] > 0, (number, item)


@settings(max_examples=40, deadline=None)
@given(schedule=schedules, world=worlds, size=st.integers(6, 14), seed=st.integers(0, 9))
def test_all_exhausted_reads_each_source_that_is_still_drawn_once(
    schedule: dict[int, dict[str, float]], world: tuple[int, int], size: int, seed: int
) -> None:
    """A source that starts later is read, too, if the others end before; one that fades out may keep a rest."""
    items = [item for slot in all_slots(*world) for item in scheduled(schedule, "all_exhausted", slot, size, seed)]
    counts = Counter(items)
    assert set(counts.values()) <= {1}
    last = schedule[max(schedule)]
    for name in "abc":
        drawn = sum(item[0] == name for item in items)
        assert drawn == size if last[name] else drawn <= size
        if not any(point[name] for point in schedule.values()):
            assert drawn == 0


@settings(max_examples=30, deadline=None)
@given(schedule=schedules, world=worlds, seed=st.integers(0, 9))
def test_first_exhausted_ends_by_a_source_that_is_drawn(
    schedule: dict[int, dict[str, float]], world: tuple[int, int], seed: int
) -> None:
    """Nothing is read twice, and a source with the weight 0 ends no mixture."""
    size = 12
    for slot in all_slots(*world):
        items = list(scheduled(schedule, "first_exhausted", slot, size, seed))
        assert len(set(items)) == len(items)
        num_slots = world[0] * world[1]
        share = len(range(slot.slot, size, num_slots))
        exhausted = [name for name in "abc" if sum(item[0] == name for item in items) == share]
        position = SlotSamples(0, slot.slot, num_slots).position(len(items))
        assert any(weights_at(schedule, position)[name] > 0 for name in exhausted)


def test_frequencies_follow_the_schedule_in_each_phase() -> None:
    """Within six standard deviations, over all ranks, in phases that begin in other epochs."""
    schedule = {0: {"a": 3, "b": 1}, 8_000: {"a": 1, "b": 1, "c": 2}, 20_000: {"c": 1, "b": 3}}
    drawn = [Counter[str]() for _ in schedule]
    for slot in range(3):
        pipe = scheduled(schedule, 9_000, World(slot, 3), size=50)
        for epoch in range(3):
            for number, item in enumerate(pipe):
                position = epoch * 9_000 + number * 3 + slot
                drawn[sum(position >= start for start in schedule) - 1][item[0]] += 1
    assert [counts.total() for counts in drawn] == [8_000, 12_000, 7_000]
    for counts, expected in zip(drawn, schedule.values(), strict=True):
        assert set(counts) == set(expected)
        for name, weight in expected.items():
            part = weight / sum(expected.values())
            assert abs(counts[name] - counts.total() * part) < 6 * (counts.total() * part * (1 - part)) ** 0.5


@given(seed=st.integers(0, 5), stop=st.sampled_from(STOPS))
def test_a_schedule_of_one_point_is_constant(seed: int, stop: Any) -> None:
    """The same order as with weights beside the pipes; so is one whose points do not differ."""
    constant = list(mix({name: (source(name, 12), 2) for name in "abc"}, seed=seed, stop=stop))
    same = dict.fromkeys("abc", 2)
    assert list(scheduled({0: same}, stop, seed=seed)) == constant
    assert list(scheduled({0: same, 7: same}, stop, seed=seed)) == constant


def test_epochs_by_exhaustion_each_begin_at_the_first_phase() -> None:
    """How long they are is not known, so samples are counted in each."""
    pipe = scheduled({0: {"a": 1}, 4: {"b": 1}}, "all_exhausted", size=6)
    for _ in range(2):
        assert "".join(item[0] for item in pipe) == "aaaabbbbbb"  # two of a are left: it is not drawn any more


@pytest.mark.parametrize("num_streams", [1, 3])
@pytest.mark.parametrize("stop", STOPS)
def test_resumes_everywhere(stop: Any, num_streams: int) -> None:
    """After each item, within phases and between them."""
    assert_resumes_everywhere(lambda: scheduled(CURRICULUM, stop, size=9), num_streams=num_streams)


@pytest.mark.parametrize("stop", STOPS)
def test_resumes_behind_other_pipes(stop: Any) -> None:
    """With a shuffle, threads and batches after it, and one before it."""

    def chain() -> Any:
        sources = {name: source(name, 9) for name in "bc"}
        sources["a"] = source("a", 9).shuffle_samples(buffer_size=3)
        mixed = mix(sources, schedule=CURRICULUM, stop=stop)
        return mixed.shuffle_samples(buffer_size=4).parallel_map(str.upper, num_threads=2).batch(2)

    assert_resumes_everywhere(chain, num_streams=2)


@pytest.mark.parametrize("ranks", [1, 3])
def test_states_of_ranks_merge_and_continue_in_another_world(ranks: int) -> None:
    """The order within each stream does not depend on the world."""
    whole = Resumable(scheduled(CURRICULUM, 48), num_streams=6)
    expected = sorted([*whole, *whole])
    parts = [Resumable(scheduled(CURRICULUM, 48, World(rank, 2)), num_streams=6) for rank in range(2)]
    iterators = [iter(part) for part in parts]
    got = [next(iterator) for _ in range(11) for iterator in iterators]
    state = merge_states([part.state_dict() for part in parts])
    for rank in range(ranks):
        resumed = Resumable(scheduled(CURRICULUM, 48, World(rank, ranks)), num_streams=6)
        resumed.load_state_dict(state)
        got += [*resumed, *resumed]
    assert sorted(got) == expected


def test_workers_of_a_loader_follow_it() -> None:
    """Each worker takes its part of each phase, over epochs, stopped and resumed."""

    def make() -> Any:
        pipe = scheduled({0: {"a": 1}, 16: {"b": 1}, 36: {"c": 1}}, 24)
        return stateful_loader(pipe.batch(2), num_workers=2, num_streams=4)

    loader = make()
    epochs = [list(loader), list(loader)]
    for epoch, expected in enumerate([{"a": 16, "b": 8}, {"b": 12, "c": 12}]):
        assert Counter(item[0] for batch in epochs[epoch] for item in batch) == expected
    stopped = make()
    head = list(itertools.islice(stopped, 5))
    resumed = make()
    resumed.load_state_dict(stopped.state_dict())
    assert [[*head, *resumed], list(resumed)] == epochs


def test_workers_of_a_plain_loader_follow_it() -> None:
    """torch's own loader, whose workers are the slots."""
    pipe = scheduled({0: {"a": 1}, 16: {"b": 1}}, 24)
    items = list(DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="forkserver"))
    assert Counter(item[0] for item in items) == {"a": 16, "b": 8}


def test_sources_that_start_later_are_not_read_before() -> None:
    """Neither samples nor connections are taken ahead; those that are not drawn any more are closed."""
    log: list[str] = []

    class Noting(IterDataPipe[str]):
        def __init__(self, name: str) -> None:
            self.name = name

        def __iter__(self) -> Any:
            log.append(f"open {self.name}")
            try:
                yield from [self.name] * 20
            finally:
                log.append(f"close {self.name}")

    sources: dict[str, Any] = {name: ShardingFilterRank(Noting(name)) for name in "ab"}
    pipe = mix(sources, schedule={0: {"a": 1}, 5: {"b": 1}}, stop=10)
    for number, item in enumerate(pipe):
        log.append(f"{number} {item}")
    assert [line for line in log if not line[0].isdigit()] == ["open a", "close a", "open b", "close b"]
    assert log.index("4 a") < log.index("close a") < log.index("open b") < log.index("5 b")


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({}, "must have weights for 0, the start"),
        ({5: {"a": 1}}, r"must have weights for 0, the start, got \[5\]"),
        ({0: {"a": 0}}, "at 0 no source has a weight above 0"),
        ({0: {"a": 1, "x": 1}}, "at 0 there is a weight for 'x'"),
        ({0: {"a": -1}}, "the weight of 'a' at 0 must be 0 or more"),
        ({0: {"a": float("inf")}}, "the weight of 'a' at 0 must be finite"),
        ({0: {"a": 1.7e308, "b": 1.7e308}}, r"the weight of 'a' at 0 must be at most 1e\+300, got 1.7e\+308"),
        ({0: {"a": 1}, 5: {"a": 1}, torch.tensor(5): {"b": 1}}, "has weights for 5 twice"),
        ({-1: {"a": 1}}, "number of samples must be an int of at least 0, got -1"),
    ],
)
def test_schedules_that_are_none(schedule: Any, message: str) -> None:
    """Refused when the mixture is built."""
    with pytest.raises(ValueError, match=message):
        scheduled(schedule, 24)


def test_a_schedule_that_would_leave_ranks_unequal_is_refused() -> None:
    """Ranks would read different numbers of samples before the source is not drawn any more."""
    with ShardWriter("memory://mix-schedule-even/{shard}.tar", max_shard_samples=4, overwrite=True) as writer:
        for number in range(16):
            writer.write({"__key__": str(number), "cls": number})

    def make(schedule: Any, stop: Any) -> Any:
        urls = {name: IterableWrapper(["memory://mix-schedule-even/index.json"]).list_remote() for name in "ab"}
        shares = {name: listed.sharding_filter_rank(world=World(1, 2)) for name, listed in urls.items()}
        sources = {name: share.shard_tar_reader().equalize_ranks(mode="drop") for name, share in shares.items()}
        return mix(sources, schedule=schedule, stop=stop)

    with pytest.raises(ValueError, match=r"the source 'a' has equalize_ranks\(\), and its last weight is 0"):
        make({0: {"a": 1}, 4: {"b": 1}}, "all_exhausted")
    assert len(list(make({0: {"a": 1}, 4: {"a": 1, "b": 1}}, "all_exhausted"))) == 16
    assert len(list(make({0: {"a": 1}, 4: {"b": 1}}, 14))) == 7


def test_a_schedule_within_a_mixture_is_refused() -> None:
    """It would count the samples of its own, over and over; a mixture with constant weights may be a source."""
    inner = scheduled(CURRICULUM, 24)
    with pytest.raises(ValueError, match="the source 'inner' is a mixture with a schedule"):
        mix({"inner": (inner.map(str), 1), "d": (source("d", 4), 1)})
    nested = mix({"inner": (scheduled({0: {"a": 1}}, 24), 1), "d": (source("d", 4), 1)})
    assert set(itertools.chain.from_iterable(nested)) <= set("ad0123456789")
