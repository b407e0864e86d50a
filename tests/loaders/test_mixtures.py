"""Mixtures under loaders: what was drawn is counted, and a state goes on with other weights or further sources."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.loaders import edited, through_json
from torchdata_remote.errors import StateError
from torchdata_remote.testing import write_small_shards

SCHEDULE = {0: {"a": 1}, 10: {"a": 1, "b": 2}, 30: {"b": 1}}


def source(name: str, world: tdr.World | None = None) -> Any:
    return tdr.IterableWrapper([f"{name}{number}" for number in range(8)]).sharding_filter_rank(world=world)


def mixture(stop: Any = 48, world: tdr.World | None = None, schedule: Any = SCHEDULE) -> Any:
    return tdr.mix({name: source(name, world) for name in "ab"}, schedule=schedule, stop=stop)


@given(
    stop=st.sampled_from(["first_exhausted", "all_exhausted", 48]),
    num_items=st.integers(1, 15),
    num_streams=st.integers(1, 4),
)
def test_what_was_drawn_of_each_source_is_counted(stop: Any, num_items: int, num_streams: int) -> None:
    """As what was handed out; also after a resume, and after another."""
    data = tdr.Resumable(mixture(stop), num_streams=num_streams)
    handed_out: Counter[str] = Counter()
    for _ in range(3):
        items = list(islice(data, num_items))
        state = through_json(data.state_dict())
        if any(position == "ended" for _, position in state["streams"]):
            return  # their counts are not in the state
        handed_out.update(item[0] for item in items)
        assert Counter(tdr.mix_report(state).drawn) == handed_out
        data = tdr.Resumable(mixture(stop), num_streams=num_streams)
        data.load_state_dict(state)


@pytest.mark.parametrize("num_streams", [1, 4])
def test_phases_have_their_weights_and_exact_counts(num_streams: int) -> None:
    """Over all streams together."""
    data = tdr.Resumable(mixture(), num_streams=num_streams)
    items = list(islice(data, 40))
    report = tdr.mix_report(data.state_dict())
    assert [(phase.start, phase.weights) for phase in report.phases] == [
        (0, {"a": 1.0}),
        (10, {"a": 1.0, "b": 2.0}),
        (30, {"b": 1.0}),
    ]
    assert [sum(phase.drawn.values()) for phase in report.phases] == [10, 20, 10]
    assert report.phases[0].drawn == {"a": 10, "b": 0}
    if num_streams == 1:
        assert report.phases[1].drawn == Counter(item[0] for item in items[10:30])


def test_the_phases_of_an_epoch_start_where_the_schedule_says_and_restarts_are_counted() -> None:
    """Of the stream that has begun a source most often: eight items of which 20 were drawn were begun three times."""
    data = tdr.Resumable(mixture(stop=20))
    assert len(list(data)) == len(list(islice(data, 19))) + 1 == 20
    report = tdr.mix_report(data.state_dict())
    assert [phase.start for phase in report.phases] == [20, 30]
    assert report.phases[1].drawn == {"a": 0, "b": 9}
    data = tdr.Resumable(mixture(stop=20, schedule={0: {"a": 1}}))
    assert len(list(islice(data, 19))) == 19
    assert tdr.mix_report(data.state_dict()).restarts == {"a": 2, "b": 0}
    data = tdr.Resumable(mixture(stop=21, schedule={0: {"a": 1}}), num_streams=2)
    list(islice(data, 10))
    assert tdr.mix_report(data.state_dict()).restarts == {"a": 1, "b": 0}


def test_states_of_ranks_are_counted_together_in_each_form_in_which_loaders_save_them() -> None:
    loaders = [
        tdr.stateful_loader(mixture(48, tdr.World(rank, 2)), batch_size=None, num_streams=2) for rank in range(2)
    ]
    states = []
    for loader in loaders:
        assert len(list(islice(loader, 12))) == 12
        states.append(loader.state_dict())
    merged = tdr.merge_states(states)
    report = tdr.mix_report(states)
    assert sum(report.drawn.values()) == 24
    assert tdr.mix_report(merged) == tdr.mix_report({"all_ranks": json.dumps(merged)}) == report
    assert sum(tdr.mix_report(states[1]).drawn.values()) == 12


def test_a_source_that_was_added_is_in_the_phases_after_it() -> None:
    data = tdr.Resumable(tdr.mix({"a": (source("a"), 1)}, stop=20))
    list(islice(data, 5))
    other = tdr.Resumable(tdr.mix({"a": (source("a"), 1), "b": (source("b"), 1)}, stop=20))
    other.load_state_dict(data.state_dict())
    rest = list(islice(other, 10))
    report = tdr.mix_report(other.state_dict())
    drawn = dict(sorted(Counter(item[0] for item in rest).items()))
    phases = tdr.loaders.MixPhase(0, {"a": 1.0}, {"a": 5}), tdr.loaders.MixPhase(5, {"a": 1.0, "b": 1.0}, drawn)
    assert report == tdr.loaders.MixReport(phases, {"a": report.restarts["a"], "b": 0})


def test_a_state_that_has_not_begun_has_no_counts_and_one_without_a_mixture_is_an_error() -> None:
    assert tdr.mix_report(tdr.Resumable(mixture()).state_dict()) == tdr.loaders.MixReport((), {})
    with pytest.raises(StateError, match=r"expected the state_dict\(\) of a chain with mix\(\)"):
        tdr.mix_report(tdr.Resumable(source("a")).state_dict())


# Other weights and further sources


def stream(folder: str) -> Any:
    write_small_shards(f"memory://mixture-states-{folder}/", num_shards=3, samples_per_shard=4)
    return tdr.stream_shards(f"memory://mixture-states-{folder}/*.tar", seed=0)


def name_of(sample: dict[str, Any]) -> str:
    return f"{sample['__url__']} {sample['__key__']}"


def loader(weights: dict[str, float], change: Callable[[Any], Any] = lambda pipe: pipe) -> Any:
    sources = {name: (change(stream(name)), weight) for name, weight in weights.items()}
    pipe: Any = tdr.mix(sources, stop="all_exhausted")
    return tdr.stateful_loader(pipe.map(name_of), batch_size=None, num_streams=2)


def stopped(data: Any, num_items: int) -> tuple[list[str], Any]:
    head = list(islice(data, num_items))
    return head, through_json(data.state_dict())


def test_a_source_with_a_listing_of_its_own_can_be_added() -> None:
    """Each sample is read once; the state after it has the listings of all."""
    head, state = stopped(loader({"one": 1, "three": 2}), 7)
    resumed = loader({"one": 1, "two": 5, "three": 1})
    resumed.load_state_dict(state)
    before = through_json(resumed.state_dict())
    middle, state = stopped(resumed, 5)
    again = loader({"one": 1, "two": 5, "three": 1})
    again.load_state_dict(state)
    items = [*head, *middle, *again]
    assert len(items) == len(set(items)) == 36
    unread = loader({"one": 1, "two": 5, "three": 1})
    unread.load_state_dict(before)
    assert sorted([*head, *unread]) == sorted(items)


def test_the_listings_of_the_other_sources_are_compared() -> None:
    _, state = stopped(loader({"one": 1, "three": 2}), 7)
    state = edited(state, listing=state["listing"][:1] * 2)
    resumed = loader({"one": 1, "two": 5, "three": 1})
    resumed.load_state_dict(state)
    with pytest.raises(StateError, match=r"listing of the state is another one than here: .*three"):
        list(resumed)


def test_a_mixture_that_is_changed_otherwise_is_refused() -> None:
    """Another chain of a source, a source that is gone, or another order of them."""
    _, state = stopped(loader({"one": 1, "two": 1}), 3)
    refused: list[tuple[Any, str]] = [
        (loader({"one": 1, "two": 1, "three": 1}, lambda pipe: pipe.map(dict)), "The state has the chain"),
        (loader({"one": 1}), r"has the source 'two', which the mixture here does not have\. .*weight 0"),
        (loader({"two": 1, "one": 1}), r"has the sources one, two, here they are two, one\. .*in their order before"),
    ]
    for resumed, message in refused:
        with pytest.raises(StateError, match=message):
            resumed.load_state_dict(state)


def test_a_source_without_a_listing_of_its_own_cannot_be_added_within_an_epoch() -> None:
    """Those that share one, or have several: a state does not say whose listing it is."""

    def shared(names: tuple[str, ...]) -> Any:
        urls = tdr.IterableWrapper(["memory://mixture-states-one/*.tar"]).list_remote()
        sources = {name: (urls.sharding_filter_rank().shard_tar_reader(), 1.0) for name in names}
        return tdr.Resumable(tdr.mix(sources))

    def nested(names: tuple[str, ...]) -> Any:
        folders = {"a": ["one", "two"], "b": ["three"]}
        inner = {name: (tdr.mix({folder: (stream(folder), 1.0) for folder in folders[name]}), 1.0) for name in names}
        return tdr.Resumable(tdr.mix(inner))

    stream("one")
    _, state = stopped(shared(("a", "b")), 3)
    with pytest.raises(StateError, match="whose sources share pipes"):
        shared(("a", "b", "c")).load_state_dict(state)
    _, state = stopped(nested(("a",)), 3)
    with pytest.raises(StateError, match="the state has 2 listings of its 1 sources"):
        nested(("a", "b")).load_state_dict(state)
