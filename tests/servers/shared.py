"""One server for all processes that run tests: the first that needs it starts it, it ends after the last.

Usage: python -m tests.servers.shared MODULE:FUNCTION FOLDER   # what runs a server
"""

from __future__ import annotations

import fcntl
import importlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers.s3 import temporary_folder


@dataclass(frozen=True)
class Unavailable:
    """What stands in the place of a server that this machine lacks."""

    why: str


@contextmanager
def shared_server(start: str, folder: Path) -> Iterator[Any]:
    """Use a server while the block runs.

    A process of its own runs it, and ends when no process holds ``users`` any more: the kernel releases the locks of
    those that were killed, too.

    Args:
        start: ``MODULE:FUNCTION`` of a context manager that takes a folder, and gives what describes the server.
        folder: that all processes of this run of pytest have in common.
    """
    place = folder / start.replace(":", ".")
    place.mkdir(parents=True, exist_ok=True)
    with (place / "users").open("w") as users:
        with (place / "starting").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            if not (place / "server").exists():
                _run_beside(start, place)
        server = pickle.loads((place / "server").read_bytes())
        if isinstance(server, Unavailable):
            pytest.skip(server.why)
        yield server


def _run_beside(start: str, place: Path) -> None:
    """Start the process of a server, and wait for the line that says that it runs."""
    command = (sys.executable, "-m", __name__, start, str(place))
    root = Path(__file__).resolve().parents[2]
    with (place / "log").open("wb") as log:
        running = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
    assert running.stdout is not None
    ready = running.stdout.readline()
    assert ready, (place / "log").read_text()
    running.stdout.close()
    running.returncode = 0  # not waited for: it outlives this process


def _keep(start: str, place: Path) -> None:
    module, _, function = start.partition(":")
    server = place / "server"
    with (place / "users").open("r") as users, temporary_folder() as folder, ExitStack() as running:
        try:
            description = running.enter_context(getattr(importlib.import_module(module), function)(folder))
        except pytest.skip.Exception as skipped:
            description = Unavailable(str(skipped))
        _tell(server, description)
        fcntl.flock(users, fcntl.LOCK_EX)  # while somebody has it, this waits
        server.unlink()


def _tell(server: Path, description: Any) -> None:
    server.with_suffix(".new").write_bytes(pickle.dumps(description))
    server.with_suffix(".new").rename(server)
    sys.stdout.write("ready\n")
    sys.stdout.flush()


if __name__ == "__main__":
    from tests.servers.shared import _keep  # whose `Unavailable` the tests know

    _keep(sys.argv[1], Path(sys.argv[2]))
