"""Let all ranks end an epoch after the same number of batches, or say that one of them may wait for others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ..core.frameworks import num_batches
from ..pipes.shuffle import shuffles_samples
from ..pipes.slots import is_endless
from ..pipes.split_guard import has_all_ranks
from .stream_counts import end_together

_END = object()
Lengths = Sequence[Sequence[int]]
"""Number of samples of each worker of each rank."""


def num_batches_of_rank(loader: Any, lengths: Mapping[int, Sequence[int]]) -> int:
    """Count the batches of this rank.

    Args:
        loader: a ``StatefulLoader``.
        lengths: number of a rank -> number of samples of each of its workers; without a process group of this one only.
    """
    counts = dict(zip(lengths, _counts(loader, list(lengths.values())), strict=True))
    return min(counts.values()) if _ends_early(loader) else counts[loader.dataset.world().rank]


def ended_together(
    loader: Any, batches: Iterator[Any], lengths: Callable[[], Lengths], *, resumed: bool
) -> Iterator[Any]:
    """Yield the batches of a pass, as many as each rank has; rank 0 says so, or warns where that is not known.

    Args:
        loader: a ``StatefulLoader`` with ``equalize``, whether to do so.
        batches: of this rank.
        lengths: called when the first batch is there; raises ``TypeError`` if they are not known.
        resumed: whether the pass continues from a state.
    """
    first = next(batches, _END)
    limit, said = _limit(loader, lengths, "that were left of this epoch" if resumed else "others in each epoch")
    if said and loader.dataset.world().rank == 0 and not loader.was_told:
        loader.was_told = True
        warnings.warn(said, RuntimeWarning, stacklevel=2)
    if first is not _END and limit != 0:
        yield first
        del first
        yield from batches if limit is None else islice(batches, limit - 1)


def _limit(loader: Any, lengths_of_pass: Callable[[], Lengths], which: str) -> tuple[int | None, str]:
    """How many batches each rank may hand out, ``None`` for all that it has; and what is to be said."""
    dataset = loader.dataset
    world = dataset.world()
    if world.world_size == 1 or is_endless(dataset.pipe):
        return None, ""
    try:
        lengths = lengths_of_pass()
    except TypeError:
        is_equal = has_all_ranks(dataset.pipe) or end_together(dataset.pipe)
        return None, "" if is_equal else f"Ranks may get different numbers of batches. {_WAITS}"
    counts = _counts(loader, lengths)
    fewest, most = min(counts), max(counts)
    if fewest == most:
        return None, ""
    found = (
        f"Ranks have different numbers of batches: rank {counts.index(fewest)} has {fewest:,} and rank "
        f"{counts.index(most)} has {most:,} in this pass, by the manifest."
    )
    if not _ends_early(loader):
        return None, f"{found} {_WAITS}"
    num_streams = dataset.share(world)[0]
    if num_streams % world.world_size:
        advice = f"Choose num_streams={-(-num_streams // world.world_size) * world.world_size} for equal ranks."
    else:
        advice = "With equalize=False the loader reads them, too; equalize_ranks(mode='repeat') repeats some instead."
    num_left_out = sum(_num_left_out(loader, rank, count - fewest) for rank, count in zip(lengths, counts, strict=True))
    return fewest, (
        f"{found} Each of them ends after {fewest:,}, so that none waits for the others. This leaves out "
        f"{num_left_out:,} of {sum(map(sum, lengths)):,} samples, {which}. {advice}"
    )


def _ends_early(loader: Any) -> bool:
    """Whether a pass may be ended: what it leaves out differs by epoch only if samples are shuffled."""
    pipe = loader.dataset.pipe
    return loader.equalize and (shuffles_samples(pipe) or getattr(pipe, "shuffles_items", False))


def _counts(loader: Any, lengths: Lengths) -> list[int]:
    return [num_batches(rank, loader.batch_size, drop_last=loader.drop_last) for rank in lengths]


def _num_left_out(loader: Any, lengths: Sequence[int], excess: int) -> int:
    """Count the samples in the last batches of a rank, which its workers make by turns."""
    size, ends = loader.batch_size or 1, _counts(loader, [[length] for length in lengths])
    turns = sorted((turn, worker) for worker, end in enumerate(ends) for turn in range(max(0, end - excess), end))
    return sum(min(size, lengths[worker] - turn * size) for turn, worker in turns[len(turns) - excess :])


_WAITS = (
    "A rank that has more waits for one that has ended, in all_reduce or DistributedDataParallel, until the process "
    "group's timeout. Chain equalize_ranks() after the reader, or train within torch.distributed.algorithms.Join."
)
