"""The batches of torch's ``DataLoader``, the next ones under way."""

from __future__ import annotations

import gc
import multiprocessing
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.datasets.stores import (
    AT_ONCE,
    DEADLINE_S,
    Plain,
    Together,
    as_they_are,
    threads_of_ours,
    timed_store,
    until_error,
    wait_for,
)
from tests.servers.s3 import S3Server
from tests.servers.scripted import Response
from tests.support.shard_places import Place, memory_place
from torchdata_remote.datasets import PrefetchingLoader, RemoteFiles, ShardedDataset
from torchdata_remote.errors import AccessDeniedError, UnsplitError
from torchdata_remote.testing import write_small_shards

NUM_FILES = 23
FILES = {f"{number:02d}.bin": bytes([number]) * (1 + number * 31 % 200) for number in range(NUM_FILES)}


@pytest.fixture(scope="module")
def in_memory() -> Place:
    place = memory_place()
    place.put(FILES)
    return place


@pytest.fixture(scope="module")
def on_s3(moto: S3Server) -> Place:
    place = Place(f"s3://{moto.new_bucket()}/d/", moto)
    place.put(FILES)
    return place


class Drawing(RemoteFiles):
    """Items with random numbers from all generators, as a random transform makes them."""

    def _item(self, number: int, value: Any) -> Any:
        return draw(super()._item(number, value))


def draw(item: tuple[str, bytes]) -> dict[str, Any]:
    drawn = [torch.rand(1).item(), random.random(), np.random.rand()]  # as transforms do
    return {"url": item[0], "first": item[1][0], "drawn": torch.tensor(drawn, dtype=torch.float64)}


def both(place: Place) -> tuple[Drawing, Plain]:
    """A dataset, and one with the same items that knows nothing of batches."""
    return Drawing(place.url, storage_options=place.options), Plain(
        [(f"{place.url}{name}", data) for name, data in FILES.items()], draw
    )


def shown(batch: Any) -> Any:
    """A batch as something that can be compared."""
    if isinstance(batch, dict):
        return {key: shown(value) for key, value in batch.items()}
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return type(batch).__name__, str(batch.dtype), batch.tolist()
    if isinstance(batch, (list, tuple)):
        return type(batch).__name__, [shown(value) for value in batch]
    return type(batch).__name__, batch


def epochs(make: Any, dataset: Any, num_epochs: int = 2, **options: Any) -> list[Any]:
    """All batches, after the generators were seeded."""
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    loader = make(dataset, **options)
    return [[shown(batch) for batch in loader] for _ in range(num_epochs)]


def check_same(place: Place, num_epochs: int = 2, **options: Any) -> list[Any]:
    """``DataLoader`` over a plain dataset gives the same, and ``len`` is the same."""
    dataset, plain = both(place)
    found = epochs(PrefetchingLoader, dataset, num_epochs, **options)
    assert found == epochs(DataLoader, plain, num_epochs, **options)
    assert len(PrefetchingLoader(dataset, **options)) == len(DataLoader(plain, **options)) == len(found[0])
    return found


LOADING: dict[str, dict[str, Any]] = {
    "as it is": {},
    "in order": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "not shuffled": {"batch_size": 4, "shuffle": False},
    "last left out": {"batch_size": 4, "shuffle": True, "drop_last": True},
    "larger than all": {"batch_size": 100},
    "single items": {"batch_size": None},
    "single items, shuffled": {"batch_size": None, "shuffle": True},
    "reversed": {"batch_size": 5, "sampler": range(NUM_FILES - 1, -1, -1)},
    "from behind": {"batch_size": 2, "sampler": [-1, -2, -NUM_FILES]},
    "numpy": {"batch_size": 3, "sampler": np.arange(NUM_FILES)[::2]},
    "torch": {"batch_size": 3, "sampler": torch.arange(10)},
    "with replacement": {"batch_size": 4, "sampler": RandomSampler(range(NUM_FILES), replacement=True, num_samples=40)},
    "weighted": {"batch_size": 4, "sampler": WeightedRandomSampler([0.1 + n for n in range(NUM_FILES)], 30)},
    "of a part": {"batch_size": 4, "sampler": SubsetRandomSampler(range(3, 12))},
    "uneven batches": {"batch_sampler": [[3], [1, 1, 1], list(range(NUM_FILES)), [22]]},
    "batches of a sampler": {"batch_sampler": BatchSampler(SequentialSampler(range(NUM_FILES)), 4, drop_last=True)},
    "nothing": {"batch_size": 4, "sampler": []},
    "lists": {"batch_size": 4, "collate_fn": as_they_are},
}


