"""Fabric: each sample once over all ranks, also through its checkpoints, with another number of ranks."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from .data import NUM_SAMPLES, cells_of
from .fabric_program import STOP_AFTER
from .launch import epoch_rows, launch, outcome

FRAMEWORK = "Fabric"
SAVED_WITH = 2  # ranks
EXPECTED = f"{NUM_SAMPLES} of {NUM_SAMPLES}"
NO_DATALOADER = "TypeError: Only PyTorch DataLoader are currently supported in `setup_dataloaders`."


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks save."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def saved(dataset: Path, checkpoints: Path, complete: bool) -> list[dict[str, Any]]:
    """The reports of two ranks: rows, whole trainings, and those that they resumed."""
    return run(dataset, SAVED_WITH, str(checkpoints), complete=complete, save=True)


def num_workers_of(world_size: int, *, complete: bool) -> list[int]:
    """Numbers of workers of the loaders that are resumed."""
    return [0, 2] if complete or world_size == SAVED_WITH else [0] if world_size == 1 else [2]


def run(
    dataset: Path, world_size: int, checkpoints: str, *, complete: bool, save: bool = False
) -> list[dict[str, Any]]:
    """The reports of the ranks."""
    return launch(
        "tests.trainers.fabric_program", world_size, folder=str(dataset),
        cells=cells_of(FRAMEWORK, world_size, complete=complete), save=checkpoints if save else "", resume=checkpoints,
        num_workers=num_workers_of(world_size, complete=complete),
    )  # fmt: skip


def check_rows(ranks: list[dict[str, Any]], *, complete: bool) -> None:
    """An epoch of each loader."""
    for row in epoch_rows(FRAMEWORK, ranks, cells_of(FRAMEWORK, len(ranks), complete=complete)):
        assert row.result == (NO_DATALOADER if row.loader == "PrefetchingLoader" else EXPECTED), row


def flat(batches: list[list[int]]) -> list[int]:
    """The samples of batches."""
    return list(chain.from_iterable(batches))


def test_an_epoch_of_two_ranks_has_each_sample_once(saved: list[dict[str, Any]], complete: bool) -> None:
    check_rows(saved, complete=complete)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_ranks_resume_with_the_batches_of_an_unstopped_training(
    saved: list[dict[str, Any]], workers: int
) -> None:
    """The rest of the epoch and the next one are those of a training that was not stopped."""
    for rank in saved:
        assert rank[f"resumed, {workers} workers"] == rank[f"whole, {workers} workers"][STOP_AFTER:]


@pytest.mark.parametrize("world_size", [1, 3])
def test_another_number_of_ranks_completes_the_epoch(
    dataset: Path, checkpoints: Path, saved: list[dict[str, Any]], world_size: int, complete: bool
) -> None:
    """Once each sample, before and after the checkpoint together, and in the next epoch."""
    ranks = run(dataset, world_size, str(checkpoints), complete=complete)
    check_rows(ranks, complete=complete)
    for workers in num_workers_of(world_size, complete=complete):
        before = [flat(rank[f"whole, {workers} workers"][:STOP_AFTER]) for rank in saved]
        num_left = {rank[f"left, {workers} workers"] for rank in ranks}
        assert len(num_left) == 1, "ranks would wait for each other"
        again = [rank[f"resumed, {workers} workers"] for rank in ranks]
        after = [flat(batches[: min(num_left)]) for batches in again]
        assert outcome(before + after) == EXPECTED
        assert outcome(flat(batches[min(num_left) :]) for batches in again) == EXPECTED
