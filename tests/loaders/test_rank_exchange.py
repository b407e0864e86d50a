"""What ranks have to agree on; ``test_loader.py`` and ``trainers/test_unlike_ranks.py`` run it with a process group."""

from __future__ import annotations

from typing import Any

import pytest

from torchdata_remote import World
from torchdata_remote.errors import StateError, UnequalListingError
from torchdata_remote.loaders import rank_exchange as ranks
from torchdata_remote.loaders.state.fingerprints import fingerprint

HERE = World(0, 2)


@pytest.fixture
def other_rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets another rank read this."""

    def make(reads: dict[str, Any], listing: Any) -> None:
        monkeypatch.setattr(ranks, "all_alike", lambda *_: False)
        monkeypatch.setattr(ranks, "exchanged", lambda world, doing, value: {0: value, 3: (reads, listing)})

    return make


def test_other_listings_are_refused(other_rank: Any) -> None:
    """By the ranks' numbers and what differs."""
    here, there = ([fingerprint([f"s3://b/{i}.tar" for i in range(count)])] for count in (5000, 1))
    other_rank({"epoch": 0}, there)
    with pytest.raises(UnequalListingError, match="Rank 0 and rank 3 list different objects: 5,000 objects and 1"):
        ranks.require_same_pass(HERE, {"epoch": 0}, here, None)


def test_ranks_without_a_share_list_nothing(other_rank: Any) -> None:
    """That is no difference."""
    other_rank({"epoch": 0}, None)
    ranks.require_same_pass(HERE, {"epoch": 0}, [fingerprint(["s3://b/0.tar"])], None)


@pytest.mark.parametrize(
    ("name", "here", "there", "shown"),
    [("epoch", 0, 1, "0 and 1"), ("chain", ["ListRemote()", "A(seed=0)"], ["ListRemote()", "A(seed=1)"], "seed=1")],
)
def test_other_orders_are_refused(other_rank: Any, name: str, here: Any, there: Any, shown: str) -> None:
    """With both values; of two chains, with the pipe that differs."""
    other_rank({name: there}, None)
    with pytest.raises(StateError, match=f"Ranks 0 and 3 differ in the {name}: .*{shown}") as refused:
        ranks.require_same_pass(HERE, {name: here}, None, None)
    assert "ListRemote" not in str(refused.value)


def test_a_state_of_all_ranks_has_all_streams() -> None:
    """Where ranks cannot exchange, it would be that of one rank."""
    state = {"version": 1, "chain": [], "listing": None, "epoch": 0, "num_streams": 2, "streams": [[0, None]]}
    with pytest.raises(StateError, match=r"1 of 2 streams.*there is no process group"):
        ranks.merged_in_group(HERE, lambda: state)
