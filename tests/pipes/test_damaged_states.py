"""States of the pipes that change the number of items, and of mixtures: damage is a StateError, and never a hang."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import Resumable, mix
from torchdata_remote.errors import StateError

DAMAGE: list[Any] = [-1, 1.5, None, "x", [], {}, [1], True, [[99]], [[0, 0]], [["a"]]]


def source(num_items: int = 20) -> Any:
    return IterableWrapper(range(num_items)).sharding_filter_rank()


def documents() -> Any:
    return source().map(lambda number: [number] * (number % 5))


CHAINS: dict[str, Any] = {
    "flat_map": lambda: source().flat_map(lambda number: [number] * (number % 3)),
    "pack": lambda: documents().pack(4).map(lambda row: row["input_ids"].tolist()),
    "fit": lambda: documents().pack(4, split=False, max_wait=4).map(lambda row: row["input_ids"].tolist()),
    "bucket": lambda: source().bucket(3, length=lambda number: number % 4, max_wait=6),
    "repeat": lambda: source().repeat_epochs(2),
    "take": lambda: source().take(15),
    "skip": lambda: source().skip(4),
    "mix": lambda: mix({"a": (source(), 1), "b": (source(), 2)}, stop=30),
}
FIELDS = {"items", "passed", "read", "cut", "rows", "held", "passes", "draws", "sources", "phases"}


def places(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where a state of these pipes has values of its own."""
    for key, value in state.items():
        if key == "at" and isinstance(value, dict):
            yield from places(value, (*path, key))
        elif key in FIELDS:
            yield (*path, key)
            if key in ("sources", "phases"):
                yield from ((*path, key, 0), *((*path, key, 0, part) for part in (0, 1) if key == "sources"))


@pytest.mark.parametrize("name", CHAINS)
def test_damage_is_an_error(name: str) -> None:
    make = CHAINS[name]
    begun = Resumable(make())
    head = list(islice(begun, 4))
    state = json.loads(json.dumps(begun.state_dict()))
    whole = list(Resumable(make()))
    own = state["streams"][0][1]["at"]
    found = list(places(own))
    assert found
    for path in found:
        for damage in DAMAGE:
            damaged = copy.deepcopy(state)
            holder = damaged["streams"][0][1]["at"]
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = damage
            resumed = Resumable(make())
            try:
                resumed.load_state_dict(damaged)
                got = [*head, *islice(resumed, 100)]
            except StateError:
                continue
            assert got == whole or damage in ([], {}), (path, damage)


def test_a_tokenizer_that_has_changed_is_an_error() -> None:
    for split in (True, False):

        def rows(num_tokens: int, split: bool = split) -> Any:
            return Resumable(source().map(lambda number: [number] * num_tokens).pack(4, split=split))

        begun = rows(11)
        list(islice(begun, 2))
        resumed = rows(5)
        resumed.load_state_dict(begun.state_dict())
        with pytest.raises(StateError, match="the tokenizer, or what it reads, has changed"):
            next(iter(resumed))
