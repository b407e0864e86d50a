"""FSDP2: each loader beside a sharded model, and checkpoints of ``torch.distributed.checkpoint`` in mid-epoch."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

from .data import NUM_SAMPLES, cells_of
from .launch import Row, epoch_rows, launch, outcome

FRAMEWORK = "FSDP2"
WORLD_SIZES = (1, 2, 3)
KINDS = {"save": (0, True), "async_save": (2, False)}
"""Way to save -> workers and ``state_of_all_ranks`` of its loader."""
NUM_BATCHES = 3
"""Of each rank before it stops: 48 samples of four ranks, 24 of two, the rest of three."""

pytestmark = pytest.mark.timeout(600)  # the first test waits for all processes


@pytest.fixture(scope="module")
def runs(dataset: Path, complete: bool, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """The reports of each number of ranks: 4 save, 2 resume and save, 3 resume; 1 starts from the beginning."""
    four, two = (str(tmp_path_factory.mktemp("checkpoint")) for _ in range(2))

    def run(world_size: int, begin: str, end: str) -> list[dict[str, Any]]:
        return launch(
            "tests.trainers.fsdp_program", world_size, folder=str(dataset),
            cells=cells_of(FRAMEWORK, world_size, complete=complete) if world_size in WORLD_SIZES else [],
            kinds=KINDS if begin or end else {}, begin=begin, end=end, num_batches=NUM_BATCHES,
        )  # fmt: skip

    return {
        4: run(4, "", four),
        2: run(2, four, two),
        3: run(3, two, ""),
        1: run(1, "", ""),
    }


def resume_rows(runs: dict[int, list[dict[str, Any]]]) -> list[Row]:
    """An epoch that 4 ranks start, 2 continue and 3 complete, for each way to save."""
    return [
        Row(
            f"{FRAMEWORK}, DCP {kind}", "stateful_loader(pipe)", "4 -> 2 -> 3", workers,
            outcome(flat(rank[kind]) for world_size in (4, 2, 3) for rank in runs[world_size]), "resume",
        )
        for kind, (workers, _) in KINDS.items()
    ]  # fmt: skip


def flat(batches: Any) -> Any:
    """The numbers of all batches; an error is not changed."""
    return batches if isinstance(batches, dict) else [number for batch in batches for number in batch]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_an_epoch_has_each_sample_once(runs: dict[int, list[dict[str, Any]]], complete: bool, world_size: int) -> None:
    found = epoch_rows(FRAMEWORK, runs[world_size], cells_of(FRAMEWORK, world_size, complete=complete))
    assert {row.result for row in found} == {"120 of 120"}, "\n".join(map(str, found))


def test_a_checkpoint_is_resumed_by_other_numbers_of_ranks(runs: dict[int, list[dict[str, Any]]]) -> None:
    """4 ranks stop in mid-epoch, then 2, then 3 end the epoch: each sample once, also if saved asynchronously."""
    found = resume_rows(runs)
    assert {row.result for row in found} == {f"{NUM_SAMPLES} of {NUM_SAMPLES}"}, "\n".join(map(str, found))
    for kind in KINDS:
        assert [len(rank[kind]) for rank in (*runs[4], *runs[2])] == [NUM_BATCHES] * 6


@pytest.mark.parametrize("world_size", [4, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_number_of_ranks_resumes_with_the_same_batches(
    runs: dict[int, list[dict[str, Any]]], kind: str, world_size: int
) -> None:
    """A new loader and model that load the checkpoint have the batches and weights that followed it."""
    for rank in runs[world_size]:
        assert rank[f"{kind}, again"] == rank[f"{kind}, following"]
        assert rank[f"{kind}, again"]
        assert rank[f"{kind}, same weights"]


def run_example(folder: Path, num_ranks: int, *options: str) -> list[tuple[str, ...]]:
    """Start the example by torchrun; of each line about a step: epoch, rank and size of its group, keys."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{num_ranks}"),
        *("examples/train_with_fsdp2.py", "--url", f"{folder}/digits", "--checkpoint", f"{folder}/checkpoint"),
        *("--epochs", "1", *options),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Where Python's output is unbuffered, a line of another rank may begin before this one's end of line.
    return re.findall(r"epoch (\d+) rank (\d+) of (\d+): ((?:\d{4} ?)*)", done.stdout)


def test_the_example_resumes_without_tensor_parallelism(tmp_path: Path) -> None:
    """Two copies of two ranks stop after five steps; three ranks end the epoch: no sample twice, none missing."""
    written = [sys.executable, "examples/train_with_fsdp2.py", "--write", "--url", f"{tmp_path}/digits"]
    subprocess.run(written, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=300)
    stopped = run_example(tmp_path, 4, "--tp", "2", "--stop-after", "5")
    assert collections.Counter(collections.Counter(stopped).values()) == {
        2: 10
    }  # both ranks of each copy have the same
    resumed = run_example(tmp_path, 3)
    assert {size for _, _, size, _ in stopped} == {"2"}
    assert {size for _, _, size, _ in resumed} == {"3"}
    keys = [key for line in {*stopped, *resumed} for key in line[-1].split()]
    assert len(keys) == len(set(keys)) == 1797 // 12 * 12  # equalize_ranks drops what 12 streams cannot share
