"""Batches of a map-style dataset: ranges of many shards at once, merged where they are close."""

from __future__ import annotations

import gc
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.scripted_store import AT_ONCE, ScriptedStore, held_by, store_of
from tests.support.shard_places import memory_place
from tests.support.waiting import new_threads, wait_for
from torchdata_remote.errors import ObjectChangedError, ObjectNotFoundError, StorageError

KIB = 1 << 10


def shards_of(sizes: list[int], max_shard_samples: int) -> tuple[dict[str, bytes], list[bytes]]:
    """Files that ``ShardWriter`` writes, and what the samples hold."""
    place, bodies = memory_place(), [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    with tdr.ShardWriter(place.template(), max_shard_samples=max_shard_samples) as writer:
        for number, body in enumerate(bodies):
            writer.write({"__key__": f"{number:04d}", "bin": body})
    return place.files(), bodies


def dataset_of(store: ScriptedStore, **options: Any) -> tdr.ShardedDataset:
    made = tdr.ShardedDataset(store.url, retry=AT_ONCE, **options)
    store.reads.clear()
    return made


SIZES = [0, 1, 511, 512, 513, 9_000, 200_000, 20, 3_000, 0, 70_000, 5]
FILES, BODIES = shards_of(SIZES * 2, 7)


@given(batches=st.lists(st.lists(st.integers(-24, 23), max_size=12), max_size=4))
def test_any_samples_are_returned_in_the_order_of_the_batch(batches: list[list[int]]) -> None:
    with store_of(FILES) as store:
        dataset = dataset_of(store, max_in_flight=4)
        assert [[item["bin"] for item in dataset.__getitems__(batch)] for batch in batches] == [
            [BODIES[number] for number in batch] for batch in batches
        ]


def test_ranges_that_are_close_are_one_request_and_none_is_larger_than_8_mib() -> None:
    files, bodies = shards_of([100 * KIB] * 300, 150)
    with store_of(files) as store:
        dataset = dataset_of(store)
        assert len(dataset.__getitems__([0, 299])) == 2  # which reads the indexes
        for batch, num_requests in [([3, 4, 5], 1), ([7, 5, 3], 1), ([3, 6], 2), ([149, 150], 2), ([0, 299, 0], 2)]:
            store.reads.clear()
            assert [item["bin"] for item in dataset.__getitems__(batch)] == [bodies[number] for number in batch]
            assert len(store.reads) == num_requests, batch
        store.reads.clear()
        assert [item["bin"] for item in dataset.__getitems__(list(range(300)))] == bodies
        lengths = [read.end - read.start for read in store.reads]
        assert max(lengths) <= 8 << 20
        assert len(lengths) <= 2 * 2 + 1  # one has the end of a shard and the beginning of the next one
        assert sum(lengths) <= sum(map(len, files.values()))


def test_requests_of_a_batch_run_at_once_and_their_threads_end_with_the_dataset() -> None:
    files, bodies = shards_of([200 * KIB] * 8, 1)
    before, together = set(threading.enumerate()), threading.Barrier(4)
    with store_of(files) as store:
        dataset = dataset_of(store, max_in_flight=4)
        store.before_read = held_by(together)
        assert [item["bin"] for item in dataset.__getitems__(list(range(8)))] == bodies
        assert store.most == 4
        del dataset
        gc.collect()
    wait_for(lambda: not new_threads(before))


@pytest.mark.parametrize("how", ["missing", "replaced", "shorter", "denied"])
def test_a_sample_that_cannot_be_read_is_an_error_of_its_shard(how: str) -> None:
    with store_of(dict(FILES)) as store:
        dataset, name = dataset_of(store), sorted(name for name in FILES if name.endswith(".tar"))[1]

        def deny(name_of_it: str, start: int) -> None:
            if name_of_it == name:
                raise PermissionError("denied")

        kinds = {"missing": ObjectNotFoundError, "denied": tdr.errors.AccessDeniedError}
        if how == "missing":
            del store.objects[name]
        elif how == "replaced":
            store.objects[name] = FILES[name][:-1] + b"x"
        elif how == "shorter":
            store.objects[name] = FILES[name][:512]
        else:
            store.before_read = deny
        with pytest.raises(kinds.get(how, ObjectChangedError), match=name):
            dataset.__getitems__([0, 8, 20])
        assert [item["bin"] for item in dataset.__getitems__([0, 20])] == [BODIES[0], BODIES[20]]


def test_faults_are_repeated() -> None:
    with store_of(FILES) as store:
        dataset, failures = dataset_of(store), iter([True] * 5)

        def before_read(name: str, start: int) -> None:
            if next(failures, False):
                raise ConnectionError("try again")

        store.before_read = before_read
        assert [item["bin"] for item in dataset.__getitems__(list(range(24)))] == BODIES


def test_local_shards_are_read_in_place_also_when_they_are_replaced(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    dataset = tdr.ShardedDataset(str(tmp_path))
    assert [item["bin"] for item in dataset.__getitems__(list(range(24)))] == BODIES
    first, second = dataset[6], dataset[10]
    name = min(name for name in FILES if name.endswith(".tar"))
    (tmp_path / "new").write_bytes(os.urandom(len(FILES[name])))
    (tmp_path / "new").rename(tmp_path / name)
    assert (bytes(first["bin"]), bytes(second["bin"])) == (BODIES[6], BODIES[10])
    with pytest.raises(StorageError, match=name):
        dataset.__getitems__([1, 2])
