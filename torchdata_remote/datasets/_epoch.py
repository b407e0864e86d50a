"""Read the batches of a pass by the workers of torch's ``DataLoader``, or in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..core.progress import waiting
from ..core.workers import (
    SentFunction,
    SentToWorkers,
    end_by_kill,
    ended_on_error,
    start_worker,
    starting_workers,
)
from ._map_style import MapStyle
from ._orders import Batches

_FUNCTIONS = ("collate_fn", "worker_init_fn")


class Epoch(SentToWorkers, IterableDataset[Any]):
    """The batches of a pass. Worker w of W yields batches w, w + W, w + 2 W, ...

    torch takes one batch of each worker in turn, so batches are in order.

    Args:
        dataset: of the items.
        batches: of the pass.
        single: whether a batch is one item, not a list.
    """

    def __init__(self, dataset: MapStyle[Any], batches: Batches, *, single: bool) -> None:
        self._dataset, self._batches, self._single = dataset, batches, single

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        own = range(number, len(self._batches.ends), step)
        for items in self._dataset.batches(map(self._batches.__getitem__, own)):
            yield items[0] if self._single else items


def read(epoch: Epoch, num_workers: int, options: Mapping[str, Any]) -> Iterator[Any]:
    """Start the workers of a pass.

    Args:
        epoch: the batches.
        num_workers: 0 reads in this process.
        options: of ``DataLoader``.

    Raises:
        WorkerStartError: if workers would start workers, or the dataset cannot be sent to them.
    """
    if num_workers:
        functions = {**options, "worker_init_fn": partial(start_worker, options.get("worker_init_fn"))}
        sent = {name: SentFunction(functions[name]) for name in _FUNCTIONS}
        options = {**options, **sent}
    loader = DataLoader(epoch, batch_size=None, num_workers=num_workers, **options)
    if not num_workers:
        return ended_on_error(loader, loader)
    with waiting(f"starting {num_workers} workers"), starting_workers(loader.multiprocessing_context):
        batches = iter(loader)
    end_by_kill(batches)
    return ended_on_error(batches, batches)
