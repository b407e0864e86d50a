"""The batches of one epoch as an ``IterableDataset``, of which each worker takes its share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ._map_style import as_number

T = TypeVar("T")


class Batched(Protocol):
    """A dataset of this package."""

    def __len__(self) -> int: ...

    def batches(self, batches: Iterable[Sequence[int]]) -> Iterator[list[Any]]:
        """The items of one batch after the other."""


class Epoch(IterableDataset[Any]):
    """The batches of an epoch. The worker of number w takes every W-th of them from w on.

    torch takes from the workers by turns, so they come in order.

    Args:
        dataset: one of this package's.
        batches: numbers of items.
        collate: from a list of items to a batch.
        single: whether a batch is one item, which is not put into a list.
        first: the batches before this one are not read.
    """

    def __init__(
        self,
        dataset: Batched,
        batches: Iterable[Iterable[int]],
        collate: Callable[[Any], Any],
        *,
        single: bool,
        first: int = 0,
    ) -> None:
        self._dataset, self._collate, self._single, self._first = dataset, collate, single, first
        lists = list(map(list, batches))
        self._indices: NDArray[np.int64] = np.fromiter(
            (as_number(index) for batch in lists for index in batch), np.int64
        )
        self._ends: NDArray[np.int64] = np.cumsum([len(batch) for batch in lists], dtype=np.int64)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        mine = range(self._first + number, len(self._ends), step)
        for items in self._dataset.batches(self._batch(number) for number in mine):
            yield self._collate(items[0] if self._single else items)

    def _batch(self, number: int) -> list[int]:
        start = int(self._ends[number - 1]) if number else 0
        return [int(index) for index in self._indices[start : self._ends[number]]]

    def digest(self) -> str:
        """Of all batches, also those before ``first``."""
        return blake2b(self._ends.tobytes() + self._indices.tobytes(), digest_size=16).hexdigest()


def batches_of(epoch: Epoch, **options: Any) -> Iterator[Any]:
    """Its batches, by torch's loader.

    Args:
        epoch: the batches.
        **options: of ``DataLoader``.
    """
    collate_fn: Callable[[Any], Any] = _unchanged  # torch's own would make tensors of arrays
    return iter(DataLoader(epoch, batch_size=None, collate_fn=collate_fn, **options))


def _unchanged(batch: T) -> T:
    """It was collated where it was made."""
    return batch
