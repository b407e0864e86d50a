"""The share of one rank as a sampler, for trainers that rebuild a loader from its samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from torch.utils.data import DistributedSampler


class RankSampler(DistributedSampler[Any]):
    """Yield the indices of this rank's items in the next epoch, or the list of indices of each batch.

    It is a ``DistributedSampler``, because trainers such as Ray's do not split such a sampler again.

    Args:
        loader: that has this sampler.
        next_order: returns the order of the next epoch.
        on_read: called when another loader starts to read by this sampler.
        single: yield indices instead of lists.
    """

    def __init__(
        self, loader: Any, next_order: Callable[[], Any], on_read: Callable[[], None], *, single: bool
    ) -> None:
        self._loader, self._next_order, self._on_read, self._single = loader, next_order, on_read, single

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader's next pass."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        self._on_read()
        batches = self._next_order().batches()
        return chain.from_iterable(batches) if self._single else iter(batches)

    def __len__(self) -> int:
        order = self._next_order()
        return sum(map(len, order.batches())) if self._single else len(order)
