"""The recipes: start, stop after some steps, resume with another number of processes."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import torchdata_remote as tdr
from tests.support.paths import ROOT

NUM_SAMPLES, STOP_AFTER = 120, 2  # 5 steps of 24 samples to an epoch


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Shards of grey images, of three classes."""
    folder = tmp_path_factory.mktemp("recipes")
    with tdr.ShardWriter(f"{folder}/train/{{shard:02d}}.tar", max_shard_samples=10) as writer:
        for number in range(NUM_SAMPLES):
            file = io.BytesIO()
            Image.new("L", (20, 20), 80 * (number % 3) + number % 5).save(file, "PNG")
            writer.write({"__key__": f"{number:03d}", "png": file.getvalue(), "cls": number % 3})
    return f"{folder}/train"


def run(recipe: str, num_processes: int, *arguments: str, at: Path) -> str:
    """The output of the example."""
    pytest.importorskip(recipe.removeprefix("train_with_"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{num_processes}"]
    command = [*launcher, f"examples/{recipe}.py", *arguments, "--checkpoint", f"{at}/checkpoint", "--classes", "3"]
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow  # test_accelerate is not
def test_the_accelerate_recipe_is_resumed_by_another_number_of_processes(url: str, tmp_path: Path) -> None:
    """1 process stops, 2 resume: each epoch has all samples."""
    stopped = run("train_with_accelerate", 1, "--url", url, "--stop-after", f"{STOP_AFTER}", at=tmp_path)
    assert "stopped: epoch 0, step 2" in stopped
    resumed = run("train_with_accelerate", 2, "--url", url, at=tmp_path)
    assert "resumed: epoch 0, step 2" in resumed
    assert re.findall(r"epoch (\d): (\d+) samples", resumed) == [("0", "120"), ("1", "120")]


def test_the_transformers_recipe_is_resumed_by_another_number_of_processes(url: str, tmp_path: Path) -> None:
    """1 process stops, 2 resume: together they train on all samples of two epochs."""
    stopped = run("train_with_transformers", 1, "--url", url, "--stop-after", f"{STOP_AFTER}", at=tmp_path)
    assert samples(stopped) == {"0": (48, 2)}
    resumed = run("train_with_transformers", 2, "--url", url, at=tmp_path)
    assert samples(resumed) == dict.fromkeys("01", ((2 * NUM_SAMPLES - 48) // 2, 10))


def samples(printed: str) -> dict[str, tuple[int, int]]:
    """Process -> its samples, and the last step."""
    found = re.findall(r"process (\d): (\d+) samples, step (\d+)", printed)
    return {process: (int(number), int(step)) for process, number, step in found}
