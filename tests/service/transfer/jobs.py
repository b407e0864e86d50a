"""Pushes and pulls, each in a process of its own, which a test may kill.

``python tests/service/transfer/jobs.py`` reads a job from each line of stdin and forks a child that does it,
so that a job costs no imports. What became of it, the child writes into a FIFO; one that was killed writes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tests.support.paths import ROOT

_LONGEST_S = 60


class Job(NamedTuple):
    """One that runs."""

    pid: int
    output: TextIO

    def let_go(self) -> None:
        """Of a job that was started with ``hold=True``, and waits until the test knows its process."""
        os.kill(self.pid, signal.SIGUSR1)

    def next_warning(self) -> str:
        """Wait for it."""
        return str(json.loads(self.output.readline())["log"])

    def wait(self) -> dict[str, Any]:
        """What it returned, or ``{"error": ...}``; nothing if it was killed."""
        with self.output:
            lines = [json.loads(line) for line in self.output.read().splitlines()]
        answers: list[dict[str, Any]] = [line["done"] for line in lines if "done" in line]
        return answers[0] if answers else {}


class Jobs:
    """Starts jobs.

    Args:
        process: of this module.
        folder: for the FIFOs.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder, self._number = process, folder, 0

    def start(self, kind: str, source: str, target: str, **options: Any) -> Job:
        """Begin a job.

        Args:
            kind: ``"push"`` or ``"pull"``.
            source: as they take it.
            target: likewise.
            **options: ``part_bytes``, ``max_in_flight``, ``delete``; ``fsize`` limits the size of files; ``nobody``
                does it without the rights of root; ``hold`` waits for ``let_go``.
        """
        self._number += 1
        fifo = str(self._folder / f"fifo-{self._number}")
        os.mkfifo(fifo)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"kind": kind, "source": source, "target": target, "fifo": fifo, **options}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        opened = open(fifo)  # noqa: SIM115  # closed by Job.wait
        return Job(int(self._process.stdout.readline()), opened)

    def run(self, kind: str, source: str, target: str, **options: Any) -> dict[str, Any]:
        """Do a job."""
        return self.start(kind, source, target, **options).wait()


@contextmanager
def running_jobs(folder: Path) -> Iterator[Jobs]:
    """What runs jobs, as long as the block lasts."""
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield Jobs(process, folder)
        finally:
            process.kill()  # it would not see the end of its input while a forked process holds the other end


def _child(job: dict[str, Any], output: int) -> None:
    from torchdata_remote import RetryPolicy
    from torchdata_remote.service.transfer import pull, push

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(_LONGEST_S)
    if job.get("hold"):
        signal.sigwait({signal.SIGUSR1})

    def report(what: str, value: object) -> None:
        os.write(output, json.dumps({what: value}).encode() + b"\n")

    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: report("log", record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("torchdata_remote").addHandler(handler)
    if "fsize" in job:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["fsize"], job["fsize"]))
    if job.get("nobody") and os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    given: dict[str, Any] = {
        "retry": RetryPolicy(deadline_s=20, first_wait_s=0.01),
        "max_in_flight": job.get("max_in_flight", 8),
        "delete": job.get("delete", False),
        "_part_bytes": job.get("part_bytes", 1 << 20),
        "_batch_bytes": job.get("batch_bytes", 300),
    }
    try:
        done = (push if job["kind"] == "push" else pull)(job["source"], job["target"], **given)
        answer: dict[str, Any] = dict(vars(done))
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    report("done", answer)


def _serve() -> None:
    import encodings.idna  # noqa: F401  # nobody may not be allowed to read them
    import urllib.request  # noqa: F401

    import torchdata_remote.service.transfer  # noqa: F401  # so that children need not

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _child(job, os.open(job["fifo"], os.O_WRONLY))
            os._exit(0)
        os.write(1, b"%d\n" % child)


if __name__ == "__main__":
    _serve()
