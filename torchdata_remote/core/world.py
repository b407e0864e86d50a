"""Who reads what: ranks, workers and slots."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch.distributed
from torch.utils.data import get_worker_info

from .iter_datapipe import SHARDING_PRIORITIES
from .rank_group import RankGroup, of_group, of_mesh

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class World:
    """One reader's place among all ranks x workers.

    Under tensor, pipeline or context parallelism several processes read the same data: make their place by
    :meth:`from_mesh` or :meth:`from_group`, which count data-parallel ranks only.

    Args:
        rank: training process, from 0.
        world_size: number of training processes.
        worker: DataLoader process inside the rank, from 0.
        num_workers: DataLoader processes per rank; 1 where the rank reads by itself.
        group: with which ranks listings and states are exchanged; ``None`` for all of the job.

    Example:
        >>> World(rank=1, world_size=2, worker=3, num_workers=4).slot
        7
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1
    group: RankGroup | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.world_size and 0 <= self.worker < self.num_workers):
            raise ValueError(
                f"{self!r}: expected 0 <= rank < world_size and 0 <= worker < num_workers. Check RANK and WORLD_SIZE."
            )

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh, dp: str | Sequence[str] | None = None) -> World:
        """This process's place among the data-parallel ranks of a device mesh.

        Ranks that differ in other dimensions only (tensor, pipeline, context parallelism) have the same place, so they
        read the same data. Listings and states are exchanged between the data-parallel ranks only. Nothing is
        exchanged here, and no process group is made.

        Args:
            mesh: of ``init_device_mesh``, or a part of one.
            dp: names of the dimensions that split the data, slowest first; ``None`` for a mesh of one dimension.

        Raises:
            TypeError: if it is no mesh, or these are no names.
            ValueError: if a dimension does not exist, or this process is not part of the mesh.

        Example:
            >>> mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
            ... # doctest: +SKIP
            >>> World.from_mesh(mesh, dp=("dp_replicate", "dp_shard"))  # in rank 5 of 8  # doctest: +SKIP
            World(rank=2, world_size=4, worker=0, num_workers=1, group=RankGroup(members=((1, 5), (5, 7))))
        """
        rank, world_size, group = of_mesh(mesh, dp)
        return cls(rank, world_size, group=group)

    @classmethod
    def from_group(cls, group: ProcessGroup | None) -> World:
        """This process's place in the process group whose ranks split the data.

        Args:
            group: of ``torch.distributed.new_group``, ``mesh.get_group("dp")``, or Megatron's data-parallel group;
                ``None`` for all ranks of the job, as torch takes it.

        Raises:
            TypeError: if it is no process group.
            ValueError: if this process is not part of it, or there is none.
        """
        rank, world_size, own = of_group(group)
        return cls(rank, world_size, group=own)

    def __repr__(self) -> str:
        group = "" if self.group is None else f", group={self.group!r}"
        return (
            f"World(rank={self.rank}, world_size={self.world_size}, worker={self.worker}, "
            f"num_workers={self.num_workers}{group})"
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


def require_world(world: object) -> None:
    """Refuse what is neither a :class:`World` nor ``None``, such as a ``DeviceMesh``.

    Raises:
        TypeError: says how a ``World`` is made of it.
    """
    if world is not None and not isinstance(world, World):
        raise TypeError(
            f"world={world!r:.200}: expected a World or None, got a {type(world).__name__}. Make one by "
            'World.from_mesh(mesh, dp="dp"), by World.from_group(group), or by World(rank, world_size).'
        )


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
