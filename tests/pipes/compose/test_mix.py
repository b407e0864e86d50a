"""Several chains in one, by weights."""

from __future__ import annotations

import collections
import itertools
import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import Mixed, Resumable, Stop, World, mix
from torchdata_remote.core.rank_group import RankGroup
from torchdata_remote.errors import EmptyShareError, StateError
from torchdata_remote.testing import assert_resumes_everywhere

STOPS = [Stop.FIRST_EXHAUSTED, Stop.ALL_EXHAUSTED, 70]
SIZES = {"a": 30, "b": 12, "c": 20}
WEIGHTS = {"a": 3.0, "b": 1.0, "c": 0.5}


def source(name: str, num_items: int, world: World | None = None, seed: int = 0) -> Any:
    items = IterableWrapper([f"{name}{number:03d}" for number in range(num_items)])
    return items.shuffle_shards(seed).sharding_filter_rank(world=world)


def mixture(stop: Any, world: World | None = None, seed: int = 0, **sizes: int) -> Mixed[Any]:
    sizes = sizes or SIZES
    return mix({name: (source(name, size, world), WEIGHTS[name]) for name, size in sizes.items()}, seed=seed, stop=stop)


def names(items: list[str]) -> str:
    return "".join(item[0] for item in items)


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, {"a": 3, "b": 1}, {"a": 0.02, "b": 0.01, "c": 0.07}])
def test_weights_hold_over_long_runs(weights: dict[str, float]) -> None:
    """Each source gives its part of the items, whatever its size: within six standard deviations."""
    num_items = 30_000
    pipe = mix({name: (source(name, 50), weight) for name, weight in weights.items()}, stop=num_items)
    counts = collections.Counter(item[0] for item in pipe)
    assert counts.total() == num_items
    for name, weight in weights.items():
        part = weight / sum(weights.values())
        assert abs(counts[name] - num_items * part) < 6 * (num_items * part * (1 - part)) ** 0.5


@given(factor=st.floats(0.01, 1000))
def test_weights_are_relative(factor: float) -> None:
    """Weights of the same proportions draw alike, but for one that falls on a bound."""
    one = mix({name: (source(name, 20), 1) for name in "ab"}, stop=50)
    other = mix({name: (source(name, 20), factor) for name in "ab"}, stop=50)
    assert list(one) == list(other)


def test_draws_are_independent() -> None:
    """Whether the last item came from a source says nothing about the next one."""
    drawn = names(list(mix({name: (source(name, 50), 1) for name in "ab"}, seed=3, stop=20_000)))
    pairs = collections.Counter(itertools.pairwise(drawn))
    assert len(pairs) == 4
    assert all(abs(count - 5_000) < 6 * 5_000**0.5 for count in pairs.values())


def test_first_exhausted() -> None:
    """The mixture ends when a source is drawn that has nothing left: until then nothing comes twice."""
    items = list(mixture(Stop.FIRST_EXHAUSTED))
    assert len(set(items)) == len(items)
    counts = collections.Counter(names(items))
    assert any(counts[name] == size for name, size in SIZES.items())
    alone = mix({"a": (source("a", 9), 1)})
    assert sorted(alone) == sorted(source("a", 9))


@settings(max_examples=30)
@given(sizes=st.fixed_dictionaries({name: st.integers(0, 12) for name in "abc"}), seed=st.integers())
def test_all_exhausted(sizes: dict[str, int], seed: int) -> None:
    """Every item of every source comes exactly once; a source without any takes no part."""
    items = list(mixture("all_exhausted", None, seed, **sizes))
    assert sorted(items) == [f"{name}{number:03d}" for name, size in sorted(sizes.items()) for number in range(size)]


@settings(max_examples=30)
@given(num_items=st.integers(7, 200), num_slots=st.integers(1, 7))
def test_a_number_is_exact_over_the_world(num_items: int, num_slots: int) -> None:
    """All slots together hand out just so many items, within one as many each, and ``len`` tells how many."""
    lengths = []
    for slot in range(num_slots):
        pipe = mixture(num_items, World(slot, num_slots), a=10, b=7)
        lengths.append(len(pipe))
        assert len(list(pipe)) == lengths[-1]
    assert sum(lengths) == num_items
    assert max(lengths) - min(lengths) <= 1


