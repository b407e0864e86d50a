"""Differences between chains, option by option."""

from __future__ import annotations

from typing import Any

import pytest

import torchdata_remote as tdr
from torchdata_remote.errors import StateError
from torchdata_remote.loaders.state.chain_options import differing_options

WORDS = ("was", "is")


def state_of(pipe: Any) -> dict[str, Any]:
    return tdr.Resumable(pipe).state_dict()


def shards(**options: Any) -> Any:
    return tdr.stream_shards("memory://never-read/", **options).to_tuple("__key__")


IN_RECIPE = "(shuffle_buffer_size= of stream_shards)"
BYTES_IN_RECIPE = "(shuffle_buffer_bytes= of stream_shards)"


@pytest.mark.parametrize(
    ("before", "here", "found"),
    [
        (
            {"shuffle_buffer_size": 30},
            {"shuffle_buffer_size": 31},
            [f"ShuffleSamples: buffer_size {IN_RECIPE} was 30, is 31"],
        ),
        (
            {"shuffle_buffer_bytes": 1_000},
            {"shuffle_buffer_bytes": 2_000, "interleave": 4},
            [
                "ShardTarReader: interleave was 16, is 4",
                f"ShuffleSamples: max_buffer_bytes {BYTES_IN_RECIPE} was 1000, is 2000",
            ],
        ),
        ({}, {"seed": 3}, ["ShuffleShards: seed was 0, is 3", "ShuffleSamples: seed was 0, is 3"]),
    ],
)
def test_a_state_of_other_options_names_them_as_the_user_wrote_them(
    before: dict[str, Any], here: dict[str, Any], found: list[str]
) -> None:
    """And nothing else: no list of all pipes."""
    with pytest.raises(StateError) as caught:
        tdr.Resumable(shards(**here)).load_state_dict(state_of(shards(**before)))
    wanted = "; ".join(found)
    advice = "Build the chain as it was, or begin anew."
    assert str(caught.value) == f"The state is of a chain with other options. {wanted}. {advice}"


def test_states_of_other_options_are_not_merged() -> None:
    """The option is named."""
    states = [state_of(shards(seed=0, shuffle="shards")), state_of(shards(seed=1, shuffle="shards"))]
    with pytest.raises(StateError, match=r"ShuffleShards: seed is 0, and in another state 1\. Merge"):
        tdr.merge_states(states)


def test_a_state_of_other_pipes_shows_both_chains() -> None:
    """One pipe more is no difference of options."""
    with pytest.raises(StateError, match=r"The state has the chain \[.*\], here it is \[.*'ShuffleSamples"):
        tdr.Resumable(shards()).load_state_dict(state_of(shards(shuffle=False)))


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (["A(x=1)"], ["A(x=1)"], []),
        (["A(x=1)", "A(x=2)"], ["A(x=1)", "A(x=3)"], ["A (pipe 2 of 2): x was 2, is 3"]),
        (["A()"], ["A(x={'a': 0.5})"], ["A: x was not set, is {'a': 0.5}"]),
        (["A(x='b, c=1')"], ["A()"], ["A: x was 'b, c=1', is not set"]),
        (["A(x=<object>)"], ["A(x=<other>)"], None),
        (["A(x=1)"], ["B(x=1)"], None),
        (["A(x=1)"], ["A(x=1)", "A(x=1)"], None),
        (["damaged"], ["damaged"], None),
        ([], [], []),
    ],
)
def test_options_are_compared_one_by_one(first: list[str], second: list[str], found: list[str] | None) -> None:
    """Only between the same pipes, whose options are literals."""
    assert differing_options(first, second, WORDS) == found
