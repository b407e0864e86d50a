"""Count the processors that this process may use."""

from __future__ import annotations

import os
from contextlib import suppress

_CGROUP = "/sys/fs/cgroup"


def num_processors() -> int:
    """Count the processors of this process: those that it may run on, or as many as its container may use.

    ``os.cpu_count`` counts those of the machine, which may be 64 where a container has 4.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # missing on macOS
    num_usable = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = _quota()
    return num_usable if quota is None else max(1, min(num_usable, round(quota)))


def num_processors_of_rank() -> int:
    """Divide the processors among the ranks of this machine, of which ``torchrun`` tells the number."""
    local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, num_processors() // max(1, int(local_ranks) if local_ranks.isdecimal() else 1))


def _quota(folder: str = _CGROUP) -> float | None:
    """Return the time that a container may use, in processors; ``None`` if it is not limited."""
    with suppress(OSError, ValueError):  # no Linux, no cgroup, or no limit, which is called "max"
        with open(f"{folder}/cpu.max", encoding="ascii") as file:
            allowed, period = file.read().split()
        return int(allowed) / int(period)
    return None
