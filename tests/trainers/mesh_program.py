"""A rank of a job whose data-parallel group is not the world: device meshes and process groups."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.data import DistributedSampler

import torchdata_remote as tdr

from .data import NUM_SAMPLES, Cells, loader_of, numbers_of
from .launch import attempt, report

NUM_BEFORE = 3  # batches until a stop
HSDP = ("dp_replicate", "dp_shard")


def main(*, folder: str, elsewhere: str, shape: list[int], cells: Cells) -> None:
    """Run the checks of one job: of a mesh of 2 x 2, or of 2 x 2 x 2."""
    dist.init_process_group("gloo")
    if len(shape) == 2:
        two_by_two(Path(folder), Path(elsewhere), cells)
    else:
        two_by_two_by_two(Path(folder), cells)
    dist.barrier()
    dist.destroy_process_group()


def two_by_two(folder: Path, elsewhere: Path, cells: Cells) -> None:
    """Every loader, states, other meshes, process groups, listings that differ, errors."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    world = tdr.World.from_mesh(mesh, dp=("dp",))
    for name, workers in cells:
        attempt(f"{name}, {workers} workers", lambda n=name, w=workers: epoch(n, folder, world, w))  # type: ignore[misc]
    wide = tdr.World.from_mesh(init_device_mesh("cpu", (4, 1), mesh_dim_names=("dp", "tp")), dp="dp")
    alone = tdr.World.from_mesh(init_device_mesh("cpu", (1, 4), mesh_dim_names=("dp", "tp")), dp="dp")
    permuted = DeviceMesh("cpu", [[0, 3], [2, 1]], mesh_dim_names=("dp", "tp"))
    worlds = {"2 x 2": world, "4 x 1": wide, "1 x 4": alone, "permuted": tdr.World.from_mesh(permuted, dp="dp")}
    report("places", {name: [place.rank, place.world_size] for name, place in worlds.items()})
    report("from rank 0", {name: from_rank_0(place) for name, place in worlds.items()})
    for workers in (0, 2):
        resumes(f"{workers} workers", folder, world, workers, worlds)
    of_process_groups(folder)
    differing(folder, elsewhere, world)
    errors(mesh, world)


def two_by_two_by_two(folder: Path, cells: Cells) -> None:
    """Two data-parallel dimensions and one that is not; and only one of the two."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=(*HSDP, "tp"))
    world = tdr.World.from_mesh(mesh, dp=HSDP)
    shard_only = tdr.World.from_mesh(mesh, dp="dp_shard")
    report("places", {"both": [world.rank, world.world_size], "one": [shard_only.rank, shard_only.world_size]})
    report("from rank 0", {"both": from_rank_0(world), "one": from_rank_0(shard_only)})
    for name, workers in cells:
        attempt(f"{name}, {workers} workers", lambda n=name, w=workers: epoch(n, folder, world, w))  # type: ignore[misc]
    resumes("0 workers", folder, world, 0, {"both": world, "one": shard_only})


def from_rank_0(world: tdr.World) -> list[int]:
    """The number in the job of the group's rank 0: as it was broadcast, and as it was gathered."""
    assert world.group is not None
    here = dist.get_rank()
    return [world.group.broadcast(world.rank, here), world.group.gather(world.rank, here)[0]]


def epoch(name: str, folder: Path, world: tdr.World, num_workers: int) -> list[int]:
    """The numbers of the samples of an epoch of one loader."""
    replicas: Any = DistributedSampler(
        range(NUM_SAMPLES),  # type: ignore[arg-type]
        num_replicas=world.world_size,
        rank=world.rank,
    )
    loader = loader_of(name, folder, batch_size=4, num_workers=num_workers, sampler=replicas, world=world)
    return [number for batch in loader for number in numbers_of(batch)]


def stateful(folder: Path, world: tdr.World, num_workers: int, **options: Any) -> tdr.StatefulLoader:
    """The loader of the checks of states."""
    name = "stateful_loader(pipe)"
    loader: tdr.StatefulLoader = loader_of(name, folder, batch_size=4, num_workers=num_workers, world=world, **options)
    return loader


