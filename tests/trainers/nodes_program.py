"""A rank with a ``torchdata.nodes`` graph over a chain: an epoch, an epoch that is stopped, and the rest of it."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # once for all ranks, of which DDP would import it in each
import torch.distributed as dist
import torchdata.nodes as tn
from torch.utils.data import default_collate

import torchdata_remote as tdr
from tests.support.launch import attempt
from torchdata_remote.errors import StateError

from .data import NUM_STREAMS, numbers_of, of_sample, samples_of

BATCH_SIZE, STOP_AFTER = 4, 4


def loader_of(folder: Path, num_workers: int) -> Any:
    """All kinds of nodes over a chain."""
    node = tdr.to_node(samples_of(folder), num_streams=NUM_STREAMS)
    node = tn.ParallelMapper(node, of_sample, num_workers, method="process", multiprocessing_context="fork")
    node = tn.Batcher(node, BATCH_SIZE, drop_last=False)
    node = tn.Mapper(node, default_collate)
    return tn.Loader(tn.Prefetcher(node, prefetch_factor=2, snapshot_frequency=1))


def main(*, folder: str, checkpoint: str, num_workers: int) -> None:
    """Two ranks read epochs, stop in the second one, and resume; one resumes, and checks what one is enough for.

    Args:
        folder: of the dataset.
        checkpoint: file of the state.
        num_workers: of ``ParallelMapper``.
    """
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    make, file = partial(loader_of, Path(folder), num_workers), Path(checkpoint)
    if dist.get_world_size() == 2:
        attempt("epochs", lambda: _epochs(model, make()))
        attempt("stop", lambda: _stop(model, make(), file))
        dist.barrier()
        attempt("load in rank 0", lambda: _load_in_rank_0(make(), make(), file))
        attempt("another seed", lambda: list(_another_seed(Path(folder))))
    else:
        for check in CHECKS:
            attempt(check.__name__, partial(check, Path(folder)))
    attempt("resume", lambda: _resume(model, make(), file))
    gc.collect()  # workers of graphs that were left hold the pipes of this process
    dist.destroy_process_group()


def _train(model: torch.nn.Module, batches: Any) -> list[int]:
    numbers = []
    for batch in batches:
        model(batch["x"]).sum().backward()
        numbers += numbers_of(batch)
    return numbers


def _epochs(model: torch.nn.Module, loader: Any) -> list[list[int]]:
    return [_train(model, loader) for _ in range(3)]


def _stop(model: torch.nn.Module, loader: Any, file: Path) -> list[int]:
    _train(model, loader)
    numbers = _train(model, islice(loader, STOP_AFTER))
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    if dist.get_rank() == 0:
        torch.save(tdr.merge_node_states(states), file)
    return numbers


def _resume(model: torch.nn.Module, loader: Any, file: Path) -> list[list[int]]:
    loader.load_state_dict(torch.load(file))
    return [_train(model, loader) for _ in range(2)]


def _load_in_rank_0(loader: Any, again: Any, file: Path) -> list[int]:
    """One rank resumes, and the other one starts from the beginning; then both resume."""
    if dist.get_rank() == 0:
        loader.load_state_dict(torch.load(file))
    with pytest.raises(StateError, match=r"Ranks 0 and 1 differ in the position where they start"):
        iter(loader)
    again.load_state_dict(torch.load(file))
    return numbers_of(next(iter(again)))


def _another_seed(folder: Path) -> Any:
    """Of the shards' order."""
    urls = tdr.IterableWrapper([f"{folder}/shards/index.json"]).list_remote().shuffle_shards(seed=dist.get_rank())
    return tn.Loader(tdr.to_node(urls.sharding_filter_rank(), num_streams=NUM_STREAMS))


def _keys(folder: Path, **options: Any) -> Any:
    return tdr.to_node(samples_of(folder).to_tuple("__key__"), **options)


def _plain_json(folder: Path) -> bool:
    """The state of a graph without weights is; it is that of ``Resumable``."""
    loader = tn.Loader(_keys(folder))
    next(iter(loader))
    state = loader.state_dict()
    resumable = tdr.Resumable(samples_of(folder).to_tuple("__key__"))
    next(iter(resumable))
    return bool(json.loads(json.dumps(state)) == state and state["root"] == resumable.state_dict())


