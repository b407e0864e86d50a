"""Every world hands out each sample exactly once: ranks and workers together, in each epoch, whatever the chain."""

from __future__ import annotations

import copy
import zipfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

import torchdata_remote as tdr
from torchdata_remote.errors import EmptyShareError, UnsplitError
from torchdata_remote.testing import all_worlds, write_small_shards

NUM_SHARDS, SAMPLES = 12, 3
NUMBERS = list(range(NUM_SHARDS * SAMPLES))
WORLDS = [(1, 1), (2, 1), (1, 3), (3, 2), (4, 3)]
Chain = Callable[[str, Any], Any]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The numbers as shards, zips, loose files and a table; and the squares of them in shards of the same keys."""
    folder = tmp_path_factory.mktemp("exactly-once")
    for name, power in (("shards", 1), ("squares", 2)):
        with tdr.ShardWriter(f"{folder}/{name}/{{shard:02d}}.tar", max_shard_samples=SAMPLES) as writer:
            for number in NUMBERS:
                writer.write({"__key__": f"{number:02d}", name: number**power})
    (folder / "zips").mkdir()
    (folder / "files").mkdir()
    for number in NUMBERS:
        (folder / "files" / f"{number:02d}.txt").write_bytes(b"%d" % number)
        with zipfile.ZipFile(folder / "zips" / f"{number // SAMPLES:02d}.zip", "a") as archive:
            archive.writestr(f"{number:02d}.txt", f"{number}")
    parquet.write_table(pa.table({"number": NUMBERS}), folder / "table.parquet", row_group_size=SAMPLES)
    return str(folder)


def urls(source: str, world: Any, pattern: str | None = None) -> Any:
    listed = tdr.IterableWrapper([source]).list_remote(pattern=pattern)
    return listed.shuffle_shards(seed=2).sharding_filter_rank(world=world)


def number_of(sample: Any) -> int:
    return int(sample["__key__"].rpartition("/")[2])


def read(source: str, world: Any) -> Any:
    return urls(f"{source}/shards/index.json", world).shard_tar_reader()


CHAINS: dict[str, Chain] = {
    "urls": lambda data, world: urls(f"{data}/files/", world).map(lambda url: int(url[-6:-4])),
    "shards of a manifest": lambda data, world: read(data, world).map(number_of),
    "shards of a listing": lambda data, world: (
        urls(f"{data}/shards/", world, "*.tar").shard_tar_reader().map(number_of)
    ),
    "recipe": lambda data, world: tdr.stream_shards(f"{data}/shards/", world=world, seed=1).map(number_of),
    "recipe of loose files": lambda data, world: tdr.stream_files(f"{data}/files/", world=world).map(number_of),
    "interleaved and shuffled": lambda data, world: (
        urls(f"{data}/shards/", world, "*.tar")
        .async_prefetch(interleave=3)
        .shard_tar_reader(interleave=3)
        .shuffle_samples(buffer_size=5, seed=1)
        .map(number_of)
    ),
    "zips": lambda data, world: urls(f"{data}/zips/", world).shard_zip_reader().map(number_of),
    "loose files": lambda data, world: urls(f"{data}/files/", world).async_prefetch().file_reader().map(number_of),
    "row groups": lambda data, world: (
        tdr.IterableWrapper([f"{data}/table.parquet"])
        .list_row_groups()
        .shuffle_shards(seed=1)
        .sharding_filter_rank(world=world)
        .table_reader(columns=["number"])
        .map(lambda row: row["number"])
    ),
    "joined sets": lambda data, world: tdr.join(
        {name: tdr.IterableWrapper([f"{data}/{name}/index.json"]).list_remote() for name in ("shards", "squares")},
        align="keys",
        shuffle="shards",
        world=world,
    ).map(number_of),
    "mixture": lambda data, world: tdr.mix(
        {name: (part.map(number_of), weight) for name, weight, part in (
            ("files", 1, urls(f"{data}/files/", world, "*[01]?.txt").file_reader()),
            ("others", 3, urls(f"{data}/files/", world, "*[23]?.txt").file_reader()),
        )},
        stop="all_exhausted",
    ),
    "parallel map": lambda data, world: read(data, world).parallel_map(number_of, num_threads=2),
    "batches": lambda data, world: read(data, world).map(number_of).batch(4),
}  # fmt: skip
FEWER_SHARDS_THAN_SLOTS = ("shards of a manifest", "recipe", "parallel map", "batches")


def flat(items: list[Any]) -> list[int]:
    return [number for item in items for number in (item if isinstance(item, list) else [item])]


@pytest.mark.parametrize("name", CHAINS)
def test_each_sample_is_read_once_over_all_ranks_and_workers_in_each_epoch(data: str, name: str) -> None:
    """By the chain itself, and by ``Resumable`` in any number of streams; each epoch in another order."""
    epochs = {}
    for world_size, num_workers in WORLDS:
        slots = [CHAINS[name](data, world) for world in all_worlds(world_size, num_workers)]
        streams = [
            tdr.Resumable(CHAINS[name](data, world), num_streams=12) for world in all_worlds(world_size, num_workers)
        ]
        for readers in (slots, streams):
            for epoch in range(2):
                found = [flat(list(reader)) for reader in readers]
                assert sorted(number for share in found for number in share) == NUMBERS, (world_size, num_workers)
                assert all(found)
                epochs[len(readers), readers is streams, epoch] = found
    for number_of_slots in (1, 2, 12):
        assert epochs[number_of_slots, False, 0] != epochs[number_of_slots, False, 1]


@pytest.mark.parametrize("name", FEWER_SHARDS_THAN_SLOTS)
def test_a_manifest_lets_more_slots_than_shards_read_each_sample_once(data: str, name: str) -> None:
    chains = [CHAINS[name](data.rstrip("/"), world) for world in all_worlds(5, 4)]
    if name == "recipe":
        chains = [tdr.stream_shards(f"{data}/shards/index.json", world=w).map(number_of) for w in all_worlds(5, 4)]
    for _ in range(2):
        found = [flat(list(chain)) for chain in chains]
        assert sorted(number for share in found for number in share) == NUMBERS
        assert {len(share) for share in found} == {1, 2}


def test_without_a_manifest_fewer_shards_than_slots_are_an_error_in_every_slot(data: str) -> None:
    for world in all_worlds(5, 4):
        with pytest.raises(EmptyShareError, match=r"12 shards for 20 readers \(5 ranks x 4 workers\)"):
            list(CHAINS["shards of a listing"](data, world))


def names(count: int) -> Any:
    return tdr.IterableWrapper([f"u{number:02d}" for number in range(count)])


@given(num_urls=st.integers(0, 40), world_size=st.integers(1, 6), num_workers=st.integers(1, 6))
def test_url_i_is_read_by_slot_i_modulo_the_number_of_slots(num_urls: int, world_size: int, num_workers: int) -> None:
    worlds = list(all_worlds(world_size, num_workers))
    assert sorted(world.slot for world in worlds) == list(range(world_size * num_workers))
    for world in worlds:
        assert (world.num_slots, world.slot) == (world_size * num_workers, world.worker * world_size + world.rank)
        share = names(num_urls).sharding_filter_rank(world=world)
        if world.num_slots <= num_urls:
            assert list(share) == list(names(num_urls))[world.slot :: world.num_slots]
        elif num_urls or world.num_slots > 1:
            with pytest.raises(EmptyShareError):
                list(share)


@given(world_size=st.integers(1, 6), num_workers=st.integers(1, 6), data=st.data())
def test_the_share_is_the_same_however_a_loader_tells_the_world(
    world_size: int, num_workers: int, data: st.DataObject
) -> None:
    """``DataLoader`` with a process group tells one number, ``DataLoader2`` those of ranks and of workers."""
    rank, worker = data.draw(st.integers(0, world_size - 1)), data.draw(st.integers(0, num_workers - 1))
    world, split = tdr.World(rank, world_size, worker, num_workers), names(40).sharding_filter_rank()
    expected = list(names(40).sharding_filter_rank(world=world))
    slot = worker * world_size + rank
    told: list[list[tuple[int, int, Any]]] = [
        [(world_size * num_workers, slot, SHARDING_PRIORITIES.DEFAULT)],
        [
            (world_size, rank, SHARDING_PRIORITIES.DISTRIBUTED),
            (num_workers, worker, SHARDING_PRIORITIES.MULTIPROCESSING),
        ],
    ]
    for calls in told:
        twin: Any = copy.copy(split)
        for number, index, group in calls:
            twin.apply_sharding(number, index, sharding_group=group)
        assert list(twin) == expected


def test_readers_that_are_not_split_are_refused_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless each is to read everything: by ``split=False``, or a world of one rank."""
    write_small_shards("memory://unsplit", num_shards=2, samples_per_shard=2)
    listed = tdr.IterableWrapper(["memory://unsplit/*.tar"]).list_remote()
    assert len(list(listed.shard_tar_reader())) == 4
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UnsplitError, match="sharding_filter_rank"):
        next(iter(listed.shard_tar_reader()))
    for options in ({"split": False}, {"world": tdr.World()}):
        assert len(list(listed.sharding_filter_rank(**options).shard_tar_reader())) == 4
    assert len(list(listed.sharding_filter_rank().shard_tar_reader())) == 2


