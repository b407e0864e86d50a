"""A rank of plain torch: DDP, FSDP2 with distributed checkpoints, and groups of ranks that are not the world."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # once for all ranks, of which DDP and optimizers would import it in each
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DistributedSampler

import torchdata_remote as tdr
from tests.support.launch import attempt, report

from .data import KINDS, NUM_BEFORE, NUM_SAMPLES, RESUMABLE, STOPS, Cells, loader_of, numbers_of


def main(*, folder: str, elsewhere: str, checkpoints: str, cells: Cells) -> None:
    """Four ranks use meshes, and save; two continue and save; three end the epoch."""
    dist.init_process_group("gloo")
    size, at = dist.get_world_size(), Path(folder)
    if size == 4:
        meshes(at, Path(elsewhere), cells)
    else:
        data_parallel(at, cells)
    for kind in KINDS:
        begin, end = {4: ("", "four"), 2: ("four", "two"), 3: ("two", "")}[size]
        places = (f"{checkpoints}/{place}-{kind}" if place else "" for place in (begin, end))
        attempt(f"FSDP2: {kind}", partial(sharded, kind, at, *places))
    dist.barrier()
    dist.destroy_process_group()


def sampler() -> Any:
    return DistributedSampler(range(NUM_SAMPLES), seed=0)  # type: ignore[arg-type]


def data_parallel(folder: Path, cells: Cells) -> None:
    """An epoch of each loader."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))

    def trained(name: str, workers: int) -> list[int]:
        numbers = []
        for batch in loader_of(name, folder, batch_size=4, num_workers=workers, sampler=sampler()):
            model(batch["x"]).sum().backward()
            numbers += numbers_of(batch)
        return numbers

    for name, workers in cells:
        attempt(f"torch DDP: {name}, {workers} workers", partial(trained, name, workers))


class Training:
    """What torch calls ``Stateful``: a sharded model with its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Linear(12, 1))
        fully_shard(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def numbers(self, batches: Iterator[Any]) -> list[list[int]]:
        """Train on each batch; which samples were in it."""
        found = []
        for batch in batches:
            self.model(batch["x"]).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            found.append(numbers_of(batch))
        return found

    def weights(self) -> list[float]:
        """Of the whole model, as any number of ranks gathers them."""
        return [value for layer in self.model.parameters() for value in layer.full_tensor().flatten().tolist()]  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def sharded(kind: str, folder: Path, begin: str, end: str) -> list[list[int]]:
    """The batches up to the end of the epoch, or to the next checkpoint; reports also what follows that one."""

    def loaded(checkpoint: str) -> tuple[Training, Any]:
        training = Training()
        loader = loader_of(RESUMABLE, folder, batch_size=4, num_workers=KINDS[kind], state_of_all_ranks=True)
        if checkpoint:
            load({"training": training, "loader": loader}, checkpoint_id=checkpoint)
        return training, loader

    training, loader = loaded(begin)
    batches = iter(loader)
    found = training.numbers(islice(batches, NUM_BEFORE))
    if not end:
        # Where workers stopped at different places, other numbers of ranks need not have equally many batches.
        return [*found, *map(numbers_of, batches)]
    whole, following = {"training": training, "loader": loader}, []
    at_checkpoint = training.weights()
    if kind == "async_save":
        # Its thread exchanges while the training does: in a group of its own, or they would take each other's messages.
        pending = async_save(whole, checkpoint_id=end, process_group=dist.new_group(backend="gloo"))
        following = training.numbers(islice(batches, 1))
        assert isinstance(pending, Future)
        pending.result()
    else:
        save(whole, checkpoint_id=end)
    following += training.numbers(batches)
    again, loader = loaded(end)
    same = again.weights() == at_checkpoint
    report(f"{kind}: again", [following, again.numbers(iter(loader)), same])
    return found


# Groups of ranks


def meshes(folder: Path, elsewhere: Path, cells: Cells) -> None:
    """Every loader, states, other meshes, process groups, listings that differ, errors."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    world = tdr.World.from_mesh(mesh, dp=("dp",))
    for name, workers in cells:
        attempt(f"DeviceMesh 2 x 2: {name}, {workers} workers", partial(epoch, name, folder, world, workers))
    hybrid = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    worlds = {
        "2 x 2": world,
        "4 x 1": tdr.World.from_mesh(init_device_mesh("cpu", (4, 1), mesh_dim_names=("dp", "tp")), dp="dp"),
        "1 x 4": tdr.World.from_mesh(init_device_mesh("cpu", (1, 4), mesh_dim_names=("dp", "tp")), dp="dp"),
        "permuted": tdr.World.from_mesh(DeviceMesh("cpu", [[0, 3], [2, 1]], mesh_dim_names=("dp", "tp")), dp="dp"),
        "both": tdr.World.from_mesh(hybrid, dp=("dp_replicate", "dp_shard")),
        "shard": tdr.World.from_mesh(hybrid, dp="dp_shard"),
    }
    report("places", {name: [place.rank, place.world_size] for name, place in worlds.items()})
    for here, (workers, meshes) in STOPS.items():
        stop_in(here, f"{here}, {workers} workers", folder, workers, {name: worlds[name] for name in meshes})
    of_process_groups(folder)
    differing(folder, elsewhere, world)
    errors(mesh, world)