def _resumes_anywhere(folder: Path) -> bool:
    """Also before the first item, after the last one, and by a state that was taken twice."""
    through = tn.Loader(_keys(folder))
    epochs = [list(through) for _ in range(3)]
    for num_taken in (0, 1, 59, 119, 120):
        loader, rest = tn.Loader(_keys(folder)), tn.Loader(_keys(folder))
        batches = iter(loader)
        assert list(islice(batches, num_taken)) == epochs[0][:num_taken]
        state = loader.state_dict()
        assert state == loader.state_dict()
        rest.load_state_dict(state)
        left = [epochs[0][num_taken:]] if num_taken < 120 else []  # a Loader begins the next epoch where none is left
        assert [list(rest) for _ in range(len(left) + 1)] == [*left, epochs[1]], num_taken
    return epochs[0] != epochs[1] and len({key for (key,) in epochs[2]}) == 120


def _an_epoch_has_an_item(folder: Path) -> bool:
    """Iterators that are dropped before their first item count no epoch; those that are left early do."""
    through, loader = tn.Loader(_keys(folder)), tn.Loader(_keys(folder))
    epochs = [list(through) for _ in range(2)]
    iter(loader)
    iter(loader)
    assert list(islice(loader, 5)) == epochs[0][:5]
    return list(loader) == epochs[1]


def _weighted(folder: Path) -> bool:
    """Two chains by weights; each until it is exhausted; resumed in the middle."""

    def make() -> Any:
        sources = {"a": _keys(folder), "b": tdr.to_node(tdr.Resumable(samples_of(folder).to_tuple("__url__")))}
        criteria = tn.StopCriteria.ALL_DATASETS_EXHAUSTED
        return tn.Loader(tn.MultiNodeWeightedSampler(sources, {"a": 2.0, "b": 1.0}, criteria, seed=1))

    loader, rest = make(), make()
    whole = list(make())
    batches = iter(loader)
    first = list(islice(batches, 100))
    rest.load_state_dict(tdr.merge_node_states([loader.state_dict()]))
    return len(whole) == 240 and first + list(rest) == whole


def _merges(folder: Path) -> bool:
    """The states of two ranks; not those of other graphs, nor if a node has read items since its source's state."""

    def of_rank(rank: int, *, frequency: int = 1) -> Any:
        urls = tdr.IterableWrapper([f"{folder}/shards/index.json"]).list_remote()
        pipe = urls.sharding_filter_rank(world=tdr.World(rank, 2)).shard_tar_reader().to_tuple("__key__")
        loader = tn.Loader(tn.Prefetcher(tdr.to_node(pipe, num_streams=2), 2, snapshot_frequency=frequency))
        batches = iter(loader)
        return list(islice(batches, 7)), loader.state_dict()

    pairs = [of_rank(0), of_rank(1)]
    pipe = tdr.IterableWrapper([f"{folder}/shards/index.json"]).list_remote().sharding_filter_rank()
    rest = tn.Loader(tn.Prefetcher(tdr.to_node(pipe.shard_tar_reader().to_tuple("__key__"), num_streams=2), 2))
    states = [state for _, state in pairs]
    rest.load_state_dict(tdr.merge_node_states(states))
    keys = [key for items, _ in pairs for (key,) in items] + [key for (key,) in rest]
    refused: dict[str, Callable[[], Any]] = {
        "ranks have different graphs": lambda: tdr.merge_node_states([states[0], states[1]["root"]]),
        "snapshot_frequency=1": lambda: tdr.merge_node_states([of_rank(rank, frequency=5)[1] for rank in (0, 1)]),
        "Stream 0 is in two": lambda: tdr.merge_node_states([states[0], states[0]]),
        "no state to merge": lambda: tdr.merge_node_states([]),
    }
    for message, merge in refused.items():
        with pytest.raises(StateError, match=message):
            merge()
    return sorted(keys) == [f"{number:03d}" for number in range(120)]


def _unsplit_chains_are_refused(folder: Path) -> bool:
    """Several ranks would read the same."""
    pipe = tdr.IterableWrapper([f"{folder}/shards/index.json"]).list_remote().shard_tar_reader()
    with pytest.raises(StateError, match=r"put sharding_filter_rank\(\) behind the URLs"):
        list(tn.Loader(tdr.to_node(pipe, num_streams=2)))
    return True


def _errors_reach_the_loader(folder: Path) -> bool:
    """Of a chain, through threads; the next epoch starts from the beginning."""
    pipe = tdr.IterableWrapper([f"{folder}/no-such.tar"]).sharding_filter_rank().shard_tar_reader()
    loader = tn.Loader(tn.Prefetcher(tdr.to_node(pipe), 2))
    for _ in range(2):
        with pytest.raises(Exception, match=r"no-such\.tar"):
            list(loader)
    return True


CHECKS = (
    _plain_json,
    _resumes_anywhere,
    _an_epoch_has_an_item,
    _weighted,
    _merges,
    _unsplit_chains_are_refused,
    _errors_reach_the_loader,
)