@pytest.mark.parametrize("options", LOADING.values(), ids=LOADING.keys())
def test_batches_equal_those_of_data_loader(in_memory: Place, options: dict[str, Any]) -> None:
    """With the same random numbers, in each epoch."""
    check_same(in_memory, **options)


def test_empty_batches_reach_collate_fn(in_memory: Place) -> None:
    """If it accepts them."""
    check_same(in_memory, batch_sampler=[[], [3, 4], [], [], [5], []], collate_fn=as_they_are)


@settings(max_examples=30)
@given(
    batches=st.lists(st.lists(st.integers(-NUM_FILES, NUM_FILES - 1), max_size=9), max_size=9),
)
def test_any_batch_sampler_gives_the_batches_of_data_loader(in_memory: Place, batches: list[list[int]]) -> None:
    """Without workers."""
    check_same(in_memory, num_epochs=1, batch_sampler=batches, collate_fn=as_they_are)


@pytest.mark.parametrize(("num_workers", "shuffle"), [(1, True), (2, False), (3, True)])
def test_workers_give_the_batches_of_data_loader(on_s3: Place, num_workers: int, shuffle: bool) -> None:
    """In the same order, from the same worker, with its random numbers."""
    found = check_same(on_s3, batch_size=3, shuffle=shuffle, num_workers=num_workers)
    assert (found[0] == found[1]) is False, "each epoch has its random numbers"


def test_workers_that_are_not_forked_give_the_batches_of_data_loader(on_s3: Place) -> None:
    """Dataset and batches are pickled for each worker."""
    check_same(on_s3, 1, batch_size=3, shuffle=True, num_workers=2, multiprocessing_context="forkserver")


def test_workers_without_a_batch_end(in_memory: Place) -> None:
    """If there are more workers than batches."""
    check_same(in_memory, 1, batch_size=20, num_workers=3)
    check_same(in_memory, 1, batch_size=20, num_workers=2, sampler=[])


