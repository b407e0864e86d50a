"""Whose job it is, and whether that process still runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from torchdata_remote.core.processes.process_identity import describe, is_gone, this_process


def test_a_process_is_gone_when_it_has_ended_and_not_before() -> None:
    first, second = this_process(), this_process()
    assert is_gone(first) is False
    assert first["token"] != second["token"]
    assert describe(first) == f"process {os.getpid()} on {first['host']}"
    code = "import json; from torchdata_remote.core.processes import process_identity as one; "
    code += "print(json.dumps(one.this_process()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert is_gone(json.loads(done.stdout)) is True


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({"started": "1"}, True),  # another process with this number
        ({"host": "another"}, None),
        ({"boot": "another"}, None),
        ({"process_space": "another"}, None),
        ({"pid": "12"}, True),
        ({"pid": 0}, True),  # above all no signal is sent to a group of processes
        ({"pid": -1}, True),
    ],
)
def test_other_records_are_told_apart(changes: dict[str, object], gone: bool | None) -> None:
    assert is_gone({**this_process(), **changes}) is gone
