"""Worlds whose slots divide the number of streams train on the same global batches, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain as flat
from itertools import islice, zip_longest
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.support.loaders import built
from torchdata_remote.testing import all_worlds, write_small_shards

NUM_STREAMS = 24
SLOTS = (1, 2, 3, 4, 6, 8, 12, 24)  # the documentation's table
WORLDS = [(ranks, slots // ranks) for slots in SLOTS for ranks in SLOTS if slots % ranks == 0]
NUM_SHARDS, SAMPLES_PER_SHARD = 24, 6  # one shard for each stream
Batches = list[list[str]]  # each sorted


def worlds_of(*variations: int) -> list[tuple[int, int]]:
    """For each variation a world of each number of slots; the variations 0 to 7 together are ``WORLDS``."""
    splits = [[world for world in WORLDS if world[0] * world[1] == slots] for slots in SLOTS]
    return sorted({worlds[variation % len(worlds)] for variation in variations for worlds in splits})


@pytest.fixture(scope="module")
def folder() -> str:
    """Shards in memory, with their manifest."""
    write_small_shards("memory://worlds", num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)
    return "memory://worlds"


def key_of(sample: tuple[str, str]) -> str:
    return "/".join(sample)


def chain_of(source: str | list[str], world: tdr.World | None, mode: str | None = None) -> Any:
    """A chain over a folder with a manifest, or over several manifests."""
    manifests = [f"{source}/index.json"] if isinstance(source, str) else source
    listed = tdr.IterableWrapper(manifests).list_remote().shuffle_shards(seed=4)
    reader: Any = listed.sharding_filter_rank(world=world).shard_tar_reader(interleave=2)
    if mode is not None:
        reader = reader.equalize_ranks(mode=mode)
    return reader.shuffle_samples(buffer_size=4, seed=1).to_tuple("__url__", "__key__").map(key_of)


def batches_of(items: Iterator[str], batch_size: int) -> list[list[str]]:
    batches = []
    while batch := list(islice(items, batch_size)):
        batches.append(batch)
    return batches


def global_batches(
    ranks: int, workers: int, k: int, folder: str | list[str], mode: str | None = None, epoch: int = 0
) -> Batches:
    """Batch n of every slot of a world, as one."""
    slots = []
    for world in all_worlds(ranks, workers):
        data = tdr.Resumable(chain_of(folder, world, mode), num_streams=NUM_STREAMS)
        data.set_epoch(epoch)
        slots.append(batches_of(iter(data), k * NUM_STREAMS // world.num_slots))
    return [sorted(flat.from_iterable(batches)) for batches in zip_longest(*slots, fillvalue=[])]


@pytest.mark.parametrize(("k", "epoch", "variation"), [(1, 0, 0), (4, 1, 1)])
def test_global_batches_are_the_same_in_every_world(folder: str, k: int, epoch: int, variation: int) -> None:
    """As sets of samples, in the same order, each of k samples from each stream, to the end of the epoch."""
    expected = global_batches(1, 1, k, folder, epoch=epoch)
    assert [len(batch) for batch in expected] == {1: [24] * 6, 4: [96, 48]}[k]
    assert expected != global_batches(1, 1, k, folder, epoch=epoch + 1)
    for ranks, workers in worlds_of(variation):
        assert global_batches(ranks, workers, k, folder, epoch=epoch) == expected, f"{ranks} x {workers}"
    streams = [set(tdr.Resumable(chain_of(folder, tdr.World(v, 24)), num_streams=24)) for v in range(24)]
    for batch in global_batches(3, 2, 2, folder):
        assert [len(stream.intersection(batch)) for stream in streams] == [2] * 24


@pytest.mark.parametrize(("mode", "variation"), [("drop", 2), ("repeat", 3)])
def test_global_batches_of_equalized_ranks_are_the_same_in_every_world(mode: str, variation: int) -> None:
    """``equalize_ranks`` makes streams equally long, however shards divide: every batch is the same to the last."""
    write_small_shards("memory://worlds-7", num_shards=7, samples_per_shard=11)
    expected = global_batches(1, 1, 2, "memory://worlds-7", mode)
    assert [len(batch) for batch in expected] == {"drop": [48, 24], "repeat": [48, 48]}[mode]
    for ranks, workers in worlds_of(variation):
        assert global_batches(ranks, workers, 2, "memory://worlds-7", mode) == expected, f"{ranks} x {workers}"


def test_uneven_shards_give_the_same_batches_until_the_first_stream_ends() -> None:
    """Where streams are not equally long, the batches are the same as long as all of them last."""
    for number in range(NUM_SHARDS):
        write_small_shards(f"memory://uneven-worlds/{number:02d}", num_shards=1, samples_per_shard=3 + number * 7 % 5)
    uneven = [f"memory://uneven-worlds/{number:02d}/index.json" for number in range(NUM_SHARDS)]
    shortest = min(len(list(tdr.Resumable(chain_of(uneven, tdr.World(v, 24)), num_streams=24))) for v in range(24))
    assert shortest >= 3
    expected = global_batches(1, 1, 1, uneven)
    for ranks, workers in worlds_of(4):
        found = global_batches(ranks, workers, 1, uneven)
        assert found[:shortest] == expected[:shortest], f"{ranks} x {workers}"
        assert sorted(flat.from_iterable(found)) == sorted(flat.from_iterable(expected))


def test_a_training_that_changes_its_world_after_each_batch_has_the_same_batches(folder: str) -> None:
    """After each global batch it is resumed in another world of the table."""
    state: dict[str, Any] = {}
    for step, batch in enumerate(global_batches(1, 1, 1, folder)):
        ranks, workers = WORLDS[(step * 7 + 3) % len(WORLDS)]
        samples: list[str] = []
        states = []
        for world in all_worlds(ranks, workers):
            data = tdr.Resumable(chain_of(folder, world), num_streams=NUM_STREAMS)
            if state:
                data.load_state_dict(state)
            samples += islice(data, NUM_STREAMS // world.num_slots)
            states.append(data.state_dict())
        assert sorted(samples) == batch
        state = tdr.merge_states(states)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 0), (2, 3)])
def test_global_batches_through_worker_processes_are_the_same(folder: str, ranks: int, workers: int) -> None:
    """A rank hands out the micro-batches of its workers in turn: one of each make its part of a global batch."""
    batch_size = 2 * NUM_STREAMS // (ranks * max(1, workers))
    options: dict[str, Any] = {"batch_size": batch_size, "num_streams": NUM_STREAMS, "collate_fn": list}
    batches = [
        list(built(chain_of(folder, tdr.World(rank, ranks), "drop"), workers, **options)) for rank in range(ranks)
    ]
    steps = max(1, workers)
    found = [
        sorted(sample for rank in batches for batch in rank[first : first + steps] for sample in batch)
        for first in range(0, max(map(len, batches)), steps)
    ]
    assert found == global_batches(1, 1, 2, folder, "drop")
