"""``RankGroup``: the ranks that split a dataset, if these are not all ranks of the job.

torch is imported where a process group is used, so that a ``World`` without one does not need it.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


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
            list: the values in the order of the ranks.

        Raises:
            RuntimeError: if this process has not the process groups, or the ranks describe the group differently.
        """
        import torch.distributed

        found: list[Any] = [(rank, own)]
        for group, members in zip(self._living(), reversed(self.members), strict=True):
            of_each: list[Any] = [None] * len(members)
            torch.distributed.all_gather_object(of_each, found, group=group)
            found = [entry for entries in of_each for entry in entries]
        found.sort(key=lambda entry: entry[0])
        numbers = [number for number, _ in found]
        if numbers != list(range(len(found))):
            raise RuntimeError(
                f"{self!r}: its ranks have the numbers {numbers}, expected 0 to {len(found) - 1}, each once. Pass the "
                "same data-parallel dimensions in the same order in each rank."
            )
        return [value for _, value in found]

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


def of_mesh(mesh: DeviceMesh, dp: str | Sequence[str] | None) -> tuple[int, int, RankGroup]:
    """Return this process's rank among the data-parallel ranks of a mesh, their number, and their group.

    Args:
        mesh: one that this process is part of.
        dp: names of the data-parallel dimensions, slowest first; ``None`` for a mesh of one dimension.

    Raises:
        TypeError: if ``mesh`` is not a mesh, or ``dp`` does not hold names.
        ValueError: if a dimension does not exist, or this process is not part of the mesh.
    """
    import torch.distributed

    _require(mesh, "torch.distributed.device_mesh", "DeviceMesh", "World.from_group(group) takes a process group.")
    wanted = (dp,) if isinstance(dp, str) or not isinstance(dp, Sequence) else tuple(dp)
    if dp is not None and not all(isinstance(name, str) for name in wanted):
        raise TypeError(
            f"dp={dp!r}: expected the names of one or more dimensions, such as "
            f'dp=("dp_replicate", "dp_shard"); {_shown(mesh.mesh_dim_names)}.'
        )
    names = mesh.mesh_dim_names
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(
            f"Rank {torch.distributed.get_rank()} is not part of this mesh, which has the ranks "
            f"{mesh.mesh.flatten().tolist()}. Create the World, and read data, in those only."
        )
    if dp is None:
        if mesh.ndim != 1:
            raise ValueError(
                f"A mesh of {mesh.ndim} dimensions ({_shown(names)}): which of them split the data? Pass their names, "
                'such as dp=("dp_replicate", "dp_shard"); ranks that differ in the others read the same data.'
            )
        group = mesh.get_group()
        return coordinate[0], int(mesh.mesh.numel()), _of_process_groups([group])
    if not wanted or len(set(wanted)) < len(wanted):
        raise ValueError(f"dp={dp!r}: expected the names of one or more dimensions, each once; {_shown(names)}.")
    rank, size, groups = 0, 1, []
    for name in wanted:
        try:
            group = mesh.get_group(name)
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"The mesh has no dimension {name!r}: {_shown(names)}.") from error
        # The group counts its ranks in ascending order, which a mesh need not have. Flattened dimensions have no index.
        local_rank = coordinate[names.index(name)] if names and name in names else mesh.get_local_rank(name)
        members = torch.distributed.get_world_size(group)
        rank, size = rank * members + local_rank, size * members
        groups.append(group)
    return rank, size, _of_process_groups(groups)


def of_group(group: ProcessGroup | None) -> tuple[int, int, RankGroup]:
    """Return this process's rank in a process group, its size, and the group.

    Args:
        group: ``None`` for all ranks of the job.

    Raises:
        TypeError: if ``group`` is not a process group.
        ValueError: if this process is not part of it, or there is none.
    """
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
    """Refuse a value of another type.

    Raises:
        TypeError: with its type.
    """
    if not isinstance(value, getattr(importlib.import_module(module), name)):
        raise TypeError(f"Expected a torch.distributed {name}, got {type(value).__name__}: {value!r:.200}. {advice}")


def _of_process_groups(groups: Sequence[ProcessGroup]) -> RankGroup:
    import torch.distributed

    members = tuple(tuple(torch.distributed.get_process_group_ranks(group)) for group in groups)
    return RankGroup(members, tuple(map(weakref.ref, groups)))


def _shown(names: Sequence[str] | None) -> str:
    if not names:
        return "its dimensions have no names: pass mesh_dim_names=(...) to init_device_mesh"
    return f"its dimensions are {', '.join(map(repr, names))}"
