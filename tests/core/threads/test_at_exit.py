"""Threads that are ended before the interpreter ends."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.system
def test_all_owners_are_closed_before_any_is_waited_for() -> None:
    """And what no thread has taken is dropped last. Those that were collected are not asked."""
    code = """
from torchdata_remote.core.threads.at_exit import close_at_exit
class Owner:
    def close(self): print("close", flush=True)
    def join(self, deadline): print("join", flush=True)
    def drop_queued(self): print("drop", flush=True)
owners = [Owner() for _ in range(3)]
for owner in owners:
    close_at_exit(owner)
del owners[0], owner
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == ["close"] * 2 + ["join"] * 2 + ["drop"] * 2
