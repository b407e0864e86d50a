"""Identify a process across machines, and find out whether it still runs."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Fields of /proc/PID/stat after the name: state, and start time in clock ticks since boot
_STATE, _STARTED = 3 - 3, 22 - 3
# States of a process whose parent has not waited for it yet
_ENDED = ("Z", "X")


def this_process() -> dict[str, Any]:
    """Return the identity of this process among those of all machines, with a token that is new in each call."""
    return {**_machine(), "pid": os.getpid(), "started": _started(os.getpid()), "token": uuid.uuid4().hex}


def is_gone(owner: dict[str, Any]) -> bool | None:
    """Return whether the process has ended; ``None`` if it ran on another machine, so that this is unknown."""
    if {name: owner.get(name) for name in _machine()} != _machine():
        return None
    # On Windows signal 0 would end the process
    if os.name == "nt":
        return None
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid < 1:
        return True
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
    return _started(pid) != owner.get("started")


def is_this_process(owner: Mapping[str, Any]) -> bool:
    """Return whether it is this process."""
    return all(owner.get(name) == value for name, value in this_process().items() if name != "token")


def describe(owner: Mapping[str, Any]) -> str:
    """Describe the process in an error message."""
    return f"process {owner.get('pid')} on {owner.get('host')}"


def _machine() -> dict[str, str]:
    """Return the machine and, in containers, the namespace of process ids."""
    boot, space = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "process_space": space}


def _started(pid: int) -> str | None:
    """Return when a process started, because process ids are reused."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[_STATE] in _ENDED else fields[_STARTED]
    except (OSError, IndexError):
        return None
