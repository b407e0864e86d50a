"""``examples/resume_training.py``, stopped by signals: it resumes with the same order and loss, and loses no sample."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.paths import ROOT
from torchdata_remote import ShardWriter

pytestmark = pytest.mark.timeout(300)  # it starts trainings
EXAMPLES = ROOT / "examples"
NUM_SAMPLES, NUM_EPOCHS = 1_200, 2
# The example, with workers that are forked. A function waits at one sample until a FIFO has a writer, and a step waits
# for a signal as long as there is a file
GATED = """
import os, signal, sys

sys.path.insert(0, {examples!r})
import resume_training
import torchdata_remote as tdr

built = tdr.stateful_loader


def waits(item):
    if item[2] == "0750" and os.path.exists({gate!r}) and "stopped" in sys.argv[6]:
        os.write(1, b"waiting\\n")
        os.close(os.open({gate!r}, os.O_RDONLY))
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

    def stop(self, number: signal.Signals, then: Callable[[], object] = lambda: None) -> str:
        """Stop it by a signal to all processes of the group, as of a terminal or Slurm; the message that it prints."""
        os.killpg(self._process.pid, number)
        then()
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


@pytest.fixture
def gates(tmp_path: Path) -> tuple[Path, Path]:
    """Where a FIFO and a file let a sample and a step wait. The data and the example are beside them."""
    write_images(tmp_path / "images")
    gate, step = tmp_path / "gate", tmp_path / "step"
    (tmp_path / "gated.py").write_text(GATED.format(examples=str(EXAMPLES), gate=str(gate), step=str(step)))
    return gate, step


def test_a_training_that_sigterm_stops_while_it_waits_for_data_resumes_with_the_same_order_and_loss(
    tmp_path: Path, gates: tuple[Path, Path]
) -> None:
    gate, _ = gates
    os.mkfifo(gate)
    run, whole = Run(tmp_path, "stopped"), Run(tmp_path, "whole")
    run.read_until(r"^waiting$")
    resumed = run.stop(signal.SIGTERM, lambda: gate.write_bytes(b""))
    gate.unlink()
    run = Run(tmp_path, "stopped")
    assert run.result() == whole.result()
    assert resumed in run.printed


def test_a_training_that_is_stopped_in_a_step_resumes_without_workers_and_loses_no_sample(
    tmp_path: Path, gates: tuple[Path, Path]
) -> None:
    _, step = gates
    step.touch()
    run = Run(tmp_path, "stopped")
    run.read_until(r"^epoch 1, step 50, loss ")
    assert run.stop(signal.SIGUSR1) == "resumed at epoch 1, step 50\n"
    step.unlink()
    other = Run(tmp_path, "stopped", workers=0)
    other.result()
    assert "resumed at epoch 1, step 50\n" in other.printed
    counts = re.findall(r"^epoch (\d) had ([\d,]+) samples$", other.printed, re.MULTILINE)
    assert counts == [(f"{epoch}", f"{NUM_SAMPLES:,}") for epoch in range(1, NUM_EPOCHS)]
