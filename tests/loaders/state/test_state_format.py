"""The state of a pass over streams: its checks, and merging."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote import World, merge_states
from torchdata_remote.errors import StateError
from torchdata_remote.loaders.state.state_format import (
    ENDED,
    begin_next_epoch,
    check_same,
    check_state,
    make_state,
    state_of_rank,
)
from torchdata_remote.testing import all_worlds

CHAIN = ["IterableWrapper()", "ShardingFilterRank()"]
LISTING: list[dict[str, Any]] = [{"num_urls": 3, "order": "aa", "fields": {}}]


def position(passed: int) -> dict[str, Any]:
    return {"passed": passed, "at": {"next": passed}}


def state(streams: dict[int, Any], **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"chain": CHAIN, "listing": LISTING, "epoch": 0, "num_streams": 6, **more}
    return make_state(streams=streams, **fields)


def test_a_state_is_json_with_streams_in_order() -> None:
    """JSON does not change it."""
    made = state({3: position(1), 0: None, 1: ENDED})
    assert json.loads(json.dumps(made)) == made
    assert made == {
        "version": 2,
        "chain": CHAIN,
        "listing": LISTING,
        "epoch": 0,
        "num_streams": 6,
        "streams": [[0, None], [1, ENDED], [3, position(1)]],
    }
    check_state(made)


@pytest.mark.parametrize("version", [0, 1, "2", None])
def test_a_state_of_another_version_is_refused(version: Any) -> None:
    """The error names both versions, and what to install."""
    message = rf"has version {version!r}, this package reads version 2\. Install the release"
    for refuse in (check_state, lambda other: merge_states([other])):
        with pytest.raises(StateError, match=message):
            refuse({**state({0: None}), "version": version})
    with pytest.raises(StateError, match=message):
        check_state({"version": version})


@pytest.mark.parametrize("missing", ["version", "chain", "listing", "epoch", "num_streams", "streams"])
def test_a_state_without_a_field_is_refused(missing: str) -> None:
    """The error names the fields and shows the value."""
    other = {name: value for name, value in state({0: None}).items() if name != missing}
    with pytest.raises(StateError, match=rf"Expected a state with .*{missing}.*; got dict: \{{"):
        check_state(other)


@pytest.mark.parametrize("other", [None, [], "state", 7, {"_snapshot": {}, "_steps_since_snapshot": 3}])
def test_a_value_that_is_no_state_is_refused(other: Any) -> None:
    """Such as a state of ``StatefulDataLoader``; the error names its type."""
    with pytest.raises(StateError, match=f"Expected a state .* got {type(other).__name__}"):
        check_state(other)


def test_an_error_shows_a_part_of_the_refused_value() -> None:
    with pytest.raises(StateError) as caught:
        check_state(["x" * 10**6])
    assert len(str(caught.value)) < 500


def test_an_error_names_both_values() -> None:
    """And what to do."""
    with pytest.raises(StateError, match=r"The state has the seed 1, here it is 2\. Begin anew\."):
        check_same("seed", 1, 2, "Begin anew.")
    check_same("seed", 1, 1, "Begin anew.")


@given(
    streams=st.dictionaries(st.integers(0, 30), st.sampled_from([None, ENDED, position(1), position(7)]), min_size=1),
    cuts=st.lists(st.integers(0, 2), min_size=31, max_size=31),
    order=st.permutations(range(3)),
)
def test_states_of_any_parts_are_merged_to_the_whole(
    streams: dict[int, Any], cuts: list[int], order: list[int]
) -> None:
    """However the streams are distributed over states, in any order of these."""
    whole = state(streams, num_streams=31)
    parts = [state({v: at for v, at in streams.items() if cuts[v] == part}, num_streams=31) for part in range(3)]
    assert merge_states(parts[number] for number in order) == whole
    assert merge_states([merge_states(parts[:2]), parts[2]]) == whole


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("chain", {"chain": ["IterableWrapper()", "ShuffleShards(seed=1)"]}),
        ("number of streams", {"num_streams": 7}),
    ],
)
def test_states_of_different_trainings_are_refused(what: str, other: dict[str, Any]) -> None:
    """The error names both values."""
    with pytest.raises(StateError, match=f"The state has the {what} .* here it is .* one training only") as caught:
        merge_states([state({0: None}), state({1: None}, **other)])
    [(name, value)] = other.items()
    for shown in (value, state({})[name]):
        assert str(shown) in str(caught.value)


@pytest.mark.parametrize(
    ("listing", "how"),
    [
        ([{**LISTING[0], "num_urls": 4}], "3 objects and 4"),
        ([{**LISTING[0], "order": "bb"}], "the same objects in another order"),
        ([], "1 listings, here are 0"),
    ],
)
def test_states_of_different_listings_are_refused(listing: Any, how: str) -> None:
    """The error names the difference."""
    with pytest.raises(StateError, match=f"{how}.* one training only"):
        merge_states([state({0: None}), state({1: None}, listing=listing)])


def test_a_state_without_listing_is_merged() -> None:
    """A slot that has not started has no listing; that of the others is used."""
    for parts in ([None, LISTING], [LISTING, None]):
        merged = merge_states(state({number: None}, listing=listing) for number, listing in enumerate(parts))
        assert merged["listing"] == LISTING
    assert merge_states([state({0: None}, listing=None)])["listing"] is None


def test_a_stream_in_two_states_is_refused() -> None:
    """As of a state that is passed twice, or of two steps."""
    with pytest.raises(StateError, match="Stream 1 is in two of the states"):
        merge_states([state({0: position(1), 1: position(2)}), state({1: position(3)})])


def test_merging_no_states_is_an_error() -> None:
    with pytest.raises(StateError, match="no state to merge"):
        merge_states([])


def test_a_rank_at_the_start_of_the_next_epoch_is_merged_as_ended() -> None:
    """If others are still in the epoch before."""
    behind, ahead = state({0: position(5), 2: ENDED}), state({1: None, 3: None}, epoch=1)
    for parts in ([behind, ahead], [ahead, behind]):
        merged = merge_states(parts)
        assert merged["epoch"] == 0
        assert dict(merged["streams"]) == {0: position(5), 1: ENDED, 2: ENDED, 3: ENDED}


@pytest.mark.parametrize(
    "ahead", [state({1: position(1)}, epoch=1), state({1: ENDED}, epoch=1), state({1: None}, epoch=2)]
)
def test_states_of_epochs_that_cannot_coincide_are_refused(ahead: dict[str, Any]) -> None:
    """The error names both epochs."""
    with pytest.raises(StateError, match=rf"in epoch 0, .* begun epoch {ahead['epoch']}.*equalize_ranks"):
        merge_states([ahead, state({0: position(1)})])


def test_the_state_of_the_next_epoch_has_no_positions() -> None:
    """And no listing, unless all epochs read the same one."""
    ended = state({0: ENDED, 1: position(7)}, epoch=4)
    assert begin_next_epoch(ended, keep_listing=True) == state({0: None, 1: None}, epoch=5)
    assert begin_next_epoch(ended) == {**state({0: None, 1: None}, epoch=5), "listing": None}


def test_the_next_workers_of_ranks_are_merged() -> None:
    """In the order of the ranks; states without it add none."""
    ranks = [{**state({rank: None}), "turns": [[rank, 2, 3, rank + 1]]} for rank in range(2)]
    assert merge_states(reversed(ranks))["turns"] == [[0, 2, 3, 1], [1, 2, 3, 2]]
    assert merge_states([ranks[0], state({1: None})])["turns"] == [[0, 2, 3, 1]]
    assert "turns" not in merge_states([state({1: None})])


NO_LISTS: list[object] = [None, -1, "x", [None], {"a": {}}]
NO_NUMBERS: list[object] = [None, -1, "x", [], True]
NO_LISTINGS: list[object] = [5, "x", [None], {"a": {}}]
DAMAGED: list[tuple[str, object]] = [
    *((name, value) for name in ("chain", "streams", "turns") for value in NO_LISTS),
    *((name, value) for name in ("epoch", "num_streams") for value in NO_NUMBERS),
    *(("listing", value) for value in NO_LISTINGS),
    ("streams", [[0]]),
    ("turns", [[1]]),
]


@pytest.mark.parametrize(("name", "value"), DAMAGED)
def test_a_damaged_state_is_refused_when_it_is_loaded(name: str, value: object) -> None:
    """The error names the field and shows its value."""
    damaged = {**state({0: None}), name: value}
    for refuse in (check_state, lambda other: merge_states([other])):
        with pytest.raises(StateError, match=f"damaged: its {name} is "):
            refuse(damaged)


@given(ranks=st.integers(1, 5), workers=st.integers(1, 4), more=st.integers(0, 9))
def test_ranks_have_the_streams_of_their_slots(ranks: int, workers: int, more: int) -> None:
    """For any number of workers, so that a state can be sent before it is known."""
    num_streams = ranks * workers + more
    state = make_state([], None, 0, num_streams, dict.fromkeys(range(num_streams)))
    for world in all_worlds(ranks, workers):
        of_rank = {number for number, _ in state_of_rank(state, world)["streams"]}
        assert of_rank >= set(range(world.slot, num_streams, world.num_slots))
    parts = [state_of_rank(state, World(rank, ranks))["streams"] for rank in range(ranks)]
    assert sorted(row for part in parts for row in part) == state["streams"]
