"""``examples/resume_training.py`` is stopped by Ctrl-C and by SIGTERM, and resumes exactly."""

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
NUM_SAMPLES, NUM_EPOCHS = 2_400, 3


def write_images(folder: Path) -> None:
    """Few images in the example's layout, which it then trains on."""
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
        """Read up to the first line that matches, and return the match."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.printed += line
            if found := re.search(pattern, line):
                return found[0]
        raise AssertionError(f"no {pattern!r} in {self.printed}{self.ended()}")

    def stop(self, number: signal.Signals) -> str:
        """Stop it by Ctrl-C, which reaches all processes of the group, or SIGTERM; the message that it prints later."""
        if number == signal.SIGINT:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)
        message = self.ended()
        found = re.fullmatch(r"stopped in (epoch \d+) after (step \d+); the same command resumes\n", message)
        assert found, self.printed + message
        assert self._process.returncode == 1
        return f"resumed at {found[1]}, {found[2]}\n"

    def ended(self) -> str:
        """Wait for its end; its stderr."""
        printed, errors = self._process.communicate(timeout=120)
        self.printed += printed
        return errors

    def result(self) -> str:
        """Loss and digest of the whole training."""
        found = self.read_until(rf"(?<=all {NUM_EPOCHS} epochs: )loss [\d.]+, digest of the order [0-9a-f]{{16}}$")
        assert self.ended() == ""
        assert self._process.returncode == 0
        return found


def test_a_stopped_training_resumes_with_the_same_order_and_loss(tmp_path: Path) -> None:
    """After two stops; another number of workers loses no sample."""
    write_images(tmp_path / "images")
    whole, run = Run(tmp_path, "never stopped"), Run(tmp_path, "stopped")
    run.read_until(r"^from the beginning$")
    run.read_until(r"^epoch 0, step 50, loss ")
    resumed = run.stop(signal.SIGINT)
    expected = whole.result()

    run = Run(tmp_path, "stopped")
    run.read_until(r"^epoch 1, step 100, loss ")
    assert resumed in run.printed
    resumed = run.stop(signal.SIGTERM)
    shutil.copy(tmp_path / "stopped", tmp_path / "without workers")

    run, other = Run(tmp_path, "stopped"), Run(tmp_path, "without workers", workers=0)
    assert run.result() == expected
    other.result()
    assert resumed in run.printed
    counts = re.findall(r"^epoch (\d) had ([\d,]+) samples$", other.printed, re.MULTILINE)
    assert counts == [(f"{epoch}", f"{NUM_SAMPLES:,}") for epoch in range(1, NUM_EPOCHS)]
