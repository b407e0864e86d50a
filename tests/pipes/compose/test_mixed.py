"""A mixture that continues with other weights, or with further sources, than its state was saved with."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import (
    Mixed,
    Resumable,
    Stop,
    World,
    merge_states,
    mix,
    mix_report,
    stateful_loader,
    thread_loader,
)
from torchdata_remote.errors import StateError
from torchdata_remote.testing import assert_resumes_everywhere

SIZES = {"a": 40, "b": 25, "c": 30, "d": 10}
STOPS = [Stop.FIRST_EXHAUSTED, Stop.ALL_EXHAUSTED, 60]
BEFORE = {"a": 3, "b": 1}
AFTER = {"a": 1, "b": 4}


def source(name: str, world: World | None = None) -> Any:
    items = IterableWrapper([f"{name}{number:03d}" for number in range(SIZES[name])])
    return items.shuffle_shards(0).sharding_filter_rank(world=world)


def mixture(weights: Any, stop: Any = 60, world: World | None = None) -> Mixed[Any]:
    """Of constant weights, or of a schedule."""
    if 0 in weights:
        names = dict.fromkeys(name for point in weights.values() for name in point)
        return mix({name: source(name, world) for name in names}, schedule=weights, stop=stop)
    return mix({name: (source(name, world), weight) for name, weight in weights.items()}, stop=stop)


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


@settings(max_examples=40, deadline=None)
@given(
    stop=st.sampled_from(STOPS),
    num_items=st.integers(0, 30),
    again=st.integers(0, 20),
    num_streams=st.integers(1, 3),
    buffer_size=st.sampled_from([0, 3, 12]),
    after=st.sampled_from([AFTER, {0: AFTER, 40: BEFORE}, {0: {"a": 1, "b": 0}}, {"a": 1, "b": 4, "c": 2}]),
)
def test_other_weights_hold_from_a_state_on(
    stop: Any, num_items: int, again: int, num_streams: int, buffer_size: int, after: Any
) -> None:
    """Two copies agree, one of them stopped once more; nothing is repeated, and nothing lost of what is drawn."""
    head, state = stopped(Resumable(chain(BEFORE, stop, buffer_size), num_streams=num_streams), num_items)
    one = resumed(state, chain(after, stop, buffer_size), num_streams)
    rest, next_epoch = list(one), list(one)
    more, state = stopped(resumed(state, chain(after, stop, buffer_size), num_streams), again)
    two = resumed(state, chain(after, stop, buffer_size), num_streams)
    assert [[*more, *two], list(two)] == [rest, next_epoch]
    assert next_epoch == list(_second_epoch(after, stop, buffer_size, num_streams))
    items = [*head, *rest]
    if stop == 60:
        assert len(items) == 60
        return
    assert len(set(items)) == len(items)
    if stop is Stop.ALL_EXHAUSTED and 0 not in after:
        assert sorted(items) == sorted(item for name in after for item in source(name))


def _second_epoch(weights: Any, stop: Any, buffer_size: int, num_streams: int) -> Resumable:
    data = Resumable(chain(weights, stop, buffer_size), num_streams=num_streams)
    data.set_epoch(1)
    return data


@pytest.mark.parametrize("buffer_size", [0, 7])
@pytest.mark.parametrize("stop", STOPS)
def test_a_changed_mixture_resumes_everywhere(stop: Any, buffer_size: int) -> None:
    """Each later stop, with a shuffle that reads samples of the time before the change again, continues the same."""
    _, state = stopped(Resumable(chain(BEFORE, stop, buffer_size), num_streams=2), 20)
    expected = list(resumed(state, chain(AFTER, stop, buffer_size), 2))
    for num_items in range(len(expected) + 1):
        head, later = stopped(resumed(state, chain(AFTER, stop, buffer_size), 2), num_items)
        assert [*head, *resumed(later, chain(AFTER, stop, buffer_size), 2)] == expected


def test_the_weights_of_the_time_after_the_change_are_drawn() -> None:
    """Within six standard deviations; the time before has its own."""
    data, num_items = Resumable(mixture(BEFORE, 20_000)), 10_000
    head, state = stopped(data, num_items)
    rest = list(resumed(state, mixture(AFTER, 20_000)))
    for items, weights in [(head, BEFORE), (rest, AFTER)]:
        part = weights["a"] / sum(weights.values())
        num_drawn = sum(item[0] == "a" for item in items)
        assert abs(num_drawn - num_items * part) < 6 * (num_items * part * (1 - part)) ** 0.5


def test_the_same_weights_change_nothing() -> None:
    """However they are written."""
    head, state = stopped(Resumable(mixture(BEFORE)), 20)
    expected = list(Resumable(mixture(BEFORE)))
    for same in (BEFORE, {0: BEFORE}, {0: BEFORE, 60: AFTER}):
        assert [*head, *resumed(state, mixture(same))] == expected


def test_the_change_is_recorded() -> None:
    """From which sample on, of all ranks, which weights held, and what was drawn by them."""
    _, state = stopped(Resumable(mixture(BEFORE), num_streams=2), 20)
    data = resumed(state, mixture({0: AFTER, 30: {"a": 1}}), 2)
    items, state = stopped(data, 15)
    report = mix_report(state)
    assert [(phase.start, phase.weights) for phase in report.phases] == [(0, BEFORE), (20, AFTER), (30, {"a": 1.0})]
    assert [sum(phase.drawn.values()) for phase in report.phases] == [20, 10, 5]
    assert Counter(item[0] for item in items[:10]) == Counter(report.phases[1].drawn)


@pytest.mark.parametrize("buffer_size", [0, 6])
def test_a_source_that_was_added_starts_at_its_beginning(buffer_size: int) -> None:
    """Wherever it stands among the others. It is read once, and so is the rest of the others."""
    for after in ({"a": 1, "c": 1, "b": 1}, {"d": 1, "a": 3, "b": 1}):
        head, state = stopped(Resumable(chain(BEFORE, "all_exhausted", buffer_size), num_streams=2), 15)
        data = resumed(state, chain(after, "all_exhausted", buffer_size), 2)
        assert sorted([*head, *data]) == sorted(item for name in after for item in source(name))
        assert len(list(data)) == sum(SIZES[name] for name in after)


def test_an_exhausted_source_stays_exhausted() -> None:
    """A state tells it from a source that was added."""
    data = Resumable(mixture({"d": 20, "a": 1}, "all_exhausted"))
    head, state = stopped(data, 30)
    assert sum(item[0] == "d" for item in head) == SIZES["d"]
    rest = list(resumed(state, mixture({"d": 1, "b": 1, "a": 1}, "all_exhausted")))
    assert Counter(item[0] for item in [*head, *rest]) == {"d": 10, "a": 40, "b": 25}


def test_a_source_with_the_weight_0_is_left_where_it_was() -> None:
    """And continues there when it is drawn again."""
    head, state = stopped(Resumable(mixture({"a": 1, "b": 1}, "all_exhausted")), 30)
    without = resumed(state, mixture({0: {"a": 1, "b": 0}}, "all_exhausted"))
    middle, state = stopped(without, 10)
    assert {item[0] for item in middle} == {"a"}
    rest = list(resumed(state, mixture({"a": 1, "b": 1}, "all_exhausted")))
    assert sorted([*head, *middle, *rest]) == sorted(item for name in "ab" for item in source(name))


def test_merged_states_of_ranks_take_other_weights() -> None:
    """All ranks draw by the new ones, in another world, too."""
    parts = [Resumable(chain(BEFORE, "all_exhausted", 5, World(rank, 2)), num_streams=4) for rank in range(2)]
    iterators = [iter(part) for part in parts]
    head = [next(iterator) for _ in range(9) for iterator in iterators]
    state = merge_states([part.state_dict() for part in parts])
    rest: list[str] = []
    for rank in range(4):
        rest += resumed(state, chain({**AFTER, "c": 1}, "all_exhausted", 5, World(rank, 4)), 4)
    assert sorted([*head, *rest]) == sorted(item for name in "abc" for item in source(name))


@pytest.mark.parametrize("kind", ["workers", "threads"])
def test_loaders_that_read_ahead_take_other_weights(kind: str) -> None:
    """What they had read ahead when the state was saved is read again, and nothing is lost or repeated."""

    def loader(weights: Any) -> Any:
        pipe = chain(weights, "all_exhausted", 9)
        if kind == "workers":
            return stateful_loader(pipe, batch_size=4, num_workers=2, num_streams=4, collate_fn=list)
        return thread_loader(pipe, batch_size=4, prefetch_batches=3, collate_fn=list)

    data = loader(BEFORE)
    head = list(itertools.islice(data, 6))
    state = data.state_dict()
    runs = []
    for _ in range(2):
        resumed = loader({**AFTER, "c": 2})
        resumed.load_state_dict(state)
        runs.append(list(resumed))
    assert runs[0] == runs[1]
    items = list(itertools.chain.from_iterable([*head, *runs[0]]))
    assert sorted(items) == sorted(item for name in "abc" for item in source(name))


def test_a_mixture_alone_takes_other_weights() -> None:
    """Without a loader: its own state has all that is needed."""
    pipe = mixture(BEFORE, "all_exhausted")
    head, state = stopped(pipe, 20)
    other = mixture(AFTER, "all_exhausted")
    other.load_state_dict(state)
    assert sorted([*head, *other]) == sorted(item for name in BEFORE for item in source(name))


def test_the_state_of_a_mixture_that_was_not_read_is_its_start() -> None:
    """It is loaded as any other."""
    pipe = mixture(BEFORE)
    pipe.load_state_dict(json.loads(json.dumps(mixture(BEFORE).state_dict())))
    assert list(pipe) == list(mixture(BEFORE))


def test_a_source_cannot_be_removed() -> None:
    """A shuffle may read its samples again: the error says how to keep it without drawing it."""
    _, state = stopped(Resumable(mixture(BEFORE)), 5)
    with pytest.raises(StateError, match=r"has the source 'b', which the mixture here does not have.* weight 0"):
        resumed(state, mixture({"a": 1}))
    pipe = mixture(BEFORE)
    _, state = stopped(pipe, 5)
    other = mixture({"a": 1})
    other.load_state_dict(state)
    with pytest.raises(StateError, match="the state has the source 'b', which this mixture does not have"):
        list(other)


def test_other_orders_of_the_sources_are_refused() -> None:
    """The draws would select others."""
    _, state = stopped(Resumable(mixture(BEFORE)), 5)
    with pytest.raises(StateError, match=r"has the sources a, b, here they are b, a"):
        resumed(state, mixture({"b": 1, "a": 3}))


def test_weights_of_a_mixture_within_the_mixture_cannot_change() -> None:
    """Those of the outer one can."""

    def nested(inner: float, outer: float) -> Any:
        pipe = mix({"a": (source("a"), inner), "b": (source("b"), 1)}, stop=50)
        return mix({"inner": (pipe, outer), "c": (source("c"), 1)}, stop=60)

    head, state = stopped(Resumable(nested(1, 1)), 20)
    assert len([*head, *resumed(state, nested(1, 5))]) == 60
    with pytest.raises(StateError, match=r"weights was .*'a': 1.0.*, is .*'a': 2.0"):
        resumed(state, nested(2, 1))


def test_resumes_everywhere_after_restarts() -> None:
    """With small sources that begin again between the samples that a shuffle reads twice."""
    assert_resumes_everywhere(lambda: mixture({"d": 3, "a": 1}, 60).shuffle_samples(buffer_size=9), num_streams=2)
