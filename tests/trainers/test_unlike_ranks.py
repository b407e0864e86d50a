"""Ranks that differ: each raises an error that names the difference, and no sample is lost or repeated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from .launch import launch, outcome

PROGRAM = "tests.trainers.unlike_ranks_program"
OURS = ("StateError", "RemoteDataError", "UnequalListingError", "UnsplitError", "ValueError: The ranks")
UNLIKE = (
    "stateful_loader, seed",
    "stateful_loader, epoch",
    "stateful_loader, num_streams",
    "stateful_loader, place",
    "stateful_loader, state",
    "PrefetchingLoader, seed",
    "PrefetchingLoader, epoch",
    "PrefetchingLoader, place",
    "PrefetchingLoader, state",
    "PrefetchingLoader, batch_size",
    "PrefetchingLoader, images",
    "PrefetchingLoader, names",
    "PrefetchingLoader, state of another order",
)


def _errors(ranks: Sequence[dict[str, Any]], name: str) -> list[str]:
    return [str(rank[name].get("error")) if isinstance(rank[name], dict) else "none" for rank in ranks]


@pytest.fixture(scope="module")
def unlike(dataset: Path) -> list[dict[str, Any]]:
    """Two ranks, whose loaders differ in one thing."""
    return launch(PROGRAM, 2, timeout_s=100, folder=str(dataset), case="unlike")


@pytest.mark.parametrize("name", UNLIKE)
def test_ranks_that_would_read_different_orders_raise_an_error(unlike: list[dict[str, Any]], name: str) -> None:
    """Otherwise samples would be lost and others repeated silently."""
    found = outcome(rank[name] for rank in unlike)
    assert found == "120 of 120" or "Error" in found, found
    if found != "120 of 120":
        assert all(error.startswith(OURS) for error in _errors(unlike, name)), unlike


@pytest.mark.parametrize("case", ["load in rank 0", "state in rank 0", "truncated", "None", "list_now in rank 0"])
def test_a_call_of_one_rank_alone_does_not_block_the_other(dataset: Path, case: str) -> None:
    """The other rank does not wait for it, and does not take one exchange for another."""
    ranks = launch(PROGRAM, 2, timeout_s=60, folder=str(dataset), case=case)
    for error in _errors(ranks, case):
        assert error == "none" or error.startswith(OURS), error


@pytest.mark.parametrize("case", ["no process group", "process group destroyed"])
def test_a_state_of_all_ranks_needs_a_process_group(dataset: Path, case: str) -> None:
    """It would be the state of one rank, which is detected only when it is loaded."""
    ranks = launch(PROGRAM, 2, timeout_s=60, folder=str(dataset), case=case)
    assert all(error.startswith("StateError") for error in _errors(ranks, case)), ranks
