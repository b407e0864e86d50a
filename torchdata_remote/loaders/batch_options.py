"""What a loader tells the pipes of its chain: how many threads they use, and the batches that their items become."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import get_worker_info

from ..core.frameworks.batch_rows import BatchRows


class BatchOptions:
    """Options of a loader for the passes over its chain.

    Args:
        num_threads: for pipes that were given no number; ``None`` leaves them as they are.
        rows_of: number of samples in a batch that :func:`~..core.frameworks.collating.collate_samples` makes; ``None``
            if there are no such batches.
        pin_memory: whether batches are pinned.
    """

    def __init__(self, *, num_threads: int | None = None, rows_of: int | None = None, pin_memory: bool = False) -> None:
        self.num_threads, self.rows_of, self.pin_memory = num_threads, rows_of, pin_memory
        self._rows: BatchRows | None = None  # of this process, which uses the memory of freed batches again

    @classmethod
    def of(cls, loader: Any, *, num_threads: int | None = None, to_gpu: bool = False) -> BatchOptions:
        """The options of a loader.

        Args:
            loader: with its ``batch_size``, ``collate_fn`` (a :class:`LoaderCollate`) and ``pin_memory``.
            num_threads: that it gives to its pipes.
            to_gpu: whether it copies batches to a GPU.
        """
        rows_of = loader.batch_size if loader.collate_fn.takes_rows else None
        return cls(num_threads=num_threads, rows_of=rows_of, pin_memory=loader.pin_memory or to_gpu)

    def rows(self) -> BatchRows | None:
        """The rows of the batches of a pass that starts; ``None`` if its tensors have memory of their own."""
        if self.rows_of is None:
            return None
        if self._rows is None:
            is_pinned = self.pin_memory and torch.cuda.is_available()
            memory = "shared" if get_worker_info() is not None else "pinned" if is_pinned else "process"
            self._rows = BatchRows(self.rows_of, memory)  # type: ignore[arg-type]  # mypy joins the literals to str
        self._rows.restart()
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_rows": None}
