"""This rank's part of an order as a sampler, for trainers that rebuild a loader from its samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from torch.utils.data import Sampler


class RankSampler(Sampler[Any]):
    """The numbers of this rank's items in the next epoch, or lists of those of each batch.

    Args:
        next_order: gives the order of the next epoch.
        set_epoch: of the loader.
        single: hand out numbers instead of lists.
    """

    def __init__(self, next_order: Callable[[], Any], set_epoch: Callable[[int], None], *, single: bool) -> None:
        self._next_order, self._single, self.set_epoch = next_order, single, set_epoch

    def __iter__(self) -> Iterator[Any]:
        batches = self._next_order().batches()
        return chain.from_iterable(batches) if self._single else iter(batches)

    def __len__(self) -> int:
        order = self._next_order()
        return sum(map(len, order.batches())) if self._single else len(order)
