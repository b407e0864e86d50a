"""What the map-style datasets have in common: items by number, a batch of them at once, several batches ahead."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset

from ..core.parent_watch import WatchedWhenUnpickled, end_worker_with_trainer

Item = TypeVar("Item", covariant=True)


def as_number(index: Any) -> int:
    """The number that an index is, of Python, NumPy or torch.

    Raises:
        TypeError: if it is none.
    """
    if not isinstance(index, (bool, np.bool_)) and getattr(index, "dtype", None) is not torch.bool:
        with contextlib.suppress(TypeError):
            return operator.index(index)
    raise TypeError(
        f"An item is asked for by its number, an int, got {type(index).__name__}: {index!r:.100}. Several at once come "
        "through a DataLoader, a Subset, or [dataset[number] for number in numbers]."
    )


class MapStyle(WatchedWhenUnpickled, Dataset[Item], Generic[Item]):
    """Items with numbers from 0. torch's ``DataLoader`` asks for a whole batch by ``__getitems__``."""

    def __len__(self) -> int:
        raise NotImplementedError

    def _items(self, batches: Iterable[Sequence[int]]) -> Generator[list[Item], None, None]:
        """The items of each batch; ``batches`` is pulled ahead. All numbers are from 0 and below ``len``."""
        raise NotImplementedError

    def batches(self, batches: Iterable[Sequence[int]]) -> Generator[list[Item], None, None]:
        """The items of one batch after the other; what the next ones need is fetched meanwhile.

        Args:
            batches: numbers of items, each as an index of a list; may be endless.

        Raises:
            IndexError: for a number that there is not, after the batches before it.
            TypeError: for what is no number.
        """
        end_worker_with_trainer()
        return self._items([self._number(index) for index in batch] for batch in batches)

    def _number(self, index: Any) -> int:
        number, num_items = as_number(index), len(self)
        if not -num_items <= number < num_items:
            raise IndexError(
                f"{type(self).__name__} has {num_items:,} items, so there is none with the number {number}."
            )
        return number % num_items

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """The items with these numbers, in this order, fetched at the same time."""
        with closing(self.batches([indices])) as batches:
            return next(batches)

    def __getitem__(self, index: int) -> Item:
        return self.__getitems__([index])[0]
