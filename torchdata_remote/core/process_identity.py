"""Which process a job belongs to, and whether that one still runs."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_STATE, _STARTED = 3 - 3, 22 - 3  # of /proc/PID/stat, counted behind the name; clock ticks since boot
_ENDED = ("Z", "X")  # states of a process that nobody has waited for yet


def this_process() -> dict[str, Any]:
    """Tells this process from any other, of this and of other machines; with a token that is new each time."""
    return {**_machine(), "pid": os.getpid(), "started": _started(os.getpid()), "token": uuid.uuid4().hex}


def is_gone(owner: dict[str, Any]) -> bool | None:
    """Whether the process has ended; ``None`` if that cannot be seen from here."""
    if {name: owner.get(name) for name in _machine()} != _machine():
        return None
    if os.name == "nt":  # where signal 0 ends the process
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
    """Whether it is this process."""
    return all(owner.get(name) == value for name, value in this_process().items() if name != "token")


def describe(owner: Mapping[str, Any]) -> str:
    """For an error message."""
    return f"process {owner.get('pid')} on {owner.get('host')}"


def _machine() -> dict[str, str]:
    """The machine and, in containers, the space of process numbers."""
    boot, space = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "process_space": space}


def _started(pid: int) -> str | None:
    """When a process began; a number that is used again has another beginning."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[_STATE] in _ENDED else fields[_STARTED]
    except (OSError, IndexError):
        return None
