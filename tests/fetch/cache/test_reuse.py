"""The window in which objects are read twice, and what stays in a cache that is smaller than the data."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cache_folder import IN_MEMORY, keep, num_bytes_in
from torchdata_remote.fetch.cache.disk_cache import DiskCache
from torchdata_remote.fetch.cache.reuse import reuse_window

NUM_OBJECTS, OBJECT_BYTES = 80, 100
DATA_BYTES = NUM_OBJECTS * OBJECT_BYTES


@given(num_names=st.integers(8, 60), num_epochs=st.integers(2, 5), part=st.floats(0, 1), chance=st.randoms())
def test_the_window_is_two_epochs(num_names: int, num_epochs: int, part: float, chance: random.Random) -> None:
    """In random order, wherever an epoch stands."""
    names = [name for _ in range(num_epochs) for name in chance.sample(range(num_names), num_names)]
    names += chance.sample(range(num_names), round(part * num_names))
    clocks = list(enumerate(names))
    window = reuse_window(reversed(clocks), len(names))
    assert window is not None
    assert 16 <= window <= 2 * num_names


@given(num_names=st.integers(0, 60))
def test_objects_that_were_read_once_have_no_window(num_names: int) -> None:
    assert reuse_window(((name, name) for name in range(num_names)), num_names) is None


def read(disk: DiskCache, name: str, version: str = "1") -> bool:
    """Read an object as an epoch does: from the cache, or else it is stored if there is room; whether it was there."""
    found = disk.find(name, OBJECT_BYTES, version)
    if found is not None:
        assert bytes(found.view(0, None)) == f"{name} {version}".encode().ljust(OBJECT_BYTES)
        return True
    keep(disk, f"{name} {version}".encode().ljust(OBJECT_BYTES), name, version)
    return False


def epoch(disk: DiskCache, dataset: str, seed: int, *, num_objects: int = NUM_OBJECTS, version: str = "1") -> float:
    """The share of objects that were in the cache, in an epoch in random order."""
    order = random.Random(f"{dataset} {seed}").sample(range(num_objects), num_objects)
    return sum([read(disk, f"{dataset}/{number}", version) for number in order]) / num_objects


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield folder


@pytest.mark.parametrize("kept", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("num_processes", [1, 3])
def test_later_epochs_find_the_share_that_is_kept(folder: str, kept: float, num_processes: int) -> None:
    """Random orders, and readers of which each reads other objects in each epoch, all at once."""
    for number in range(5):
        order = random.Random(number).sample(range(NUM_OBJECTS), NUM_OBJECTS)
        disks = [DiskCache(folder, round(kept * DATA_BYTES)) for _ in range(num_processes)]
        with ThreadPoolExecutor(num_processes) as readers:

            def reader(rank: int, disks: list[DiskCache] = disks, order: list[int] = order) -> int:
                return sum([read(disks[rank], f"{one}") for one in order[rank::num_processes]])

            num_found = sum(readers.map(reader, range(num_processes)))
        assert num_bytes_in(folder) <= kept * DATA_BYTES
        if number:
            assert num_found / NUM_OBJECTS >= kept - 0.02
        del disks, reader


def test_another_dataset_takes_the_room_of_one_that_is_not_read_any_more(folder: str) -> None:
    """After it was read three times, and without falling back to less."""
    disk = DiskCache(folder, DATA_BYTES // 2)
    assert [epoch(disk, "before", seed) for seed in range(3)] == [0, 0.5, 0.5]
    found = [epoch(disk, "after", seed) for seed in range(7)]
    assert found[0] == 0
    assert min(found[4:]) >= 0.48


@pytest.mark.parametrize("num_objects", [NUM_OBJECTS // 4, 4 * NUM_OBJECTS])
def test_a_smaller_or_larger_dataset_takes_the_room_of_one_that_is_not_read_any_more(
    folder: str, num_objects: int
) -> None:
    disk = DiskCache(folder, DATA_BYTES // 2)
    for seed in range(3):
        epoch(disk, "before", seed)
    found = [epoch(disk, "after", seed, num_objects=num_objects) for seed in range(8)]
    assert min(found[5:]) >= min(1, 0.5 * NUM_OBJECTS / num_objects) - 0.02


def test_new_versions_take_the_room_of_the_old_ones_in_the_same_epoch(folder: str) -> None:
    """A replaced object is not valid any more, so nothing has to be waited for."""
    disk = DiskCache(folder, DATA_BYTES // 2)
    for seed in range(3):
        epoch(disk, "photos", seed)
    found = [epoch(disk, "photos", seed, version="2") for seed in range(4)]
    assert found[0] == 0
    assert min(found[1:]) >= 0.45


def test_two_datasets_in_turn_do_not_displace_each_other(folder: str) -> None:
    """As for training and validation: what is kept stays."""
    disk = DiskCache(folder, DATA_BYTES)
    found = [(epoch(disk, "train", seed), epoch(disk, "test", seed)) for seed in range(5)]
    assert all(train + test >= 0.98 for train, test in found[1:])


def test_a_smaller_bound_removes_the_rest(folder: str) -> None:
    """When something is to be stored."""
    epoch(DiskCache(folder, DATA_BYTES), "photos", 0)
    assert num_bytes_in(folder) == DATA_BYTES
    disk = DiskCache(folder, DATA_BYTES // 2)
    read(disk, "another")
    assert num_bytes_in(folder) <= DATA_BYTES // 2
    assert read(disk, "another")


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 130), max_size=25), use=st.randoms())
def test_the_sum_of_sizes_stays_within_the_bound(sizes: list[int], use: random.Random) -> None:
    """After each addition all objects together are within the bound; larger ones are not kept."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        disk = DiskCache(folder, 100)
        for number, size in enumerate(sizes):
            was_kept = keep(disk, bytes([number]) * size, f"{number}")
            assert not was_kept or size <= 100
            assert was_kept or size + num_bytes_in(folder) > 100
            assert num_bytes_in(folder) <= 100
            again = use.randrange(number + 1)
            found = disk.find(f"{again}", sizes[again], '"1"')
            assert found is None or bytes(found.view(0, None)) == bytes([again]) * sizes[again]


