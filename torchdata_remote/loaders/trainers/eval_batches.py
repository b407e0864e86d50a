"""The batches of a loader as a framework consumes them that takes a ``DataLoader`` only, and those of an evaluation."""

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
        loader: which reads the batches.
    """

    def __init__(self, loader: StatefulLoader) -> None:
        super().__init__(_Batches(self), batch_size=None, collate_fn=_unchanged, generator=torch.Generator())
        self.loader = loader

    def batches(self) -> Iterator[Any]:
        """A pass."""
        raise NotImplementedError


class EvalBatches(LoaderBatches):
    """The batches of an evaluation: the same ones in each pass.

    Args:
        loader: which reads the batches.
        dataset: as the user gave it.
        keep_workers: whether workers wait for the next pass; otherwise they end with each.
    """

    def __init__(self, loader: StatefulLoader, dataset: Any, *, keep_workers: bool) -> None:
        super().__init__(loader)
        self.given, self._keep_workers = dataset, keep_workers

    def batches(self) -> Iterator[Any]:
        """A pass."""
        self.loader.set_epoch(0)
        try:
            yield from self.loader
        finally:
            if not self._keep_workers:
                self.end_workers()

    def end_workers(self) -> None:
        """End the workers, which a :class:`StatefulLoader` keeps."""
        self.loader._iterator = None

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
    """Refuse an evaluation in which processes would hand out batches of different sizes.

    Raises:
        StateError: in each process.
    """
    dataset, num_workers = loader.dataset, max(1, loader.num_workers)
    world_size = dataset.world().world_size
    if world_size == 1:
        return
    places = [
        World(rank, world_size, worker, num_workers) for rank in range(world_size) for worker in range(num_workers)
    ]
    try:
        lengths = dataset.share_lengths(places)
        what = f"{[sum(lengths[rank * num_workers : (rank + 1) * num_workers]) for rank in range(world_size)]} samples"
    except TypeError:
        lengths, what = list(range(len(places))), "numbers of samples that the chain does not tell"
    if any(
        lengths[:num_workers] != lengths[first : first + num_workers] for first in range(0, len(places), num_workers)
    ):
        raise StateError(
            f"transformers Trainer, {description}: {world_size} processes would have {what}, and Trainer gathers "
            "batches of equal size. Chain .equalize_ranks() after the reader, or evaluate in one process."
        )
