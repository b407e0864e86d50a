"""Compute lengths of streams, so that a ``DataLoader`` with workers has the right number of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.utils.data import DataLoader, get_worker_info

from .second_split import callers


def num_batches(lengths: Sequence[int], batch_size: int | None, *, drop_last: bool) -> int:
    """Count the batches of a loader whose workers have these numbers of samples; samples if it does not batch.

    Example:
        >>> num_batches([30, 30], 4, drop_last=False)
        16
    """
    if batch_size is None:
        return sum(lengths)
    return sum((length + (0 if drop_last else batch_size - 1)) // batch_size for length in lengths)


def length_for_caller(lengths_of: Callable[[int], Sequence[int]]) -> int:
    """Return a stream's number of samples; to a calling ``DataLoader``, its number of batches times the batch size.

    ``DataLoader`` divides the samples of all workers by the batch size, although each worker has a last batch of its
    own. Frameworks that stop after ``len(loader)`` batches would drop the other batches.

    Args:
        lengths_of: number of workers -> number of samples of each of them.
    """
    loader = next((found for found in callers() if isinstance(found, DataLoader)), None)
    if loader is None or get_worker_info() is not None:
        return sum(lengths_of(1))
    lengths = lengths_of(max(1, loader.num_workers))
    return num_batches(lengths, loader.batch_size, drop_last=loader.drop_last) * (loader.batch_size or 1)
