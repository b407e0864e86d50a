"""Comparing ranks; ``test_loader.py`` and ``trainers/test_unlike_ranks.py`` run it with a process group."""

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
    """Simulates another rank that reads this."""

    def make(reads: dict[str, Any], listing: Any) -> None:
        monkeypatch.setattr(ranks, "all_alike", lambda *_: False)
        monkeypatch.setattr(ranks, "exchanged", lambda world, doing, value: {0: value, 3: (reads, listing)})

    return make


def test_ranks_with_different_listings_are_refused(other_rank: Any) -> None:
    """The error names the ranks and the difference."""
    own, other = ([fingerprint([f"s3://b/{i}.tar" for i in range(count)])] for count in (5000, 1))
    other_rank({"epoch": 0}, other)
    with pytest.raises(UnequalListingError, match="Rank 0 and rank 3 list different objects: 5,000 objects and 1"):
        ranks.require_same_pass(HERE, {"epoch": 0}, own, None)


def test_ranks_without_a_share_list_nothing(other_rank: Any) -> None:
    """This is no difference."""
    other_rank({"epoch": 0}, None)
    ranks.require_same_pass(HERE, {"epoch": 0}, [fingerprint(["s3://b/0.tar"])], None)


@pytest.mark.parametrize(
    ("name", "own", "other", "shown"),
    [("epoch", 0, 1, "0 and 1"), ("chain", ["ListRemote()", "A(seed=0)"], ["ListRemote()", "A(seed=1)"], "seed=1")],
)
def test_ranks_with_different_orders_are_refused(other_rank: Any, name: str, own: Any, other: Any, shown: str) -> None:
    """The error names both values; of two chains, the pipe that differs."""
    other_rank({name: other}, None)
    with pytest.raises(StateError, match=f"Ranks 0 and 3 differ in the {name}: .*{shown}") as refused:
        ranks.require_same_pass(HERE, {name: own}, None, None)
    assert "ListRemote" not in str(refused.value)


def test_a_state_of_all_ranks_has_all_streams() -> None:
    """If ranks cannot exchange, it is refused."""
    state = {"version": 2, "chain": [], "listing": None, "epoch": 0, "num_streams": 2, "streams": [[0, None]]}
    with pytest.raises(StateError, match=r"1 of 2 streams.*there is no process group"):
        ranks.merged_in_group(HERE, lambda: state)
