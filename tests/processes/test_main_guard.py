"""A script without ``if __name__ == "__main__":`` is told so before it starts processes that would run it again."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchdata_remote.errors import WorkerStartError
from torchdata_remote.testing import write_small_shards

START = """
import torchdata_remote as tdr
def start():
    iter(tdr.stateful_loader(tdr.stream_shards({folder!r}), num_workers=1, multiprocessing_context="spawn"))
"""
UNGUARDED = {
    "a statement": "start()",
    "a loop": "for epoch in range(2):\n    start()",
    "a function": "def main():\n    start()\n\nmain()",
    "another use of the name": "import logging\nlog = logging.getLogger(__name__)\nstart()",
    "a block that always runs": "try:\n    start()\nfinally:\n    pass",
}


@pytest.mark.parametrize("code", UNGUARDED.values(), ids=UNGUARDED)
def test_a_statement_that_each_import_executes_is_an_error_with_its_line(tmp_path: Path, code: str) -> None:
    write_small_shards(str(tmp_path / "shards"), num_shards=1, samples_per_shard=1)
    path = tmp_path / "train.py"
    path.write_text(START.format(folder=str(tmp_path / "shards")) + code + "\n")
    lines = path.read_text().splitlines()
    line = max(number for number, text in enumerate(lines, 1) if "start()" in text or "main()" in text)
    with pytest.raises(
        WorkerStartError, match=rf"^train\.py, line {line}: worker processes .* outside of `if __name__ =="
    ):
        runpy.run_path(str(path), run_name="__main__")


def run_script(path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_each_loader_names_the_guard_before_it_starts_a_process(tmp_path: Path) -> None:
    write_small_shards(str(tmp_path / "shards"), num_shards=2, samples_per_shard=2)
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(f"""
        import multiprocessing
        from torch.utils.data import DataLoader
        import torchdata_remote as tdr

        folder, options = {str(tmp_path / "shards")!r}, {{"num_workers": 2, "multiprocessing_context": "forkserver"}}
        pipe = tdr.stream_shards(folder)
        template = {str(tmp_path / "out")!r} + "/{{shard}}.tar"
        starts = [
            lambda: iter(tdr.stateful_loader(pipe, **options)),
            lambda: iter(tdr.stateful_loader(pipe, num_workers=1, multiprocessing_context="spawn")),
            lambda: iter(DataLoader(pipe, batch_size=None, **options)),
            lambda: iter(DataLoader(tdr.Resumable(pipe, num_streams=2), batch_size=None, **options)),
            lambda: iter(DataLoader(tdr.RemoteFiles(folder), batch_size=None, **options)),
            lambda: next(iter(tdr.PrefetchingLoader(tdr.RemoteFiles(folder), batch_size=None, **options))),
            lambda: tdr.shard_dataset(folder, template, num_workers=2),
        ]
        for start in starts:
            try:
                start()
            except tdr.errors.WorkerStartError as error:
                print(str(error).partition(":")[0], multiprocessing.active_children())
        tdr.stateful_loader(pipe, num_workers=2).__iter__()
        """)
    )
    done = run_script(path)
    line = path.read_text().splitlines().index("        start()") + 1
    assert done.stdout.splitlines() == [f"train.py, line {line} []"] * 7
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) < 20
    assert lines[0].startswith("Traceback")
    assert 'outside of `if __name__ == "__main__":`' in lines[-1]


def test_workers_that_end_because_of_another_condition_end_in_the_guard(tmp_path: Path) -> None:
    # Each worker is refused while it imports the script; the last line of all says why
    write_small_shards(str(tmp_path / "shards"), num_shards=1, samples_per_shard=2)
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(f"""
        import sys
        import torchdata_remote as tdr
        folder = {str(tmp_path / "shards")!r}
        if len(sys.argv) < 50:
            loader = tdr.stateful_loader(tdr.stream_shards(folder), num_workers=1, multiprocessing_context="spawn")
            for batch in loader:
                print(batch)
        """)
    )
    done = run_script(path)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("torchdata_remote.errors.WorkerStartError: train.py, line 7: a worker process ended")
    assert '`if __name__ == "__main__": main()`' in last