def test_single_items_from_workers_are_in_the_order_of_data_loader(in_memory: Place) -> None:
    """One item of each worker in turn."""
    check_same(in_memory, 1, batch_size=None, num_workers=2, shuffle=True)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_generator_argument_gives_orders_and_seeds(in_memory: Place, num_workers: int) -> None:
    """It ends in the state that ``DataLoader`` leaves, and torch's default generator is not used more."""
    dataset, plain = both(in_memory)
    found = []
    for make, data in ((PrefetchingLoader, dataset), (DataLoader, plain)):
        generator = torch.Generator().manual_seed(3)
        batches = epochs(make, data, batch_size=4, shuffle=True, generator=generator, num_workers=num_workers)
        found.append((batches, generator.get_state().tolist(), torch.get_rng_state().tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_distributed_sampler_splits_items_over_ranks(in_memory: Place, num_workers: int) -> None:
    """``set_epoch`` on the sampler of the loader determines the order of the epoch."""
    dataset, plain = both(in_memory)
    seen: list[str] = []
    for rank in range(2):
        found = []
        pairs: list[tuple[Any, Any]] = [(PrefetchingLoader, dataset), (DataLoader, plain)]
        for make, data in pairs:
            sampler: Any = DistributedSampler(data, num_replicas=2, rank=rank, drop_last=True)
            loader = make(data, batch_size=3, sampler=sampler, num_workers=num_workers)
            assert loader.sampler is sampler
            orders = []
            for epoch in range(2):
                loader.sampler.set_epoch(epoch)
                orders.append([list(batch["url"]) for batch in loader])
            assert orders[0] != orders[1]
            found.append(orders)
        assert found[0] == found[1]
        seen += [url for batch in found[0][0] for url in batch]
    assert len(set(seen)) == len(seen) == 22


def as_arrays(items: list[dict[str, Any]]) -> dict[str, Any]:
    """A collate function that makes no tensors."""
    return {"first": np.array([item["first"] for item in items]), "pair": (1, [np.float32(2)])}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_collate_fn_is_called_once_per_batch(in_memory: Place, num_workers: int) -> None:
    """Arrays that it returns stay arrays."""
    found = check_same(in_memory, 1, batch_size=5, collate_fn=as_arrays, num_workers=num_workers)
    assert found[0][0]["first"][0] == "ndarray"


def test_options_of_data_loader_are_validated_by_it(in_memory: Place) -> None:
    """And passed on."""
    numbers = multiprocessing.Queue()  # type: ignore[var-annotated]
    check_same(in_memory, 1, batch_size=4, num_workers=2, prefetch_factor=1, timeout=60, worker_init_fn=numbers.put)
    assert sorted(numbers.get(timeout=DEADLINE_S) for _ in range(4)) == [0, 0, 1, 1]
    dataset, _ = both(in_memory)
    with pytest.raises(ValueError, match="shuffle and a sampler exclude each other"):
        PrefetchingLoader(dataset, shuffle=True, sampler=[1])
    with pytest.raises(ValueError, match="prefetch_factor"):
        PrefetchingLoader(dataset, prefetch_factor=2)
    with pytest.raises(TypeError, match="no_such"):
        PrefetchingLoader(dataset, no_such=1)
    with pytest.raises(ValueError, match="persistent_workers"):
        PrefetchingLoader(dataset, num_workers=1, persistent_workers=True)


def test_datasets_of_other_packages_are_refused(in_memory: Place) -> None:
    """The error names the alternative."""
    dataset, plain = both(in_memory)
    for other in (plain, torch.utils.data.Subset(dataset, [1])):
        with pytest.raises(TypeError, match="use DataLoader; for a subset of one of these, a sampler"):
            PrefetchingLoader(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [1.5, True, "1", None])
def test_samplers_that_yield_no_integers_are_an_error(in_memory: Place, index: Any) -> None:
    """As they are without prefetching."""
    with pytest.raises(TypeError, match="by its index"):
        list(PrefetchingLoader(RemoteFiles(in_memory.url), sampler=[0, index]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_index_out_of_range_is_an_error_in_its_batch(in_memory: Place, num_workers: int) -> None:
    """An ``IndexError``, after the batches before it."""
    loader = PrefetchingLoader(
        RemoteFiles(in_memory.url),
        batch_sampler=[[0], [1], [2], [3, 99], [4]],
        collate_fn=as_they_are,
        num_workers=num_workers,
    )
    found, error = until_error(loader, IndexError)
    assert len(found) == 3
    assert "99" in str(error)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_are_raised_in_their_batch(num_workers: int) -> None:
    """After all batches before it, with their own type and the URL; the next epoch starts normally."""
    refused: list[str] = ["13.bin"]
    answer = Response.of_error(403, "AccessDenied")
    with timed_store(FILES, lambda key: answer if key in refused else None) as store:
        dataset = RemoteFiles(store.url, storage_options=store.options, retry=AT_ONCE)
        loader = PrefetchingLoader(dataset, batch_size=3, collate_fn=as_they_are, num_workers=num_workers)
        for _ in range(2):
            found, error = until_error(loader, AccessDeniedError)
            assert [data for batch in found for _, data in batch] == list(FILES.values())[:12]
            assert "s3://timed/13.bin" in str(error)
        refused.clear()
        assert [data for batch in loader for _, data in batch] == list(FILES.values())


@pytest.mark.parametrize("num_workers", [0, 1])
def test_next_batch_is_requested_before_the_current_one_is_answered(num_workers: int) -> None:
    """No request of the first two batches is answered before all of them have arrived."""
    objects = {f"{number:02d}.bin": b"%d" % number for number in range(16)}
    with timed_store(objects, Together(8)) as store:
        dataset = RemoteFiles(store.url, storage_options=store.options, max_in_flight=8, retry=AT_ONCE)
        loader = PrefetchingLoader(dataset, batch_size=4, num_workers=num_workers, collate_fn=as_they_are)
        assert [int(data) for batch in loader for _, data in batch] == list(range(16))


def test_next_batches_are_prefetched_within_the_limits() -> None:
    """They were requested when the first one is yielded."""
    objects = {f"{number:04d}.bin": b"%d" % number for number in range(120)}
    with timed_store(objects) as store:
        dataset = RemoteFiles(store.url, storage_options=store.options, max_in_flight=4)
        batches = iter(PrefetchingLoader(dataset, batch_size=4, collate_fn=as_they_are))
        next(batches)
        wait_for(lambda: len(store.asked) >= 8)
        assert len(store.asked) <= 4 + 16 * 4 + 4
        assert [int(data) for batch in batches for _, data in batch] == list(range(4, 120))


def test_samples_of_the_next_batch_are_requested_ahead() -> None:
    """The second batch's shard is requested before the first one's is answered."""
    place = memory_place()
    write_small_shards(place.url, num_shards=3, samples_per_shard=4)
    with timed_store(place.files(), Together(3, ".tar")) as store:
        dataset = ShardedDataset(store.url, storage_options=store.options, retry=AT_ONCE)
        loader = PrefetchingLoader(dataset, batch_size=4, collate_fn=as_they_are)
        assert [sample["cls"] for batch in loader for sample in batch] == [b"%d" % (n % 10) for n in range(12)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sharded_dataset_gives_the_batches_of_data_loader(moto: S3Server, num_workers: int) -> None:
    """Over the shards, and over a plain dataset of their samples."""
    folder = f"s3://{moto.new_bucket()}/d"
    samples = write_small_shards(folder, num_shards=3, samples_per_shard=7, storage_options=moto.storage_options)
    dataset = ShardedDataset(folder, storage_options=moto.storage_options)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "collate_fn": as_they_are, "num_workers": num_workers}
    found = epochs(PrefetchingLoader, dataset, **options)
    assert found == epochs(DataLoader, Plain(samples), **options) == epochs(DataLoader, dataset, **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_early_break_leaves_no_process_and_no_thread(in_memory: Place, num_workers: int) -> None:
    """But those of the dataset, which end with it."""
    before, processes = threads_of_ours(), set(multiprocessing.active_children())  # another test's may still end
    dataset = RemoteFiles(in_memory.url, max_in_flight=4)
    loader = PrefetchingLoader(dataset, batch_size=2, num_workers=num_workers, collate_fn=as_they_are)
    for _ in range(3):
        for _ in loader:
            break
        gc.collect()
        assert set(multiprocessing.active_children()) <= processes
    wait_for(lambda: len(threads_of_ours() - before) <= 4)
    assert [data for batch in loader for _, data in batch] == list(FILES.values())
    del dataset, loader
    gc.collect()
    wait_for(lambda: not threads_of_ours() - before)


def left_early(make: Any, dataset: Any, num_taken: list[int], own: bool, how: str, **options: Any) -> list[Any]:
    """The batches of epochs of which so many are taken, with where the generators are after each."""
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    generator = torch.Generator().manual_seed(5) if own else None
    if how == "with replacement":
        options["sampler"] = RandomSampler(dataset, replacement=True, num_samples=70, generator=generator)
    elif how == "weighted":
        options["sampler"] = WeightedRandomSampler([1.0] * NUM_FILES, 40, generator=generator)
    elif how == "of a part":
        options["sampler"] = SubsetRandomSampler(range(3, 12), generator=generator)
    elif how == "repeated":
        options["sampler"] = RandomSampler(dataset, num_samples=50, generator=generator)
    loader = make(dataset, shuffle=how == "shuffled" or None, generator=generator, **options)
    found = []
    for most in num_taken:
        batches = [shown(batch) for _, batch in zip(range(most), loader)]  # noqa: B905  # whichever ends first
        states = [one.get_state().tolist() for one in (generator, torch.default_generator) if one is not None]
        found.append((batches, states))
    return found


ORDERS = ["in order", "shuffled", "with replacement", "weighted", "of a part", "repeated"]


@settings(max_examples=60)
@given(
    num_taken=st.lists(st.integers(0, 60), min_size=2, max_size=4),
    batch_size=st.sampled_from([None, 1, 4, 5, 100]),
    drop_last=st.booleans(),
    own=st.booleans(),
    how=st.sampled_from(ORDERS),
)
def test_orders_after_an_early_break_equal_those_of_data_loader(
    in_memory: Place, num_taken: list[int], batch_size: int | None, drop_last: bool, own: bool, how: str
) -> None:
    """After breaks at any batch; the random numbers too."""
    dataset, plain = both(in_memory)
    options = {"batch_size": batch_size, "drop_last": drop_last and batch_size is not None}
    mine, theirs = [
        left_early(make, data, num_taken, own, how, **options)
        for make, data in ((PrefetchingLoader, dataset), (DataLoader, plain))
    ]
    assert mine == theirs


@pytest.mark.parametrize("how", ["shuffled", "with replacement"])
def test_orders_after_an_early_break_with_workers_equal_those_of_data_loader(in_memory: Place, how: str) -> None:
    """Workers are sent more batches than are consumed."""
    dataset, plain = both(in_memory)
    options: dict[str, Any] = {"batch_size": 3, "num_workers": 2, "prefetch_factor": 1}
    mine, theirs = [
        left_early(make, data, [0, 1, 100, 5, 3], True, how, **options)
        for make, data in ((PrefetchingLoader, dataset), (DataLoader, plain))
    ]
    assert mine == theirs


def test_concurrent_passes_are_independent(in_memory: Place) -> None:
    """Each has its own batches."""
    loader = PrefetchingLoader(RemoteFiles(in_memory.url, max_in_flight=2), batch_size=3, collate_fn=as_they_are)
    for first, second in zip(loader, loader, strict=True):
        assert first == second


def test_samplers_are_iterated_once_per_epoch(in_memory: Place) -> None:
    """In the process that iterates, in their order."""
    asked: list[int] = []

    class Counting(Sequence[int]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: Any) -> Any:
            raise NotImplementedError

        def __iter__(self) -> Iterator[int]:
            asked.append(len(asked))
            return iter(range(5))

    loader: Any = PrefetchingLoader(RemoteFiles(in_memory.url), batch_size=2, sampler=Counting(), num_workers=2)
    for _ in range(2):
        assert [len(urls) for urls, _ in loader] == [2, 2, 1]
    assert asked == [0, 1]


def test_ranks_that_shuffle_by_a_generator_are_refused(in_memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their orders may differ: an error before the first item, with the alternative."""
    dataset = RemoteFiles(in_memory.url)
    for num_workers in (0, 2):
        loader: Any = PrefetchingLoader(
            dataset, 4, shuffle=True, generator=torch.Generator(), collate_fn=as_they_are, num_workers=num_workers
        )
        assert sum(map(len, loader)) == NUM_FILES
        with monkeypatch.context() as patch:
            patch.setenv("RANK", "1")
            patch.setenv("WORLD_SIZE", "3")
            with pytest.raises(UnsplitError, match=r"3 ranks shuffle by a generator.*Pass seed= instead"):
                iter(loader)


@settings(max_examples=20)
@given(ranks=st.integers(2, 4), batch_size=st.integers(1, 5))
def test_sampler_determines_what_each_rank_reads(in_memory: Place, ranks: int, batch_size: int) -> None:
    """``DistributedSampler`` splits the items; other samplers and batch samplers do not."""
    dataset, found = RemoteFiles(in_memory.url), []
    urls = [dataset[number][0] for number in range(NUM_FILES)]
    for rank in range(ranks):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(ranks))
            sampler: Any = DistributedSampler(dataset, ranks, rank, drop_last=True)
            share: Any = PrefetchingLoader(dataset, batch_size, sampler=sampler, collate_fn=as_they_are)
            found += [url for batch in share for url, _ in batch]
            whole: Any = PrefetchingLoader(dataset, sampler=SequentialSampler(dataset), collate_fn=as_they_are)
            assert [url for batch in whole for url, _ in batch] == urls
            batches: Any = PrefetchingLoader(dataset, batch_sampler=[[rank], [0, 1]], collate_fn=as_they_are)
            assert [[url for url, _ in batch] for batch in batches] == [[urls[rank]], urls[:2]]
    assert len(set(found)) == len(found) == NUM_FILES // ranks * ranks
