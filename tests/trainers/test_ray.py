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

pytestmark = [needs("ray"), pytest.mark.timeout(900)]  # Ray starts ten processes, which takes minutes on a busy machine


def run(dataset: Path, storage: Path, world_sizes: list[int], num_workers: list[int]) -> dict[str, Any]:
    """Number of ranks -> what each of them has reported, on one cluster."""
    arguments = {
        "folder": str(dataset), "loaders": list(LOADERS), "world_sizes": world_sizes, "num_workers": num_workers,
        "storage": str(storage),
    }  # fmt: skip
    return reports(started("-m", "tests.trainers.ray_program", json.dumps(arguments), folder=ROOT))


def check_rows(ranks: list[dict[str, Any]], workers: int) -> None:
    """An epoch of each loader, through ``prepare_data_loader``."""
    rows = epoch_rows(FRAMEWORK, ranks, [(loader, workers) for loader in LOADERS])
    assert {row.result for row in rows} == {EXPECTED}, "\n".join(map(str, rows))


def check_resumed(saved: list[dict[str, Any]], ranks: list[dict[str, Any]], workers: int) -> None:
    """Before and after the checkpoint together, each sample once; ``prepare_data_loader`` reads one batch ahead."""
    whole = [rank[f"whole, {workers} workers"] for rank in saved]
    rest = [rank[f"resumed, {workers} workers"] for rank in ranks]
    if ranks is saved:
        assert rest == [batches[STOP_AFTER:] for batches in whole]
    parts = [*(batches[:STOP_AFTER] for batches in whole), *rest]
    row = Row(FRAMEWORK, "stateful_loader(pipe)", f"2 -> {len(ranks)}", workers, outcome(parts), "resume")
    assert row.result == EXPECTED, row


@pytest.fixture(scope="module")
def two(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks of one cluster have reported."""
    ranks: list[dict[str, Any]] = run(dataset, tmp_path_factory.mktemp("ray"), [2], [0])["2"]
    return ranks


def test_two_ranks_read_each_sample_once_and_resume(two: list[dict[str, Any]]) -> None:
    """An epoch of each loader, and a stop in mid-epoch by Ray's checkpoint."""
    check_rows(two, 0)
    check_resumed(two, two, 0)


@pytest.mark.slow
def test_any_number_of_ranks_with_workers_resumes(dataset: Path, tmp_path: Path) -> None:
    """Two ranks save, and 1, 2 and 3 resume, with two workers each."""
    by_world = run(dataset, tmp_path, [2, 1, 3], [2])
    for ranks in by_world.values():
        check_rows(ranks, 2)
        check_resumed(by_world["2"], ranks, 2)


def started(*arguments: str, folder: Path) -> str:
    """What a program prints that starts a cluster."""
    settings = {
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # it kills these processes if others fill the machine's memory
    }
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, *arguments]
    done = subprocess.run(
        program, cwd=folder, env=environment, text=True, capture_output=True, timeout=840, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
