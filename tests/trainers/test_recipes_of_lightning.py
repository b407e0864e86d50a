"""The recipes of Lightning and Fabric: stopped in mid-epoch, resumed by another number of processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.mark.parametrize("framework", ["lightning", pytest.param("fabric", marks=pytest.mark.slow)])
def test_the_recipe_is_resumed_by_another_number_of_processes(framework: str, tmp_path: Path) -> None:
    """The samples before the stop and after it are a whole epoch."""
    stopped = run(framework, tmp_path, "--devices", "2", "--stop-after", "15")
    assert "stopped after 15 steps" in stopped
    resumed = run(framework, tmp_path, "--devices", "1")
    rest, whole = (int(count) for count in re.findall(r"epoch \d: (\d+) samples", resumed))
    assert rest + 15 * 2 * 32 == whole > 1_700


def run(framework: str, folder: Path, *options: str) -> str:
    """The output of an example."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, str(ROOT / "examples" / f"train_with_{framework}.py"), *options]
    done = subprocess.run(program, cwd=folder, env=environment, text=True, capture_output=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
