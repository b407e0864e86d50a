"""Read the position of an iterator of torchdata's ``StatefulDataLoader``, out of its private attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .state.state_format import State, merge_states


def position_of(batches: Any, num_workers: int) -> tuple[bool, Any]:
    """Whether the iterator has ended, and the positions that its workers sent with the last batch.

    Args:
        batches: the iterator.
        num_workers: of its loader; without workers there are no positions.
    """
    return batches._finished, batches.state_dict()["_snapshot"] if num_workers > 0 else None


def state_of_workers(position: Any, first_worker: int, num_workers: int) -> tuple[State, int]:
    """The merged state of all workers, and the worker whose batch is next.

    Args:
        position: of :func:`position_of`.
        first_worker: the worker whose streams the first worker of the pass reads.
        num_workers: of the loader.
    """
    state = merge_states(worker["dataset_state"] for worker in position["_worker_snapshots"].values())
    return state, (first_worker + position["_last_yielded_worker_id"] + 1) % num_workers


def ended_on_error(items: Iterable[Any], batches: Any, before: Callable[[], object] = lambda: None) -> Iterator[Any]:
    """Yield items of a pass; after an error, end its workers at once.

    The error's traceback refers to the iterator, so that it is collected later and together with its queues. torch can
    then no longer notify the workers, and waits 5 s for each.

    Args:
        items: of the iterator, or the iterator itself.
        batches: the iterator; one without workers has nothing to end.
        before: called before the workers are ended.
    """
    try:
        yield from items
    except Exception:
        before()
        if (shut_down := getattr(batches, "_shutdown_workers", None)) is not None:
            shut_down()
        raise
