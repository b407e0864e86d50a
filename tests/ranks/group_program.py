"""A rank of two: loaders within a process group, and ranks that differ from each other."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from tests.support.launch import attempt, report
from tests.support.loaders import THREAD, built, key_of
from torchdata_remote.errors import StateError

NUM_STREAMS = 4
multiprocessing.set_forkserver_preload(["torch"])


def chain_of(source: Any, *, seed: int = 1, world: tdr.World | None = None, equal: bool = False) -> Any:
    urls = tdr.IterableWrapper(source if isinstance(source, list) else [source]).list_remote()
    reader: Any = urls.shuffle_shards(seed=seed).sharding_filter_rank(world=world).shard_tar_reader()
    reader = reader.equalize_ranks(mode="drop") if equal else reader
    return reader.shuffle_samples(buffer_size=3).to_tuple("__key__").map(key_of)


def loader_of(pipe: Any, num_workers: int = 0, **more: Any) -> Any:
    return built(pipe, num_workers, **{"batch_size": 2, "num_streams": NUM_STREAMS, **more})


def main(*, folder: str, url: str, store: str) -> None:
    """Report what each check finds.

    Args:
        folder: of six shards of four samples, with a manifest.
        url: of a server of that folder below any path.
        store: folder of the files by which ranks meet.
    """
    rank, whole = int(os.environ["RANK"]), f"{folder}/index.json"
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")
    # The environment alone tells the ranks
    attempt(
        "environment", lambda: epochs(DataLoader(keys_of(folder), None, num_workers=2, multiprocessing_context="fork"))
    )
    attempt(
        "environment, few shards",
        lambda: epochs(
            DataLoader(keys_of(f"{folder}/00000[0-2].tar"), None, num_workers=2, multiprocessing_context="fork")
        ),
    )
    attempt("without a group", loader_of(chain_of(whole), state_of_all_ranks=True).state_dict)
    attempt("alone", lambda: sum(map(len, loader_of(chain_of(f"{url}/alone/index.json"), list_in_rank_0=True))))
    begin_group(store, "main")
    plain_loaders(folder, rank)
    states(whole)
    listings(url, rank)
    differing(folder, rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shards = [f"{folder}/000000.tar", f"{folder}/000001.tar", f"{folder}/000002.tar"]
        batches = list(tdr.stateful_loader(chain_of(shards), batch_size=2, num_streams=2))
    told = [str(warning.message) for warning in caught if "numbers of batches" in str(warning.message)]
    report("unequal ranks", [len(batches), told])
    end_group()
    for name, check in ALONE.items():
        begin_group(store, name)
        attempt(name, lambda check=check: check(chain_of(whole, equal=True), rank))  # type: ignore[misc]
        end_group()


def begin_group(store: str, name: str) -> None:
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = f"file://{store}/{name.replace(' ', '-')}"
    dist.init_process_group("gloo", place, rank=number, world_size=size, timeout=timedelta(seconds=120))


def end_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def epochs(loader: Any) -> list[list[str]]:
    return [[key for (key,) in loader] for _ in range(2)]


def keys_of(url: str) -> Any:
    return tdr.stream_shards(url).to_tuple("__key__")


def plain_loaders(folder: str, rank: int) -> None:
    """torch's loaders."""
    for workers, persistent in ((0, False), (2, False), (2, True)):
        context = "fork" if workers else None
        loader = DataLoader(
            keys_of(folder), None, num_workers=workers, multiprocessing_context=context, persistent_workers=persistent
        )
        attempt(f"DataLoader, {workers} workers, {persistent}", lambda loader=loader: epochs(loader))  # type: ignore[misc]
    pipe = keys_of(folder)
    if rank == 0:
        next(iter(pipe))  # which counts no epoch
    attempt("DataLoader, rank 0 has read", lambda: epochs(DataLoader(pipe, None)))
    few = keys_of(f"{folder}/00000[0-2].tar")
    attempt("few shards", lambda: epochs(DataLoader(few, None, num_workers=2, multiprocessing_context="fork")))
    try:
        from torchdata import dataloader2
    except ImportError:
        return
    service = dataloader2.SequentialReadingService(
        dataloader2.DistributedReadingService(),
        dataloader2.MultiProcessingReadingService(num_workers=2, multiprocessing_context="forkserver"),
    )
    equal: Any = tdr.stream_shards(f"{folder}/index.json").equalize_ranks().to_tuple("__key__")  # which it requires
    loader2 = dataloader2.DataLoader2(equal, reading_service=service)
    attempt("DataLoader2", lambda: epochs(loader2))
    loader2.shutdown()


