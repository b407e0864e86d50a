"""Start ranks that run a trainer, and collect what each of them reports: the rows of one table."""

from __future__ import annotations

import collections
import contextlib
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.ports import free_port

from .data import NUM_SAMPLES

_REPORT = "report: "


ROWS: list[Row] = []
"""All rows of this process."""


@dataclass(frozen=True)
class Row:
    """What came of one framework with one loader.

    Args:
        framework: such as ``"Accelerate"``.
        loader: one of ``data.LOADERS``.
        world_size: number of ranks; of a resume, ``"2 -> 3"``.
        num_workers: of each rank.
        result: ``"120 of 120"``, or the error's first sentence.
        action: ``"epoch"`` or ``"resume"``.
    """

    framework: str
    loader: str
    world_size: str
    num_workers: int
    result: str
    action: str = "epoch"

    def __post_init__(self) -> None:
        ROWS.append(self)

    def __str__(self) -> str:
        cells = (self.framework, self.loader, self.action, self.world_size, str(self.num_workers), self.result)
        return f"| {' | '.join(cells)} |"


class RankServer:
    """A process that forks ranks which have imported their program already; see ``rank_server``.

    Args:
        program: module with a function ``main``.
    """

    def __init__(self, program: str) -> None:
        search_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.key = program, search_path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainers.rank_server"],
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


def launch(program: str, world_size: int, *, timeout_s: float = 300, **arguments: Any) -> list[dict[str, Any]]:
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
    reports: dict[str, Any] = {}
    for line in printed.splitlines():
        if _REPORT in line:  # a progress bar may stand before it
            reports.update(json.loads(line.partition(_REPORT)[2]))
    return reports


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


def run_as_rank(function: Callable[..., None], arguments: dict[str, Any]) -> None:
    """In a rank: run the program, and end the process without finalizing Python.

    gloo's threads may still hold tensors of the last exchange. Freeing one while Python finalizes aborts the process
    (pytorch#190489). Workers are forked from a server that has imported torch already, which saves seconds for each.
    """
    multiprocessing.set_forkserver_preload(["tests.trainers.data"])
    try:
        function(**arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def epoch_rows(framework: str, ranks: list[dict[str, Any]], cells: Iterable[tuple[str, int]]) -> list[Row]:
    """The rows of an epoch of each loader.

    Args:
        framework: of the rows.
        ranks: what each rank has reported, under ``"<loader>, <number> workers"``.
        cells: loaders with their numbers of workers.
    """
    return [
        Row(
            framework, loader, f"{len(ranks)}", workers, outcome(rank[f"{loader}, {workers} workers"] for rank in ranks)
        )
        for loader, workers in cells
    ]


def outcome(per_rank: Iterable[Any]) -> str:
    """The result of a row: ``"120 of 120"`` if all ranks together had each sample once.

    Args:
        per_rank: of each rank the numbers of its samples, or ``{"error": ...}``.
    """
    found = list(per_rank)
    errors = [rank["error"] for rank in found if isinstance(rank, dict)]
    if errors:
        return str(errors[0])
    counts = collections.Counter(number for rank in found for number in rank)
    result = f"{len(counts)} of {NUM_SAMPLES}"
    repeated = sum(counts.values()) - len(counts)
    return f"{result}, {repeated} repeated" if repeated else result


def table(rows: Iterable[Row]) -> str:
    """Markdown: a line for each framework, loader and result, with the numbers of ranks and workers that have it."""
    lines: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for row in rows:
        sizes, workers = lines.setdefault((row.framework, row.loader, row.action, row.result), ([], []))
        sizes.append(row.world_size)
        workers.append(f"{row.num_workers}")
    head = "| framework | given | what | ranks | workers | result |\n|---|---|---|---|---|---|"
    cells = [
        (framework, f"`{loader}`", action, *(", ".join(dict.fromkeys(values)) for values in among), result)
        for (framework, loader, action, result), among in lines.items()
    ]
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in cells)])
