"""States of mixtures with other weights or further sources, over listings."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

import torchdata_remote as tdr
from torchdata_remote.errors import StateError
from torchdata_remote.testing import write_small_shards

FOLDERS = ("one", "two", "three")


def stream(folder: str) -> Any:
    write_small_shards(f"memory://mixture-states-{folder}/", num_shards=3, samples_per_shard=4)
    return tdr.stream_shards(f"memory://mixture-states-{folder}/*.tar", seed=0)


def loader(weights: dict[str, float], **options: Any) -> Any:
    sources = {name: (stream(name), weight) for name, weight in weights.items()}
    pipe: Any = tdr.mix(sources, stop="all_exhausted")
    return tdr.stateful_loader(pipe.map(_name), batch_size=None, num_streams=2, **options)


def _name(sample: dict[str, Any]) -> str:
    return f"{sample['__url__']} {sample['__key__']}"


def stopped(data: Any, num_items: int) -> tuple[list[str], Any]:
    head = list(itertools.islice(data, num_items))
    return head, json.loads(json.dumps(data.state_dict()))


def test_a_source_with_a_listing_of_its_own_can_be_added() -> None:
    """Each sample is read once; the state after it has the listings of all."""
    head, state = stopped(loader({"one": 1, "three": 2}), 7)
    resumed = loader({"one": 1, "two": 5, "three": 1})
    resumed.load_state_dict(state)
    before = json.loads(json.dumps(resumed.state_dict()))
    middle, state = stopped(resumed, 5)
    again = loader({"one": 1, "two": 5, "three": 1})
    again.load_state_dict(state)
    items = [*head, *middle, *again]
    assert len(items) == len(set(items)) == 36
    unread = loader({"one": 1, "two": 5, "three": 1})
    unread.load_state_dict(before)
    assert sorted([*head, *unread]) == sorted(items)


def test_the_listings_of_the_other_sources_are_compared() -> None:
    """A shard that was replaced since is named as before."""
    _, state = stopped(loader({"one": 1, "three": 2}), 7)
    state["listing"][1] = state["listing"][0]
    resumed = loader({"one": 1, "two": 5, "three": 1})
    resumed.load_state_dict(state)
    with pytest.raises(StateError, match=r"listing of the state is another one than here: .*three"):
        list(resumed)


def test_other_pipes_in_a_source_are_refused() -> None:
    """A source has to be the same chain."""
    _, state = stopped(loader({"one": 1, "two": 1}), 3)
    sources = {name: (stream(name).map(str), 1.0) for name in ("one", "two", "three")}
    resumed = tdr.stateful_loader(tdr.mix(sources, stop="all_exhausted").map(str), batch_size=None, num_streams=2)
    with pytest.raises(StateError, match="The state has the chain"):
        resumed.load_state_dict(state)


def test_sources_that_share_a_listing_cannot_get_another() -> None:
    """A state does not say whose listing it is."""

    def shared(names: tuple[str, ...]) -> Any:
        urls = tdr.IterableWrapper(["memory://mixture-states-one/*.tar"]).list_remote()
        sources = {name: (urls.sharding_filter_rank().shard_tar_reader(), 1.0) for name in names}
        return tdr.Resumable(tdr.mix(sources))

    stream("one")
    _, state = stopped(shared(("a", "b")), 3)
    with pytest.raises(StateError, match="whose sources share pipes"):
        shared(("a", "b", "c")).load_state_dict(state)


def test_a_source_without_a_listing_of_its_own_cannot_be_added_within_an_epoch() -> None:
    """The fingerprints of the others are not named."""

    def data(names: tuple[str, ...]) -> Any:
        folders = {"a": ["one", "two"], "b": ["three"]}
        inner = {name: (tdr.mix({folder: (stream(folder), 1.0) for folder in folders[name]}), 1.0) for name in names}
        return tdr.Resumable(tdr.mix(inner))

    _, state = stopped(data(("a",)), 3)
    with pytest.raises(StateError, match="the state has 2 listings of its 1 sources"):
        data(("a", "b")).load_state_dict(state)
