"""``PrefetchingLoader``: the batches of torch's ``DataLoader``, the next ones under way."""

from __future__ import annotations

import gc
import multiprocessing
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

import torchdata_remote as tdr
from tests.datasets.stores import AT_ONCE, DEADLINE_S, Plain, Together, as_they_are, draw, timed_store, until_error
from tests.servers.scripted import Response
from tests.support.shard_places import Place
from tests.support.waiting import new_threads, wait_for
from tests.support.written import read, without_url
from torchdata_remote.errors import AccessDeniedError, UnsplitError

NUM_ITEMS = 23
OBJECTS = {f"{number:02d}.bin": bytes([number]) * (1 + number * 31 % 200) for number in range(NUM_ITEMS)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder of files, and one of shards with the same data."""
    place = Place(f"{tmp_path_factory.mktemp('loader')}/")
    place.below("files").put(OBJECTS)
    with tdr.ShardWriter(f"{place.url}shards/{{shard}}.tar", max_shard_samples=5) as writer:
        for name, data in OBJECTS.items():
            writer.write({"__key__": name[:2], "bin": data})
    return place


def both(place: Place) -> tuple[tdr.ShardedDataset, Plain]:
    """A dataset, and one with the same items that knows nothing of batches."""
    shards = place.below("shards")
    return tdr.ShardedDataset(shards.url, transform=draw), Plain(read(shards), draw)


def files_of(place: Place, **options: Any) -> Any:
    return tdr.RemoteFiles(f"{place.url}files/", **options)


def seeded() -> None:
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)


def shown(batch: Any) -> Any:
    """A batch as something that can be compared."""
    if isinstance(batch, dict):
        return {key: shown(value) for key, value in batch.items()}
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return type(batch).__name__, str(batch.dtype), batch.tolist()
    if isinstance(batch, (list, tuple)):
        return type(batch).__name__, [shown(value) for value in batch]
    return type(batch).__name__, batch


def epochs(make: Any, dataset: Any, num_epochs: int, **options: Any) -> list[Any]:
    """All batches, after the generators were seeded."""
    seeded()
    loader = make(dataset, **options)
    return [[shown(batch) for batch in loader] for _ in range(num_epochs)]


def check_same(place: Place, num_epochs: int = 2, **options: Any) -> list[Any]:
    """``DataLoader`` over a plain dataset gives the same, and ``len`` is the same."""
    dataset, plain = both(place)
    found = epochs(tdr.PrefetchingLoader, dataset, num_epochs, **options)
    forked = {"multiprocessing_context": "fork"} if options.get("num_workers") else {}
    assert found == epochs(DataLoader, plain, num_epochs, **{**options, **forked})
    assert len(tdr.PrefetchingLoader(dataset, **options)) == len(DataLoader(plain, **options)) == len(found[0])
    return found


LOADING: dict[str, dict[str, Any]] = {
    "as it is": {},
    "shuffled by a sampler": {"batch_size": 4, "sampler": RandomSampler(range(NUM_ITEMS))},
    "last left out": {"batch_size": 4, "drop_last": True},
    "single items": {"batch_size": None},
    "single items, by a sampler": {"batch_size": None, "sampler": RandomSampler(range(NUM_ITEMS))},
    "from behind": {"batch_size": 2, "sampler": [-1, -2, -NUM_ITEMS]},
    "torch": {"batch_size": 3, "sampler": torch.arange(10)},
    "with replacement": {"batch_size": 4, "sampler": RandomSampler(range(NUM_ITEMS), replacement=True, num_samples=40)},
    "weighted": {"batch_size": 4, "sampler": WeightedRandomSampler([0.1 + n for n in range(NUM_ITEMS)], 30)},
    "uneven batches": {"batch_sampler": [[3], [1, 1, 1], list(range(NUM_ITEMS)), [22]]},
    "batches of a sampler": {"batch_sampler": BatchSampler(SequentialSampler(range(NUM_ITEMS)), 4, drop_last=True)},
    "nothing": {"batch_size": 4, "sampler": []},
}


@pytest.mark.parametrize("options", LOADING.values(), ids=LOADING.keys())
def test_batches_and_random_numbers_are_those_of_data_loader_in_each_epoch(
    place: Place, options: dict[str, Any]
) -> None:
    check_same(place, **options)


@given(batches=st.lists(st.lists(st.integers(-NUM_ITEMS, NUM_ITEMS - 1), max_size=9), max_size=9))
def test_any_batch_sampler_gives_the_batches_of_data_loader_and_empty_ones_reach_collate_fn(
    place: Place, batches: list[list[int]]
) -> None:
    check_same(place, 1, batch_sampler=batches, collate_fn=as_they_are)


WORKERS: dict[str, dict[str, Any]] = {
    "three": {"num_workers": 3, "sampler": RandomSampler(range(NUM_ITEMS))},
    "not forked, with a lambda": {
        "num_workers": 2,
        "multiprocessing_context": "forkserver",
        "worker_init_fn": lambda number: None,
    },
    "single items": {"num_workers": 2, "batch_size": None},
    "more than batches": {"num_workers": 3, "batch_size": 20},
}


@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS.keys())
def test_workers_give_the_batches_and_random_numbers_of_data_loader_in_its_order(
    place: Place, options: dict[str, Any]
) -> None:
    """More workers than batches end, too."""
    found = check_same(place, 1 if "multiprocessing_context" in options else 2, **{"batch_size": 3, **options})
    assert len(found) == 1 or not found[0] or found[0] != found[1], "each epoch has its random numbers"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_generator_gives_the_orders_and_random_numbers_of_all_epochs(place: Place, num_workers: int) -> None:
    found = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        options = {"batch_size": 4, "shuffle": True, "generator": generator, "num_workers": num_workers}
        found.append(epochs(tdr.PrefetchingLoader, both(place)[0], 2, **options))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1], "another order in each epoch"


def as_arrays(items: list[dict[str, Any]]) -> dict[str, Any]:
    """A collate function that makes no tensors."""
    return {"first": np.array([item["first"] for item in items]), "pair": (1, [np.float32(2)])}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_collate_fn_returns_stays_as_it_is(place: Place, num_workers: int) -> None:
    found = check_same(place, 1, batch_size=5, collate_fn=as_arrays, num_workers=num_workers)
    assert found[0][0]["first"][0] == "ndarray"


def test_options_of_data_loader_are_passed_on_and_checked_by_it(place: Place) -> None:
    numbers = multiprocessing.Queue()  # type: ignore[var-annotated]
    check_same(place, 1, batch_size=4, num_workers=2, prefetch_factor=1, timeout=60, worker_init_fn=numbers.put)
    assert sorted(numbers.get(timeout=DEADLINE_S) for _ in range(4)) == [0, 0, 1, 1]
    dataset, plain = both(place)
    loader: Any = tdr.PrefetchingLoader(dataset, 4, drop_last=True, collate_fn=as_they_are)
    assert (loader.batch_size, loader.drop_last, loader.pin_memory) == (4, True, False), "trainers read them"
    assert not hasattr(loader, "no_such")
    given: Any = [[0], [1, 2]]
    assert tdr.PrefetchingLoader(dataset, batch_sampler=given).batch_sampler is given
    assert tdr.PrefetchingLoader(dataset, None).batch_sampler is None
    for wrong, kind, message in (
        ({"shuffle": True, "sampler": [1]}, ValueError, "sampler option is mutually exclusive with shuffle"),
        ({"batch_sampler": [[1]], "sampler": [1]}, ValueError, "batch_sampler option is mutually exclusive"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor"),
        ({"no_such": 1}, TypeError, "no_such"),
        ({"num_workers": 1, "persistent_workers": True}, TypeError, "persistent_workers"),
    ):
        with pytest.raises(kind, match=message):
            tdr.PrefetchingLoader(dataset, **wrong)
    for other in (plain, torch.utils.data.Subset(dataset, [1])):
        with pytest.raises(TypeError, match="another dataset by DataLoader; for a subset"):
            tdr.PrefetchingLoader(other)  # type: ignore[arg-type]
    for index in (1.5, True, "1", None):
        with pytest.raises(TypeError, match="by its index"):
            list(tdr.PrefetchingLoader(dataset, sampler=[0, index]))  # type: ignore[list-item]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_comes_in_its_batch_with_its_type_and_url_and_the_next_epoch_is_read(num_workers: int) -> None:
    refused: list[str] = ["13.bin"]
    answer = Response.of_error(403, "AccessDenied")
    with timed_store(OBJECTS, lambda key: answer if key in refused else None) as store:
        dataset: Any = tdr.RemoteFiles(store.url, storage_options=store.options, retry=AT_ONCE)
        options: dict[str, Any] = {"collate_fn": as_they_are, "num_workers": num_workers}
        loader: Any = tdr.PrefetchingLoader(dataset, batch_size=3, **options)
        for _ in range(2):
            found, error = until_error(loader, AccessDeniedError)
            assert [data for batch in found for _, data in batch] == list(OBJECTS.values())[:12]
            assert "s3://timed/13.bin" in str(error)
        refused.clear()
        assert [data for batch in loader for _, data in batch] == list(OBJECTS.values())
        outside: Any = tdr.PrefetchingLoader(dataset, batch_sampler=[[0], [1], [2], [3, 99], [4]], **options)
        found, error = until_error(outside, IndexError)
        assert len(found) == 3
        assert "99" in str(error)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_next_batch_is_requested_before_the_current_one_is_answered(place: Place, num_workers: int) -> None:
    """No request of the first two batches is answered before all of them have arrived."""
    options: dict[str, Any] = {"batch_size": 4, "num_workers": num_workers, "collate_fn": as_they_are}
    with timed_store(OBJECTS, Together(8)) as store:
        files: Any = tdr.RemoteFiles(store.url, storage_options=store.options, max_in_flight=8, retry=AT_ONCE)
        found = [data for batch in tdr.PrefetchingLoader(files, **options) for _, data in batch]
        assert found == list(OBJECTS.values())
    with timed_store(place.below("shards").files(), Together(3, ".tar")) as store:
        shards: Any = tdr.ShardedDataset(store.url, storage_options=store.options, retry=AT_ONCE)
        samples = [sample for batch in tdr.PrefetchingLoader(shards, **options) for sample in batch]
        assert without_url(samples) == read(place.below("shards"))


def test_batches_are_prefetched_within_a_limit() -> None:
    objects = {f"{number:04d}.bin": b"%d" % number for number in range(120)}
    with timed_store(objects) as store:
        dataset: Any = tdr.RemoteFiles(store.url, storage_options=store.options, max_in_flight=4)
        batches = iter(tdr.PrefetchingLoader(dataset, batch_size=4, collate_fn=as_they_are))
        next(batches)
        wait_for(lambda: len(store.asked) >= 8)
        assert len(store.asked) <= 4 + 16 * 4 + 4
        assert [int(data) for batch in batches for _, data in batch] == list(range(4, 120))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_early_break_leaves_no_process_and_no_thread(place: Place, num_workers: int) -> None:
    before, processes = set(threading.enumerate()), set(multiprocessing.active_children())  # others' may still end
    dataset = files_of(place, max_in_flight=4)
    loader: Any = tdr.PrefetchingLoader(dataset, batch_size=2, num_workers=num_workers, collate_fn=as_they_are)
    for _ in range(3):
        for _ in loader:
            break
        gc.collect()
        assert set(multiprocessing.active_children()) <= processes
    assert [data for batch in loader for _, data in batch] == list(OBJECTS.values())
    del dataset, loader
    gc.collect()
    wait_for(lambda: not new_threads(before))


def test_concurrent_passes_are_independent(place: Place) -> None:
    loader: Any = tdr.PrefetchingLoader(files_of(place, max_in_flight=2), batch_size=3, collate_fn=as_they_are)
    for first, second in zip(loader, loader, strict=True):
        assert first == second


def test_a_sampler_is_iterated_once_an_epoch_in_the_process_that_iterates(place: Place) -> None:
    asked: list[int] = []

    class Counting(Sequence[int]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: Any) -> Any:
            raise NotImplementedError

        def __iter__(self) -> Iterator[int]:
            asked.append(len(asked))
            return iter(range(5))

    loader: Any = tdr.PrefetchingLoader(files_of(place), batch_size=2, sampler=Counting(), num_workers=2)
    for _ in range(2):
        assert [len(urls) for urls, _ in loader] == [2, 2, 1]
    assert asked == [0, 1]


# Ranks with a sampler


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_distributed_sampler_splits_items_over_ranks_and_its_set_epoch_gives_the_order(
    place: Place, num_workers: int
) -> None:
    seen: list[str] = []
    for rank in range(2):
        found = []
        for make, data in zip((tdr.PrefetchingLoader, DataLoader), both(place), strict=True):
            sampler: Any = DistributedSampler(data, num_replicas=2, rank=rank, drop_last=True)
            loader: Any = make(data, batch_size=3, sampler=sampler, num_workers=num_workers)
            assert loader.sampler is sampler
            orders = []
            for epoch in range(2):
                loader.sampler.set_epoch(epoch)
                orders.append([list(batch["key"]) for batch in loader])
            assert orders[0] != orders[1]
            found.append(orders)
        assert found[0] == found[1]
        seen += [key for batch in found[0][0] for key in batch]
    assert len(set(seen)) == len(seen) == 22


def test_other_samplers_are_read_by_each_rank_as_they_are_and_a_generator_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = files_of(place)
    urls = [dataset[number][0] for number in range(NUM_ITEMS)]
    shuffled = [
        tdr.PrefetchingLoader(dataset, 4, shuffle=True, generator=torch.Generator(), num_workers=num_workers)
        for num_workers in (0, 2)
    ]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    for options, expected in (
        ({"sampler": SequentialSampler(dataset), "batch_size": 23}, [urls]),
        ({"batch_sampler": [[2], [0, 1]]}, [[urls[2]], urls[:2]]),
    ):
        whole: Any = tdr.PrefetchingLoader(dataset, collate_fn=as_they_are, **options)
        assert [[url for url, _ in batch] for batch in whole] == expected
    for loader in shuffled:
        with pytest.raises(UnsplitError, match=r"3 ranks shuffle by a generator.*Pass seed= instead"):
            next(iter(loader))
