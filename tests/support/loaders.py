"""Read torch's loaders to an error without waiting for their workers."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader


def read_all(loader: DataLoader[Any]) -> list[Any]:
    """Return all batches; after an error, end the workers at once.

    The error's traceback refers to the iterator, so that it is collected later and together with its queues. torch can
    then no longer notify the workers, and waits 5 s for each.
    """
    batches: Any = iter(loader)
    try:
        return list(batches)
    except BaseException:
        if loader.num_workers:
            batches._shutdown_workers()
        raise
