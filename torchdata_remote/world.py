"""Who reads what: ranks, workers and slots."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch.distributed
from torch.utils.data import get_worker_info

from .iter_datapipe import SHARDING_PRIORITIES


@dataclass(frozen=True)
class World:
    """One reader's place among all ranks x workers.

    Args:
        rank: training process, from 0.
        world_size: number of training processes.
        worker: DataLoader process inside the rank, from 0.
        num_workers: DataLoader processes per rank; 1 where the rank reads by itself.

    Example:
        >>> World(rank=1, world_size=2, worker=3, num_workers=4).slot
        7
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.world_size and 0 <= self.worker < self.num_workers):
            raise ValueError(
                f"{self!r}: expected 0 <= rank < world_size and 0 <= worker < num_workers. Check RANK and WORLD_SIZE."
            )

    @property
    def slot(self) -> int:
        """This reader's number among all slots; torch's DataLoader counts in the same order."""
        return self.worker * self.world_size + self.rank

    @property
    def num_slots(self) -> int:
        """Number of readers among all ranks."""
        return self.num_workers * self.world_size

    def workers(self, num_workers: int) -> list[World]:
        """The places of this rank's workers; its own where there are none."""
        if num_workers <= 1:
            return [self]
        return [replace(self, worker=worker, num_workers=num_workers) for worker in range(num_workers)]


def detect_rank() -> tuple[int, int]:
    """``(rank, world_size)`` from the process group, else from ``RANK`` and ``WORLD_SIZE``, else ``(0, 1)``.

    Raises:
        ValueError: if only one of the two is set; not in a DataLoader worker, since loaders tell their workers the
            rank, and Lightning sets ``WORLD_SIZE`` alone.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world_size is None:
        return 0, 1
    if get_worker_info() is not None and (rank is None or world_size is None):
        return 0, 1
    if rank is None or world_size is None or not (rank.isdigit() and world_size.isdigit()):
        raise ValueError(f"RANK={rank!r} and WORLD_SIZE={world_size!r} must both be set to numbers, or neither.")
    return int(rank), int(world_size)


def detect_world() -> World:
    """This process's place: rank as :func:`detect_rank` tells it, worker from torch's DataLoader."""
    rank, world_size = detect_rank()
    info = get_worker_info()
    if info is None:
        return World(rank, world_size)
    return World(rank, world_size, info.id, info.num_workers)


def place_in(given: World | None, detected: World) -> World:
    """The place that somebody gave, for a rank with whatever workers it has, or the one that was detected."""
    if given is None:
        return detected
    if given.num_workers > 1:
        return given
    return replace(given, worker=detected.worker, num_workers=detected.num_workers)


def world_from_sharding(groups: Mapping[int, tuple[int, int]], detected: World) -> World:
    """The place that torch's ``apply_sharding`` calls describe.

    ``DataLoader`` makes one call in group ``DEFAULT`` that counts ranks x workers, or only workers where it
    knows of no process group; ``DataLoader2`` makes one in group ``DISTRIBUTED`` and one in ``MULTIPROCESSING``.
    What a call does not tell is taken from ``detected``. Slots come out the same either way.

    Args:
        groups: sharding group -> ``(num_of_instances, instance_id)``.
        detected: what :func:`detect_world` says here.
    """
    if not groups:
        return detected
    rank, world_size = detected.rank, detected.world_size
    worker, num_workers = detected.worker, detected.num_workers
    if SHARDING_PRIORITIES.DEFAULT in groups:
        num_instances, instance = groups[SHARDING_PRIORITIES.DEFAULT]
        counted_ranks = num_instances // num_workers
        if counted_ranks > 1:
            rank, world_size = instance % counted_ranks, counted_ranks
    if SHARDING_PRIORITIES.DISTRIBUTED in groups:
        world_size, rank = groups[SHARDING_PRIORITIES.DISTRIBUTED]
    if SHARDING_PRIORITIES.MULTIPROCESSING in groups:
        num_workers, worker = groups[SHARDING_PRIORITIES.MULTIPROCESSING]
    return World(rank, world_size, worker, num_workers)
