"""Refuse a chain that several readers would each read completely, and one that a framework splits again."""

from __future__ import annotations

import contextlib
import inspect
import math
import multiprocessing
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ..core.frameworks.second_split import refuse_second_split, second_splitter
from ..core.world import World, described, detect_rank
from ..errors import UnsplitError
from .chain import all_pipes

# Of a list or dict that is searched for pipes; none that holds pipes is that long.
_MAX_ITEMS = 1_000
# Class that replaces the pipes above sharding_round_robin_dispatch in a worker of DataLoader2.
_DISPATCHED = "_IterateQueueDataPipes"


class SentWithRanks:
    """Base of pipes that are sent to workers, which may have no process group, and know no framework."""

    _num_ranks_sent = 1
    """Number of ranks in the process that pickled this."""
    _splitter_sent: str | None = None
    """Framework that pickled this for a worker and will split its items again."""

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        if not isinstance(state, dict):  # torch only traverses the chain
            return state
        num_ranks = 1
        with contextlib.suppress(ValueError):  # raised again where the pipe is read
            num_ranks = detect_rank()[1]
        sent = {"_num_ranks_sent": max(num_ranks, self._num_ranks_sent)}
        splitter = self._splitter_sent or second_splitter()
        return {**state, **sent} if splitter is None else {**state, **sent, "_splitter_sent": splitter}


def require_readers(pipe: Any) -> None:
    """Compare the number of readers with the number of shares that a chain is split into, where it reads and lists.

    Readers are ranks x workers of ``DataLoader`` or ``DataLoader2``. Splits are ``sharding_filter_rank``, torch's
    ``sharding_filter`` as far as a loader has applied it, and other pipes with ``apply_sharding``: above the pipe that
    reads, and in a worker also between it and the dataset of the loader. In a worker with a map-style dataset the
    sampler decides, and nothing is compared. A pipe that only lists may be split later, which only a worker can see.

    Args:
        pipe: the last one of this package.

    Raises:
        UnsplitError: if several readers would yield the same samples.
        SplitTwiceError: if a training framework splits the samples again.
    """
    for found in all_pipes(pipe):
        reads = getattr(type(found), "reads_data", False)
        if reads or getattr(type(found), "lists_data", False):
            _require_shares(found, lists_only=not reads)


def _require_shares(pipe: Any, *, lists_only: bool) -> None:
    if not lists_only and not has_all_ranks(pipe):
        refuse_second_split(type(pipe).__name__, pipe._splitter_sent or second_splitter())
    root, num_workers = _loader()
    if (lists_only and root is None) or not isinstance(root, (IterableDataset, type(None))):
        return
    world_size = detect_rank()[1] if root is None else max(detect_rank()[1], pipe._num_ranks_sent)
    num_readers = world_size * num_workers
    if num_readers == 1:
        return
    below = None if root is None else _num_shares(root, pipe, num_workers, {})
    if lists_only and below is None:
        return
    num_shares = (_num_shares(pipe, None, num_workers, {}) or 1) * (below or 1)
    if num_shares < num_readers:
        raise _unsplit(type(pipe).__name__, world_size, num_workers, int(num_shares), seen=below is not None)


def _loader() -> tuple[Any, int]:
    """Return the dataset of the loader in a worker process, otherwise ``None``, and the number of workers."""
    info = get_worker_info()
    if info is not None:
        return info.dataset, info.num_workers
    # DataLoader2 has no get_worker_info: find the dataset among the arguments of the worker process.
    process: Any = multiprocessing.current_process()
    if getattr(getattr(process, "_target", None), "__name__", "") != "DataPipeToQueuesLoop":
        return None, 1
    root, *others = process._args
    return root, next((other.num_workers for other in others if hasattr(other, "num_workers")), 1)


def _num_shares(pipe: Any, target: Any, num_workers: int, found: dict[int, float | None]) -> float | None:
    """Count the shares into which a chain is split between ``target`` and ``pipe``: the minimum over all paths.

    Args:
        pipe: end of the paths.
        target: start of the paths; ``None`` for the sources of the chain.
        num_workers: of the loader.
        found: results so far, by ``id`` of the pipe.

    Returns:
        ``math.inf`` for one share per reader; ``None`` if there is no path.
    """
    if pipe is target:
        return 1
    if id(pipe) not in found:
        found[id(pipe)] = None  # for a cycle
        sources = list(_sources(pipe))
        above = [_num_shares(source, target, num_workers, found) for source in sources]
        known = [num_shares for num_shares in above if num_shares is not None]
        if known or (target is None and not sources):
            found[id(pipe)] = _own_shares(pipe, num_workers) * min(known, default=1)
    return found[id(pipe)]


def _own_shares(pipe: Any, num_workers: int) -> float:
    if hasattr(type(pipe), "current_world"):  # sharding_filter_rank
        return math.inf
    if type(pipe).__name__ == _DISPATCHED:
        return num_workers
    if inspect.ismethod(getattr(pipe, "apply_sharding", None)):  # the test that torch uses
        applied = vars(pipe).get("num_of_instances")  # of torch's sharding_filter; 1 if no loader has set it
        return applied if isinstance(applied, int) else math.inf
    return 1


def has_all_ranks(pipe: Any) -> bool:
    """Whether the chain declares that each rank reads the data of all ranks."""
    return getattr(pipe, "has_all_ranks", None) is True or any(map(has_all_ranks, _sources(pipe)))


def _sources(pipe: Any) -> Iterator[Any]:
    """Yield the pipes in the attributes of a pipe, or of a dataset that wraps one."""
    for value in list(vars(pipe).values()):
        yield from _pipes_in(value, depth=2)


def _pipes_in(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, IterableDataset) or "main_datapipe" in getattr(value, "__dict__", ()):  # of fork and demux
        yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        items = chain.from_iterable(value.items()) if isinstance(value, dict) else iter(value)
        for item in islice(items, _MAX_ITEMS):
            if not isinstance(item, str):  # as most, in a list of URLs
                yield from _pipes_in(item, depth - 1)


def _unsplit(name: str, world_size: int, num_workers: int, num_shares: int, *, seen: bool) -> UnsplitError:
    split = f"is split into {num_shares} shares only" if num_shares > 1 else "is not split"
    unseen = "" if seen else " A split after this pipe, such as torch's sharding_filter(), is not visible here."
    return UnsplitError(
        f"{name}: {described(World(0, world_size, 0, num_workers))} would yield the same samples, because the chain "
        f"above {split}. Chain .sharding_filter_rank() after the listing, so that each reader has its own share."
        f"{unseen} If each reader has to read all URLs, or they are split already "
        "(urls[rank::world_size]), declare it: .sharding_filter_rank(split=False). If some ranks have to read the "
        "same data (tensor, pipeline or context parallelism): .sharding_filter_rank(world=tdr.World.from_mesh(...))."
    )
