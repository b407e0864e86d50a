"""Fabric: each sample once over all ranks, also through its checkpoints, with another number of ranks."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from .data import LOADERS, NUM_SAMPLES
from .fabric_program import STOP_AFTER
from .launch import Row, launch, outcome

FRAMEWORK = "Fabric"
SAVED_WITH = 2  # ranks
EXPECTED = f"{NUM_SAMPLES} of {NUM_SAMPLES}"
NO_DATALOADER = "TypeError: Only PyTorch DataLoader are currently supported in `setup_dataloaders`."


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks save."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def saved(dataset: Path, checkpoints: Path) -> list[dict[str, Any]]:
    """What two ranks have reported: rows, whole trainings, and those that they resumed."""
    return run(dataset, SAVED_WITH, save=str(checkpoints), resume=str(checkpoints))


def run(dataset: Path, world_size: int, *, save: str = "", resume: str = "") -> list[dict[str, Any]]:
    """What the ranks have reported."""
    given: dict[str, Any] = {"folder": str(dataset), "loaders": list(LOADERS), "save": save, "resume": resume}
    return launch("tests.trainers.fabric_program", world_size, **given)


def check_rows(ranks: list[dict[str, Any]]) -> None:
    """An epoch of each loader, without workers and with two."""
    for loader in LOADERS:
        for workers in (0, 2):
            found = outcome(rank[f"{loader}, {workers} workers"] for rank in ranks)
            expected = NO_DATALOADER if loader == "PrefetchingLoader" else EXPECTED
            row = Row(FRAMEWORK, loader, f"{len(ranks)}", workers, found)
            assert row.result == expected, row


def flat(batches: list[list[int]]) -> list[int]:
    """The samples of batches."""
    return list(chain.from_iterable(batches))


def test_an_epoch_of_two_ranks_has_each_sample_once(saved: list[dict[str, Any]]) -> None:
    """Whatever reads."""
    check_rows(saved)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_ranks_go_on_as_they_would_have(saved: list[dict[str, Any]], workers: int) -> None:
    """The rest of the epoch and the next one are those of a training that was not stopped."""
    for rank in saved:
        assert rank[f"resumed, {workers} workers"] == rank[f"whole, {workers} workers"][STOP_AFTER:]


@pytest.mark.parametrize("world_size", [1, 3])
def test_other_ranks_finish_the_epoch_of_two(
    dataset: Path, checkpoints: Path, saved: list[dict[str, Any]], world_size: int
) -> None:
    """Once each sample, before and after the checkpoint together, and in the next epoch."""
    ranks = run(dataset, world_size, resume=str(checkpoints))
    check_rows(ranks)
    for workers in (0, 2):
        before = [flat(rank[f"whole, {workers} workers"][:STOP_AFTER]) for rank in saved]
        num_left = {rank[f"left, {workers} workers"] for rank in ranks}
        assert len(num_left) == 1, "ranks would wait for each other"
        again = [rank[f"resumed, {workers} workers"] for rank in ranks]
        after = [flat(batches[: min(num_left)]) for batches in again]
        assert outcome(before + after) == EXPECTED
        assert outcome(flat(batches[min(num_left) :]) for batches in again) == EXPECTED
