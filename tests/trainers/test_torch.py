"""Plain torch DDP: each loader delivers each sample once over all ranks, also over a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .data import LOADERS
from .launch import Row, launch, outcome
from .torch_program import RESUMABLE

FRAMEWORK, WORKERS = "torch DDP", (0, 2)
STOPPED_RANKS, RESUMING_RANKS = 2, (1, 2, 3)

Reports = dict[str, Any]


class Runs:
    """Epochs of some numbers of ranks, each run once.

    Args:
        dataset: folder of the images.
        folder: for checkpoints.
    """

    def __init__(self, dataset: Path, folder: Path) -> None:
        self._dataset, self._folder = dataset, folder
        self._done: dict[tuple[int, str], list[Reports]] = {}

    def _run(self, world_size: int, checkpoint: str, stop_after: int | None = None) -> list[Reports]:
        if (world_size, checkpoint) not in self._done or stop_after is not None:
            self._done[world_size, checkpoint] = launch(
                "tests.trainers.torch_program",
                world_size,
                folder=str(self._dataset),
                num_workers=list(WORKERS),
                checkpoint=str(self._folder / checkpoint),
                stop_after=stop_after,
            )
        return self._done[world_size, checkpoint]

    def whole(self, world_size: int) -> list[Reports]:
        """An epoch."""
        return self._run(world_size, "none")

    def stopped(self) -> list[Reports]:
        """The first batches of an epoch, of two ranks."""
        if (0, "head") not in self._done:
            self._done[0, "head"] = self._run(STOPPED_RANKS, "state", stop_after=5)
            del self._done[STOPPED_RANKS, "state"]
        return self._done[0, "head"]

    def resumed(self, world_size: int) -> list[Reports]:
        """The rest of it."""
        self.stopped()
        return self._run(world_size, "state")


def rows(runs: Runs) -> list[Row]:
    """What each loader gives in an epoch, and over a stop in the middle of it."""
    found = []
    for loader in LOADERS:
        for workers in WORKERS:
            name = f"{loader}, {workers} workers"
            for size in RESUMING_RANKS:
                numbers = [rank[name] for rank in runs.whole(size)]
                found.append(Row(FRAMEWORK, loader, f"{size}", workers, outcome(numbers)))
            for size in RESUMING_RANKS if loader in RESUMABLE else ():
                numbers = [rank[name] for rank in (*runs.stopped(), *runs.resumed(size))]
                found.append(Row(FRAMEWORK, loader, f"{STOPPED_RANKS} -> {size}", workers, outcome(numbers), "resume"))
    return found


@pytest.fixture(scope="module")
def runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(dataset, tmp_path_factory.mktemp("torch"))


def test_each_sample_comes_once(runs: Runs) -> None:
    """With 1, 2 and 3 ranks, whatever reads; and where the state of 2 is resumed by 1, 2 and 3."""
    found = rows(runs)
    assert {row.result for row in found} == {"120 of 120"}, "\n".join(map(str, found))


def test_the_same_ranks_resume_in_the_same_order(runs: Runs) -> None:
    """Each rank reads the batches that it would have read without the stop."""
    resumed = zip(runs.whole(STOPPED_RANKS), runs.stopped(), runs.resumed(STOPPED_RANKS), strict=True)
    for whole, head, rest in resumed:
        for name in (f"{loader}, {workers} workers" for loader in RESUMABLE for workers in WORKERS):
            assert head[name] + rest[name] == whole[name], name
