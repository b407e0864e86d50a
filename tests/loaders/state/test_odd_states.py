"""States that were cut or changed, and other objects; loaders that share a ``Resumable``."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

import pytest

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterableWrapper
from torchdata_remote.errors import StateError


def _pipe(name: str) -> Any:
    with tdr.ShardWriter(f"memory://{name}/{{shard}}.tar", max_shard_samples=3, overwrite=True) as writer:
        for number in range(24):
            writer.write({"__key__": f"{number}", "cls": number})
    urls = IterableWrapper([f"memory://{name}/index.json"]).list_remote().shuffle_shards(seed=0)
    return urls.sharding_filter_rank().shard_tar_reader().shuffle_samples(buffer_size=3, seed=0).to_tuple("__key__")


def _loader(name: str = "odd", **options: Any) -> Any:
    return tdr.stateful_loader(_pipe(name), batch_size=2, num_streams=4, **options)


def _state(**options: Any) -> Any:
    loader = _loader(**options)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    return loader.state_dict()


def _at(value: Any) -> Callable[[Any], Any]:
    return lambda state: {**state, "streams": [[0, value], *state["streams"][1:]]}


ODD: dict[str, Callable[[Any], Any]] = {
    "a position is text": _at("foo"),
    "a position is a number": _at(7),
    "a position without at": _at({"passed": 1}),
    "a position without passed": _at({"at": {}}),
    "a position below 0": _at({"passed": -1, "at": None}),
    "passed is text": lambda state: _at({**state["streams"][0][1], "passed": "3"})(state),
    "a stream twice": lambda state: {**state, "streams": [*state["streams"], [0, None]]},
    "a stream too many": lambda state: {**state, "streams": [*state["streams"], [99, None]]},
    "JSON that was cut": lambda state: {"all_ranks": json.dumps(state)[:100]},
    "no JSON": lambda state: {"all_ranks": None},
    "bytes": lambda state: json.dumps(state).encode(),
    "None": lambda _: None,
    "a list of None": lambda _: [None],
    "a number": lambda _: 3,
}


@pytest.mark.parametrize("name", ODD)
def test_other_objects_are_refused_as_states(name: str) -> None:
    """By a ``StateError``, before anything is read."""
    with pytest.raises(StateError):
        _loader().load_state_dict(ODD[name](_state()))


@pytest.mark.parametrize("at", [{}, "foo", 3, {"phase": "x"}, {"phase": 0, "passed": -1, "began": None}])
@pytest.mark.parametrize("num_streams", [1, 4])
def test_an_invalid_position_is_refused_before_its_stream_is_read(at: Any, num_streams: int) -> None:
    """The error names the stream and shows the position."""
    loader = tdr.stateful_loader(_pipe("odd"), batch_size=2, num_streams=num_streams)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(_at({"passed": 2, "at": at})(state))
    with pytest.raises(StateError, match=r"Stream 0: .* cannot begin at .*'passed': 2.*damaged"):
        list(loader)


def _fails(sample: Any) -> Any:
    raise KeyError(sample)


def test_an_error_of_a_users_function_is_not_changed_in_a_resumed_pass() -> None:
    """It is unrelated to the state."""
    state = _state()
    other = tdr.stateful_loader(_pipe("odd").map(_fails), batch_size=2, num_streams=4)
    other.load_state_dict({**state, "chain": other.state_dict()["chain"]})
    with pytest.raises(KeyError):
        next(iter(other))


def test_any_mapping_is_a_state() -> None:
    """As the signature says."""
    _loader().load_state_dict(types.MappingProxyType(_state()))


def test_the_listing_of_a_state_of_all_ranks_can_be_left_out() -> None:
    """README: "To resume all the same, set the state's listing to None"."""
    state = {**_state(state_of_all_ranks=True), "listing": None}
    other = _loader("other")
    other.load_state_dict(state)
    assert list(other)


def test_two_loaders_of_one_resumable_have_positions_of_their_own() -> None:
    resumable = tdr.Resumable(_pipe("shared"), num_streams=4)
    first, second = (tdr.stateful_loader(resumable, batch_size=2) for _ in range(2))
    batches, others = iter(first), iter(second)
    next(batches)
    before = first.state_dict()
    next(others), next(others)
    assert first.state_dict() == before
