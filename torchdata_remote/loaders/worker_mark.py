"""A flag that workers set and the process that started them reads."""

from __future__ import annotations

import mmap
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

from ..errors import StateError


class WorkerMark:
    """Whether worker processes have started to read copies of a dataset, whose state the original does not have.

    Forked workers share a byte with the process that forked them. For other start methods, pickling a copy for a worker
    sets the flag.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def set_in_worker(self) -> None:
        """Set the flag, if this process is a worker."""
        if get_worker_info() is not None:
            self._shared[0] = 1

    def require_unset(self) -> None:
        """Refuse to return a state if other processes have it.

        Raises:
            StateError: if workers have started.
        """
        if get_worker_info() is None and self._shared[0] != 0:
            raise StateError(
                "Workers of a DataLoader have read their copies of this Resumable, and have the state. Use "
                "stateful_loader(pipe, num_workers=...) and its state_dict(), or num_workers=0."
            )

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            self._shared[0] = 1
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._shared = mmap.mmap(-1, 1)