def test_a_number_that_leaves_some_none() -> None:
    """Fewer items than slots is an error that names both."""
    with pytest.raises(EmptyShareError, match=r"stops at 2 samples, .* some of 3 readers would have none"):
        list(mixture(2, World(0, 3), a=10, b=7))
    for rank in (1, 2):
        with pytest.raises(EmptyShareError):  # in each of them: otherwise the others would wait
            list(mixture(2, World(rank, 3), a=10, b=7))


@pytest.mark.parametrize("num_streams", [1, 3])
def test_streams_share_the_number(num_streams: int) -> None:
    """``Resumable`` hands out exactly the number, in all streams together."""
    assert len(list(Resumable(mixture(100), num_streams=num_streams))) == 100
    assert len(Resumable(mixture(100), num_streams=num_streams)) == 100


def test_begins_anew_in_another_order() -> None:
    """A source that comes again within an epoch has another order each time, and each time all of its items."""
    items = list(mix({"a": (source("a", 10), 1)}, stop=50))
    passes = [items[start : start + 10] for start in range(0, 50, 10)]
    assert all(sorted(one) == sorted(passes[0]) for one in passes)
    assert len(set(map(tuple, passes))) == 5


def test_the_order_anew_is_none_of_other_epochs() -> None:
    """A second pass within an epoch is not the first one of the next epoch."""
    pipe = mix({"a": (source("a", 10), 1)}, stop=20)
    epochs = [list(pipe) for _ in range(3)]
    passes = [tuple(epoch[start : start + 10]) for epoch in epochs for start in (0, 10)]
    assert len(set(passes)) == 6


def test_draws_differ() -> None:
    """Seeds, epochs and slots each have draws of their own; the same ones have the same."""
    drawn = set()
    for seed in (0, 1, -1):
        for slot in range(3):
            pipe = mixture(180, World(slot, 3), seed=seed, a=20, b=20)
            drawn |= {names(list(pipe)) for _ in range(3)}
            pipe.set_epoch(2)
            assert names(list(pipe)) in drawn
    assert len(drawn) == 27


def test_order_stays_the_same_in_later_versions() -> None:
    """An order that a run was recorded with can be had again."""
    pipe = mix({name: (IterableWrapper([name] * 20), 1) for name in "ab"}, seed=3, stop=16)
    assert [names(list(pipe)) for _ in range(2)] == ["aaaabababbbbbaba", "bbbbabaaabbaaaab"]


@pytest.mark.parametrize("num_streams", [1, 3])
@pytest.mark.parametrize("stop", STOPS)
def test_resumes_everywhere(stop: Stop | int, num_streams: int) -> None:
    """After each item, in each pass of each source, another copy goes on with the same."""
    assert_resumes_everywhere(lambda: mixture(stop, seed=2), num_streams=num_streams)


@pytest.mark.parametrize("stop", STOPS)
def test_resumes_behind_other_pipes(stop: Stop | int) -> None:
    """Also with blocks in the sources, batches and shuffling after the mixture, and a mixture inside another one."""

    def chain() -> Any:
        inner = mix({"a": (source("a", 9).shuffle_samples(buffer_size=4), 1), "b": (source("b", 6), 2)}, stop=stop)
        outer = mix({"inner": (inner, 1), "c": (source("c", 30), 1)}, seed=1, stop=stop)
        return outer.shuffle_samples(buffer_size=3).batch(2)

    assert_resumes_everywhere(chain, num_streams=2)


