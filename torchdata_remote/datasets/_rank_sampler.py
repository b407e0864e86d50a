"""This rank's part of an order as a sampler, for trainers that rebuild a loader from its samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from torch.utils.data import DistributedSampler


class RankSampler(DistributedSampler[Any]):
    """The numbers of this rank's items in the next epoch, or lists of those of each batch.

    A ``DistributedSampler`` is what trainers, such as Ray's, leave as it is: an order that is divided already.

    Args:
        loader: that has this sampler.
        next_order: gives the order of the next epoch.
        on_read: called when another loader begins to read by this sampler.
        single: hand out numbers instead of lists.
    """

    def __init__(
        self, loader: Any, next_order: Callable[[], Any], on_read: Callable[[], None], *, single: bool
    ) -> None:
        self._loader, self._next_order, self._on_read, self._single = loader, next_order, on_read, single

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass of the loader be this epoch."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        self._on_read()
        batches = self._next_order().batches()
        return chain.from_iterable(batches) if self._single else iter(batches)

    def __len__(self) -> int:
        order = self._next_order()
        return sum(map(len, order.batches())) if self._single else len(order)
