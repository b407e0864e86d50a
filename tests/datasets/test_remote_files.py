"""Files of a folder by number: what comes is what a plain dataset gives, only sooner."""

from __future__ import annotations

import gc
import os
import pickle
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.datasets.stores import (
    AT_ONCE,
    DEADLINE_S,
    PATIENT,
    Plain,
    Together,
    as_they_are,
    only,
    threads_of_ours,
    timed_store,
    until_error,
    wait_for,
)
from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.servers.scripted import Response, scripted
from tests.support.cache_folder import settle
from tests.support.shard_places import Place, memory_place
from torchdata_remote.core.options import Backend
from torchdata_remote.datasets import RemoteFiles
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ObjectNotFoundError,
    RemoteDataError,
    StorageError,
    TransientStorageError,
)
from torchdata_remote.testing import Faults, FaultyStore

NUM_FILES = 23
FILES = {
    f"{'abc'[number % 3]}/{number:02d}.bin": b"%d." % number * (number * 37 % 300) for number in range(NUM_FILES)
}  # an empty one among them
NAMES = sorted(FILES)
INDICES = st.lists(st.integers(-NUM_FILES, NUM_FILES - 1), max_size=40)


def items_of(place: Place) -> list[tuple[str, bytes]]:
    """The items as they should be."""
    root = place.url if "://" in place.url else f"file://{place.url}"
    return [(f"{root}{name}", FILES[name]) for name in NAMES]


@pytest.fixture
def filled(place: Place) -> Place:
    place.put(FILES)
    return place


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


def test_items_are_urls_and_bytes_in_any_store(filled: Place) -> None:
    """Sorted; one by one or as a batch."""
    dataset, items = RemoteFiles(filled.url, storage_options=filled.options), items_of(filled)
    assert len(dataset) == NUM_FILES
    assert [dataset[number] for number in range(NUM_FILES)] == items
    assert dataset.__getitems__(range(NUM_FILES)) == items
    assert list(dataset) == items, "by the protocol of sequences: until there is none"  # type: ignore[call-overload]
    url, data = dataset[0]
    assert (type(url), type(data)) == (str, bytes)


@settings(max_examples=60)
@given(indices=INDICES, max_in_flight=st.integers(1, 5))
def test_batch_equals_its_single_items(in_memory: Place, indices: list[int], max_in_flight: int) -> None:
    """In the requested order, with repetitions, for any indices and any number of requests."""
    items = items_of(in_memory)
    dataset = RemoteFiles(in_memory.url, max_in_flight=max_in_flight)
    assert dataset.__getitems__(indices) == [items[index] for index in indices]


@settings(max_examples=40)
@given(batches=st.lists(INDICES, max_size=8), max_in_flight=st.integers(1, 5))
def test_batches_of_any_length_are_yielded_in_order(
    in_memory: Place, batches: list[list[int]], max_in_flight: int
) -> None:
    """Empty ones too."""
    items = items_of(in_memory)
    dataset = RemoteFiles(in_memory.url, max_in_flight=max_in_flight)
    assert list(dataset.batches(batches)) == [[items[index] for index in batch] for batch in batches]


def test_infinite_batches_are_read_a_bounded_number_ahead(in_memory: Place) -> None:
    """They are consumed lazily."""
    pulled: list[int] = []

    def endless() -> Iterator[list[int]]:
        while True:
            pulled.append(len(pulled))
            yield [len(pulled) % NUM_FILES, 3]

    batches = RemoteFiles(in_memory.url, max_in_flight=2).batches(endless())
    items = items_of(in_memory)
    for number in range(1, 100):
        assert next(batches) == [items[number % NUM_FILES], items[3]]
        assert len(pulled) <= number + 16  # 16 times max_in_flight objects
    batches.close()


