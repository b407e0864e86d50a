"""Start and end iterators of torchdata's ``StatefulDataLoader``, and read their position out of private attributes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..core.progress import waiting
from ..core.workers import (
    end_by_kill,
    end_workers_of,
    starting_workers,
)
from ..core.world import World
from .state.state_format import State, merge_states


def started(loader: Any, start: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Start the iterator of a pass; a terminal shows what it waits for. After an error, its workers are ended at once.

    Args:
        loader: of torchdata.
        start: makes the iterator, and starts workers.

    Raises:
        WorkerStartError: if workers would start workers, or the chain cannot be sent to them.
    """
    # The loader's generator is of the CPU, and torch draws seeds on its default device
    with torch.device("cpu"):
        try:
            batches = _started(loader, start)
        except BaseException as error:
            _end_workers_in(error)
            raise
    end_by_kill(batches)
    return batches


def _end_workers_in(error: BaseException) -> None:
    """End the workers of the iterator that was being started, which only the traceback has."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        iterator = frame.f_locals.get("self")
        if isinstance(iterator, _BaseDataLoaderIter) and hasattr(iterator, "_workers_status"):
            end_workers_of(iterator)
            return


def _started(loader: Any, start: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    if loader.num_workers == 0:
        return start()
    starting = f"starting {loader.num_workers} worker{'s' if loader.num_workers > 1 else ''}"
    with waiting(starting), starting_workers(loader.multiprocessing_context):
        return start()


Position = tuple[bool, Any]
"""Whether a pass has ended, and the position after its last batch: what makes a state, or the states of workers."""


def position_of(batches: Any, capture: Callable[[], Any] | None) -> Position:
    """The position of an iterator.

    Args:
        batches: the iterator, of torchdata or :class:`~.thread.batches_ahead.BatchesAhead`.
        capture: of the dataset's pass, which has the position where there are no workers.
    """
    if hasattr(batches, "position"):
        return batches._finished, batches.position
    # Of one with workers, what they have sent with the last batch
    position = batches.state_dict()["_snapshot"] if capture is None else capture()
    return batches._finished, position


def state_of_workers(position: Any, first_worker: int, num_workers: int) -> tuple[State, int]:
    """The merged state of all workers, and the worker whose batch is next.

    Args:
        position: of :func:`position_of`.
        first_worker: the worker whose streams the first worker of the pass reads.
        num_workers: of the loader.
    """
    state = merge_states(worker["dataset_state"] for worker in position["_worker_snapshots"].values())
    return state, (first_worker + position["_last_yielded_worker_id"] + 1) % num_workers


def next_worker_in(state: State, world: World, num_workers: int) -> int:
    """The worker whose batch was next when a rank of this world, with this number of workers, saved a state; else 0."""
    for *place, next_worker in state.get("turns", []):
        if place == [world.rank, world.world_size, num_workers]:
            return int(next_worker)
    return 0
