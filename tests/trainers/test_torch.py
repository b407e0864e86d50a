"""Plain torch DDP: each loader delivers each sample once over all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from .data import LOADERS
from .launch import Row, launch, outcome

FRAMEWORK = "torch DDP"


def rows(dataset: Path, world_size: int) -> list[Row]:
    """An epoch of each loader, without workers and with two."""
    ranks = launch("tests.trainers.torch_program", world_size, folder=str(dataset), num_workers=[0, 2])
    return [
        Row(
            FRAMEWORK, loader, f"{world_size}", workers, outcome(rank[f"{loader}, {workers} workers"] for rank in ranks)
        )
        for loader in LOADERS
        for workers in (0, 2)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_epoch_has_each_sample_once(dataset: Path, world_size: int) -> None:
    """With 1, 2 and 3 ranks, whatever reads."""
    found = rows(dataset, world_size)
    assert {row.result for row in found} == {"120 of 120"}, "\n".join(map(str, found))
