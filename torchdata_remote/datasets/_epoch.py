"""The batches of one epoch as an ``IterableDataset``, split over workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..core.arguments import check
from ..core.notices.progress_bar import waiting
from ..core.processes.job_signals import end_by_kill, own_fork_server, start_worker
from ..core.processes.main_guard import is_forking, name_missing_guard, require_main_guard
from ..core.processes.worker_errors import ended_on_error
from ..core.processes.worker_start import SentFunction, SentToWorkers
from ._map_style import as_index

T = TypeVar("T")


class Batched(Protocol):
    """A map-style dataset of this package."""

    def __len__(self) -> int: ...

    def batches(self, batches: Iterable[Sequence[int]]) -> Iterator[list[Any]]:
        """Yield the items of each batch."""


def indices_of(batch: Any) -> list[Any]:
    """Return the indices of a batch.

    Raises:
        TypeError: for what is no list of indices, such as the indices of a sampler.
    """
    if hasattr(batch, "__iter__") and getattr(batch, "ndim", 1) != 0 and not isinstance(batch, str | bytes):
        return list(batch)
    message = (
        f"batch_sampler must yield lists of indices such as [0, 1], got {check.shown(batch)}. Indices that are no "
        "batches are sampler=."
    )
    raise check.marked(TypeError(f"PrefetchingLoader: {message}"), message)


class Epoch(SentToWorkers, IterableDataset[Any]):
    """The batches of an epoch. Worker w of W yields batches w, w + W, w + 2 W, ...

    torch takes one batch of each worker in turn, so batches are in order.

    Args:
        dataset: of this package.
        batches: indices of items.
        collate_fn: from a list of items to a batch.
        single: whether a batch is one item, not a list.
        first: index of the first batch that is read.
    """

    shown_as = "PrefetchingLoader"

    def __init__(
        self,
        dataset: Batched,
        batches: Iterable[Iterable[int]],
        collate_fn: Callable[[Any], Any],
        *,
        single: bool,
        first: int = 0,
    ) -> None:
        self._dataset, self._collate_fn, self._single, self._first = dataset, collate_fn, single, first
        lists = list(map(indices_of, batches))
        self._indices: NDArray[np.int64] = np.fromiter(
            (as_index(index) for batch in lists for index in batch), np.int64
        )
        self._ends: NDArray[np.int64] = np.cumsum([len(batch) for batch in lists], dtype=np.int64)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        own = range(self._first + number, len(self._ends), step)
        for items in self._dataset.batches(self._batch(number) for number in own):
            yield self._collate_fn(items[0] if self._single else items)

    def _batch(self, number: int) -> list[int]:
        start = int(self._ends[number - 1]) if number else 0
        return [int(index) for index in self._indices[start : self._ends[number]]]

    def digest(self) -> str:
        """Digest of all batches, including those before ``first``."""
        return blake2b(self._ends.tobytes() + self._indices.tobytes(), digest_size=16).hexdigest()


def batches_of(epoch: Epoch, **options: Any) -> Iterator[Any]:
    """Read the batches of an epoch by torch's loader.

    Args:
        epoch: the batches.
        **options: of ``DataLoader``.
    """
    collate_fn: Callable[[Any], Any] = _unchanged  # torch's default would turn arrays into tensors
    if options["num_workers"]:
        own = partial(start_worker, options.get("worker_init_fn"))
        options["worker_init_fn"] = SentFunction(own, "PrefetchingLoader(worker_init_fn=...)")
    loader = DataLoader(epoch, batch_size=None, collate_fn=collate_fn, **options)
    if not loader.num_workers:
        batches = iter(loader)
        return ended_on_error(batches, batches)
    is_importing = not is_forking(loader.multiprocessing_context)
    if is_importing:
        require_main_guard()
    with waiting(f"starting {loader.num_workers} workers"), own_fork_server(loader.multiprocessing_context):
        batches = iter(loader)
    end_by_kill(batches)
    return ended_on_error(_naming_missing_guard(batches) if is_importing else batches, batches)


def _naming_missing_guard(batches: Iterator[Any]) -> Iterator[Any]:
    has_first = False
    try:
        for batch in batches:
            has_first = True
            yield batch
    except RuntimeError as error:
        if not has_first:
            name_missing_guard(error)
        raise


def _unchanged(batch: T) -> T:
    """Identity: batches are collated where they are read."""
    return batch
