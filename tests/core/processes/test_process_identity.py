"""Whose job it is, and whether that process still runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from torchdata_remote.core.processes import process_identity as owner
from torchdata_remote.core.processes.process_identity import describe, is_gone, this_process

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def test_is_gone_is_false_for_this_process() -> None:
    """Two records of it differ by their tokens only."""
    first, second = this_process(), this_process()
    assert is_gone(first) is False
    assert first.pop("token") != second.pop("token")
    assert first == second
    assert describe(first) == f"process {os.getpid()} on {first['host']}"


def test_is_gone_reports_a_child_that_has_ended() -> None:
    """While it runs it is there, and when its end was noticed it is gone."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        record = {**this_process(), "pid": child.pid, "started": owner._started(child.pid)}
        assert is_gone(record) is False
        child.communicate(b"\n")
    assert is_gone(record) is True


@LINUX
def test_is_gone_notices_a_reused_process_id() -> None:
    """Another process with this number began at another time."""
    record = this_process()
    assert is_gone({**record, "started": "1"}) is True
    assert is_gone({**record, "started": None}) is True


@pytest.mark.parametrize("changed", ["host", "boot", "process_space"])
def test_is_gone_is_unknown_for_other_machines(changed: str) -> None:
    """Nor what ran before this one was started again, nor what runs in another container."""
    record = this_process()
    assert is_gone({**record, changed: "another"}) is None
    del record[changed]
    assert is_gone(record) is None


@pytest.mark.parametrize("pid", [None, "12", 0, -1, 1.5])
def test_is_gone_reports_values_that_are_no_process_id(pid: object) -> None:
    """A damaged record belongs to no process; above all no signal is sent to a group of processes."""
    assert is_gone({**this_process(), "pid": pid}) is True


def test_is_gone_is_false_for_processes_of_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that may not be signalled is there."""

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(pid, number)

    monkeypatch.setattr(os, "kill", refuse)
    assert is_gone(this_process()) is False


def test_is_gone_works_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the process id alone decides."""
    monkeypatch.setattr(owner, "_started", lambda pid: None)
    record = this_process()
    assert record["started"] is None
    assert is_gone(record) is False


def test_describe_shows_a_damaged_record() -> None:
    """An error message needs no fields."""
    assert describe({}) == "process None on None"
