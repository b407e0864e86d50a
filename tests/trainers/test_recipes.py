"""The examples for frameworks: stopped after some steps, and resumed by another number of processes."""

from __future__ import annotations

import collections
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # each imports its framework in several processes
NUM_SAMPLES = 120  # 5 steps of 24 samples to an epoch
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "ACCELERATE_USE_CPU": "true",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it kills these processes if others fill the machine's memory
}


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


def run(folder: Path, recipe: str, *options: str, processes: int = 0) -> str:
    """The output of an example, started by torchrun if it has a number of processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes else []
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *launcher, str(ROOT / "examples" / f"train_with_{recipe}.py"), *options],
        cwd=folder, env={**os.environ, **SETTINGS, "PYTHONPATH": search}, capture_output=True, text=True, timeout=840,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_accelerate_recipe_is_resumed_by_another_number_of_processes(url: str, tmp_path: Path) -> None:
    """One process stops, two resume: each epoch has all samples."""
    options = ["--url", url, "--checkpoint", "checkpoint", "--classes", "3"]
    assert "stopped: epoch 0, step 2" in run(tmp_path, "accelerate", *options, "--stop-after", "2", processes=1)
    resumed = run(tmp_path, "accelerate", *options, processes=2)
    assert "resumed: epoch 0, step 2" in resumed
    assert re.findall(r"epoch (\d): (\d+) samples", resumed) == [("0", "120"), ("1", "120")]


def test_the_transformers_recipe_is_resumed_by_another_number_of_processes(url: str, tmp_path: Path) -> None:
    """One process stops, two resume: together they train on all samples of two epochs."""

    def samples(printed: str) -> dict[str, tuple[int, int]]:
        found = re.findall(r"process (\d): (\d+) samples, step (\d+)", printed)
        return {process: (int(number), int(step)) for process, number, step in found}

    options = ["--url", url, "--checkpoint", "checkpoint", "--classes", "3"]
    assert samples(run(tmp_path, "transformers", *options, "--stop-after", "2", processes=1)) == {"0": (48, 2)}
    resumed = run(tmp_path, "transformers", *options, processes=2)
    assert samples(resumed) == dict.fromkeys("01", ((2 * NUM_SAMPLES - 48) // 2, 10))


@pytest.mark.parametrize("framework", ["lightning", "fabric"])
def test_the_lightning_recipes_are_resumed_by_another_number_of_processes(framework: str, tmp_path: Path) -> None:
    """The samples before the stop and after it are a whole epoch."""
    assert "stopped after 15 steps" in run(tmp_path, framework, "--devices", "2", "--stop-after", "15")
    resumed = run(tmp_path, framework, "--devices", "1")
    rest, whole = (int(count) for count in re.findall(r"epoch \d: (\d+) samples", resumed))
    assert rest + 15 * 2 * 32 == whole > 1_700


def test_the_ray_recipe_is_resumed_by_another_number_of_ranks(tmp_path: Path) -> None:
    """15 steps of two ranks and 26 of one are an epoch of 1,776 samples, and 56 the next one."""
    assert "epoch 0, step 15: 480 samples" in run(tmp_path, "ray", "--ranks", "2", "--stop-after", "15")
    assert "epoch 2, step 97: 1776 samples" in run(tmp_path, "ray", "--ranks", "1")


def test_the_fsdp_recipe_resumes_without_tensor_parallelism(tmp_path: Path) -> None:
    """Two copies of two ranks stop after five steps; three ranks end the epoch: no sample twice, none missing."""
    at = ["--url", f"{tmp_path}/digits"]
    options = [*at, "--checkpoint", f"{tmp_path}/checkpoint", "--epochs", "1"]

    def lines(printed: str) -> list[tuple[str, ...]]:
        # Where Python's output is unbuffered, a line of another rank may begin before this one's end of line.
        return re.findall(r"epoch (\d+) rank (\d+) of (\d+): ((?:\d{4} ?)*)", printed)

    run(tmp_path, "fsdp2", "--write", *at)
    stopped = lines(run(tmp_path, "fsdp2", *options, "--tp", "2", "--stop-after", "5", processes=4))
    assert collections.Counter(collections.Counter(stopped).values()) == {2: 10}  # both ranks of a copy have the same
    resumed = lines(run(tmp_path, "fsdp2", *options, processes=3))
    assert ({size for _, _, size, _ in stopped}, {size for _, _, size, _ in resumed}) == ({"2"}, {"3"})
    keys = [key for line in {*stopped, *resumed} for key in line[-1].split()]
    assert len(keys) == len(set(keys)) == 1797 // 12 * 12  # equalize_ranks drops what 12 streams cannot share
