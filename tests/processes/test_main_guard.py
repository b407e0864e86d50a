"""A script without ``if __name__ == "__main__":`` is told so."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchdata_remote.testing import write_small_shards


def run_script(path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_script_without_the_guard_starts_no_process_and_is_told_where_it_belongs(tmp_path: Path) -> None:
    """Before workers execute the script again, which may write or delete."""
    write_small_shards(str(tmp_path / "shards"), num_shards=1, samples_per_shard=2)
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(f"""
        import torchdata_remote as tdr
        print("executed")
        loader = tdr.stateful_loader(tdr.stream_shards({str(tmp_path / "shards")!r}), num_workers=1)
        for batch in loader:
            print(batch)
        """)
    )
    done = run_script(path)
    assert (done.returncode, done.stdout) == (1, "executed\n")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"torchdata_remote.errors.WorkerStartError: {path}, line 5: worker processes would be ")
    assert '`if __name__ == "__main__": main()`' in last
    assert len(done.stderr.splitlines()) <= 40


GUARDS = [
    'if __name__ == "__main__":',
    "if '__main__' == __name__ and True:",
    "is_main = __name__ == '__main__'\nif is_main:",
    "if __name__ != '__main__':\n    pass\nelse:",
]


@pytest.mark.parametrize("guard", GUARDS)
def test_a_script_with_a_guard_starts_workers(guard: str, tmp_path: Path) -> None:
    write_small_shards(str(tmp_path / "shards"), num_shards=1, samples_per_shard=2)
    path = tmp_path / "train.py"
    main = f"""
import torchdata_remote as tdr
def main():
    loader = tdr.stateful_loader(tdr.stream_shards({str(tmp_path / "shards")!r}), num_workers=1)
    print(len([sample["__key__"] for sample in loader]))
"""
    path.write_text(f"{main}{guard}\n    main()\n")
    done = run_script(path)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_a_process_that_imports_its_parents_script_writes_no_shards(tmp_path: Path) -> None:
    write_small_shards(str(tmp_path / "shards"), num_shards=1, samples_per_shard=2)
    path = tmp_path / "write.py"
    path.write_text(
        textwrap.dedent(f"""
        import multiprocessing
        import torchdata_remote as tdr
        if multiprocessing.current_process().name != "MainProcess":
            tdr.shard_dataset({str(tmp_path / "shards")!r}, {str(tmp_path / "out/{shard}.tar")!r}, num_workers=1)
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=print)
            process.start()
            process.join()
            print(process.exitcode)
        """)
    )
    done = run_script(path)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "starts worker processes there" in done.stderr
    assert not (tmp_path / "out").exists()
