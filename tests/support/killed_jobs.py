"""Jobs that write shards, each in a process of its own that ends itself at a chosen step.

``python tests/support/killed_jobs.py`` reads a job from each line of stdin, forks a child that does it, and
answers with a line of JSON. So a job costs no imports, and the SIGKILL is a real one.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support.paths import ROOT

_LONGEST_S = 120
_SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "stop": signal.SIGSTOP}
_RENAMES = ("os.rename", "os.link", "os.remove")


class Done(NamedTuple):
    """What became of a job.

    Args:
        status: of the process: minus the signal that ended it, or 0.
        error: what was raised: its type and text.
        steps: what it did to the store, in order, such as ``os.rename /a/b.tar``.
        opened: paths that were opened for reading.
        events: all of these in one order, as [kind, what]; of a job that stopped also ``("stops", "")`` before
            and ``("continues", "")`` after.
    """

    status: int
    error: str | None
    steps: list[str]
    opened: list[str]
    events: list[list[str]]

    def written(self) -> set[str]:
        """Base names of the objects that were made to appear, or removed."""
        return {step.partition("?")[0].rpartition("/")[2] for step in self.steps if "partial" not in step}


class Jobs:
    """Runs jobs.

    Args:
        process: of this module.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._waited, self._number = process, True, 0

    def run(self, source: str, template: str, **options: Any) -> Done:
        """Do a job, as ``start`` takes it."""
        self.start(source, template, **options)
        return self.wait()

    def start(
        self, source: str, template: str, *, folder: str, stop_at: int | str = 0, how: str = "kill", **options: Any
    ) -> None:
        """Begin a job; there is one at a time.

        Args:
            source: as ``shard_dataset`` takes it.
            template: likewise.
            folder: steps are those that change what lies below it, or any request that writes if it is empty.
            stop_at: the step before which it is ended: its number (threads vary which one that is), or the base name
                of an object, for the first step at it; 0 lets it go to its end.
            how: ``"kill"``, ``"interrupt"`` (as Ctrl-C does), ``"raise"``, or ``"stop"``: it waits for SIGCONT.
            **options: as ``shard_dataset`` takes them, with a name for ``labels`` and ``transform``.
        """
        stdin = self._process.stdin
        assert stdin is not None
        self._number += 1
        job = {
            "number": self._number,
            "source": source,
            "template": template,
            "folder": folder,
            "stop_at": stop_at,
            "how": how,
            **options,
        }
        stdin.write(json.dumps(job) + "\n")
        stdin.flush()

    def wait(self) -> Done:
        """What became of the job."""
        self._waited = True
        return Done(**self._answer())

    @contextmanager
    def stopped(self, source: str, template: str, **options: Any) -> Iterator[int]:
        """A job that has stopped before its step, as long as the block lasts: its process. ``wait`` for it within."""
        self.start(source, template, how="stop", **options)
        pid = int(self._answer()["stopped"])
        self._waited = False
        try:
            yield pid
        finally:
            if not self._waited:
                os.kill(pid, signal.SIGKILL)
                self.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = {}
        while answer.pop("number", 0) != self._number:  # else of a job that nobody waited for
            answer = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def running_jobs() -> Iterator[Jobs]:
    """What runs jobs, as long as the block lasts."""
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdin is not None
        try:
            yield Jobs(process)
        finally:
            process.stdin.close()


class _Steps:
    """Notes what a process does, and ends it when it is time."""

    def __init__(self, folder: str, stop_at: int | str, how: str, log: int) -> None:
        self._folder, self._stop_at, self._how, self._log = folder, stop_at, how, log
        self._num_steps = 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str) and isinstance(args[2], int) and args[2] & os.O_CREAT:
            self._step(f"create {args[0]}", args[0])
        elif event == "open" and isinstance(args[0], str) and isinstance(args[2], int) and not args[2] & 3:
            self._tell("opened", args[0])
        elif event in _RENAMES:
            path = str(args[0] if event == "os.remove" else args[1])
            self._step(f"{event} {path}", path)
        elif event == "http.client.send" and not self._folder and isinstance(args[1], bytes):
            method, _, rest = args[1][:400].decode("latin-1").partition(" ")
            if method in ("PUT", "POST", "DELETE"):
                self._step(f"{method} {rest.split()[0]}", "")

    def _step(self, what: str, path: str) -> None:
        if not path.startswith(self._folder):
            return
        self._num_steps += 1
        if self._stop_at in (self._num_steps, os.path.basename(path)):
            if self._how == "raise":
                raise OSError(28, "No space left on device", path)
            self._tell("stops", "")
            os.kill(os.getpid(), _SIGNALS[self._how])
            self._tell("continues", "")
        self._tell("steps", what)

    def _tell(self, kind: str, what: str) -> None:
        os.write(self._log, json.dumps([kind, what]).encode() + b"\n")  # O_APPEND: whole lines, from any thread


def _upper(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "up": sample["txt"].upper()}


def _odd_ones(sample: dict[str, Any]) -> dict[str, Any] | None:
    return sample if int(sample["__key__"][-1]) % 2 else None


def _child(job: dict[str, Any], log: int) -> None:
    from torchdata_remote import labels, shard_dataset

    own_options = {name: job.pop(name) for name in ("folder", "stop_at", "how")}
    source, template = job.pop("source"), job.pop("template")
    job["labels"] = labels.parent_directory() if job.get("labels") else None
    transforms: dict[str | None, Any] = {None: None, "upper": _upper, "odd": _odd_ones}
    job["transform"] = transforms[job.get("transform")]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(_LONGEST_S)  # one that waits for ever is ended, by SIGALRM
    sys.addaudithook(_Steps(log=log, **own_options))
    try:
        shard_dataset(source, template, progress=False, **job)
    except BaseException as error:
        os.write(log, json.dumps(["error", f"{type(error).__name__}: {error}"]).encode() + b"\n")


def _serve() -> None:
    from torchdata_remote import shard_dataset  # noqa: F401  # so that children need not

    for line in sys.stdin:
        job = json.loads(line)
        number = job.pop("number")
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)  # it is not read before a job has stopped
        child = os.fork()
        if not child:
            os.close(reading)
            _child(job, writing)
            os._exit(0)  # taking down an interpreter with torch in it takes longer than the job
        os.close(writing)
        outcome: dict[str, Any] = {"number": number, "steps": [], "opened": [], "events": [], "error": None}
        if job["how"] == "stop":
            os.waitpid(child, os.WUNTRACED)
            os.write(1, json.dumps({"number": number, "stopped": child}).encode() + b"\n")
        with open(reading) as log:
            for entry in map(json.loads, log):
                outcome["events"].append(entry)
                if entry[0] == "error":
                    outcome["error"] = entry[1]
                elif entry[0] in ("steps", "opened"):
                    outcome[entry[0]].append(entry[1])
        outcome["status"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, json.dumps(outcome).encode() + b"\n")


if __name__ == "__main__":
    _serve()
