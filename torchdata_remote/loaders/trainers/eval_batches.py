"""Wrap a loader for frameworks that accept a ``DataLoader`` only; and the batches of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ...core.world import World
from ...errors import StateError
from ..loader import StatefulLoader


class LoaderBatches(DataLoader[Any]):
    """A ``DataLoader`` over the batches of a :class:`StatefulLoader`.

    ``len(dataset)`` is the number of samples in all ranks, from which ``Trainer`` computes speeds.

    Args:
        loader: reads the batches.
    """

    def __init__(self, loader: StatefulLoader) -> None:
        super().__init__(_Batches(self), batch_size=None, collate_fn=_unchanged, generator=torch.Generator())
        self.loader = loader

    def batches(self) -> Iterator[Any]:
        """Start a pass."""
        raise NotImplementedError


class EvalBatches(LoaderBatches):
    """The batches of an evaluation: the same ones in each pass.

    Args:
        loader: reads the batches.
        dataset: the argument of the user.
        keep_workers: whether workers persist for the next pass.
    """

    def __init__(self, loader: StatefulLoader, dataset: Any, *, keep_workers: bool) -> None:
        super().__init__(loader)
        self.argument, self._keep_workers = dataset, keep_workers

    def batches(self) -> Iterator[Any]:
        """Start a pass."""
        self.loader.set_epoch(0)
        try:
            yield from self.loader
        finally:
            if not self._keep_workers:
                self.end_workers()

    def end_workers(self) -> None:
        """End the worker processes."""
        self.loader.end_workers()

    def __len__(self) -> int:
        return len(self.loader)


class _Batches(IterableDataset[Any]):
    def __init__(self, owner: LoaderBatches) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[Any]:
        return self._owner.batches()

    def __len__(self) -> int:
        dataset = self._owner.loader.dataset
        world_size = dataset.world().world_size
        return sum(dataset.share_lengths([World(rank, world_size) for rank in range(world_size)]))


def _unchanged(batch: Any) -> Any:
    return batch


def require_equal_shares(loader: StatefulLoader, description: str) -> None:
    """Refuse an evaluation in which processes would have batches of different sizes.

    Raises:
        StateError: in each process.
    """
    dataset, num_workers = loader.dataset, max(1, loader.num_workers)
    world_size = dataset.world().world_size
    if world_size == 1:
        return
    slots = [
        World(rank, world_size, worker, num_workers) for rank in range(world_size) for worker in range(num_workers)
    ]
    try:
        lengths = dataset.share_lengths(slots)
        counts = (
            f"{[sum(lengths[rank * num_workers : (rank + 1) * num_workers]) for rank in range(world_size)]} samples"
        )
    except TypeError:
        lengths, counts = list(range(len(slots))), "unknown numbers of samples"
    if any(
        lengths[:num_workers] != lengths[first : first + num_workers] for first in range(0, len(slots), num_workers)
    ):
        raise StateError(
            f"transformers Trainer, {description}: {world_size} processes would have {counts}, and Trainer gathers "
            "batches of equal size. Chain .equalize_ranks() after the reader, or evaluate in one process."
        )
