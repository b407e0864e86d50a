"""Lightning: each sample once over all ranks, also through its checkpoints, with another number of ranks."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from .data import NUM_SAMPLES, cells_of
from .launch import Row, epoch_rows, launch, outcome
from .lightning_program import CASES, STATELESS, STOP_AFTER, UNEVEN

FRAMEWORK = "Lightning"
SAVED_WITH = 2  # ranks
NO_SAMPLER = "UnsplitError: PrefetchingLoader"
ONE_LOADER = [case for case in CASES if case not in ("two loaders", "no length, limited")]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks save."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def saved(dataset: Path, checkpoints: Path, complete: bool) -> list[dict[str, Any]]:
    """The reports of two ranks: rows, whole trainings, and those that they resumed."""
    return launch(
        "tests.trainers.lightning_program", SAVED_WITH, folder=str(dataset), package="lightning.pytorch",
        cells=cells_of(FRAMEWORK, SAVED_WITH, complete=complete), cases=[*CASES, UNEVEN, "stateless"],
        save=str(checkpoints), resume=str(checkpoints),
    )  # fmt: skip


def resumed(dataset: Path, checkpoints: Path, world_size: int, package: str, *, complete: bool) -> list[dict[str, Any]]:
    """The reports of another number of ranks: rows, and the trainings of two ranks that it resumed."""
    return launch(
        "tests.trainers.lightning_program", world_size, folder=str(dataset), package=package,
        cells=cells_of(FRAMEWORK, world_size, complete=complete), cases=[*ONE_LOADER, UNEVEN],
        save="", resume=str(checkpoints),
    )  # fmt: skip


def check_rows(ranks: list[dict[str, Any]], *, complete: bool) -> None:
    """An epoch of each loader."""
    rows = epoch_rows(FRAMEWORK, ranks, cells_of(FRAMEWORK, len(ranks), complete=complete))
    wrong = [
        row
        for row in rows
        if row.result != f"{NUM_SAMPLES} of {NUM_SAMPLES}"
        and not (row.loader == "PrefetchingLoader" and row.result.startswith(NO_SAMPLER))
    ]
    assert not wrong, "\n".join(map(str, wrong))


def numbers(ranks: list[dict[str, Any]], name: str, epoch: int) -> list[list[int]]:
    """Of each rank the samples of an epoch."""
    assert all("error" not in rank[name] for rank in ranks), ranks
    return [list(chain.from_iterable(rank[name]["train"].get(str(epoch), []))) for rank in ranks]


def before_stop(saved: list[dict[str, Any]], case: str) -> list[list[int]]:
    """Of each rank the samples of the first epoch that it had been trained on when the checkpoint was saved."""
    batches = 2 * STOP_AFTER if "accumulated" in case else STOP_AFTER
    return [list(chain.from_iterable(rank[f"whole: {case}"]["train"]["0"][:batches])) for rank in saved]


def test_an_epoch_of_two_ranks_has_each_sample_once(saved: list[dict[str, Any]], complete: bool) -> None:
    check_rows(saved, complete=complete)


@pytest.mark.parametrize("case", CASES)
def test_the_same_ranks_resume_with_the_batches_of_an_unstopped_training(
    saved: list[dict[str, Any]], case: str
) -> None:
    """The batches after a checkpoint in mid-epoch, and those of the next epoch, are those of a whole training."""
    for rank in saved:
        whole, again = rank[f"whole: {case}"], rank[f"resumed: {case}"]
        assert "error" not in whole, whole
        assert "error" not in again, again
        num_resumed = len(again["global_step"])
        assert again["global_step"] == whole["global_step"][-num_resumed:]
        batches = list(chain.from_iterable(whole["train"].values()))
        assert list(chain.from_iterable(again["train"].values())) == batches[-num_resumed:]
        assert again["train"]["1"] == whole["train"]["1"]
        expected = 2 * STOP_AFTER if "accumulated" in case or "limited" in case else STOP_AFTER
        assert len(batches) - num_resumed == expected


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("two loaders", "no length, limited")])
def test_a_whole_training_of_two_ranks_has_each_sample_once_an_epoch(saved: list[dict[str, Any]], case: str) -> None:
    """In both epochs, with checkpoints in between."""
    for epoch in (0, 1):
        assert outcome(numbers(saved, f"whole: {case}", epoch)) == f"{NUM_SAMPLES} of {NUM_SAMPLES}"


@pytest.mark.parametrize(("world_size", "package"), [(1, "pytorch_lightning"), (3, "lightning.pytorch")])
def test_another_number_of_ranks_completes_the_epoch(
    dataset: Path, checkpoints: Path, saved: list[dict[str, Any]], world_size: int, package: str, complete: bool
) -> None:
    """Once each sample, before and after the checkpoint together, and in the next epoch."""
    ranks = resumed(dataset, checkpoints, world_size, package, complete=complete)
    check_rows(ranks, complete=complete)
    rows = []
    for case in ONE_LOADER:
        name = f"resumed: {case}"
        found = outcome(before_stop(saved, case) + numbers(ranks, name, 0))
        rows.append(
            Row(FRAMEWORK, case, f"{SAVED_WITH} -> {world_size}", 2 if "workers" in case else 0, found, "resume")
        )
        found = outcome(numbers(ranks, name, 1))
        rows.append(Row(FRAMEWORK, case, f"{world_size}", 2 if "workers" in case else 0, found, "next epoch"))
    wrong = [row for row in rows if row.result != f"{NUM_SAMPLES} of {NUM_SAMPLES}"]
    assert not wrong, "\n".join(map(str, wrong))
    uneven = [rank[f"resumed: {UNEVEN}"] for rank in ranks]
    if world_size == 1:
        assert outcome(before_stop(saved, UNEVEN) + numbers(ranks, f"resumed: {UNEVEN}", 0)) == "120 of 120"
    else:
        expected = "36, 37, 37. Those with fewer would wait for the others at its end. Resume with batch_size=5, "
        assert all(expected in rank["error"] for rank in uneven), uneven


@pytest.mark.parametrize(("loader", "workers"), STATELESS)
def test_resuming_with_a_loader_without_state_warns(saved: list[dict[str, Any]], loader: str, workers: int) -> None:
    """Lightning reads the epoch from its beginning, and counts as if it resumed."""
    for rank in saved:
        warned = rank[f"stateless: {loader}, {workers} workers"]
        assert any("Train with stateful_loader(pipe)" in message for message in warned), warned
