"""Ask torch about this process without importing it.

A process that has not imported torch is neither a DataLoader worker nor part of a process group. Commands and workers
that only move bytes then start in a tenth of the time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data._utils.worker import WorkerInfo


def get_worker_info() -> WorkerInfo | None:
    """Return the result of torch's function of this name; ``None`` if torch has not been imported."""
    asked = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return None if asked is None else asked()


def rank_in_process_group() -> tuple[int, int] | None:
    """Return ``(rank, world_size)`` of torch's default process group; ``None`` if there is none."""
    distributed: Any = sys.modules.get("torch.distributed")
    # Not there without support for process groups, nor while another thread imports torch
    is_initialized = getattr(distributed, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
