"""A script without ``if __name__ == "__main__":`` is told so."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import torchdata_remote as tdr
from tests.support.paths import ROOT
from torchdata_remote.errors import WorkerStartError
from torchdata_remote.testing import write_small_shards


def run_script(path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_script_without_the_guard_starts_no_process_twice_and_is_told_why(tmp_path: Path) -> None:
    """Each worker is refused while it imports the script; the last line of all says what to do."""
    write_small_shards(str(tmp_path / "shards"), num_shards=1, samples_per_shard=2)
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(f"""
        import torchdata_remote as tdr
        folder = {str(tmp_path / "shards")!r}
        loader = tdr.stateful_loader(tdr.stream_shards(folder), num_workers=1, multiprocessing_context="spawn")
        for batch in loader:
            print(batch)
        """)
    )
    done = run_script(path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "bootstrapping phase" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("torchdata_remote.errors.WorkerStartError: A worker process ended while it started")
    assert '`if __name__ == "__main__":`' in last


def test_a_process_that_imports_its_parents_script_writes_no_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_shards(str(tmp_path / "shards"), num_shards=1, samples_per_shard=2)
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(WorkerStartError, match=r"imported the script of its parent.*`if __name__ == \"__main__\""):
        tdr.shard_dataset(str(tmp_path / "shards"), str(tmp_path / "out/{shard}.tar"), num_workers=1)
    assert not (tmp_path / "out").exists()
