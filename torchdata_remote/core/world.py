"""Ranks, workers and slots: which share of a dataset a process reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .arguments import check
from .arguments.amounts import whole
from .arguments.calls import explained
from .processes.torch_state import get_worker_info, rank_in_process_group
from .rank_group import RankGroup, of_group, of_mesh

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


@explained
@dataclass(frozen=True)
class World:
    """The coordinates of one reader among all ranks x workers.

    Under tensor, pipeline or context parallelism several processes read the same data: create their ``World`` with
    :meth:`from_mesh` or :meth:`from_group`, which count data-parallel ranks only.

    Args:
        rank: training process, from 0.
        world_size: number of training processes.
        worker: DataLoader process inside the rank, from 0.
        num_workers: DataLoader processes per rank; 1 if the rank reads in its own process.
        group: the ranks between which listings and states are exchanged; ``None`` for all ranks of the job.

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
        for name in ("rank", "world_size", "worker", "num_workers"):
            object.__setattr__(self, name, whole(name, getattr(self, name), at_least=None))
        if not (0 <= self.rank < self.world_size and 0 <= self.worker < self.num_workers):
            raise ValueError(
                f"{self!r}: expected 0 <= rank < world_size and 0 <= worker < num_workers. Check RANK and WORLD_SIZE."
            )

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh, dp: str | Sequence[str] | None = None) -> World:
        """Create the world of this process among the data-parallel ranks of a device mesh.

        Ranks that differ in other dimensions only (tensor, pipeline, context parallelism) have equal worlds, so they
        read the same data. Listings and states are exchanged between the data-parallel ranks only. This call exchanges
        nothing and creates no process group.

        Args:
            mesh: of ``init_device_mesh``, or a part of one.
            dp: names of the dimensions that split the data, slowest first; ``None`` for a mesh of one dimension.

        Raises:
            TypeError: if ``mesh`` is not a mesh, or ``dp`` does not hold names.
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
        """Create the world of this process in the process group whose ranks split the data.

        Args:
            group: of ``torch.distributed.new_group``, ``mesh.get_group("dp")``, or Megatron's data-parallel group;
                ``None`` for all ranks of the job, as torch takes it.

        Raises:
            TypeError: if ``group`` is not a process group.
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
        """Number of this reader among all slots, in the order of torch's DataLoader."""
        return self.worker * self.world_size + self.rank

    @property
    def num_slots(self) -> int:
        """Number of readers among all ranks."""
        return self.num_workers * self.world_size

    def slots_of_ranks(self, num_workers: int) -> list[list[World]]:
        """Return the worlds of each rank's workers."""
        return [replace(self, rank=rank).workers(num_workers) for rank in range(self.world_size)]

    def workers(self, num_workers: int) -> list[World]:
        """Return the worlds of this rank's workers; this world if there are none."""
        if num_workers <= 1:
            return [self]
        return [replace(self, worker=worker, num_workers=num_workers) for worker in range(num_workers)]


def counted(number: int, noun: str) -> str:
    """Write a number of things.

    >>> counted(1, "rank"), counted(2_000, "shard")
    ('1 rank', '2,000 shards')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def described(world: World, noun: str = "reader") -> str:
    """Write how many slots a world has.

    >>> described(World(0, 1, 0, 2))
    '2 readers (1 rank x 2 workers)'
    """
    size = f"{counted(world.world_size, 'rank')} x {counted(world.num_workers, 'worker')}"
    return f"{counted(world.num_slots, noun)} ({size})"


def require_world(world: object) -> None:
    """Refuse a value that is neither a :class:`World` nor ``None``, such as a ``DeviceMesh``.

    Raises:
        TypeError: with the calls that create a ``World``.
    """
    if world is not None and not isinstance(world, World):
        raise check.marked(
            TypeError(
                f"world: expected a World or None, got {check.shown(world)}. Create one by "
                f'World.from_mesh(mesh, dp="dp"), by World.from_group(group), or by World(rank, world_size).'
            )
        )


def detect_rank() -> tuple[int, int]:
    """Return ``(rank, world_size)`` of the process group, else of ``RANK`` and ``WORLD_SIZE``, else ``(0, 1)``.

    Raises:
        ValueError: if only one of the two is set. Not in a DataLoader worker, because loaders pass the rank to their
            workers, and Lightning sets ``WORLD_SIZE`` alone.
    """
    found = rank_in_process_group()
    if found is not None:
        return found
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world_size is None:
        return 0, 1
    if get_worker_info() is not None and (rank is None or world_size is None):
        return 0, 1
    if rank is None or world_size is None or not (rank.isdigit() and world_size.isdigit()):
        raise ValueError(f"RANK={rank!r} and WORLD_SIZE={world_size!r} must both be set to numbers, or neither.")
    return int(rank), int(world_size)


def detect_world() -> World:
    """Return the world of this process: the rank of :func:`detect_rank`, the worker of torch's DataLoader."""
    rank, world_size = detect_rank()
    info = get_worker_info()
    if info is None:
        return World(rank, world_size)
    return World(rank, world_size, info.id, info.num_workers)


def place_in(argument: World | None, detected: World) -> World:
    """Return the world that the user passed, with the detected worker if it has none; or the detected world."""
    if argument is None:
        return detected
    if argument.num_workers > 1:
        return argument
    return replace(argument, worker=detected.worker, num_workers=detected.num_workers)


def world_from_sharding(groups: Mapping[int, tuple[int, int]], detected: World) -> World:
    """Return the world that torch's ``apply_sharding`` calls describe.

    ``DataLoader`` makes one call in group ``DEFAULT`` that counts ranks x workers, or only workers if there
    is no process group; ``DataLoader2`` makes one in group ``DISTRIBUTED`` and one in ``MULTIPROCESSING``.
    Missing values are taken from ``detected``. The slots are the same either way.

    Args:
        groups: sharding group -> ``(num_of_instances, instance_id)``.
        detected: the result of :func:`detect_world`.
    """
    if not groups:
        return detected
    from .iter_datapipe import SHARDING_PRIORITIES  # imports torch, which has made these calls

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
