"""``examples/resume_training.py``, stopped by signals: it resumes with the same order and loss, and loses no sample."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.paths import ROOT
from torchdata_remote import ShardWriter

pytestmark = pytest.mark.timeout(600)  # it starts five trainings
EXAMPLES = ROOT / "examples"
NUM_SAMPLES, NUM_EPOCHS = 1_200, 3
# The example, with workers that are forked. As long as there are files: a function waits for ever at one sample, and a
# step waits for a signal
GATED = """
import os, signal, sys

sys.path.insert(0, {examples!r})
import resume_training
import torchdata_remote as tdr

built = tdr.stateful_loader


def waits(item):
    if item[2] == "0750" and os.path.exists({gate!r}):
        os.write(1, b"waiting\\n")
        while True:
            signal.pause()
    return item


def prints(text, **options):
    waits = text.startswith("epoch 1, step 50, ") and os.path.exists({step!r})
    if waits:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)
    print(text, **options)
    if waits:
        os.read(read_end, 1)


def gated(pipe, **options):
    return built(pipe.map(waits), **{{**options, "multiprocessing_context": "fork"}})


if __name__ == "__main__":
    tdr.stateful_loader, resume_training.print = gated, prints
    resume_training.main()
"""


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
        command = [sys.executable, str(folder / "gated.py"), "--data", str(folder / "images")]
        command += ["--epochs", str(NUM_EPOCHS), "--checkpoint", str(folder / checkpoint), "--workers", str(workers)]
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
        """Stop it by a signal to all processes of the group, as of a terminal or Slurm; the message that it prints."""
        os.killpg(self._process.pid, number)
        message = self.ended()
        found = re.search(r"stopped in (epoch \d+) after (step \d+); the same command resumes\n\Z", message)
        assert found, self.printed + message
        assert self._process.returncode == 1
        return f"resumed at {found[1]}, {found[2]}\n"

    def ended(self) -> str:
        """Wait for its end; its stderr."""
        printed, errors = self._process.communicate(timeout=240)
        self.printed += printed
        return errors

    def result(self) -> str:
        """Loss and digest of the whole training."""
        found = self.read_until(rf"(?<=all {NUM_EPOCHS} epochs: )loss [\d.]+, digest of the order [0-9a-f]{{16}}$")
        self.ended()
        assert self._process.returncode == 0
        return found


def test_a_training_that_signals_have_stopped_resumes_with_the_same_order_and_loss(tmp_path: Path) -> None:
    """SIGTERM while it waits for data, of a worker that is stuck and then killed; SIGUSR1 in a step."""
    write_images(tmp_path / "images")
    gate, step = tmp_path / "gate", tmp_path / "step"
    (tmp_path / "gated.py").write_text(GATED.format(examples=str(EXAMPLES), gate=str(gate), step=str(step)))
    gate.touch()
    run = Run(tmp_path, "stopped")
    run.read_until(r"^waiting$")
    resumed = run.stop(signal.SIGTERM)
    gate.unlink()
    step.touch()
    run = Run(tmp_path, "stopped")
    run.read_until(r"^epoch 1, step 50, loss ")
    assert resumed in run.printed
    resumed = run.stop(signal.SIGUSR1)
    assert resumed == "resumed at epoch 1, step 50\n"
    step.unlink()
    whole = Run(tmp_path, "never stopped")
    shutil.copy(tmp_path / "stopped", tmp_path / "without workers")
    run, other = Run(tmp_path, "stopped"), Run(tmp_path, "without workers", workers=0)
    assert run.result() == whole.result()
    other.result()
    assert resumed in run.printed
    counts = re.findall(r"^epoch (\d) had ([\d,]+) samples$", other.printed, re.MULTILINE)
    assert counts == [(f"{epoch}", f"{NUM_SAMPLES:,}") for epoch in range(1, NUM_EPOCHS)]