def epoch(name: str, folder: Path, world: tdr.World, num_workers: int) -> list[int]:
    """The numbers of the samples of an epoch of one loader."""
    replicas: Any = DistributedSampler(range(NUM_SAMPLES), num_replicas=world.world_size, rank=world.rank)  # type: ignore[arg-type]
    loader = loader_of(name, folder, batch_size=4, num_workers=num_workers, sampler=replicas, world=world)
    return [number for batch in loader for number in numbers_of(batch)]


def stateful(folder: Path, world: tdr.World, num_workers: int = 0, **options: Any) -> Any:
    return loader_of(RESUMABLE, folder, batch_size=4, num_workers=num_workers, world=world, **options)


def stop_in(here: str, what: str, folder: Path, num_workers: int, worlds: dict[str, tdr.World]) -> None:
    """Stop in mid-epoch, and resume in several worlds, by the state of all ranks and by each rank's own."""
    loader = stateful(folder, worlds[here], num_workers, state_of_all_ranks=True)
    batches = iter(loader)
    report(f"before, {what}", [numbers_of(batch) for batch in islice(batches, NUM_BEFORE)])
    everything = loader.state_dict()
    loader.state_of_all_ranks = False
    own = loader.state_dict()
    report(f"state, {what}", everything)
    report(f"after, {what}", [numbers_of(batch) for batch in batches])

    def go_on(place: tdr.World, state: Any) -> list[list[int]]:
        again = stateful(folder, place, num_workers, equalize=False)  # so that no rank ends early
        again.load_state_dict(json.loads(json.dumps(state)))
        return [numbers_of(batch) for batch in again]

    for name, place in worlds.items():
        attempt(f"all ranks' state in {name}, {what}", partial(go_on, place, everything))
    attempt(f"own state, {what}", partial(go_on, worlds[here], own))
    if "1 x 4" in worlds:
        attempt(f"own state in 1 x 4, {what}", partial(go_on, worlds["1 x 4"], own))


def of_process_groups(folder: Path) -> None:
    """Two groups of two that make different calls in different orders, so that neither may wait for the other."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = dist.get_rank() // 2
    world = tdr.World.from_group(halves[half])
    attempt("not in the group", lambda: repr(tdr.World.from_group(halves[1 - half])))
    steps: list[Callable[[], None]] = [
        lambda: report("new_group", [numbers_of(batch) for batch in stateful(folder, world)]),
        lambda: report("state of a group", stateful(folder, world, state_of_all_ranks=True).state_dict()),
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
    attempt("differing", lambda: [numbers_of(batch) for batch in stateful(place, world)])


def errors(mesh: DeviceMesh, world: tdr.World) -> None:
    """Invalid data-parallel groups; and copies of a world."""
    attempt("no such dimension", lambda: repr(tdr.World.from_mesh(mesh, dp=("dp", "cp"))))
    attempt("which dimension", lambda: repr(tdr.World.from_mesh(mesh)))
    attempt("twice", lambda: repr(tdr.World.from_mesh(mesh, dp=("dp", "dp"))))
    attempt("numbers", lambda: repr(tdr.World.from_mesh(mesh, dp=(0,))))  # type: ignore[arg-type]
    attempt("without names", lambda: repr(tdr.World.from_mesh(init_device_mesh("cpu", (2, 2)), dp="dp")))
    attempt("not in the mesh", lambda: repr(tdr.World.from_mesh(DeviceMesh("cpu", [0, 1]))))
    dimensions = ("dp", "tp") if dist.get_rank() else ("tp", "dp")
    everywhere = tdr.World.from_mesh(mesh, dp=dimensions)
    pipe = tdr.IterableWrapper([f"u{number}" for number in range(8)]).sharding_filter_rank(world=everywhere)
    attempt("another order", lambda: list(tdr.stateful_loader(pipe)))
    attempt("None is all ranks", lambda: tdr.World.from_group(None).world_size)
    twin = copy.deepcopy(world)
    report("equal", [tdr.World.from_mesh(mesh["dp"]) == world, twin == world, hash(twin) == hash(world)])
    passing = dist.new_group([0, 1, 2, 3])
    destroyed = tdr.World.from_group(passing)
    dist.destroy_process_group(passing)
    del passing
    gone = tdr.IterableWrapper([f"u{number}" for number in range(8)]).sharding_filter_rank(world=destroyed)
    attempt("destroyed", lambda: list(tdr.stateful_loader(gone)))
