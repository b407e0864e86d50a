"""Base class of the map-style datasets: items by index, batches fetched at once, several batches prefetched."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset

from ..core.options import Backend, FetchOptions, RetryPolicy, StorageOptions, policy_of
from ..core.processes import end_worker_with_trainer
from ..core.workers import SentToWorkers
from ..fetch.session import FetchSession
from ..formats.error_policy import Skipped

T = TypeVar("T")


def as_index(index: Any) -> int:
    """Convert an index of Python, NumPy or torch to an int.

    Raises:
        TypeError: if it is not an integer.
    """
    if not isinstance(index, bool) and getattr(index, "dtype", None) is not torch.bool:
        with contextlib.suppress(TypeError):
            return operator.index(index)
    raise TypeError(
        f"An item is selected by its index, an int, got {type(index).__name__}: {index!r:.100}. To select several, use "
        "a DataLoader, a Subset, or [dataset[index] for index in indices]."
    )


def until_error(items: Iterable[T], errors: list[Exception]) -> Iterator[T]:
    """Yield items that are read ahead. An error ends them and is kept, to be raised after what was read before it."""
    try:
        yield from items
    except Exception as error:  # noqa: BLE001  # the caller raises it
        errors.append(error)


class MapStyle(SentToWorkers, Dataset[Any]):
    """Items with indices from 0. torch's ``DataLoader`` requests a complete batch by ``__getitems__``.

    Args: as :class:`RemoteFiles`.
    """

    names_digest: str
    """Digest of the names of the items in their order."""

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None,
        max_in_flight: int,
        cache_dir: str | None,
        cache_bytes: int | None,
        retry: RetryPolicy | None,
        backend: Backend,
    ) -> None:
        options = FetchOptions(
            max_in_flight=max_in_flight,
            retry=policy_of(retry),
            backend=backend,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )
        self._session = FetchSession(options, StorageOptions(storage_options))
        self.skipped = Skipped()

    def __len__(self) -> int:
        raise NotImplementedError

    def _items(self, batches: Iterator[Sequence[int]]) -> Generator[list[Any], None, None]:
        """Yield the items of each batch; ``batches`` is read ahead. Indices are at least 0 and less than ``len``."""
        raise NotImplementedError

    def batches(self, batches: Iterable[Sequence[int]]) -> Generator[list[Any], None, None]:
        """Yield the items of each batch, prefetching the next ones.

        Args:
            batches: indices of items, as of a list; may be infinite.

        Raises:
            IndexError: for an index out of range, after the batches before it.
            TypeError: for an index that is not an integer.
        """
        end_worker_with_trainer()
        errors = list[Exception]()
        yield from self._items(until_error(([self._number(index) for index in batch] for batch in batches), errors))
        if errors:
            raise errors.pop()  # which is referred to by the frames of its traceback, and would stay with them

    def _number(self, index: Any) -> int:
        number, num_items = as_index(index), len(self)
        if not -num_items <= number < num_items:
            raise IndexError(f"{type(self).__name__} has {num_items:,} items, so index {number} is out of range.")
        return number % num_items

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Fetch the items of these indices concurrently, and return them in this order."""
        with closing(self.batches([indices])) as batches:
            return next(batches)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]
