"""Plain torch DDP: each loader delivers each sample once over all ranks, also over a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .data import cells_of
from .launch import Row, epoch_rows, launch, outcome
from .torch_program import RESUMABLE

FRAMEWORK = "torch DDP"
STOPPED_RANKS = 2
PAIRWISE = {2: [0, 2], 1: [0], 3: [2]}  # number of ranks -> numbers of workers that resume

Runs = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def runs(dataset: Path, complete: bool, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What the ranks of each number of ranks have reported: two ranks save, and all of them resume."""
    checkpoints = str(tmp_path_factory.mktemp("torch"))
    return {
        size: launch(
            "tests.trainers.torch_program", size, folder=str(dataset), checkpoints=checkpoints,
            cells=cells_of(FRAMEWORK, size, complete=complete), saves=size == STOPPED_RANKS,
            num_workers=[0, 2] if complete else workers,
        )
        for size, workers in PAIRWISE.items()
    }  # fmt: skip


@pytest.mark.parametrize("world_size", sorted(PAIRWISE))
def test_an_epoch_has_each_sample_once(runs: Runs, complete: bool, world_size: int) -> None:
    rows = epoch_rows(FRAMEWORK, runs[world_size], cells_of(FRAMEWORK, world_size, complete=complete))
    assert {row.result for row in rows} == {"120 of 120"}, "\n".join(map(str, rows))


@pytest.mark.parametrize("world_size", sorted(PAIRWISE))
def test_the_state_of_two_ranks_is_resumed_by_any_number(runs: Runs, complete: bool, world_size: int) -> None:
    for workers in [0, 2] if complete else PAIRWISE[world_size]:
        parts = [rank[f"stopped, {workers} workers"] for rank in runs[STOPPED_RANKS]]
        parts += [rank[f"resumed, {workers} workers"] for rank in runs[world_size]]
        row = Row(FRAMEWORK, RESUMABLE, f"{STOPPED_RANKS} -> {world_size}", workers, outcome(parts), "resume")
        assert row.result == "120 of 120", row


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_ranks_resume_in_the_same_order(runs: Runs, workers: int) -> None:
    """Each rank reads the batches that it would have read without the stop."""
    for rank in runs[STOPPED_RANKS]:
        whole, before, after = (rank[f"{what}, {workers} workers"] for what in ("whole", "stopped", "resumed"))
        assert before + after == whole
