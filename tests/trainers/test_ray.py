"""Ray Train: each sample once over all ranks, also through its checkpoints, with another number of ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import reports
from tests.support.paths import ROOT

from .data import LOADERS
from .ray_program import STOP_AFTER
from .table import WHOLE as EXPECTED
from .table import Row, epoch_rows, needs, outcome

FRAMEWORK = "Ray Train"

# Ray starts ten processes, which takes minutes on a busy machine
pytestmark = [needs("ray"), pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_read_each_sample_once_and_any_number_of_them_resumes(
    dataset: Path, tmp_path: Path, workers: int
) -> None:
    """An epoch of each loader through ``prepare_data_loader``; two ranks save in mid-epoch, and 2, 1 and 3 resume."""
    by_world = run(dataset, tmp_path, [2, 1, 3], workers)
    whole = [rank["whole"] for rank in by_world["2"]]
    for ranks in by_world.values():
        rows = epoch_rows(FRAMEWORK, ranks, [(loader, workers) for loader in LOADERS])
        assert {row.result for row in rows} == {EXPECTED}, "\n".join(map(str, rows))
        rest = [rank["resumed"] for rank in ranks]
        if len(ranks) == 2:
            assert rest == [batches[STOP_AFTER:] for batches in whole]  # the loader of Ray reads one batch ahead
        parts = [*(batches[:STOP_AFTER] for batches in whole), *rest]
        row = Row(FRAMEWORK, "stateful_loader(pipe)", f"2 -> {len(ranks)}", workers, outcome(parts), "resume")
        assert row.result == EXPECTED, row


def run(dataset: Path, storage: Path, world_sizes: list[int], num_workers: int) -> dict[str, Any]:
    """Number of ranks -> what each of them has reported, on one cluster."""
    arguments = json.dumps({
        "folder": str(dataset), "loaders": list(LOADERS), "world_sizes": world_sizes, "num_workers": num_workers,
        "storage": str(storage),
    })  # fmt: skip
    settings = {
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # it kills these processes if others fill the machine's memory
    }
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "tests.trainers.ray_program", arguments]
    done = subprocess.run(program, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=840, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return reports(done.stdout)
