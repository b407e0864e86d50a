"""A process that forks the ranks of trainers: torch and the frameworks are imported once for all launches.

Reads one launch per line from stdin, as JSON. Answers with the process ids of the ranks, and with their exit codes when
all of them have ended. Ends with its stdin.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what imports print is no answer
    for line in sys.stdin:
        request = json.loads(line)
        importlib.import_module(request["program"])
        pids = [_start(request, rank) for rank in range(request["world_size"])]
        answers.write(f"{json.dumps(pids)}\n")
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        answers.write(f"{json.dumps(codes)}\n")


def _start(request: dict[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        os.setsid()
        for descriptor, name in (
            (0, os.devnull),
            (1, f"{request['output']}/{rank}.out"),
            (2, f"{request['output']}/{rank}.err"),
        ):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
        faulthandler.enable()
        os.environ.update(request["environment"], RANK=f"{rank}", LOCAL_RANK=f"{rank}")
        # gloo's threads may still hold tensors of the last exchange. Freeing one while Python finalizes aborts the
        # process (pytorch#190489), so the process ends without it.
        importlib.import_module(request["program"]).main(**request["arguments"])
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
