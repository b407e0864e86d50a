"""A rank that differs from the other one in its seed, epoch, number of streams, position, state or listing."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterableWrapper, IterDataPipe

from .data import NUM_SAMPLES, NUM_STREAMS, examples_of_pairs, numbers_of, of_sample, to_example
from .launch import attempt, report


def _chain(folder: Path, *, seed: int = 0, world: tdr.World | None = None) -> IterDataPipe[Any]:
    pipe = IterableWrapper([f"{folder}/shards/index.json"]).list_remote().shuffle_shards(seed=seed)
    chain: IterDataPipe[Any] = (
        pipe.sharding_filter_rank(world=world).shard_tar_reader().equalize_ranks(mode="drop").map(of_sample)
    )
    return chain


def _loader(pipe: Any, num_streams: int = NUM_STREAMS, **options: Any) -> Any:
    return tdr.stateful_loader(pipe, batch_size=4, num_streams=num_streams, **options)


def _images(folder: Path, numbers: range = range(NUM_SAMPLES), **options: Any) -> Any:
    index = [f"{number % 3}/{number:03d}.png" for number in numbers]
    images = tdr.RemoteImageFolder(f"{folder}/images/", transform=to_example, index=index)
    given = {"batch_size": 4, "seed": 0, **options}
    return tdr.PrefetchingLoader(images, shuffle=True, collate_fn=examples_of_pairs, **given)


def _with_epoch(loader: Any, rank: int) -> Any:
    if rank == 0:
        loader.set_epoch(1)
    return loader


def _dropped(folder: Path, make: Callable[[], Any], rank: int) -> Any:
    """Both load a state, of which one is dropped by ``set_epoch``."""
    loader = make()
    next(iter(loader))
    again = make()
    again.load_state_dict(loader.state_dict())
    return _with_epoch(again, rank)


def _loaded(before: Any, after: Any) -> Any:
    """A loader with the state of another one."""
    batches = iter(before)
    next(batches)
    after.load_state_dict(before.state_dict())
    return after


def loaders(folder: Path, rank: int) -> dict[str, Callable[[], Any]]:
    """Loaders that differ from those of the other rank."""
    return {
        "stateful_loader, seed": lambda: _loader(_chain(folder, seed=rank)),
        "stateful_loader, epoch": lambda: _with_epoch(_loader(_chain(folder)), rank),
        "stateful_loader, num_streams": lambda: _loader(_chain(folder), (12, 8)[rank]),
        "stateful_loader, place": lambda: _loader(_chain(folder, world=tdr.World(0, 2))),
        "stateful_loader, state": lambda: _dropped(folder, lambda: _loader(_chain(folder)), rank),
        "PrefetchingLoader, seed": lambda: _images(folder, seed=rank),
        "PrefetchingLoader, epoch": lambda: _with_epoch(_images(folder), rank),
        "PrefetchingLoader, state": lambda: _dropped(folder, lambda: _images(folder), rank),
        "PrefetchingLoader, batch_size": lambda: _images(folder, batch_size=4 + rank),
        "PrefetchingLoader, images": lambda: _images(folder, numbers=range(NUM_SAMPLES - rank)),
        "PrefetchingLoader, names": lambda: _images(folder, numbers=range(rank, NUM_SAMPLES - 1 + rank)),
        "PrefetchingLoader, state of another order": lambda: _loaded(_images(folder), _images(folder, seed=rank)),
        "PrefetchingLoader, place": lambda: _images(folder, world=tdr.World(0, 2)),
    }


def _read(loader: Any) -> list[int]:
    return [number for batch in loader for number in numbers_of(batch)]


def main(*, folder: str, case: str) -> None:
    """Report the numbers of the samples that are read, or the error.

    Args:
        folder: of the dataset.
        case: ``"unlike"``, or what one rank does and the other does not.
    """
    rank = int(os.environ["RANK"])
    if case == "no process group":
        loader = _loader(_chain(Path(folder)), state_of_all_ranks=True)
        attempt(case, loader.state_dict)
        return
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    if case == "unlike":
        for name, make in loaders(Path(folder), rank).items():
            attempt(name, lambda make=make: _read(make()))  # type: ignore[misc]
            dist.barrier()
        return
    loader = _loader(_chain(Path(folder)), state_of_all_ranks=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    if case == "load in rank 0":
        again = _loader(_chain(Path(folder)))
        if rank == 0:
            attempt("load", lambda: again.load_state_dict(state))
        attempt(case, lambda: _read(again))
    if case == "state in rank 0":  # under `if is_main_process`
        if rank == 0:
            attempt("state", loader.state_dict)
        attempt(case, lambda: _read(loader))  # the next epoch
    if case == "process group destroyed":
        dist.destroy_process_group()
        attempt(case, loader.state_dict)
    if case in ("truncated", "None"):  # the file of rank 1 was cut short; it has none
        again = _loader(_chain(Path(folder)))
        other: Any = {"all_ranks": state["all_ranks"][:200]} if case == "truncated" else None
        attempt(case, lambda: again.load_state_dict((state, other)[rank]))
        report("went on", True)
    if case == "list_now in rank 0":
        resumable = tdr.Resumable(_chain(Path(folder)), num_streams=NUM_STREAMS)
        if rank == 0:
            resumable.list_now()
        attempt(case, lambda: _read(tdr.stateful_loader(resumable, batch_size=4, list_in_rank_0=True)))
