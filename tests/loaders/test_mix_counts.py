"""What a mixture has drawn from each source."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import MixPhase, MixReport, Resumable, World, merge_states, mix, mix_report, stateful_loader
from torchdata_remote.errors import StateError

SCHEDULE = {0: {"a": 1}, 10: {"a": 1, "b": 2}, 30: {"b": 1}}


def source(name: str, world: World | None = None) -> Any:
    return IterableWrapper([f"{name}{number}" for number in range(8)]).sharding_filter_rank(world=world)


def mixture(stop: Any = 48, world: World | None = None, schedule: Any = SCHEDULE) -> Any:
    return mix({name: source(name, world) for name in "ab"}, schedule=schedule, stop=stop)


@settings(max_examples=40, deadline=None)
@given(
    stop=st.sampled_from(["first_exhausted", "all_exhausted", 48]),
    num_items=st.integers(1, 15),
    num_streams=st.integers(1, 4),
)
def test_what_was_drawn_is_counted(stop: Any, num_items: int, num_streams: int) -> None:
    """By each source, as what was handed out; also after a resume, and after another."""
    data = Resumable(mixture(stop), num_streams=num_streams)
    handed_out: Counter[str] = Counter()
    for _ in range(3):
        items = list(islice(data, num_items))
        state = json.loads(json.dumps(data.state_dict()))
        if any(position == "ended" for _, position in state["streams"]):
            return  # their counts are not in the state
        handed_out.update(item[0] for item in items)
        report = mix_report(state)
        assert Counter(report.drawn) == handed_out
        data = Resumable(mixture(stop), num_streams=num_streams)
        data.load_state_dict(state)


@pytest.mark.parametrize("num_streams", [1, 4])
def test_phases_have_their_weights_and_exact_counts(num_streams: int) -> None:
    """Over all streams together."""
    data = Resumable(mixture(), num_streams=num_streams)
    items = list(islice(data, 40))
    report = mix_report(data.state_dict())
    assert [(phase.start, phase.weights) for phase in report.phases] == [
        (0, {"a": 1.0}),
        (10, {"a": 1.0, "b": 2.0}),
        (30, {"b": 1.0}),
    ]
    assert [sum(phase.drawn.values()) for phase in report.phases] == [10, 20, 10]
    assert report.phases[0].drawn == {"a": 10, "b": 0}
    if num_streams == 1:
        assert report.phases[1].drawn == Counter(item[0] for item in items[10:30])


def test_phases_count_over_epochs() -> None:
    """The report is of the epoch; its phases start where the schedule says."""
    pipe = mixture(stop=20)
    pipe.set_epoch(1)
    assert len(list(pipe)) == 20
    report = mix_report(pipe.state_dict())
    assert [phase.start for phase in report.phases] == [20, 30]
    assert report.phases[1].drawn == {"a": 0, "b": 10}


def test_restarts_are_those_of_the_stream_with_most() -> None:
    """A source of eight of which 20 were drawn was begun three times."""
    pipe = mixture(stop=20, schedule={0: {"a": 1}})
    assert len(list(pipe)) == 20
    assert mix_report(pipe.state_dict()).restarts == {"a": 2, "b": 0}


def test_states_of_ranks_are_counted_together() -> None:
    """As a list, or merged; in each form in which loaders save them."""
    loaders = [stateful_loader(mixture(48, World(rank, 2)), batch_size=None, num_streams=2) for rank in range(2)]
    states = []
    for loader in loaders:
        assert len(list(islice(loader, 12))) == 12
        states.append(loader.state_dict())
    merged = merge_states(states)
    report = mix_report(states)
    assert sum(report.drawn.values()) == 24
    assert mix_report(merged) == mix_report({"all_ranks": json.dumps(merged)}) == report
    assert sum(mix_report(states[1]).drawn.values()) == 12


def test_a_shuffle_behind_the_mixture_counts_what_it_holds() -> None:
    """The samples were drawn, though not all of them were handed out."""
    data = Resumable(mixture().shuffle_samples(buffer_size=9))
    list(islice(data, 5))
    drawn = sum(mix_report(data.state_dict()).drawn.values())
    assert 5 < drawn <= 5 + 9


def test_only_the_outer_mixture_is_reported() -> None:
    outer = mix({"inner": (mixture(schedule={0: {"a": 1, "b": 1}}), 1), "c": (source("c"), 1)}, stop=20)
    list(outer)
    assert set(mix_report(outer.state_dict()).drawn) == {"inner", "c"}


def test_a_source_that_was_added_is_in_the_phases_after_it() -> None:
    """The phases before it do not name it."""
    data = Resumable(mix({"a": (source("a"), 1)}, stop=20))
    list(islice(data, 5))
    other = Resumable(mix({"a": (source("a"), 1), "b": (source("b"), 1)}, stop=20))
    other.load_state_dict(data.state_dict())
    rest = list(islice(other, 10))
    report = mix_report(other.state_dict())
    drawn = Counter(item[0] for item in rest)
    assert report == MixReport(
        (MixPhase(0, {"a": 1.0}, {"a": 5}), MixPhase(5, {"a": 1.0, "b": 1.0}, dict(sorted(drawn.items())))),
        {"a": report.restarts["a"], "b": 0},
    )


def test_states_without_counts() -> None:
    """Of the first version, of streams that have not begun; a chain without a mixture is an error."""
    assert mix_report({"draws": 5, "passed": 5, "sources": [["a", 1, {"passed": 2}]]}) == MixReport((), {"a": 1})
    assert mix_report(Resumable(mixture()).state_dict()) == MixReport((), {})
    with pytest.raises(StateError, match=r"expected the state_dict\(\) of a chain with mix\(\)"):
        mix_report(Resumable(source("a")).state_dict())