def gathered(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def states(whole: str) -> None:
    """Epochs, and a stop that is resumed by each rank's own state, by those of one rank, and by a merged one."""
    loader = loader_of(chain_of(whole), 2)
    report("epochs", [list(loader) for _ in range(2)])
    loader.set_epoch(0)
    report("head", list(islice(loader, 3)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state, *_ = [loader.state_dict() for _ in range(2)]
        loader_of(chain_of(whole), state_of_all_ranks=False).state_dict()
        loader_of(chain_of(whole), state_of_all_ranks=True).state_dict()
    report("warned", [str(warning.message) for warning in caught])
    report("state", state)
    again = loader_of(chain_of(whole), 2)
    again.load_state_dict(state)  # each has its own
    report("rest", [list(again), list(again)])
    all_states = gathered(state)
    again.load_state_dict(all_states if dist.get_rank() == 0 else [])  # only one has files
    report("rest of one", list(again))
    again = loader_of(chain_of(whole), THREAD)
    again.load_state_dict(tdr.merge_states(all_states))
    report("rest of merged", list(again))
    together = loader_of(chain_of(whole), state_of_all_ranks=True)
    together.load_state_dict(tdr.merge_states(all_states))
    found = together.state_dict()
    report("state of all ranks", [list(found), len(set(map(str, gathered(found)))), type(found["all_ranks"]).__name__])
    again.load_state_dict(found)
    report("rest of all ranks", list(again))
    attempt("no state", lambda: loader_of(chain_of(whole)).load_state_dict([]))


def listings(url: str, rank: int) -> None:
    """Rank 0 lists for all."""
    for workers in (0, 2):
        options: dict[str, Any] = {"list_in_rank_0": True}
        loader = loader_of(chain_of(f"{url}/each/{workers}/index.json"), workers, **options)
        report(f"each {workers}", [list(loader), list(loader)])
        once = loader_of(chain_of(f"{url}/once/{workers}/index.json"), workers, list_once=True, **options)
        report(f"once {workers}", [list(once), list(once)])
        failing = loader_of(chain_of(f"{url}/none/{workers}/index.json"), workers, **options)
        attempt(f"failing {workers}", lambda failing=failing: list(failing))  # type: ignore[misc]
        source = f"{url}/rank0/{workers}/index.json" if rank == 0 else f"{url}/nowhere/index.json"
        report(f"only {workers}", list(loader_of(chain_of(source), workers, **options)))


def images_of(folder: str, *, batch_size: int = 2, transform: Any = key_of, **options: Any) -> Any:
    data = tdr.ShardedDataset(f"{folder}/", transform=transform)
    return tdr.PrefetchingLoader(data, batch_size, collate_fn=list, **{"shuffle": True, "seed": 0, **options})


def with_epoch(loader: Any, rank: int) -> Any:
    if rank == 0:
        loader.set_epoch(1)
    return loader


def dropped(make: Callable[[], Any], rank: int) -> Any:
    """Both load a state, of which one is dropped by ``set_epoch``."""
    loader, again = make(), make()
    next(iter(loader))
    again.load_state_dict(loader.state_dict())
    return with_epoch(again, rank)


def differing(folder: str, rank: int) -> None:
    """Ranks whose loaders differ in one thing."""
    whole = f"{folder}/index.json"

    def chain(**options: Any) -> Any:
        return chain_of(whole, equal=True, **options)

    shards = [f"{folder}/{number:06d}.tar" for number in range(5 + rank)]
    missing = [*shards[:5], f"{folder}/missing-{{0..3}}.tar"] if rank else shards[:5]
    half = Path(folder).parent / "half"
    makes: dict[str, Callable[[], Any]] = {
        "listing": lambda: loader_of(chain_of(shards)),
        "failing": lambda: loader_of(chain_of(missing)),
        "failing in a thread": lambda: loader_of(chain_of(missing), THREAD),
        "seed": lambda: loader_of(chain(seed=rank)),
        "epoch": lambda: with_epoch(loader_of(chain()), rank),
        "num_streams": lambda: loader_of(chain(), num_streams=(4, 6)[rank]),
        "place": lambda: loader_of(chain(world=tdr.World(0, 2))),
        "state": lambda: dropped(lambda: loader_of(chain()), rank),
        "PrefetchingLoader, seed": lambda: images_of(folder, seed=rank),
        "PrefetchingLoader, epoch": lambda: with_epoch(images_of(folder), rank),
        "PrefetchingLoader, state": lambda: dropped(lambda: images_of(folder), rank),
        "PrefetchingLoader, shuffle": lambda: images_of(folder, shuffle=rank == 0, seed=(0, None)[rank]),
        "PrefetchingLoader, equalize": lambda: images_of(folder, equalize=("drop", "repeat")[rank]),
        "PrefetchingLoader, samples": lambda: images_of((folder, str(half))[rank]),
        "PrefetchingLoader, place": lambda: images_of(folder, world=tdr.World(0, 2)),
    }
    for name, make in makes.items():
        attempt(f"unlike: {name}", lambda make=make: [key for batch in make() for key in batch])  # type: ignore[misc]
        dist.barrier()


# What one rank does and the other does not: each in a group of its own


def begun(pipe: Any) -> tuple[Any, Any]:
    loader = loader_of(pipe, state_of_all_ranks=True)
    next(iter(loader))
    return loader, loader.state_dict()


def load_in_rank_0(pipe: Any, rank: int) -> Any:
    _, state = begun(pipe)
    again = loader_of(pipe)
    if rank == 0:
        again.load_state_dict(state)
    return list(again)


def state_in_rank_0(pipe: Any, rank: int) -> Any:
    """Under ``if is_main_process``."""
    loader, _ = begun(pipe)
    if rank == 0:
        loader.state_dict()
    return list(loader)  # the next epoch


def cut_off(pipe: Any, rank: int) -> Any:
    """The file of rank 1 was cut short."""
    _, state = begun(pipe)
    again = loader_of(pipe)
    again.load_state_dict((state, {"all_ranks": state["all_ranks"][:100]})[rank])
    return list(again)


def without_file(pipe: Any, rank: int) -> Any:
    _, state = begun(pipe)
    again = loader_of(pipe)
    again.load_state_dict((state, None)[rank])
    return list(again)


def list_in_rank_0(pipe: Any, rank: int) -> Any:
    data = tdr.Resumable(pipe, num_streams=NUM_STREAMS)
    if rank == 0:
        data.list_now()
    return list(tdr.stateful_loader(data, batch_size=2, list_in_rank_0=True))


def destroyed(pipe: Any, rank: int) -> Any:
    loader, _ = begun(pipe)
    dist.destroy_process_group()
    return loader.state_dict()


def another_exchange(pipe: Any, rank: int) -> Any:
    """One rank gathers a value of its own, the other one is to take a batch."""
    if rank == 1:
        gathered({"loss": 0.5})
        raise StateError("it was taken for another exchange")
    return list(loader_of(pipe))


ALONE: dict[str, Callable[[Any, int], Any]] = {
    "load in rank 0": load_in_rank_0,
    "state in rank 0": state_in_rank_0,
    "cut off": cut_off,
    "without file": without_file,
    "list_now in rank 0": list_in_rank_0,
    "process group destroyed": destroyed,
    "another exchange": another_exchange,
}
