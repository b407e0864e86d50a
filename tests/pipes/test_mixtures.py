"""Mixtures: weights, schedules and ends, in each world; states that continue with other weights or further sources."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import (
    IterDataPipe,
    Resumable,
    ShardWriter,
    World,
    mix,
)
from torchdata_remote.errors import EmptyShareError, StateError
from torchdata_remote.pipes import Mixed, ShardingFilterRank, Stop
from torchdata_remote.testing import all_worlds

SIZES = {"a": 40, "b": 25, "c": 30, "d": 10}
STOPS = [Stop.FIRST_EXHAUSTED, Stop.ALL_EXHAUSTED, 60]
INF = float("inf")
BEFORE, AFTER = {"a": 3, "b": 1}, {"a": 1, "b": 4}

WEIGHTS = st.fixed_dictionaries({name: st.sampled_from([0, 0, 1, 2.5]) for name in "abc"}).filter(
    lambda found: any(found.values())
)
SCHEDULES = st.dictionaries(st.integers(1, 60), WEIGHTS, max_size=4).flatmap(
    lambda points: WEIGHTS.map(lambda first: {0: first, **points})
)
WORLDS = st.tuples(st.integers(1, 3), st.integers(1, 2))


def source(name: str, world: World | None = None, size: int | None = None) -> Any:
    items = IterableWrapper([f"{name}{number:03d}" for number in range(SIZES[name] if size is None else size)])
    return items.shuffle_shards(0).sharding_filter_rank(world=world)


def mixture(
    weights: Any, stop: Any = 60, world: World | None = None, size: int | None = None, seed: int = 0
) -> Mixed[Any]:
    """Of constant weights, or of a schedule."""
    if 0 in weights:
        names = dict.fromkeys(name for point in weights.values() for name in point)
        sources = {name: source(name, world, size) for name in names}
        return mix(sources, schedule=weights, stop=stop, seed=seed)
    pairs = {name: (source(name, world, size), weight) for name, weight in weights.items()}
    return mix(pairs, stop=stop, seed=seed)


def everything(names: Any) -> list[str]:
    return sorted(item for name in names for item in source(name))


def letters(items: Any) -> str:
    return "".join(item[0] for item in items)


def is_close(count: int, total: int, part: float) -> bool:
    """Within six standard deviations; seeds are fixed."""
    return bool(abs(count - total * part) < 6 * (total * part * (1 - part)) ** 0.5)


# Constant weights


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, {"a": 3, "b": 1}, {"a": 0.02, "b": 0.01, "c": 0.07}])
def test_each_source_gives_its_part_whatever_its_size_and_draws_are_independent(weights: dict[str, float]) -> None:
    drawn = letters(mixture(weights, 20_000, seed=3))
    counts, parts = Counter(drawn), {name: weight / sum(weights.values()) for name, weight in weights.items()}
    assert counts.total() == 20_000
    assert all(is_close(counts[name], 20_000, part) for name, part in parts.items())
    pairs = Counter(itertools.pairwise(drawn))
    assert all(is_close(pairs[one, two], 20_000, parts[one] * parts[two]) for one in parts for two in parts)


@given(factor=st.floats(0.01, 1000), seed=st.integers(0, 5), stop=st.sampled_from(STOPS))
def test_weights_are_relative_and_a_schedule_of_equal_points_is_constant(factor: float, seed: int, stop: Any) -> None:
    expected = list(mixture({"a": 1, "b": 1}, stop, seed=seed))
    assert list(mixture({"a": factor, "b": factor}, stop, seed=seed)) == expected
    for points in ({0: {"a": 2, "b": 2}}, {0: {"a": 2, "b": 2}, 7: {"a": 2, "b": 2}}):
        assert list(mixture(points, stop, seed=seed)) == expected


def test_draws_differ_by_seed_epoch_and_slot_and_are_kept_by_a_copy() -> None:
    drawn = set()
    for seed in (0, 1, -1):
        for slot in range(3):
            pipe = mixture({"a": 3, "b": 1}, 180, World(slot, 3), 20, seed)
            drawn |= {letters(pipe) for _ in range(3)}
            pipe.set_epoch(2)
            assert letters(pipe) in drawn
    assert len(drawn) == 27
    pipe.set_epoch(1)
    started = iter(pipe)
    next(started)
    copy = pickle.loads(pickle.dumps(pipe))
    whole = list(mixture({"a": 3, "b": 1}, 180, World(2, 3), 20, -1))
    pipe.set_epoch(0)
    assert list(pipe) == whole != list(copy), "also of one that is in use"


@settings(max_examples=20)
@given(num_items=st.integers(7, 200), num_slots=st.integers(1, 7))
def test_a_number_is_exact_over_all_ranks(num_items: int, num_slots: int) -> None:
    lengths = []
    for slot in range(num_slots):
        pipe = mixture({"a": 2, "b": 1}, num_items, World(slot, num_slots), 10)
        lengths.append(len(pipe))
        assert len(list(pipe)) == lengths[-1]
    assert sum(lengths) == num_items
    assert max(lengths) - min(lengths) <= 1


def test_an_empty_source_ends_a_mixture_or_takes_no_part() -> None:
    pipes = {"full": (source("a", size=5), 1.0), "empty": (source("b", size=0), 99.0)}
    assert len(list(mix(pipes, seed=1, stop="first_exhausted"))) < 5
    assert sorted(mix(pipes, seed=1, stop="all_exhausted")) == sorted(source("a", size=5))


def test_sources_of_different_groups_of_ranks_are_refused() -> None:
    """Ranks that are to read the same data would have different shares of some sources."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=1, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        world = World.from_mesh(mesh, dp="dp")
        with pytest.raises(ValueError, match=r"'a': world=World\(rank=0.*'b': world=None.*Pass the same world="):
            mix({"a": (source("a", world), 1), "b": (source("b"), 1)})
        assert len(mix({"a": (source("a", world), 1), "b": (source("b", world), 1)}, stop=4)) == 2
    finally:
        torch.distributed.destroy_process_group()


