"""The world of a worker, from what torch tells it and from the process that sent its chain."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from torchdata_remote.core.rank_group import RankGroup
from torchdata_remote.core.world import World, detect_rank, place_in, world_from_sharding

COUNTS = st.integers(1, 6)


@given(world_size=COUNTS, num_workers=COUNTS, data=st.data())
def test_the_world_is_the_same_for_all_calls_of_torchs_loaders(
    world_size: int, num_workers: int, data: st.DataObject
) -> None:
    """With a process group in the main process and none in the worker; with both; with the environment only."""
    rank, worker = data.draw(st.integers(0, world_size - 1)), data.draw(st.integers(0, num_workers - 1))
    expected, in_worker = World(rank, world_size, worker, num_workers), World(0, 1, worker, num_workers)
    default, multiprocessing = SHARDING_PRIORITIES.DEFAULT, SHARDING_PRIORITIES.MULTIPROCESSING
    with_group: dict[int, tuple[int, int]] = {default: (world_size * num_workers, worker * world_size + rank)}
    assert world_from_sharding(with_group, in_worker) == expected
    assert world_from_sharding(with_group, expected) == expected
    assert world_from_sharding({default: (num_workers, worker)}, expected) == expected
    assert world_from_sharding({multiprocessing: (num_workers, worker)}, World(rank, world_size)) == expected
    assert world_from_sharding({}, expected) == expected


def test_workers_are_counted_within_the_rank_of_a_group_and_not_of_the_job() -> None:
    group = RankGroup(((0, 2),))
    here = pickle.loads(pickle.dumps(World(1, 2, group=group)))
    assert here == World(1, 2, group=group)
    in_worker = place_in(here, World(3, 4, worker=1, num_workers=3))
    assert in_worker == World(1, 2, worker=1, num_workers=3, group=group)
    assert (in_worker.slot, in_worker.num_slots) == (3, 6)


def test_workers_do_without_a_rank_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning sets WORLD_SIZE alone; a loader passes the rank to its workers."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = torch.utils.data.DataLoader(_Ranks(), None, num_workers=1, multiprocessing_context="fork")
    assert [tuple(rank) for rank in loader] == [(0, 1)]


class _Ranks(torch.utils.data.IterableDataset[tuple[int, int]]):
    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield detect_rank()
