"""Start ranks that have imported their program already, as torchrun does, and collect what each of them reports."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.ports import free_port

_REPORT = "report: "


class RankServer:
    """A process that forks ranks which have imported their program already; see ``rank_server``.

    Args:
        program: module with a function ``main``.
    """

    def __init__(self, program: str) -> None:
        search_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.key = program, search_path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.rank_server"],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search_path},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip

    def run(self, request: dict[str, Any], timeout_s: float) -> list[int]:
        """Start the ranks, and return their exit codes. Ranks that hang write the stacks of their threads."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        pids = self._answer(timeout_s)
        assert pids is not None, f"{request['program']} cannot be imported"
        codes = self._answer(timeout_s)
        if codes is None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGABRT)
            codes = self._answer(60)
        assert codes is not None
        return codes

    def _answer(self, timeout_s: float) -> list[int] | None:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            return None
        answer: list[int] | None = json.loads(self._process.stdout.readline() or b"null")
        return answer

    def close(self) -> None:
        """End the process, which waits for no ranks then."""
        self._process.kill()
        self._process.communicate()


_servers: list[RankServer] = []  # at most one: each holds a framework in memory


def close_server() -> None:
    """End the server of the last launch."""
    while _servers:
        _servers.pop().close()


def launch(program: str, world_size: int, *, timeout_s: float = 280, **arguments: Any) -> list[dict[str, Any]]:
    """Run ``main`` of a module in each rank, with the environment of torchrun, and return what each has reported.

    Args:
        program: name of the module.
        world_size: number of ranks.
        timeout_s: seconds until all of them have to have ended; then each prints its stacks, and the test fails.
        **arguments: plain JSON, the keywords of ``main``.

    Returns:
        For each rank what its function has reported: name -> anything that is JSON, in the order of the reports.
    """
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
    }
    search_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    if not _servers or _servers[0].key != (program, search_path):
        close_server()
        _servers.append(RankServer(program))
    with tempfile.TemporaryDirectory() as output:
        request = {"program": program, "world_size": world_size, "environment": environment, "arguments": arguments}
        try:
            codes = _servers[0].run({**request, "output": output}, timeout_s)
        except BaseException:
            close_server()
            raise
        printed = [Path(output, f"{rank}.out").read_text() for rank in range(world_size)]
        errors = [Path(output, f"{rank}.err").read_text() for rank in range(world_size)]
    assert not any(codes), f"exit codes {codes}\n" + "\n".join(map("".join, zip(printed, errors, strict=True)))
    return list(map(reports, printed))


def reports(printed: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in printed.splitlines():
        if _REPORT in line:  # a progress bar may stand before it
            found.update(json.loads(line.partition(_REPORT)[2]))
    return found


def report(name: str, value: Any) -> None:
    """In a rank: send a value to the test."""
    sys.stdout.write(f"\n{_REPORT}{json.dumps({name: value})}\n")
    sys.stdout.flush()


def attempt(name: str, function: Callable[[], Any]) -> None:
    """In a rank: report what a function returns, or its error as ``{"error": "Type: message"}``."""
    try:
        report(name, function())
    except Exception as error:  # it is what the row shows
        traceback.print_exc()
        report(name, {"error": f"{type(error).__name__}: {error}"})
