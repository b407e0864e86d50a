"""Scripts with and without ``if __name__ == "__main__":``."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from torchdata_remote.core.processes.main_guard import name_missing_guard, require_main_guard
from torchdata_remote.errors import WorkerStartError
from torchdata_remote.testing import write_small_shards

IMPORT = "from torchdata_remote.core.processes.main_guard import require_main_guard as start\n"
UNGUARDED = {
    "a statement": "start()",
    "a loop": "for epoch in range(2):\n    start()",
    "a function": "def main():\n    start()\n\nmain()",
    "another import of the name": "import logging\nlog = logging.getLogger(__name__)\nstart()",
    "a block that always runs": "try:\n    start()\nfinally:\n    pass",
}
PERHAPS_GUARDED = {
    "guard": 'if __name__ == "__main__":\n    start()',
    "guard of a function": 'def main():\n    start()\n\nif __name__ == "__main__":\n    main()',
    "guard in the function": 'def main():\n    if __name__ != "__main__":\n        return\n    start()\n\nmain()',
    "guard by the parent": "import multiprocessing\n"
    "def main():\n    if multiprocessing.parent_process() is None:\n        start()\n\nmain()",
    "another condition": "import os\nif 'NEVER' not in os.environ:\n    start()",
    "a choice": 'start() if __name__ == "__main__" else None',
}


def run_script(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def script(folder: Path, code: str) -> str:
    path = folder / "train.py"
    path.write_text(IMPORT + code + "\n")
    return str(path)


@pytest.mark.parametrize("code", UNGUARDED.values(), ids=UNGUARDED)
def test_a_statement_that_each_import_executes_is_an_error(tmp_path: Path, code: str) -> None:
    """Names script and line, the guard, and what to do."""
    with pytest.raises(WorkerStartError, match=r"^train\.py, line \d: worker processes .* outside of `if __name__ =="):
        runpy.run_path(script(tmp_path, code), run_name="__main__")


@pytest.mark.parametrize("code", PERHAPS_GUARDED.values(), ids=PERHAPS_GUARDED)
def test_a_script_that_may_tell_workers_from_their_parent_passes(tmp_path: Path, code: str) -> None:
    """There are no false alarms: what cannot be decided by reading the script is left to the worker."""
    runpy.run_path(script(tmp_path, code), run_name="__main__")


ENDED = "    raise_better(RuntimeError('DataLoader worker (pid(s) 7) exited unexpectedly'))"
UNRELATED = (
    f"from torchdata_remote.core.processes.main_guard import name_missing_guard as raise_better\nif True:\n{ENDED}"
)


def test_another_condition_is_named_after_workers_have_ended(tmp_path: Path) -> None:
    """It holds in them, too, unless something in the script tells them from their parent."""
    with pytest.raises(WorkerStartError, match=r"^train\.py, line 4: a worker process ended .* `if __name__ =="):
        runpy.run_path(script(tmp_path, UNRELATED), run_name="__main__")
    telling = UNRELATED.replace("if True:", "if __name__ == '__main__':")
    runpy.run_path(script(tmp_path, telling), run_name="__main__")
    name_missing_guard(RuntimeError("another one"))


def test_the_line_is_that_of_the_script(tmp_path: Path) -> None:
    """Not that of the function in which processes are started."""
    with pytest.raises(WorkerStartError, match=r"^train\.py, line 6:"):
        runpy.run_path(script(tmp_path, "\ndef main():\n    start()\n\nmain()"), run_name="__main__")


def test_a_worker_that_imports_the_script_must_not_start_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As multiprocessing does: the process is marked while it imports the script of its parent."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(WorkerStartError, match=r"imported the script of its parent.*`if __name__ == \"__main__\""):
        require_main_guard()


def test_each_loader_names_the_guard_before_it_starts_a_process(tmp_path: Path) -> None:
    """Our error comes first and alone, in one process, whatever loads: nothing waits for workers that have failed."""
    write_small_shards(str(tmp_path / "shards"), num_shards=2, samples_per_shard=2)
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(f"""
        import multiprocessing
        from torch.utils.data import DataLoader
        import torchdata_remote as tdr

        multiprocessing.set_forkserver_preload(["torch"])
        folder, options = {str(tmp_path / "shards")!r}, {{"num_workers": 2, "multiprocessing_context": "forkserver"}}
        pipe = tdr.stream_shards(folder)
        template = {str(tmp_path / "out")!r} + "/{{shard}}.tar"
        starts = [
            lambda: iter(tdr.stateful_loader(pipe, **options)),
            lambda: iter(tdr.stateful_loader(pipe, num_workers=1, multiprocessing_context="spawn")),
            lambda: iter(DataLoader(pipe, batch_size=None, **options)),
            lambda: iter(DataLoader(tdr.Resumable(pipe, num_streams=2), batch_size=None, **options)),
            lambda: iter(DataLoader(tdr.RemoteFiles(folder), batch_size=None, **options)),
            lambda: iter(tdr.PrefetchingLoader(tdr.RemoteFiles(folder), batch_size=None, **options)),
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


@pytest.mark.parametrize(
    "loader",
    [
        "tdr.stateful_loader(tdr.stream_shards(folder), **options)",
        "tdr.PrefetchingLoader(tdr.RemoteFiles(folder), batch_size=1, **options)",
    ],
    ids=["stateful_loader", "PrefetchingLoader"],
)
def test_workers_that_end_because_of_another_condition_end_in_the_guard(tmp_path: Path, loader: str) -> None:
    """Each worker is refused while it imports the script; the last line of all says why."""
    write_small_shards(str(tmp_path / "shards"), num_shards=1, samples_per_shard=2)
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(f"""
        import sys
        import torchdata_remote as tdr
        folder, options = {str(tmp_path / "shards")!r}, {{"num_workers": 1, "multiprocessing_context": "spawn"}}
        if len(sys.argv) < 50:
            for batch in {loader}:
                print(batch)
        """)
    )
    done = run_script(path)
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("torchdata_remote.errors.WorkerStartError: train.py, line 6: a worker process ended")
    assert '`if __name__ == "__main__": main()`' in last