# Schedules


def weights_at(schedule: dict[int, dict[str, float]], position: int) -> dict[str, float]:
    return schedule[max(start for start in schedule if start <= position)]


@settings(max_examples=30)
@given(schedule=SCHEDULES, num_samples=st.integers(6, 60), world=WORLDS, epoch=st.integers(0, 2))
def test_each_sample_is_drawn_by_the_weights_of_its_position_among_those_of_all_ranks_and_epochs(
    schedule: dict[int, dict[str, float]], num_samples: int, world: tuple[int, int], epoch: int
) -> None:
    num_slots = world[0] * world[1]
    for slot in all_worlds(*world):
        pipe = mixture(schedule, num_samples, slot, 12)
        pipe.set_epoch(epoch)
        items = list(pipe)
        assert len(items) == len(pipe)
        for number, item in enumerate(items):
            position = epoch * num_samples + number * num_slots + slot.slot
            assert weights_at(schedule, position)[item[0]] > 0, (number, item)


@settings(max_examples=30)
@given(schedule=SCHEDULES, world=WORLDS, size=st.integers(6, 14), seed=st.integers(0, 9))
def test_all_exhausted_reads_each_source_that_is_still_drawn_once(
    schedule: dict[int, dict[str, float]], world: tuple[int, int], size: int, seed: int
) -> None:
    """One that starts later is read, too, if the others end before; one that fades out may keep a rest."""
    worlds = all_worlds(*world)
    items = [item for slot in worlds for item in mixture(schedule, "all_exhausted", slot, size, seed)]
    assert len(set(items)) == len(items)
    last = schedule[max(schedule)]
    for name in "abc":
        drawn = sum(item[0] == name for item in items)
        assert drawn == size if last[name] else drawn <= size
        if not any(point[name] for point in schedule.values()):
            assert drawn == 0


@settings(max_examples=30)
@given(schedule=SCHEDULES, world=WORLDS, seed=st.integers(0, 9))
def test_first_exhausted_ends_where_a_source_that_is_drawn_has_nothing_left(
    schedule: dict[int, dict[str, float]], world: tuple[int, int], seed: int
) -> None:
    """Nothing is read twice, and a source with the weight 0 ends no mixture."""
    num_slots = world[0] * world[1]
    for slot in all_worlds(*world):
        items = list(mixture(schedule, "first_exhausted", slot, 12, seed))
        assert len(set(items)) == len(items)
        share = len(range(slot.slot, 12, num_slots))
        exhausted = [name for name in "abc" if sum(item[0] == name for item in items) == share]
        position = slot.slot + len(items) * num_slots
        assert any(weights_at(schedule, position)[name] > 0 for name in exhausted)


def test_frequencies_follow_the_schedule_in_each_phase_also_of_other_epochs() -> None:
    schedule = {0: {"a": 3, "b": 1}, 8_000: {"a": 1, "b": 1, "c": 2}, 20_000: {"c": 1, "b": 3}}
    drawn = [Counter[str]() for _ in schedule]
    for slot in range(3):
        pipe = mixture(schedule, 9_000, World(slot, 3), 50)
        for epoch in range(3):
            for number, item in enumerate(pipe):
                position = epoch * 9_000 + number * 3 + slot
                drawn[sum(position >= start for start in schedule) - 1][item[0]] += 1
    assert [counts.total() for counts in drawn] == [8_000, 12_000, 7_000]
    for counts, expected in zip(drawn, schedule.values(), strict=True):
        assert set(counts) == set(expected)
        parts = {name: weight / sum(expected.values()) for name, weight in expected.items()}
        assert all(is_close(counts[name], counts.total(), part) for name, part in parts.items())


