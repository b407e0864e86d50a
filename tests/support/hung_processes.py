"""When a test takes too long, show where its forked processes are. pytest-timeout shows the threads of its own only."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

SIGNAL = getattr(signal, "SIGUSR2", None)
_DUMP_S = 2.0
_stacks = tempfile.TemporaryFile()  # noqa: SIM115  # faulthandler writes to it in each forked process


def pytest_configure() -> None:
    """Let this process, and those forked from it, write the stacks of their threads when the signal comes."""
    if SIGNAL is not None:
        faulthandler.register(SIGNAL, file=_stacks, all_threads=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the stacks before the error of a test that took too long."""
    report = yield
    if call.excinfo is not None and "Timeout (>" in str(call.excinfo.value):
        report.longrepr = f"{stacks_of_children()}\n{report.longreprtext}"
    return report


def stacks_of_children() -> str:
    """Ask each child for its stacks, if it handles the signal, which ends other processes."""
    children = [child for child in multiprocessing.active_children() if child.pid is not None]
    found = []
    for child in children:
        _stacks.seek(0, os.SEEK_END)
        start = _stacks.tell()
        if _handles_signal(child.pid or 0):
            os.kill(child.pid or 0, SIGNAL or 0)
            time.sleep(_DUMP_S)
        _stacks.seek(start)
        found.append(f"{child}:\n{_stacks.read().decode(errors='replace')}")
    return "\n".join(found) or "The test has no child processes."


def _handles_signal(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    caught = [line for line in status.read_text().splitlines() if line.startswith("SigCgt")] if status.exists() else []
    return SIGNAL is not None and bool(caught) and bool(int(caught[0].split()[1], 16) >> (SIGNAL - 1) & 1)
