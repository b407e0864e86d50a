"""Ranks with different numbers of batches: those with more would wait for the others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..core.frameworks.loader_length import num_batches
from ..core.iter_datapipe import IterDataPipe, Mapper
from ..core.rank_exchange import exchanged, made_by_each
from ..core.world import World
from ..errors import StateError
from ..pipes.chain import all_pipes, sources_of
from ..pipes.datapipe import DataPipe, uses_epoch
from ..pipes.shares import Share
from ..pipes.slots import is_endless
from ..pipes.split_guard import has_all_ranks
from .listings import Listed
from .stream_counts import equal_counts
from .stream_pass import Chain


def warning_of_unequal_ranks(
    loader: Any, epoch: int, loaded: Mapping[str, Any] | None, *, is_first: bool
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function of the batches of a pass that warns at the first one, unless ranks are known to get as many.

    It warns in rank 0 only.

    Args:
        loader: a ``StatefulLoader`` that has just started the pass.
        epoch: of the pass.
        loaded: the state from which it continues, if any.
        is_first: whether it is the loader's first one, or continues; others get their batches unchanged.
    """
    dataset, world = loader.dataset, loader.dataset.world()
    if not is_first or world.rank > 0 or world.world_size == 1:
        return lambda batches: batches
    template: Chain | None = None
    num_readers = world.world_size * max(1, loader.num_workers)
    # The listing does not tell what the parts of a stream have that was divided
    is_divided = loaded is not None and (
        loaded["num_streams"] < num_readers or any(share for _, _, *share in loaded["streams"])
    )
    if not is_divided and dataset.latest_pass is not None:
        template = dataset.latest_pass.chain
    elif not is_divided and isinstance(listed := dataset.listings.of(epoch), Listed):
        template = Chain(dataset.pipe, epoch, 1, listed)
    return partial(_warned, loader, template, {row[0]: row[1] for row in loaded["streams"]} if loaded else {})


def _warned(loader: Any, template: Chain | None, positions: Mapping[int, Any], batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        _warn(loader, template, positions)
        yield batch
        break
    yield from batches


def _warn(loader: Any, template: Chain | None, positions: Mapping[int, Any]) -> None:
    dataset, world = loader.dataset, loader.dataset.world()
    num_streams, _ = dataset.share(world)
    passed = {
        stream: at["passed"] if isinstance(at, Mapping) else 0 if at is None else math.inf
        for stream, at in positions.items()
    }
    if is_endless(dataset.pipe) or (
        num_streams % world.world_size == 0
        and (has_all_ranks(dataset.pipe) or (_are_even(loader, passed) and _is_equal(dataset.pipe, num_streams)))
    ):
        return
    numbers, known = "", None if template is None else _samples_of_streams(template, num_streams)
    if known is not None:
        samples, is_fixed = known
        counts = [
            num_batches(
                [
                    sum(max(0, samples[stream] - passed.get(stream, 0)) for stream in dataset.share(worker)[1])
                    for worker in workers
                ],
                loader.batch_size,
                drop_last=loader.drop_last,
            )
            for workers in _workers_of_ranks(loader)
        ]
        fewest, most = min(counts), max(counts)
        if fewest == most and (is_fixed or not any(map(uses_epoch, all_pipes(dataset.pipe)))):
            return
        if fewest < most:
            numbers = (
                f": rank {counts.index(fewest)} gets {fewest:,} and rank {counts.index(most)} gets {most:,} in this "
                "pass, by the manifest"
            )
    warnings.warn(
        f"Ranks may get different numbers of batches{numbers}. A rank that has more waits for one that has ended, in "
        "all_reduce or DistributedDataParallel, until the process group's timeout. Chain equalize_ranks() after the "
        "reader, or train within torch.distributed.algorithms.Join.",
        RuntimeWarning,
        stacklevel=2,
    )


def _workers_of_ranks(loader: Any) -> list[list[World]]:
    world = loader.dataset.world()
    return [replace(world, rank=rank).workers(loader.num_workers) for rank in range(world.world_size)]


def _are_even(loader: Any, passed: Mapping[int, float]) -> bool:
    """Whether ranks have equally many items of the epoch behind them, as in the world that saved the state."""
    if not passed:
        return True
    shares = [[loader.dataset.share(worker)[1] for worker in workers] for workers in _workers_of_ranks(loader)]
    streams = [[stream for share in of_rank for stream in share] for of_rank in shares]
    is_known = all(stream in passed for of_rank in streams for stream in of_rank)
    return not is_known or len({sum(map(passed.__getitem__, of_rank)) for of_rank in streams}) == 1


def _is_equal(pipe: IterDataPipe[Any], num_streams: int) -> bool:
    """Whether all streams get the same number of items."""
    stop = vars(pipe).get("stop")  # of a mixture
    if is_endless(pipe) or isinstance(stop, int):
        return stop is None or stop % num_streams == 0
    equal = equal_counts(pipe, num_streams)
    if equal is not None:
        return equal
    sources = list(sources_of(pipe))
    # Pipes that drop items have no length
    has_length = hasattr(type(pipe), "__len__") or stop == "all_exhausted"
    return has_length and bool(sources) and all(_is_equal(source, num_streams) for source in sources)


def _samples_of_streams(template: Chain, num_streams: int) -> tuple[list[int], bool] | None:
    """Count the samples of each stream, if the listing has their numbers and no pipe changes them."""
    pipes = all_pipes(template.pipe)
    shares: list[Any] = [pipe for pipe in pipes if hasattr(type(pipe), "samples_of_shares")]
    if len(shares) != 1:
        return None
    for pipe in pipes[pipes.index(shares[0]) + 1 :]:
        changes = getattr(type(pipe), "changes_count", False) or getattr(pipe, "drops_samples", False)
        if changes or not isinstance(pipe, (DataPipe, Mapper)):
            return None
    known: tuple[list[int], bool] | None = shares[0].samples_of_shares(template.env(Share()), num_streams)
    return known


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
