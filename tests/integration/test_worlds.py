"""Worlds that are interchangeable: the same global batches, in the same order, on any of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain as flat
from itertools import islice, zip_longest
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import Resumable, World, merge_states, stateful_loader
from torchdata_remote.testing import all_worlds, write_small_shards

NUM_STREAMS = 24
SLOTS = (1, 2, 3, 4, 6, 8, 12, 24)  # the documentation's table
WORLDS = [(ranks, slots // ranks) for slots in SLOTS for ranks in SLOTS if slots % ranks == 0]
NUM_SHARDS, SAMPLES_PER_SHARD = 48, 5  # two shards for each stream
Batches = list[list[str]]  # each sorted


def worlds_of(*variations: int) -> list[tuple[int, int]]:
    """For each variation a world of each number of slots; the variations 0 to 7 together are ``WORLDS``."""
    splits = [[world for world in WORLDS if world[0] * world[1] == slots] for slots in SLOTS]
    return sorted({worlds[variation % len(worlds)] for variation in variations for worlds in splits})


@pytest.fixture(scope="module")
def folder() -> str:
    """Shards in memory, with their manifest."""
    url = "memory://worlds"
    write_small_shards(url, num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)
    return url


@pytest.fixture(scope="module")
def uneven(folder: str) -> list[str]:
    """The manifests of shards of 3 to 7 samples each."""
    url = "memory://uneven-worlds"
    for number in range(NUM_SHARDS):
        size = 3 + number * 7 % 5
        write_small_shards(f"{url}/{number:02d}", num_shards=1, samples_per_shard=size)
    return [f"{url}/{number:02d}/index.json" for number in range(NUM_SHARDS)]


def key_of(sample: tuple[str, str]) -> str:
    return "/".join(sample)


def chain_of(source: str | list[str], world: World | None, mode: str | None = None) -> Any:
    """A chain over a folder with a manifest, or over several manifests."""
    manifests = [f"{source}/index.json"] if isinstance(source, str) else source
    reader = (
        IterableWrapper(manifests)
        .list_remote()
        .shuffle_shards(seed=4)
        .sharding_filter_rank(world=world)
        .shard_tar_reader(interleave=2)
    )
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
        data = Resumable(chain_of(folder, world, mode), num_streams=NUM_STREAMS)
        data.set_epoch(epoch)
        slots.append(batches_of(iter(data), k * NUM_STREAMS // world.num_slots))
    return [sorted(flat.from_iterable(batches)) for batches in zip_longest(*slots, fillvalue=[])]


def test_worlds_are_all_divisors_of_the_number_of_streams_as_ranks_times_workers() -> None:
    """Those of the tests below together."""
    assert worlds_of(*range(8)) == sorted(WORLDS)
    assert {ranks * workers for ranks, workers in WORLDS} == set(SLOTS)
    assert set(SLOTS) == {slots for slots in range(1, 25) if NUM_STREAMS % slots == 0}
    assert {(1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (4, 2), (6, 2), (24, 1), (8, 3)} <= set(WORLDS)


@pytest.mark.parametrize(("k", "epoch", "variations"), [(1, 0, (0, 7)), (3, 1, (1,))])
def test_global_batches_are_the_same_in_every_world(
    folder: str, k: int, epoch: int, variations: tuple[int, ...]
) -> None:
    """As sets of samples, in the same order, each of k samples from each stream, to the end of the epoch."""
    expected = global_batches(1, 1, k, folder, epoch=epoch)
    assert [len(batch) for batch in expected] == {1: [24] * 10, 3: [72, 72, 72, 24]}[k]
    assert expected != global_batches(1, 1, k, folder, epoch=epoch + 1)
    for ranks, workers in worlds_of(*variations):
        assert global_batches(ranks, workers, k, folder, epoch=epoch) == expected, f"{ranks} x {workers}"


def test_a_batch_has_k_samples_of_each_stream(folder: str) -> None:
    """So what a slot adds to a global batch does not depend on how many streams it has."""
    streams = [set(Resumable(chain_of(folder, World(v, 24)), num_streams=24)) for v in range(24)]
    for batch in global_batches(3, 2, 2, folder):
        assert [len(stream.intersection(batch)) for stream in streams] == [2] * 24


@pytest.mark.parametrize(("mode", "variations"), [("drop", (2, 5)), ("repeat", (3, 6))])
def test_global_batches_of_equalized_ranks_are_the_same_in_every_world(
    folder: str, mode: str, variations: tuple[int, ...]
) -> None:
    """``equalize_ranks`` makes streams equally long, however shards divide: every batch is the same to the last."""
    write_small_shards("memory://worlds-13", num_shards=13, samples_per_shard=11)
    expected = global_batches(1, 1, 2, "memory://worlds-13", mode)
    assert [len(batch) for batch in expected] == {"drop": [48, 48, 24], "repeat": [48, 48, 48]}[mode]
    for ranks, workers in worlds_of(*variations):
        assert global_batches(ranks, workers, 2, "memory://worlds-13", mode) == expected, f"{ranks} x {workers}"


def test_uneven_shards_give_the_same_batches_until_the_first_stream_ends(uneven: list[str]) -> None:
    """Where streams are not equally long, the batches are the same as long as all of them last."""
    shortest = min(len(list(Resumable(chain_of(uneven, World(v, 24)), num_streams=24))) for v in range(24))
    assert shortest >= 6
    expected = global_batches(1, 1, 2, uneven)
    for ranks, workers in worlds_of(4):
        found = global_batches(ranks, workers, 2, uneven)
        assert found[: shortest // 2] == expected[: shortest // 2], f"{ranks} x {workers}"
        assert sorted(flat.from_iterable(found)) == sorted(flat.from_iterable(expected))


def test_a_training_that_changes_its_world_after_each_batch_has_the_same_batches(folder: str) -> None:
    """After each global batch it is resumed in another world of the table."""
    expected = global_batches(1, 1, 1, folder)
    state: dict[str, Any] = {}
    for step, batch in enumerate(expected):
        ranks, workers = WORLDS[(step * 7 + 3) % len(WORLDS)]
        samples: list[str] = []
        states = []
        for world in all_worlds(ranks, workers):
            data = Resumable(chain_of(folder, world), num_streams=NUM_STREAMS)
            if state:
                data.load_state_dict(state)
            samples += islice(data, NUM_STREAMS // world.num_slots)
            states.append(data.state_dict())
        assert sorted(samples) == batch
        state = merge_states(states)


def loader_batches(ranks: int, workers: int, k: int, folder: str) -> Batches:
    """Global batches through real workers: of each rank as many batches as it has workers."""
    loaders: list[Any] = [
        stateful_loader(
            chain_of(folder, World(rank, ranks), "drop"),
            batch_size=k * NUM_STREAMS // (ranks * max(1, workers)),
            num_workers=workers,
            num_streams=NUM_STREAMS,
            multiprocessing_context="fork",
            collate_fn=list,
        )
        for rank in range(ranks)
    ]
    batches = [list(loader) for loader in loaders]
    steps = max(1, workers)
    found = []
    for first in range(0, max(map(len, batches)), steps):
        found.append(sorted(sample for rank in batches for batch in rank[first : first + steps] for sample in batch))
    return found


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 0), (3, 1), (4, 2)])
def test_global_batches_through_worker_processes_are_the_same(folder: str, ranks: int, workers: int) -> None:
    """A rank hands out the micro-batches of its workers in turn: one of each make its part of a global batch."""
    expected = global_batches(1, 1, 2, folder, "drop")
    assert loader_batches(ranks, workers, 2, folder) == expected