@pytest.mark.parametrize(("max_bytes", "num_bytes"), [(1 << 20, 4_097), (1 << 20, 300), (2 << 20, 100_001)])
def test_the_bound_holds_for_the_blocks_of_the_disk(folder: str, max_bytes: int, num_bytes: int) -> None:
    """Of the index, too; and most of it is used."""
    for name in ("first", "second"):
        disk = DiskCache(folder, max_bytes)
        for number in range(max_bytes // num_bytes + 1):
            keep(disk, bytes(num_bytes), f"{name} {number}")
        del disk
    used = sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file())
    assert 0.4 * max_bytes < used <= max_bytes


@pytest.mark.parametrize("num_bytes", [0, 16])
def test_the_bound_holds_for_objects_that_are_smaller_than_their_entry_in_the_index(
    folder: str, num_bytes: int
) -> None:
    """Also before others know of them."""
    disk = DiskCache(folder, 1 << 20)
    for number in range(40_000):
        filling = disk.fill(f"{number}", num_bytes, "1")
        if filling is not None:
            filling.write(0, memoryview(bytes(num_bytes)))
    disk.settle()
    used = sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file())
    assert 0.2 * (1 << 20) < used <= 1 << 20


def test_new_versions_in_each_epoch_leave_room(folder: str) -> None:
    """What says that an old one is not valid leaves the index with it."""
    num_objects, num_bytes = 200, 500
    for version in range(30):
        disk, data = DiskCache(folder, 1 << 20), bytes(num_bytes)
        was_kept = []
        for number in range(num_objects):
            assert disk.find(f"{number}", num_bytes, f"{version}") is None
            was_kept.append(keep(disk, data, f"{number}", f"{version}"))
        assert all(was_kept), version


def test_what_was_dropped_stays_dropped_for_others(folder: str) -> None:
    """Until a new version is stored."""
    one, other = (DiskCache(folder, 1 << 20) for _ in range(2))
    assert keep(one, b"old", "a", "1")
    assert keep(one, b"other", "b", "1")
    assert one.find("a", 3, "2") is None
    one.settle()
    assert DiskCache(folder, 1 << 20).find("a", 3, "1") is None
    assert keep(one, b"new", "a", "2")
    for disk in (other, DiskCache(folder, 1 << 20)):
        disk.refresh()
        found = disk.find("a", 3, "2")
        assert found is not None
        assert bytes(found.view(0, None)) == b"new"
        assert disk.find("b", 5, "1") is not None


def test_an_old_version_that_is_dropped_late_does_not_drop_the_new_one(folder: str) -> None:
    """One process has stored the new version, when another one notices that the old one is not valid."""
    one, other = (DiskCache(folder, 1 << 20) for _ in range(2))
    assert keep(one, b"old", "a", "1")
    other.refresh()
    assert keep(one, b"new", "a", "2")
    found = DiskCache(folder, 1 << 20).find("a", 3, "2")
    assert found is not None
    other._catalog._exchanged_at = math.inf  # it does not look at what others have stored
    assert other.find("a", 3, "2") is None
    other.publish()
    assert DiskCache(folder, 1 << 20).find("a", 3, "2") is not None
