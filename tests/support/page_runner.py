"""Run programs in processes that are forked from one, which has run the program of its argument first: imports.

Each line of standard input is JSON: ``name`` of the program, ``program``, ``folder`` to run it in. Each line of
standard output is JSON: exit ``code``, ``output`` and ``errors``.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT

TIMEOUT_S = 120


class Ran(NamedTuple):
    """What became of a program."""

    code: int
    output: str
    errors: str


class PageRunner:
    """Runs programs, one at a time.

    Args:
        process: of this module.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, program: str, *, folder: Path, name: str = "<string>") -> Ran:
        """Run a program as ``python -W error -c`` does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, program, str(folder)]), file=self._process.stdin, flush=True)
        return Ran(*json.loads(self._process.stdout.readline()))


@contextmanager
def page_runner(imports: str) -> Iterator[PageRunner]:
    """What runs programs after these imports, as long as the block lasts."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", __file__, imports],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        try:
            yield PageRunner(process)
        finally:
            process.stdin.close()


def _run(name: str, program: str, folder: str) -> None:
    import signal

    signal.alarm(TIMEOUT_S)
    os.chdir(folder)
    main, leave, code = vars(sys.modules["__main__"]), sys.exit, compile(program, name, "exec")
    for own in [own for own in main if not own.startswith("__") or own == "__file__"]:
        del main[own]  # without __file__, no worker that is spawned imports it
    exec(code, main)
    leave()


def _serve(imports: str) -> None:
    exec(imports, {"__name__": "imports"})
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                sys.stdin.close()
                _run(*json.loads(line))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            errors.seek(0)
            sys.stdout.write(json.dumps([code, output.read(), errors.read()]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
