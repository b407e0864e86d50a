"""Scripts that may tell their workers from the parent pass: what cannot be decided is left to the worker."""

from __future__ import annotations

import multiprocessing
import runpy
from pathlib import Path

import pytest

from torchdata_remote.core.processes.main_guard import require_main_guard
from torchdata_remote.errors import WorkerStartError

IMPORT = "from torchdata_remote.core.processes.main_guard import require_main_guard as start\n"
PERHAPS_GUARDED = [
    'if __name__ == "__main__":\n    start()',
    'def main():\n    start()\n\nif __name__ == "__main__":\n    main()',
    'def main():\n    if __name__ != "__main__":\n        return\n    start()\n\nmain()',
    "import multiprocessing\ndef main():\n    if multiprocessing.parent_process() is None:\n        start()\n\nmain()",
    "import os\nif 'NEVER' not in os.environ:\n    start()",
    'start() if __name__ == "__main__" else None',
]


@pytest.mark.parametrize("code", PERHAPS_GUARDED)
def test_a_script_that_may_tell_workers_from_their_parent_passes(tmp_path: Path, code: str) -> None:
    (tmp_path / "train.py").write_text(IMPORT + code + "\n")
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")


def test_a_worker_that_imports_the_script_must_not_start_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(WorkerStartError, match=r"imported the script of its parent.*`if __name__ == \"__main__\""):
        require_main_guard()
