"""Ranks, workers and slots: which share of a dataset a process reads, and with which ranks it splits a dataset.

torch is asked without importing it, and imported where a process group is used: a process that has not imported torch
is neither a DataLoader worker nor part of a process group. Commands then start in a tenth of the time.
"""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import arguments as check
from .arguments import explained, whole

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.utils.data._utils.worker import WorkerInfo


def get_worker_info() -> WorkerInfo | None:
    """Return the result of torch's function of this name; ``None`` if torch has not been imported."""
    asked = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return None if asked is None else asked()


def rank_in_process_group() -> tuple[int, int] | None:
    """Return ``(rank, world_size)`` of torch's default process group; ``None`` if there is none."""
    distributed: Any = sys.modules.get("torch.distributed")
    # Not there without support for process groups, nor while another thread imports torch
    is_initialized = getattr(distributed, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


@dataclass(frozen=True)
class RankGroup:
    """The ranks that split a dataset among themselves, and a way to exchange values between them.

    Process groups cannot be pickled, so a copy in a DataLoader worker has their members only, which is what ``==`` and
    ``repr`` use. They are referenced weakly, so that ``destroy_process_group`` ends their threads.

    Args:
        members: for each dimension of the group, slowest first, the job's ranks that this process exchanges with.
        process_groups: of the same dimensions.
    """

    members: tuple[tuple[int, ...], ...]
    process_groups: tuple[weakref.ref[Any], ...] = field(default=(), compare=False, repr=False)

    def gather(self, rank: int, own: Any) -> list[Any]:
        """Exchange one value of each rank. A collective: all ranks of the group must call it.

        The dimensions are gathered one after the other, so a group of several needs no process group of its own.

        Args:
            rank: of this process in the group.
            own: any object that can be pickled.

        Returns:
            list: rank and value of each, in the order of the ranks.

        Raises:
            RuntimeError: if this process has not the process groups.
        """
        import torch.distributed

        found: list[Any] = [(rank, own)]
        for group, members in zip(self._living(), reversed(self.members), strict=True):
            of_each: list[Any] = [None] * len(members)
            torch.distributed.all_gather_object(of_each, found, group=group)
            found = [entry for entries in of_each for entry in entries]
        return sorted(found, key=lambda entry: entry[0])

    def broadcast(self, rank: int, value: Any) -> Any:
        """Send rank 0's value to each rank. A collective: all ranks of the group must call it.

        It is sent along the slowest dimension first, then along each line of the next one, and so on.

        Args:
            rank: of this process in the group.
            value: any object that can be pickled; those of the other ranks are ignored.

        Raises:
            RuntimeError: if the process groups do not exist in this process.
        """
        import torch.distributed

        coordinates = []
        for members in reversed(self.members):
            rank, coordinate = divmod(rank, len(members))
            coordinates.append(coordinate)
        box = [value]
        for group, coordinate in zip(reversed(self._living()), reversed(coordinates), strict=True):
            line: list[Any] = [None] * torch.distributed.get_world_size(group)
            torch.distributed.all_gather_object(line, (coordinate, torch.distributed.get_rank()), group=group)
            torch.distributed.broadcast_object_list(box, src=min(line)[1], group=group)
        return box[0]

    def _living(self) -> list[Any]:
        """Return the process groups, fastest dimension first."""
        found = [reference() for reference in reversed(self.process_groups)]
        if not found or any(group is None for group in found):
            raise RuntimeError(
                f"{self!r} has no process group in this process: it was destroyed, or this is a copy that came from "
                "another process. Create the World in each rank, after init_process_group()."
            )
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"members": self.members, "process_groups": ()}

    def __deepcopy__(self, _memo: Any) -> RankGroup:
        return self


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
        rank, world_size, group = _of_mesh(mesh, dp)
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
        rank, world_size, own = _of_group(group)
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


def _of_mesh(mesh: DeviceMesh, dp: str | Sequence[str] | None) -> tuple[int, int, RankGroup]:
    """Return this process's rank among the data-parallel ranks of a mesh, their number, and their group."""
    import torch.distributed

    _require(mesh, "torch.distributed.device_mesh", "DeviceMesh", "World.from_group(group) takes a process group.")
    coordinate, names = mesh.get_coordinate(), tuple(mesh.mesh_dim_names or ())
    wanted: Any = (dp,) if isinstance(dp, str) or not isinstance(dp, Sequence) else tuple(dp)
    expected = (
        'the names of the dimensions that split the data, each once, such as dp=("dp_replicate", "dp_shard"); the mesh '
        f"has {', '.join(map(repr, names)) or 'none: pass mesh_dim_names=(...) to init_device_mesh'}"
    )
    if dp is not None and not all(isinstance(name, str) for name in wanted):
        raise TypeError(f"dp={dp!r}: expected {expected}.")
    if coordinate is None:
        raise ValueError(
            f"Rank {torch.distributed.get_rank()} is not part of this mesh, which has the ranks "
            f"{mesh.mesh.flatten().tolist()}. Create the World, and read data, in those only."
        )
    if dp is None:
        wanted = (0,) if mesh.ndim == 1 else ()
    if not wanted or len(set(wanted)) < len(wanted):
        raise ValueError(f"dp={dp!r}: a mesh of {mesh.ndim} dimensions needs {expected}.")
    rank, size, groups = 0, 1, []
    for name in wanted:
        try:
            group = mesh.get_group(name)
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"The mesh has no dimension {name!r}: expected {expected}.") from error
        # The group counts its ranks in ascending order, which a mesh need not have. Flattened dimensions have no index.
        index = names.index(name) if name in names else name
        local_rank = coordinate[index] if isinstance(index, int) else mesh.get_local_rank(name)
        members = torch.distributed.get_world_size(group)
        rank, size = rank * members + local_rank, size * members
        groups.append(group)
    return rank, size, _of_process_groups(groups)


def _of_group(group: ProcessGroup | None) -> tuple[int, int, RankGroup]:
    """Return this process's rank in a process group, its size, and the group."""
    import torch.distributed

    if group is None:
        group = torch.distributed.group.WORLD
    if group is None:
        raise ValueError("World.from_group(None) is all ranks of the job: call init_process_group() first.")
    if not isinstance(group, int):
        _require(group, "torch.distributed", "ProcessGroup", "World.from_mesh(mesh, dp=...) takes a DeviceMesh.")
    rank = -1 if isinstance(group, int) else torch.distributed.get_rank(group)
    # new_group() returns -100 in the other ranks
    if rank < 0:
        raise ValueError(
            f"Rank {torch.distributed.get_rank()} is not part of this process group. Create the World, and read data, "
            "in its ranks only; or give the other ranks a group of their own, such as that of their own model copy."
        )
    return rank, torch.distributed.get_world_size(group), _of_process_groups([group])


def _require(value: object, module: str, name: str, advice: str) -> None:
    if not isinstance(value, getattr(importlib.import_module(module), name)):
        raise TypeError(f"Expected a torch.distributed {name}, got {type(value).__name__}: {value!r:.200}. {advice}")


def _of_process_groups(groups: Sequence[ProcessGroup]) -> RankGroup:
    import torch.distributed

    members = tuple(tuple(torch.distributed.get_process_group_ranks(group)) for group in groups)
    return RankGroup(members, tuple(map(weakref.ref, groups)))


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

    rank, world_size, worker, num_workers = detected.rank, detected.world_size, detected.worker, detected.num_workers
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
