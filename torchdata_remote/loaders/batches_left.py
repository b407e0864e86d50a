"""Compare how many batches ranks that resume in another world have left of the epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.frameworks.loader_length import num_batches
from ..core.rank_exchange import exchanged, made_by_each
from ..errors import StateError

_LARGEST_FACTOR = 2  # between the batch size and the largest one that is tried


def require_equal_batches(loader: Any, count: Callable[[], int | None]) -> None:
    """Compare the batches that ranks have left. Collective: every rank calls it, also if counting fails there.

    Args:
        loader: a ``StatefulLoader`` that has loaded a state.
        count: returns the batches that this rank has left; ``None`` in all ranks if the number is not known.

    Raises:
        StateError: in all ranks, if the numbers differ, or if a rank cannot count; names a batch size that fits, if
            there is one.
    """
    world = loader.dataset.world()
    counts = list(made_by_each(world, "count the batches left", count, of_rank=StateError).values())
    if len(set(counts)) == 1:
        return
    lengths_here = loader.dataset.lengths_left(world.workers(loader.num_workers))
    lengths = list(exchanged(world, "count the samples left", lengths_here).values())
    fitting = None
    if loader.batch_size is not None:
        fitting = fitting_batch_size(lengths, loader.batch_size, drop_last=loader.drop_last)
    saved_by = {turn[1] for turn in (loader.dataset.loaded or {}).get("turns", [])}
    other_size = "" if fitting is None else f"with batch_size={fitting}, "
    raise StateError(
        f"The ranks have different numbers of batches left of this epoch: {', '.join(map(str, counts))}. Those with "
        f"fewer would wait for the others at its end. Resume {other_size}with as many ranks as saved the state "
        f"({', '.join(map(str, sorted(saved_by)))}), or from a checkpoint of an epoch's end."
    )


def fitting_batch_size(lengths: Sequence[Sequence[int]], batch_size: int, *, drop_last: bool) -> int | None:
    """Find the nearest batch size with which all ranks have the same number of batches, at least one.

    Args:
        lengths: number of samples of each worker of each rank.
        batch_size: with which the numbers differ.
        drop_last: whether a worker's last batch is dropped if it is short.

    Example:
        >>> fitting_batch_size([[36], [37], [37]], 2, drop_last=False)
        5
    """
    sizes = sorted(range(1, _LARGEST_FACTOR * max(batch_size, 4) + 1), key=lambda size: abs(size - batch_size))
    for size in sizes:
        counts = {num_batches(rank, size, drop_last=drop_last) for rank in lengths}
        if len(counts) == 1 and counts != {0}:
            return size
    return None