@pytest.mark.filterwarnings("ignore:This process:")
def test_a_worker_does_without_a_rank_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning sets ``WORLD_SIZE`` alone; a loader passes the rank to its workers."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader: Any = DataLoader(names(4).sharding_filter_rank(), None, num_workers=1, multiprocessing_context="fork")
    assert list(loader) == list(names(4))


def test_the_rank_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """``RANK`` and ``WORLD_SIZE``; an explicit world takes precedence."""
    share, explicit = names(8).sharding_filter_rank(), names(8).sharding_filter_rank(world=tdr.World(0, 4))
    assert list(share) == list(names(8))
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert list(share) == ["u02", "u06"]
    assert list(explicit) == ["u00", "u04"]


@pytest.mark.parametrize(
    ("rank", "world_size"), [("1", None), (None, "2"), ("one", "2"), ("-1", "2"), ("1", ""), ("2", "2")]
)
def test_half_an_environment_and_a_rank_outside_of_it_are_refused(
    rank: str | None, world_size: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank would read everything, or too few ranks the rest."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"RANK=.* and WORLD_SIZE=.* must both be set|RANK and WORLD_SIZE"):
        list(names(8).sharding_filter_rank())


@pytest.mark.parametrize("numbers", [(1, 1), (-1, 1), (0, 0), (0, 1, 1, 1), (0, 1, -1, 1), (0, 1, 0, 0), (2, 2, 0, 1)])
def test_a_place_outside_of_its_world_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"World\(rank=.*expected 0 <= rank < world_size"):
        tdr.World(*numbers)


def test_a_rank_knows_the_worlds_of_its_workers() -> None:
    rank = tdr.World(rank=1, world_size=2)
    assert rank.workers(0) == rank.workers(1) == [rank]
    assert rank.workers(2) == [tdr.World(1, 2, 0, 2), tdr.World(1, 2, 1, 2)]
    assert repr(rank) == "World(rank=1, world_size=2, worker=0, num_workers=1)"