SAMPLERS: dict[str, Any] = {
    "in order": SequentialSampler(range(NUM_FILES)),
    "reversed": range(NUM_FILES - 1, -1, -1),
    "random": RandomSampler(range(NUM_FILES)),
    "with replacement": RandomSampler(range(NUM_FILES), replacement=True, num_samples=50),
    "weighted": WeightedRandomSampler([0.1 + number for number in range(NUM_FILES)], 40),
    "of a part": SubsetRandomSampler(range(3, 11)),
    "one over and over": [7] * 12,
    "from behind": [-1, -NUM_FILES, 0],
    "of tensors": torch.randperm(NUM_FILES),
    "of numpy": np.arange(NUM_FILES)[::-2],
    "of nothing": [],
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_samplers_give_the_batches_of_a_plain_dataset(in_memory: Place, sampler: Sampler[int]) -> None:
    """Under ``DataLoader``."""
    found = []
    for dataset in (RemoteFiles(in_memory.url), Plain(items_of(in_memory))):
        torch.manual_seed(5)
        found.append(list(DataLoader(dataset, batch_size=4, sampler=sampler, collate_fn=as_they_are)))
    assert found[0] == found[1]


def test_batch_samplers_give_the_batches_of_a_plain_dataset(in_memory: Place) -> None:
    """Batches of any length, empty ones too, and with ``drop_last``."""
    uneven = [[3], [], [1, 1, 1], list(range(NUM_FILES)), [], [-1]]
    dropped = BatchSampler(range(NUM_FILES), 5, drop_last=True)
    for batch_sampler in (uneven, dropped):
        for dataset in (RemoteFiles(in_memory.url), Subset(RemoteFiles(in_memory.url), range(NUM_FILES))):
            loader: Any = DataLoader(dataset, batch_sampler=batch_sampler, collate_fn=as_they_are)
            items = items_of(in_memory)
            assert list(loader) == [[items[index] for index in batch] for batch in batch_sampler]


def test_subsets_request_complete_batches(in_memory: Place) -> None:
    """A ``Subset`` of a ``Subset`` too, with indices of any type."""
    items = items_of(in_memory)
    subset = Subset(Subset(RemoteFiles(in_memory.url), np.arange(20)[::-1]), torch.tensor([1, 1, 5]))  # type: ignore[arg-type]
    loader = DataLoader(subset, batch_size=2, collate_fn=as_they_are)
    assert list(loader) == [[items[18], items[18]], [items[14]]]


@pytest.mark.parametrize("index", [np.int64(-2), np.uint8(21), torch.tensor(21), torch.tensor([21])[0], np.array(21)])
def test_indices_of_numpy_and_torch_are_accepted(in_memory: Place, index: Any) -> None:
    """Like those of Python."""
    dataset, items = RemoteFiles(in_memory.url), items_of(in_memory)
    assert dataset[index] == items[21]
    assert dataset.__getitems__([index, 0]) == [items[21], items[0]]


@pytest.mark.parametrize("index", [NUM_FILES, -NUM_FILES - 1, 10**30, np.uint64(2**63)])
def test_index_out_of_range_is_an_error(in_memory: Place, index: Any) -> None:
    """An ``IndexError`` with the number of items, also within a batch."""
    dataset = RemoteFiles(in_memory.url)
    for ask in (lambda: dataset[index], lambda: dataset.__getitems__([0, index, 1])):
        with pytest.raises(IndexError, match="RemoteFiles has 23 items"):
            ask()


@pytest.mark.parametrize(
    "index",
    [True, np.True_, torch.tensor(True), 1.0, np.float32(1), torch.tensor(1.0), "1", slice(0, 2), None, [1], (1,)],
)
def test_index_that_is_no_integer_is_an_error(in_memory: Place, index: Any) -> None:
    """A ``TypeError`` that shows it."""
    dataset = RemoteFiles(in_memory.url)
    for ask in (lambda: dataset[index], lambda: dataset.__getitems__([0, index])):
        with pytest.raises(TypeError, match="selected by its index, an int, got"):
            ask()


def test_index_out_of_range_is_raised_after_the_batches_before_it(in_memory: Place) -> None:
    """However far ahead files are fetched."""
    items = items_of(in_memory)
    batches = RemoteFiles(in_memory.url).batches([[0], [1, 2], [3, 99], [4]])
    assert [next(batches), next(batches)] == [[items[0]], [items[1], items[2]]]
    with pytest.raises(IndexError, match="99"):
        next(batches)


@pytest.mark.parametrize("num_workers", [1, 4])
def test_workers_give_the_files_of_a_plain_dataset(on_s3: Place, num_workers: int) -> None:
    """Each worker fetches its own batches."""
    check_workers(on_s3, num_workers, "fork")


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_read_after_their_parent_has_read(on_s3: Place, start_method: str) -> None:
    """Forked ones hold a copy of the dataset in use, spawned ones are sent it with its options."""
    RemoteFiles(on_s3.url, storage_options=on_s3.options)[0]
    check_workers(on_s3, 2, start_method)


def check_workers(place: Place, num_workers: int, start_method: str) -> None:
    dataset, items = RemoteFiles(place.url, storage_options=place.options), items_of(place)
    order = random.Random(3).choices(range(NUM_FILES), k=40)
    loader = DataLoader(
        dataset,
        batch_size=3,
        sampler=order,
        num_workers=num_workers,
        multiprocessing_context=start_method,
        collate_fn=as_they_are,
    )
    plain = DataLoader(Plain(items), batch_size=3, sampler=order, collate_fn=as_they_are)
    assert list(loader) == list(plain)


def test_file_deleted_after_the_listing_is_an_error(filled: Place) -> None:
    """With the URL; other items and the batches before it can be read."""
    dataset, items = RemoteFiles(filled.url, storage_options=filled.options, retry=AT_ONCE), items_of(filled)
    filled.delete(NAMES[7])
    for ask in (lambda: dataset[7], lambda: dataset.__getitems__(range(NUM_FILES))):
        with pytest.raises(ObjectNotFoundError, match=NAMES[7]) as caught:
            ask()
        assert caught.value.url == items[7][0]
        del caught
    assert dataset.__getitems__([6, 8, 6]) == [items[6], items[8], items[6]]
    batches = dataset.batches([[0, 1], [2], [7, 3], [4]])
    assert [next(batches), next(batches)] == [items[:2], [items[2]]]
    with pytest.raises(ObjectNotFoundError):
        next(batches)


def test_file_replaced_after_the_listing_is_an_error(filled: Place) -> None:
    """The new version is not returned."""
    dataset = RemoteFiles(filled.url, storage_options=filled.options, retry=AT_ONCE)
    filled.put({NAMES[7]: b"another length than before"})
    with pytest.raises(StorageError, match=rf"{NAMES[7]}.*\b26 bytes|ObjectChanged|etag"):
        dataset[7]
    assert dataset[6][1] == FILES[NAMES[6]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_in_a_loader_keep_their_type(on_s3: Place, num_workers: int) -> None:
    """With the URL, also from a worker, after the batches before; no batch is shorter."""
    items = items_of(on_s3)
    with timed_store(
        {name: FILES[name] for name in NAMES},
        lambda key: Response.of_error(403, "AccessDenied") if key == NAMES[9] else None,
    ) as store:
        dataset = RemoteFiles(store.url, storage_options=store.options, retry=AT_ONCE)
        loader = DataLoader(dataset, batch_size=4, num_workers=num_workers, collate_fn=as_they_are)
        found, error = until_error(loader, AccessDeniedError)
        assert f"s3://timed/{NAMES[9]}" in str(error)
        assert store.asked.count(NAMES[9]) == 1, "it was not asked for again"
    assert [[data for _, data in batch] for batch in found] == [
        [data for _, data in items[start : start + 4]] for start in (0, 4)
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("fault", ["cut_body", "reset_in_body", "slow_down"])
def test_truncated_responses_are_an_error_after_the_attempts_of_the_policy(
    on_s3: Place, moto: S3Server, fault: str, num_workers: int
) -> None:
    """With the URL."""
    with FaultyStore(moto.endpoint_url, only(fault)) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        dataset = RemoteFiles(on_s3.url, storage_options=options, retry=AT_ONCE)
        loader = DataLoader(dataset, batch_size=4, num_workers=num_workers, sampler=[5, 6], collate_fn=as_they_are)
        _, error = until_error(loader, TransientStorageError)
        assert NAMES[5] in str(error)
        assert "Gave up after 2 attempts" in str(error)
        store.faults = Faults()
        assert dataset.__getitems__([5, 6]) == items_of(on_s3)[5:7], "it goes on afterwards"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_item_is_correct_through_a_storm(on_s3: Place, moto: S3Server, num_workers: int) -> None:
    """Transient errors are retried."""
    with faulty(moto, Faults.storm(0.3), seed=1) as (server, store):
        dataset = RemoteFiles(on_s3.url, storage_options=server.storage_options, retry=PATIENT)
        loader = DataLoader(dataset, batch_size=5, shuffle=True, num_workers=num_workers, collate_fn=as_they_are)
        for _ in range(2):
            found = [item for batch in loader for item in batch]
            assert sorted(found) == items_of(on_s3)
        assert sum(count for fault, count in store.counts.items() if fault != "well") > 5


def test_on_error_returns_a_substitute(filled: Place) -> None:
    """It is called with the error; other items are unchanged."""
    seen: list[RemoteDataError] = []

    def instead(error: RemoteDataError) -> tuple[str, bytes]:
        seen.append(error)
        return str(error.url), b"lost"

    dataset = RemoteFiles(filled.url, storage_options=filled.options, on_error=instead, retry=AT_ONCE)
    items = items_of(filled)
    filled.delete(NAMES[4])
    assert dataset.__getitems__([3, 4, 5, 4]) == [items[3], (items[4][0], b"lost"), items[5], (items[4][0], b"lost")]
    assert [type(error) for error in seen] == [ObjectNotFoundError] * 2


def test_on_error_that_returns_none_raises_the_error() -> None:
    """A batch is never shorter. Exceptions of ``on_error`` are raised too."""
    place = memory_place()
    place.put(FILES)
    noted: list[RemoteDataError] = []

    def own(error: RemoteDataError) -> None:
        raise KeyError("mine") from error

    dataset, raising = RemoteFiles(place.url, on_error=noted.append), RemoteFiles(place.url, on_error=own)
    place.delete(NAMES[4])
    with pytest.raises(ObjectNotFoundError, match=NAMES[4]) as caught:
        dataset.__getitems__([3, 4])
    assert noted == [caught.value]
    with pytest.raises(KeyError, match="mine"):
        raising.__getitems__([3, 4])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_files_of_a_batch_are_requested_concurrently(num_workers: int) -> None:
    """No request of 16 is answered before all of them have arrived."""
    objects = {f"{number:02d}.bin": bytes([number]) * 100 for number in range(16)}
    with timed_store(objects, Together(16)) as store:
        dataset = RemoteFiles(store.url, storage_options=store.options, max_in_flight=16, retry=AT_ONCE)
        loader = DataLoader(dataset, batch_size=16, num_workers=num_workers, collate_fn=as_they_are)
        assert [[data for _, data in batch] for batch in loader] == [list(objects.values())]


def test_max_in_flight_bounds_concurrent_requests() -> None:
    """The next request is sent when one was answered."""
    objects = {f"{number:02d}.bin": b"data" for number in range(20)}
    lock, running, most = threading.Lock(), 0, 0
    three = threading.Event()

    def count(key: str) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                three.set()
        three.wait(DEADLINE_S)
        with lock:
            running -= 1

    with timed_store(objects, count) as store:
        dataset = RemoteFiles(store.url, storage_options=store.options, max_in_flight=3)
        assert len(dataset.__getitems__(range(20))) == 20
    assert most == 3


def test_second_epoch_is_read_from_the_cache(on_s3: Place, moto: S3Server, tmp_path: Path) -> None:
    """Also by other datasets and processes."""
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        caching: dict[str, Any] = {"cache_dir": str(tmp_path), "cache_bytes": 1 << 20, "storage_options": options}
        dataset, items = RemoteFiles(on_s3.url, **caching), items_of(on_s3)

        def gets() -> list[str]:
            return [one.path for one in store.requests if one.method == "GET" and "list-type" not in one.query]

        assert dataset.__getitems__(range(NUM_FILES)) == items
        first = len(gets())
        assert first == NUM_FILES
        assert dataset.__getitems__(range(NUM_FILES)) == items
        settle()  # others find what was stored after 0.2 s
        again = RemoteFiles(on_s3.url, **caching)
        loader = DataLoader(again, batch_size=4, num_workers=1, collate_fn=as_they_are)
        assert [item for batch in loader for item in batch] == items
        assert {path.rpartition("/d/")[2] for path in gets()[first:]} <= {NAMES[0]}, "an empty one is not kept"


def test_threads_live_as_long_as_the_dataset(in_memory: Place) -> None:
    """They fetch all batches, and end with the dataset."""
    before = threads_of_ours()
    dataset = RemoteFiles(in_memory.url, max_in_flight=4)
    wait_for(lambda: not threads_of_ours() - before)  # those that listed
    dataset.__getitems__(range(NUM_FILES))
    first = threads_of_ours() - before
    assert 0 < len(first) <= 4
    for _ in range(3):
        dataset.__getitems__(range(NUM_FILES))
        dataset.batches([[1], [2]]).close()
    batches = dataset.batches([[number] for number in range(NUM_FILES)])
    next(batches)
    batches.close()
    with pytest.raises(IndexError):
        dataset[NUM_FILES]
    assert threads_of_ours() - before >= first
    assert len(threads_of_ours() - before) <= 4
    del dataset, batches
    gc.collect()
    wait_for(lambda: not threads_of_ours() - before)


def test_concurrent_reads_by_threads_are_independent(in_memory: Place) -> None:
    """Also if all start at the same time."""
    items, together = items_of(in_memory), threading.Barrier(8)
    dataset = RemoteFiles(in_memory.url, max_in_flight=3)
    wrong: list[object] = []

    def ask(seed: int) -> None:
        chosen = random.Random(seed)
        together.wait(DEADLINE_S)
        for _ in range(20):
            indices = chosen.choices(range(NUM_FILES), k=5)
            try:
                found = dataset.__getitems__(indices)
            except Exception as error:
                wrong.append(error)
            else:
                wrong.extend([] if found == [items[index] for index in indices] else [found])

    threads = [threading.Thread(target=ask, args=[seed]) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_has_its_own_threads(in_memory: Place) -> None:
    """Those of the parent continue."""
    dataset, items = RemoteFiles(in_memory.url), items_of(in_memory)
    assert dataset[0] == items[0]
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            right = dataset.__getitems__([3, 1]) == [items[3], items[1]] and dataset[0] == items[0]
            os._exit(7 if right else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert dataset.__getitems__([3, 1]) == [items[3], items[1]]


def test_pickle_is_less_than_200_bytes_per_file() -> None:
    """Without threads and connections."""
    place = memory_place()
    place.put({f"n{number % 10:08d}/n{number % 10:08d}_{number:05d}.JPEG": b"" for number in range(1000)})
    dataset = RemoteFiles(place.url)
    dataset[0]
    data = pickle.dumps(dataset)
    assert len(data) < 200 * len(dataset)
    again = pickle.loads(data)
    assert again.__getitems__(range(1000)) == dataset.__getitems__(range(1000))


def test_credentials_are_in_no_repr_and_no_error(on_s3: Place) -> None:
    """Of the dataset."""
    secret = "canary-8d21"
    options = {**(on_s3.options or {}), "secret": secret}
    with timed_store({"a": b"1"}, lambda key: Response.of_error(403, "AccessDenied")) as store:
        dataset = RemoteFiles(store.url, storage_options={**store.options, "secret": secret}, retry=AT_ONCE)
        with pytest.raises(StorageError) as caught:
            dataset[0]
        shown = f"{dataset!r} {dataset} {caught.value!r} {caught.value} {vars(caught.value)} {caught.value.__cause__!r}"
        assert secret not in shown
        assert secret in str(options)


ODD_NAMES = {
    "a b/c d.bin": b"blank",
    "ü/é ñ.bin": b"accents",
    "q?a=b/x#y.bin": b"query",
    "per%20cent/%41.bin": b"percent",
    "plus+/a+b.bin": b"plus",
    "at@home/me@x.bin": b"at",
    "glob[1]/x{0..1}*.bin": b"glob",
    ".hidden/.file": b"hidden",
    "no extension": b"flat",
}


def test_files_with_odd_names_are_found_under_their_urls(place: Place) -> None:
    """By the URL that the item has."""
    place.put(ODD_NAMES)
    dataset = RemoteFiles(place.url, storage_options=place.options)
    root = place.url if "://" in place.url else f"file://{place.url}"
    found = {url.removeprefix(root): data for url, data in dataset.__getitems__(range(len(ODD_NAMES)))}
    assert found == ODD_NAMES


def test_directory_markers_are_dropped(on_s3: Place, moto: S3Server) -> None:
    """Consoles store empty objects named ``folder/``."""
    bucket = moto.new_bucket()
    for key in ("", "a/", "a/b/", "c/"):
        moto.client().put_object(Bucket=bucket, Key=f"d/{key}", Body=b"")
    moto.client().put_object(Bucket=bucket, Key="d/a/b/1", Body=b"one")
    for url in (f"s3://{bucket}/d/", f"s3://{bucket}/d", f"s3://{bucket}"):
        dataset = RemoteFiles(url, storage_options=moto.storage_options)
        assert list(dataset) == [(f"s3://{bucket}/d/a/b/1", b"one")]  # type: ignore[call-overload]


def test_files_are_sorted_by_folder_then_name(place: Place) -> None:
    """This differs from the order of the keys, because ``-`` and ``.`` sort before ``/``."""
    names = ["a-b/1", "a.b/1", "a/2", "a/10", "a/z-/1", "a/z/1", "b", "a", "a/z.x"]
    if not place.url.startswith("s3:"):
        names.remove("a")  # no file and folder of one name there
    place.put({name: name.encode() for name in names})
    dataset = RemoteFiles(place.url, storage_options=place.options)
    found = [data.decode() for _, data in dataset.__getitems__(range(len(names)))]
    assert found == [
        *(name for name in ("a", "b") if name in names),
        *("a/10", "a/2", "a/z.x", "a/z/1", "a/z-/1", "a-b/1", "a.b/1"),
    ]


@pytest.mark.parametrize("limit", [1, 7, NUM_FILES, NUM_FILES + 5])
def test_limit_selects_the_first_files(in_memory: Place, limit: int) -> None:
    """In the order without it."""
    dataset, items = RemoteFiles(in_memory.url, limit=limit), items_of(in_memory)[:limit]
    assert dataset.__getitems__(range(len(dataset))) == items


@pytest.mark.parametrize("limit", [0, -1, 2.5, "3"])
def test_invalid_limits_are_refused(limit: Any) -> None:
    """Before anything is listed."""
    with pytest.raises((TypeError, ValueError), match="limit must be"):
        RemoteFiles("memory://no/such/folder/", limit=limit)


def test_folder_without_files_is_an_error(place: Place) -> None:
    """It names the folder."""
    place.put({"other/x": b""})
    with pytest.raises(EmptyListingError, match="nothing-here"):
        RemoteFiles(f"{place.url}nothing-here/", storage_options=place.options)


def test_globs_and_local_paths_are_accepted(tmp_path: Path, in_memory: Place) -> None:
    """A glob selects some of the files."""
    items = items_of(in_memory)
    assert list(RemoteFiles(f"{in_memory.url}b/*1*.bin")) == [  # type: ignore[call-overload]
        item for item in items if "/b/" in item[0] and "1" in item[0].rpartition("/")[2]
    ]
    Place(f"{tmp_path}/").put({"x/1": b"one"})
    assert RemoteFiles(tmp_path)[0] == (f"file://{tmp_path}/x/1", b"one")


@pytest.mark.parametrize("backend", [Backend.BOTOCORE, Backend.FSSPEC])
def test_every_backend_reads_the_same_bytes(on_s3: Place, backend: Backend) -> None:
    """The transport does not matter."""
    dataset = RemoteFiles(on_s3.url, storage_options=on_s3.options, backend=backend)
    assert dataset.__getitems__([1, 1, 5]) == [items_of(on_s3)[index] for index in (1, 1, 5)]


def test_index_replaces_the_listing(on_s3: Place, moto: S3Server, tmp_path: Path) -> None:
    """Nothing is listed, and with a cache the second epoch sends no GET."""
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        keys = [f"d/{name}" for name in NAMES]
        dataset = RemoteFiles(
            on_s3.url, index=keys, storage_options=options, cache_dir=str(tmp_path), cache_bytes=1 << 20
        )
        assert not store.requests
        assert dataset.__getitems__(range(NUM_FILES)) == items_of(on_s3)
        first = len(store.requests)
        assert dataset.__getitems__(range(NUM_FILES)) == items_of(on_s3)
        again = {one.path.rpartition("/d/")[2] for one in store.requests[first:] if one.method == "GET"}
        assert again <= {NAMES[0]}, "an empty one is not kept"
        assert not any("list-type" in one.query for one in store.requests)


def test_web_server_is_read_by_an_index() -> None:
    """It has no listing. Queries, which may be secret, are not shown."""
    with scripted(lambda request: Response.of_object(request, request.target.encode())) as server:
        dataset = RemoteFiles(f"{server.url}/data/", index=["data/b/1.bin", "data/a/2.bin?signature=canary"])
        found = dataset.__getitems__([1, 0])
    assert found == [
        (f"{server.url}/data/b/1.bin", b"/data/b/1.bin"),
        (f"{server.url}/data/a/2.bin", b"/data/a/2.bin?signature=canary"),
    ]


def test_symlinks_to_folders_are_followed(tmp_path: Path) -> None:
    """As by torchvision."""
    Place(f"{tmp_path}/real/").put({"1": b"one"})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "real")
    assert RemoteFiles(tmp_path / "set")[0] == (f"file://{tmp_path}/set/linked/1", b"one")