def resumes(what: str, folder: Path, world: tdr.World, num_workers: int, worlds: dict[str, tdr.World]) -> None:
    """Stop in mid-epoch, and resume in several worlds, by the state of all ranks and by each rank's own."""
    loader = stateful(folder, world, num_workers, state_of_all_ranks=True)
    batches = iter(loader)
    report(f"before, {what}", [numbers_of(batch) for batch in islice(batches, NUM_BEFORE)])
    everything = loader.state_dict()
    loader.state_of_all_ranks = False
    own = loader.state_dict()
    report(f"state, {what}", everything)
    report(f"after, {what}", [numbers_of(batch) for batch in batches])

    def go_on(place: tdr.World, state: Any) -> list[list[int]]:
        again = stateful(folder, place, num_workers)
        again.load_state_dict(json.loads(json.dumps(state)))
        return [numbers_of(batch) for batch in again]

    for name, place in worlds.items():
        attempt(f"all ranks' state in {name}, {what}", lambda place=place: go_on(place, everything))  # type: ignore[misc]
    attempt(f"own state, {what}", lambda: go_on(world, own))
    if "1 x 4" in worlds:
        attempt(f"own state in 1 x 4, {what}", lambda: go_on(worlds["1 x 4"], own))


def of_process_groups(folder: Path) -> None:
    """Two groups of two that make different calls in different orders, so that neither may wait for the other."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = dist.get_rank() // 2
    world = tdr.World.from_group(halves[half])
    attempt("not in the group", lambda: repr(tdr.World.from_group(halves[1 - half])))
    steps: list[Callable[[], None]] = [
        lambda: report("new_group", [numbers_of(batch) for batch in stateful(folder, world, 0)]),
        lambda: report("state of a group", stateful(folder, world, 0, state_of_all_ranks=True).state_dict()),
    ]
    for step in steps if half == 0 else [steps[1], steps[0], steps[1]]:
        step()


def differing(folder: Path, elsewhere: Path, world: tdr.World) -> None:
    """Rank 2 lists another folder: rank 0, of the same data-parallel group, must notice; ranks 1 and 3 read."""
    if dist.get_rank() == 2:
        with tdr.ShardWriter(f"{elsewhere}/shards/other-{{shard:02d}}.tar", max_shard_samples=10) as writer:
            for path in sorted((folder / "images").rglob("*.png")):
                writer.write({"__key__": path.stem, "png": path.read_bytes()})
    place = elsewhere if dist.get_rank() == 2 else folder
    attempt("differing", lambda: [numbers_of(batch) for batch in stateful(place, world, 0)])


def errors(mesh: DeviceMesh, world: tdr.World) -> None:
    """Invalid data-parallel groups; and copies of a world."""
    attempt("no such dimension", lambda: repr(tdr.World.from_mesh(mesh, dp=("dp", "cp"))))
    attempt("which dimension", lambda: repr(tdr.World.from_mesh(mesh)))
    attempt("twice", lambda: repr(tdr.World.from_mesh(mesh, dp=("dp", "dp"))))
    attempt("numbers", lambda: repr(tdr.World.from_mesh(mesh, dp=(0,))))  # type: ignore[arg-type]
    attempt("without names", lambda: repr(tdr.World.from_mesh(init_device_mesh("cpu", (2, 2)), dp="dp")))
    attempt("not in the mesh", lambda: repr(tdr.World.from_mesh(DeviceMesh("cpu", [0, 1]))))
    attempt("another order", lambda: others_order(mesh))
    attempt("None is all ranks", lambda: tdr.World.from_group(None).world_size)
    report("part of a mesh", tdr.World.from_mesh(mesh["dp"]) == world)
    report("copy", copy.deepcopy(world).group.gather(world.rank, dist.get_rank()))  # type: ignore[union-attr]
    passing = dist.new_group([0, 1, 2, 3])
    destroyed = tdr.World.from_group(passing)
    dist.destroy_process_group(passing)
    del passing
    attempt("destroyed", lambda: destroyed.group.gather(destroyed.rank, 0))  # type: ignore[union-attr]


def others_order(mesh: DeviceMesh) -> Any:
    """Ranks that name the dimensions in different orders."""
    world = tdr.World.from_mesh(mesh, dp=("dp", "tp") if dist.get_rank() else ("tp", "dp"))
    assert world.group is not None
    return world.group.gather(world.rank, None)
