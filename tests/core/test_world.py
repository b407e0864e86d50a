"""Ranks, workers and slots."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterableWrapper
from torchdata_remote.core.rank_group import RankGroup
from torchdata_remote.core.world import World, detect_rank, detect_world, place_in, world_from_sharding
from torchdata_remote.testing import all_worlds

COUNTS = st.integers(1, 6)
Groups = dict[int, tuple[int, int]]


@given(world_size=COUNTS, num_workers=COUNTS)
def test_every_reader_has_its_own_slot(world_size: int, num_workers: int) -> None:
    """Slots number all readers from 0 without a gap."""
    worlds = list(all_worlds(world_size, num_workers))
    assert sorted(world.slot for world in worlds) == list(range(world_size * num_workers))
    assert {world.num_slots for world in worlds} == {world_size * num_workers}


@pytest.mark.parametrize("numbers", [(1, 1), (-1, 1), (0, 0), (0, 1, 1, 1), (0, 1, -1, 1), (0, 1, 0, 0), (2, 2, 0, 1)])
def test_impossible_worlds_are_refused(numbers: tuple[int, ...]) -> None:
    """A place outside its world is an error that names both numbers."""
    with pytest.raises(ValueError, match=r"World\(rank=.*expected 0 <= rank < world_size"):
        World(*numbers)


@given(world_size=COUNTS, num_workers=COUNTS, data=st.data())
def test_world_from_sharding_agrees_for_both_loaders(world_size: int, num_workers: int, data: st.DataObject) -> None:
    """The world is the same for all calls of torch's loaders, and for all ways to detect the rank."""
    rank, worker = data.draw(st.integers(0, world_size - 1)), data.draw(st.integers(0, num_workers - 1))
    expected = World(rank, world_size, worker, num_workers)
    nothing_known, in_worker = World(), World(0, 1, worker, num_workers)
    knows_rank = World(rank, world_size)
    default, distributed, multiprocessing = (
        SHARDING_PRIORITIES.DEFAULT,
        SHARDING_PRIORITIES.DISTRIBUTED,
        SHARDING_PRIORITIES.MULTIPROCESSING,
    )
    both: Groups = {distributed: (world_size, rank), multiprocessing: (num_workers, worker)}
    workers_by_default: Groups = {default: (num_workers, worker)}
    workers_only: Groups = {multiprocessing: (num_workers, worker)}
    assert world_from_sharding(both, nothing_known) == expected
    assert world_from_sharding(both, knows_rank) == expected
    # DataLoader, with a process group in the main process and none in the worker; with both; with the environment only
    with_group: Groups = {default: (world_size * num_workers, worker * world_size + rank)}
    assert world_from_sharding(with_group, in_worker) == expected
    assert world_from_sharding(with_group, expected) == expected
    assert world_from_sharding(workers_by_default, expected) == expected
    assert world_from_sharding(workers_only, knows_rank) == expected
    assert world_from_sharding({}, expected) == expected


def test_detect_rank_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK and WORLD_SIZE are used if there is no process group."""
    assert detect_rank() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert detect_rank() == (2, 4)
    assert detect_world() == World(2, 4)


@pytest.mark.parametrize(("rank", "world_size"), [("1", None), (None, "2"), ("one", "2"), ("-1", "2"), ("1", "")])
def test_detect_rank_refuses_half_an_environment(
    rank: str | None, world_size: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two alone, or no number, is an error: each rank would read everything."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"RANK=.* and WORLD_SIZE=.* must both be set"):
        detect_rank()


def test_a_rank_outside_the_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A RANK that is not below WORLD_SIZE is an error that names the variables."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK and WORLD_SIZE"):
        detect_world()


def test_a_world_of_a_group_in_a_worker() -> None:
    """What a worker unpickles equals what was sent, and workers are counted within its rank and not the job's."""
    group = RankGroup(((0, 2),))
    sent = World(1, 2, group=group)
    here = pickle.loads(pickle.dumps(sent))
    assert here == sent
    in_worker = place_in(here, World(3, 4, worker=1, num_workers=3))
    assert in_worker == World(1, 2, worker=1, num_workers=3, group=group)
    assert (in_worker.slot, in_worker.num_slots) == (3, 6)


def test_a_world_shows_its_group_only_if_it_has_one() -> None:
    """So that errors are as short as they were."""
    world = World(1, 2)
    assert repr(world) == "World(rank=1, world_size=2, worker=0, num_workers=1)"
    other = replace(world, group=RankGroup(((0, 2),)))
    assert repr(other) == "World(rank=1, world_size=2, worker=0, num_workers=1, group=RankGroup(members=((0, 2),)))"
    assert other != world


def test_workers_returns_the_worlds_of_a_ranks_workers() -> None:
    """Each has the rank's place; without workers it is the rank's own."""
    rank = World(rank=1, world_size=2)
    assert rank.workers(0) == rank.workers(1) == [rank]
    assert rank.workers(2) == [World(1, 2, 0, 2), World(1, 2, 1, 2)]


def test_workers_do_without_a_rank_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning sets WORLD_SIZE alone; a loader passes the rank to its workers."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = torch.utils.data.DataLoader(_Ranks(), None, num_workers=1, multiprocessing_context="fork")
    assert [tuple(rank) for rank in loader] == [(0, 1)]


class _Ranks(torch.utils.data.IterableDataset[tuple[int, int]]):
    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield detect_rank()


@pytest.mark.parametrize("world", ["dp", 1, object()])
def test_what_is_no_world_is_refused_when_the_chain_or_loader_is_built(world: Any) -> None:
    """Such as a ``DeviceMesh``: the error says how a ``World`` is made of it."""
    fsspec.filesystem("memory").pipe({"/worlds/0.txt": b""})
    files = tdr.RemoteFiles("memory://worlds/")
    builds: list[Callable[[], Any]] = [
        lambda: IterableWrapper(["memory://d/0.tar"]).sharding_filter_rank(world=world),
        lambda: tdr.stream_shards("memory://d/0.tar", world=world),
        lambda: tdr.PrefetchingLoader(files, world=world),
    ]
    for build in builds:
        with pytest.raises(TypeError, match=r"expected a World or None, got .*World\.from_mesh"):
            build()


def test_what_is_no_mesh_or_group_is_refused() -> None:
    """By its type and the method that takes it; ``None`` is the group of all ranks, of which there is none here."""
    made: Any
    for made in (None, "dp", IterableWrapper([])):
        with pytest.raises(TypeError, match=r"Expected a torch\.distributed DeviceMesh, got"):
            World.from_mesh(made, "dp")
    for made in ("dp", IterableWrapper([])):
        with pytest.raises(TypeError, match=r"Expected a torch\.distributed ProcessGroup, got .*from_mesh"):
            World.from_group(made)
    with pytest.raises(ValueError, match="init_process_group"):
        World.from_group(None)
