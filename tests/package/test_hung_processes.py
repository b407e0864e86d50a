"""A test that takes too long says where the processes that it forked are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hung_processes import SIGNAL

HANGS = """
import multiprocessing, time

def waits_in_vain():
    time.sleep(60)

def test_hangs():
    child = multiprocessing.get_context("fork").Process(target=waits_in_vain, daemon=True)
    child.start()
    child.join()
"""


@pytest.mark.skipif(SIGNAL is None or not Path("/proc").exists(), reason="this system has no /proc")
def test_the_stacks_of_forked_processes_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "test_that_hangs.py"
    path.write_text(HANGS)
    plugins = ["-p", "tests.support.hung_processes", "-p", "no:cacheprovider", "--timeout=2"]
    command = [sys.executable, "-m", "pytest", *plugins, f"--rootdir={tmp_path}", "-c", "/dev/null", str(path)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=200).stdout
    assert "in waits_in_vain" in output
    assert "Timeout (>2.0s)" in output
