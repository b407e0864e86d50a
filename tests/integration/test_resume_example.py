"""``examples/resume_training.py`` is stopped by Ctrl-C and by SIGTERM, and goes on as if nothing had happened."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.support.paths import ROOT
from torchdata_remote import ShardWriter

EXAMPLE = ROOT / "examples" / "resume_training.py"
NUM_SAMPLES, NUM_EPOCHS = 2_400, 4


def write_images(folder: Path) -> None:
    """Few, in the example's layout, which are then what it trains on."""
    source = np.random.default_rng(0)
    with ShardWriter(f"{folder}/{{shard:04d}}.tar", max_shard_samples=60) as writer:
        for i in range(NUM_SAMPLES):
            writer.write({"__key__": f"{i:04d}", "npy": source.random((1, 8, 8), dtype=np.float32), "cls": i % 10})


class Run:
    """One start of the example, as a shell starts it: in a process group of its own."""

    def __init__(self, folder: Path, checkpoint: str, *, workers: int = 2) -> None:
        self.printed = ""
        command = [sys.executable, str(EXAMPLE), "--data", str(folder / "images"), "--epochs", str(NUM_EPOCHS)]
        command += ["--checkpoint", str(folder / checkpoint), "--workers", str(workers)]
        self._process = subprocess.Popen(
            command,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # two runs at a time
        )

    def read_until(self, pattern: str) -> str:
        """The text of the first line that has it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.printed += line
            if found := re.search(pattern, line):
                return found[0]
        raise AssertionError(f"no {pattern!r} in {self.printed}{self.ended()}")

    def stop(self, number: signal.Signals) -> str:
        """What it says when it is stopped: by Ctrl-C, which reaches all processes of the group, or SIGTERM."""
        if number == signal.SIGINT:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)
        said = self.ended()
        found = re.fullmatch(r"stopped in (epoch \d+) after (step \d+); the same command goes on\n", said)
        assert found, self.printed + said
        assert self._process.returncode == 1
        return f"going on from {found[1]}, {found[2]}\n"

    def ended(self) -> str:
        """What it wrote to stderr."""
        printed, said = self._process.communicate(timeout=120)
        self.printed += printed
        return said

    def result(self) -> str:
        """Loss and digest of the whole training."""
        found = self.read_until(rf"(?<=all {NUM_EPOCHS} epochs: )loss [\d.]+, digest of the order [0-9a-f]{{16}}$")
        assert self.ended() == ""
        assert self._process.returncode == 0
        return found


def test_stopped_training_goes_on(tmp_path: Path) -> None:
    """Stopped twice, it ends with the order and the loss of one that was not; without workers nothing is lost."""
    write_images(tmp_path / "images")
    whole, run = Run(tmp_path, "never stopped"), Run(tmp_path, "stopped")
    run.read_until(r"^from the beginning$")
    run.read_until(r"^epoch 0, step 50, loss ")
    goes_on = run.stop(signal.SIGINT)
    shutil.copy(tmp_path / "stopped", tmp_path / "without workers")
    expected = whole.result()

    run, other = Run(tmp_path, "stopped"), Run(tmp_path, "without workers", workers=0)
    run.read_until(r"^epoch 1, step 150, loss ")
    assert goes_on in run.printed
    goes_on = run.stop(signal.SIGTERM)
    other.result()
    counts = re.findall(r"^epoch (\d) had ([\d,]+) samples$", other.printed, re.MULTILINE)
    assert counts == [(f"{epoch}", f"{NUM_SAMPLES:,}") for epoch in range(NUM_EPOCHS)]

    run = Run(tmp_path, "stopped")
    assert run.result() == expected
    assert goes_on in run.printed