def test_sources_that_start_later_are_not_read_before_and_those_that_end_are_closed() -> None:
    log: list[str] = []

    class Noting(IterDataPipe[str]):
        def __init__(self, name: str) -> None:
            self.name = name

        def __iter__(self) -> Iterator[str]:
            log.append(f"open {self.name}")
            try:
                yield from [self.name] * 20
            finally:
                log.append(f"close {self.name}")

    sources: dict[str, Any] = {name: ShardingFilterRank(Noting(name)) for name in "ab"}
    for number, item in enumerate(mix(sources, schedule={0: {"a": 1}, 5: {"b": 1}}, stop=10)):
        log.append(f"{number} {item}")
    assert [line for line in log if not line[0].isdigit()] == ["open a", "close a", "open b", "close b"]
    assert log.index("4 a") < log.index("close a") < log.index("open b") < log.index("5 b")


def test_a_schedule_that_would_leave_ranks_unequal_is_refused() -> None:
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


# Other weights after a state


def chain(weights: Any, stop: Any = 60, buffer_size: int = 0, world: World | None = None) -> Any:
    pipe = mixture(weights, stop, world)
    return pipe.shuffle_samples(buffer_size=buffer_size) if buffer_size else pipe


def stopped(data: Any, num_items: int) -> tuple[list[Any], Any]:
    items = list(itertools.islice(data, num_items))
    return items, json.loads(json.dumps(data.state_dict()))


def resumed(state: Any, pipe: Any, num_streams: int = 1) -> Resumable:
    data = Resumable(pipe, num_streams=num_streams)
    data.load_state_dict(state)
    return data


@settings(max_examples=30)
@given(
    stop=st.sampled_from(STOPS),
    num_items=st.integers(0, 30),
    again=st.integers(0, 20),
    num_streams=st.integers(1, 3),
    buffer_size=st.sampled_from([0, 3, 12]),
    after=st.sampled_from(
        [AFTER, {0: AFTER, 40: BEFORE}, {0: {"a": 1, "b": 0}}, {"a": 1, "b": 4, "c": 2}, {"d": 1, "a": 3, "b": 1}]
    ),
)
def test_other_weights_hold_from_a_state_on_and_nothing_is_repeated_or_lost(
    stop: Any, num_items: int, again: int, num_streams: int, buffer_size: int, after: Any
) -> None:
    """Two copies agree, one of them stopped once more; the next epoch has the new weights from its start."""
    head, state = stopped(Resumable(chain(BEFORE, stop, buffer_size), num_streams=num_streams), num_items)
    one = resumed(state, chain(after, stop, buffer_size), num_streams)
    rest, next_epoch = list(one), list(one)
    more, state = stopped(resumed(state, chain(after, stop, buffer_size), num_streams), again)
    two = resumed(state, chain(after, stop, buffer_size), num_streams)
    assert [[*more, *two], list(two)] == [rest, next_epoch]
    second = Resumable(chain(after, stop, buffer_size), num_streams=num_streams)
    second.set_epoch(1)
    assert next_epoch == list(second)
    items = [*head, *rest]
    if stop == 60:
        assert len(items) == 60
        return
    assert len(set(items)) == len(items)
    if stop is Stop.ALL_EXHAUSTED and 0 not in after:
        assert sorted(items) == everything(after)


def test_the_weights_of_the_time_after_the_change_are_drawn_and_the_same_change_nothing() -> None:
    head, state = stopped(Resumable(mixture(BEFORE, 20_000)), 10_000)
    rest = list(resumed(state, mixture(AFTER, 20_000)))
    for items, part in [(head, 3 / 4), (rest, 1 / 5)]:
        assert is_close(letters(items).count("a"), 10_000, part)
    head, state = stopped(Resumable(mixture(BEFORE)), 20)
    for same in (BEFORE, {0: BEFORE}, {0: BEFORE, 60: AFTER}):
        assert [*head, *resumed(state, mixture(same))] == list(Resumable(mixture(BEFORE)))


def test_weights_of_a_mixture_within_a_mixture_cannot_change_those_of_the_outer_one_can() -> None:
    def nested(inner: float, outer: float) -> Any:
        pipe = mix({"a": (source("a"), inner), "b": (source("b"), 1)}, stop=50)
        return mix({"inner": (pipe, outer), "c": (source("c"), 1)}, stop=60)

    head, state = stopped(Resumable(nested(1, 1)), 20)
    assert len([*head, *resumed(state, nested(1, 5))]) == 60
    with pytest.raises(StateError, match=r"weights was .*'a': 1.0.*, is .*'a': 2.0"):
        resumed(state, nested(2, 1))


def test_a_number_that_leaves_a_rank_without_items_is_an_error_in_each() -> None:
    for rank in range(3):
        with pytest.raises(EmptyShareError, match=r"stops at 2 samples, .* some of 3 readers would have none"):
            list(mixture(BEFORE, 2, World(rank, 3)))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1, "b": -1}, "the weight of 'b' must be positive, got -1"),
        ({"a": 1, "b": INF}, "the weight of 'b' must be at most 1e\\+300, got inf"),
        ({0: {"a": 0}}, "at 0 no source has a weight above 0"),
        ({0: {"a": -1}}, "the weight of 'a' at 0 must be 0 or more"),
        ({0: {"a": 1}, -1: {"a": 1}}, "number of samples must be an int of at least 0, got -1"),
    ],
)
def test_weights_that_are_none_are_refused_when_the_mixture_is_built(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixture(weights)
