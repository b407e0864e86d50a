"""A mark that workers set and the process that started them sees."""

from __future__ import annotations

import mmap
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

from ..errors import StateError


class WorkerMark:
    """Whether copies of a dataset in worker processes have begun to read it, of which its original knows nothing.

    Forked workers share a byte with the process that forked them. Others were sent their copy when they started.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def set_in_worker(self) -> None:
        """Set it, if this process is a worker."""
        if get_worker_info() is not None:
            self._shared[0] = 1

    def require_unset(self) -> None:
        """Refuse to give a state that is in other processes.

        Raises:
            StateError: if workers have begun.
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
