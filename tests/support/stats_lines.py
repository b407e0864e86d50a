"""Lines of ``record_stats``, as a training would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STAGES = ("list", "fetch", "read", "decode")
NOW_S = 1_800_000_000.0  # the time of these lines' machines


def line(elapsed_s: float, *, pid: int = 1, host: str | None = "a", **fields: Any) -> str:
    """A line after so many seconds of a process that began at ``NOW_S``.

    Args:
        elapsed_s: since the process began.
        pid: of the process.
        host: of the process.
        **fields: of the line; ``fetch_wait_s=3`` sets a counter of a stage.
    """
    none = {"items": 0, "num_bytes": 0, "wait_s": 0.0, "busy_s": 0.0, "requests": 0, "retries": 0}
    stages = {name: dict(none) for name in STAGES}
    others = {}
    for name, value in fields.items():
        stage, _, counter = name.partition("_")
        if stage in stages:
            stages[stage][counter] = value
        else:
            others[name] = value
    origin = {"time": NOW_S + elapsed_s, "host": host, "parent_pid": None, "rank": None, "world_size": None}
    place = {"worker": None, "num_workers": 0, "every_s": 2.0, "ended": False, "idle_s": 0.0}
    return json.dumps({**origin, **place, "pid": pid, "elapsed_s": elapsed_s, **stages, **others}) + "\n"


def write(path: Path, *lines: str) -> None:
    """Append lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(lines)