def test_an_empty_source() -> None:
    """A source without items ends a mixture at once, or takes no part; where it must come again it is an error."""
    pipes = {"full": (source("a", 5), 1.0), "empty": (source("b", 0), 99.0)}
    assert len(list(mix(pipes, seed=1, stop="first_exhausted"))) < 5
    assert sorted(mix(pipes, seed=1, stop="all_exhausted")) == sorted(source("a", 5))
    with pytest.raises(ValueError, match="'empty' is empty, so it cannot be restarted"):
        list(mix(pipes, seed=1, stop=5))


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan")])
def test_weights_that_are_none(weight: float) -> None:
    """A weight that is not positive is an error with its source and its value."""
    with pytest.raises(ValueError, match=f"the weight of 'b' must be (positive|finite), got {weight}"):
        mix({"a": (source("a", 1), 1), "b": (source("b", 1), weight)})


def test_errors() -> None:
    """No source, an impossible stop and an impossible seed are refused when the mixture is built."""
    sources: dict[str, tuple[IterDataPipe[Any], float]] = {"a": (source("a", 3), 1)}
    with pytest.raises(ValueError, match="got nothing"):
        mix({})
    with pytest.raises(ValueError, match="stop must be an int of at least 1, got 0"):
        mix(sources, stop=0)
    with pytest.raises(ValueError, match="got 'never'"):
        mix(sources, stop="never")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="seed must be an int"):
        mix(sources, seed="0")  # type: ignore[call-overload]


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_length_is_known_by_number_only(stop: str) -> None:
    """Where sources end the mixture, nobody can tell its length before."""
    with pytest.raises(TypeError, match="only if it stops at a number"):
        len(mixture(stop))
    assert len(mixture(17)) == 17


def test_a_source_that_cannot_be_resumed() -> None:
    """A pipe in a source is refused by name as one in the chain is."""
    with pytest.raises(StateError, match="Shuffler cannot be resumed"):
        Resumable(mix({"a": (source("a", 3).shuffle(), 1)}))


def test_another_seed_or_stop_is_another_chain() -> None:
    """A state is refused where they are others, with both values."""
    state = Resumable(mixture(70)).state_dict()
    for other in (mixture(71), mixture(70, seed=1), mixture("all_exhausted")):
        with pytest.raises(StateError, match=r"options\. Mixed: \w+ was .*, is |Mixed.*here it is .*Mixed"):
            Resumable(other).load_state_dict(state)


def test_state_is_small_json() -> None:
    """Names, counts and the sources' own states."""
    data = Resumable(mixture(70))
    items = iter(data)
    for _ in range(40):
        next(items)
    [[_, stream]] = json.loads(json.dumps(data.state_dict()))["streams"]
    assert stream["passed"] == stream["at"]["passed"] == 40
    assert stream["replay"]["draws"] == stream["at"]["draws"]
    assert [name for name, _, _ in stream["at"]["sources"]] == list(SIZES)
    assert len(json.dumps(stream)) < 500


def test_global_random_state_is_left_alone() -> None:
    """Neither read nor changed."""

    def states() -> list[str]:
        return [repr(random.getstate()), repr(np.random.get_state()), repr(torch.get_rng_state().tolist())]

    before = states()
    first = list(mixture(70))
    assert states() == before
    random.seed(5)
    assert list(mixture(70)) == first


def test_pickled_copy_goes_on() -> None:
    """A copy in another process has the same epochs, also one that is sent in the middle of a pass."""
    pipe = mixture(70)
    list(pipe)
    started = iter(pipe)
    next(started)
    copy = pickle.loads(pickle.dumps(pipe))
    assert list(copy) == list(pipe)


def test_sources_of_different_groups_of_ranks_are_refused() -> None:
    """Ranks that are to read the same data would have different shares of some sources."""
    world = World(1, 2, group=RankGroup(((0, 2),)))
    with pytest.raises(ValueError, match=r"'a': world=World\(rank=1.*'b': world=None.*Pass the same world="):
        mix({"a": (source("a", 4, world), 1), "b": (IterableWrapper(["b"]).sharding_filter_rank(), 1)})
    assert len(mix({"a": (source("a", 4, world), 1), "b": (source("b", 4, world), 1)}, stop=4)) == 2
