"""Run programs in fresh processes that have torch and the package imported already.

Each line of standard input is JSON: ``name`` of the page, ``program``, ``folder`` to run it in. Each line of standard
output is JSON: exit ``code``, ``output`` and ``errors``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile

import torchdata_remote  # noqa: F401  # imported before the fork, once for all pages

TIMEOUT_S = 120


def run(name: str, program: str, folder: str) -> None:
    """Run the program as ``python -c`` does."""
    signal.alarm(TIMEOUT_S)
    os.chdir(folder)
    main = vars(sys.modules["__main__"])
    del main["__file__"]  # or a worker that is spawned would import it
    exec(compile(program, name, "exec"), main)


if __name__ == "__main__":
    for line in sys.stdin:
        page = json.loads(line)
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                sys.stdin.close()
                run(**page)
                sys.exit()
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            errors.seek(0)
            sys.stdout.write(json.dumps({"code": code, "output": output.read(), "errors": errors.read()}) + "\n")
            sys.stdout.flush()
