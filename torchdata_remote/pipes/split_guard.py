"""Refuse a chain that several readers would each read completely, and one that a framework splits again."""

from __future__ import annotations

import contextlib
import inspect
import math
import multiprocessing
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ..core.frameworks import refuse_second_split
from ..core.world import World, described, detect_rank
from ..errors import UnsplitError
from .chain import all_pipes, sources_of

# Class that replaces the pipes above sharding_round_robin_dispatch in a worker of DataLoader2.
_DISPATCHED = "_IterateQueueDataPipes"


class SentWithRanks:
    """Base of pipes that are sent to workers, which may have no process group."""

    _num_ranks_sent = 1
    """Number of ranks in the process that pickled this."""

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        if not isinstance(state, dict):  # torch only traverses the chain
            return state
        _refuse_second_split(self)  # a worker may not see who reads it
        num_ranks = 1
        with contextlib.suppress(ValueError):  # raised again where the pipe is read
            num_ranks = detect_rank()[1]
        return {**state, "_num_ranks_sent": max(num_ranks, self._num_ranks_sent)}


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
    _refuse_second_split(pipe)
    root, num_workers = _loader()
    if (lists_only and root is None) or not isinstance(root, (IterableDataset, type(None))):
        return
    world_size = detect_rank()[1] if root is None else max(detect_rank()[1], pipe._num_ranks_sent)
    num_readers = world_size * num_workers
    if num_readers == 1:
        return
    below = None if root is None else _num_shares(root, pipe, num_workers)
    if lists_only and below is None:
        return
    num_shares = (_num_shares(pipe, None, num_workers) or 1) * (below or 1)
    if num_shares < num_readers:
        raise _unsplit(type(pipe).__name__, world_size, num_workers, int(num_shares), seen=below is not None)


def _refuse_second_split(pipe: Any) -> None:
    if type(pipe).reads_data and not has_all_ranks(pipe):
        refuse_second_split(type(pipe).__name__)


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


def _num_shares(pipe: Any, target: Any, num_workers: int) -> float | None:
    """Count the shares into which a chain is split between ``target`` and ``pipe``: the minimum over all paths.

    Args:
        pipe: end of the paths.
        target: start of the paths; ``None`` for the sources of the chain.
        num_workers: of the loader.

    Returns:
        ``math.inf`` for one share per reader; ``None`` if there is no path.
    """
    if pipe is target:
        return 1
    above = [_num_shares(source, target, num_workers) for source in sources_of(pipe)]
    known = [num_shares for num_shares in above if num_shares is not None]
    if not known and (above or target is not None):
        return None
    return _own_shares(pipe, num_workers) * min(known, default=1)


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
    return getattr(pipe, "has_all_ranks", None) is True or any(map(has_all_ranks, sources_of(pipe)))


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
