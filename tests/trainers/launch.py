"""Start ranks that run a trainer, and take what each of them reports: the rows of one table."""

from __future__ import annotations

import collections
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.servers.s3 import free_port
from tests.support.paths import ROOT

from .data import NUM_SAMPLES

_REPORT = "report: "


ROWS: list[Row] = []
"""All that were made in this process."""


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


def launch(program: str, world_size: int, *, timeout_s: float = 300, **given: Any) -> list[dict[str, Any]]:
    """Run a module in each rank, as torchrun would, and return what each has reported.

    Args:
        program: module with ``if __name__ == "__main__": run_as_rank(function)``.
        world_size: number of ranks.
        timeout_s: seconds until all of them have to have ended; then each prints where it is, and the test fails.
        **given: plain JSON; the function gets it as keywords.

    Returns:
        For each rank what its function has reported: name -> anything that is JSON, in the order of the reports.
    """
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", program, json.dumps(given)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    try:
        told = [rank.communicate(timeout=timeout_s) for rank in ranks]
    except subprocess.TimeoutExpired:
        for rank in ranks:
            os.killpg(rank.pid, signal.SIGABRT)  # each thread says where it is
        raise AssertionError("\n".join("".join(rank.communicate()) for rank in ranks)) from None
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, (printed, complaints) in zip(ranks, told, strict=True):
        assert rank.returncode == 0, printed + complaints
    return [_reports(printed) for printed, _ in told]


def _reports(printed: str) -> dict[str, Any]:
    reports: dict[str, Any] = {}
    for line in printed.splitlines():
        if _REPORT in line:  # a progress bar may stand before it
            reports.update(json.loads(line.partition(_REPORT)[2]))
    return reports


def report(name: str, value: Any) -> None:
    """In a rank: let the test have this."""
    sys.stdout.write(f"\n{_REPORT}{json.dumps({name: value})}\n")
    sys.stdout.flush()


def attempt(name: str, function: Callable[[], Any]) -> None:
    """In a rank: report what a function returns, or its error as ``{"error": "Type: message"}``."""
    try:
        report(name, function())
    except Exception as error:  # it is what the row shows
        traceback.print_exc()
        report(name, {"error": f"{type(error).__name__}: {error}"})


def run_as_rank(function: Callable[..., None]) -> None:
    """In a rank: run the program, and end the process without finalizing Python.

    gloo's threads may still hold tensors of the last exchange. Freeing one while Python finalizes aborts the process
    (pytorch#190489). Workers are forked from a server that has imported torch already, which saves seconds for each.
    """
    multiprocessing.set_forkserver_preload(["tests.trainers.data"])
    try:
        function(**json.loads(sys.argv[1]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


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
