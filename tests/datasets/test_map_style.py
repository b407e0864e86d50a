"""Map-style datasets: items by number, whole batches at once, what a plain dataset gives, only sooner."""

from __future__ import annotations

import gc
import io
import os
import pickle
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import (
    DataLoader,
    Subset,
)

import torchdata_remote as tdr
from tests.datasets.stores import (
    AT_ONCE,
    DEADLINE_S,
    PATIENT,
    Plain,
    Together,
    as_they_are,
    only,
    pixels,
    root_of,
    timed_store,
    until_error,
)
from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.servers.scripted import Response
from tests.support.shard_places import Place, memory_place
from tests.support.waiting import new_threads, wait_for
from torchdata_remote.errors import AccessDeniedError, StorageError, TransientStorageError
from torchdata_remote.testing import Faults, FaultyStore

NUM_ITEMS = 23
INDICES = st.lists(st.integers(-NUM_ITEMS, NUM_ITEMS - 1), max_size=40)


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (5, 7, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


FILES = {f"{'abc'[n // 8]}/{n:02d}.bin": b"%d." % n * (n * 37 % 300) for n in range(NUM_ITEMS)}  # an empty one, too
PICTURES = {f"{'abc'[n // 8]}/{n:02d}.png": picture(n) for n in range(NUM_ITEMS)}


def fill_shards(place: Place) -> None:
    """Members of different sizes, empty ones too, and keys that need a header of their own."""
    with tdr.ShardWriter(place.template(), max_shard_samples=5, storage_options=place.options) as writer:
        for n in range(NUM_ITEMS):
            key = f"{n % 4}/{'long-' * 30 if n % 7 == 3 else ''}{n:03d}"
            writer.write({"__key__": key, "bin": bytes([n]) * (n * 97 % 1700), "cls": n, "json": {"n": n}})


def samples_of(place: Place) -> list[Any]:
    """As the reader of whole shards gives them."""
    urls = tdr.IterableWrapper([f"{root_of(place)}index.json"]).list_remote(storage_options=place.options)
    return list(urls.shard_tar_reader(storage_options=place.options))


class Kind(NamedTuple):
    """A dataset, and how it is filled and what its items have to be."""

    make: Callable[..., Any]
    fill: Callable[[Place], object]
    items: Callable[[Place], list[Any]]
    object_of: Callable[[int], str]  # in which an item lies


KINDS = {
    "RemoteFiles": Kind(
        tdr.RemoteFiles,
        lambda place: place.put(FILES),
        lambda place: [(f"{root_of(place)}{name}", data) for name, data in FILES.items()],
        lambda number: list(FILES)[number],
    ),
    "RemoteImageFolder": Kind(
        lambda url, **options: tdr.RemoteImageFolder(url, transform=pixels, **options),
        lambda place: place.put(PICTURES),
        lambda place: [(pixels(Image.open(io.BytesIO(data))), "abc".index(name[0])) for name, data in PICTURES.items()],
        lambda number: list(PICTURES)[number],
    ),
    "ShardedDataset": Kind(tdr.ShardedDataset, fill_shards, samples_of, lambda number: f"{number // 5:06d}.tar"),
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS), scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def in_memory(kind: Kind) -> Place:
    place = memory_place()
    kind.fill(place)
    return place


@pytest.fixture(scope="module")
def on_s3(kind: Kind, moto: S3Server) -> Place:
    place = Place(f"s3://{moto.new_bucket()}/d/", moto)
    kind.fill(place)
    return place


def of(kind: Kind, place: Place, **options: Any) -> Any:
    return kind.make(place.url, storage_options=place.options, **options)


def test_items_are_the_same_in_any_store_one_by_one_or_as_a_batch(kind: Kind, place: Place) -> None:
    kind.fill(place)
    dataset, items = of(kind, place), kind.items(place)
    assert len(dataset) == len(items) == NUM_ITEMS
    assert [dataset[number] for number in range(NUM_ITEMS)] == items
    assert dataset.__getitems__(range(NUM_ITEMS)) == items
    assert list(dataset) == items, "by the protocol of sequences: until there is none"


@given(indices=INDICES, max_in_flight=st.integers(1, 5))
def test_a_batch_equals_its_single_items_in_any_order_with_repetitions(
    kind: Kind, in_memory: Place, indices: list[int], max_in_flight: int
) -> None:
    items = kind.items(in_memory)
    found = of(kind, in_memory, max_in_flight=max_in_flight).__getitems__(indices)
    assert found == [items[index] for index in indices]
    assert len({id(item) for item in found}) == len(found), "repeated items are separate"


@given(batches=st.lists(INDICES, max_size=8), max_in_flight=st.integers(1, 5))
def test_batches_of_any_length_are_yielded_in_order_and_empty_ones_too(
    kind: Kind, in_memory: Place, batches: list[list[int]], max_in_flight: int
) -> None:
    items = kind.items(in_memory)
    found = list(of(kind, in_memory, max_in_flight=max_in_flight).batches(batches))
    assert found == [[items[index] for index in batch] for batch in batches]


def test_endless_batches_are_read_a_bounded_number_ahead(kind: Kind, in_memory: Place) -> None:
    pulled: list[int] = []

    def endless() -> Iterator[list[int]]:
        while True:
            pulled.append(len(pulled))
            yield [len(pulled) % NUM_ITEMS, 3]

    items, batches = kind.items(in_memory), of(kind, in_memory, max_in_flight=2).batches(endless())
    for number in range(1, 100):
        assert next(batches) == [items[number % NUM_ITEMS], items[3]]
        assert len(pulled) <= number + 2 * (16 + 1)  # 16 times max_in_flight objects
    batches.close()


@pytest.mark.parametrize("index", [np.int64(-2), np.uint8(21), torch.tensor(21), torch.tensor([21])[0], np.array(21)])
def test_indices_of_numpy_and_torch_are_accepted(kind: Kind, in_memory: Place, index: Any) -> None:
    dataset, items = of(kind, in_memory), kind.items(in_memory)
    assert dataset[index] == items[21]
    assert dataset.__getitems__([index, 0]) == [items[21], items[0]]


@pytest.mark.parametrize("index", [NUM_ITEMS, -NUM_ITEMS - 1, 10**30, np.uint64(2**63)])
def test_an_index_out_of_range_is_an_index_error(kind: Kind, in_memory: Place, index: Any) -> None:
    dataset = of(kind, in_memory)
    with pytest.raises(IndexError, match="has 23 items"):
        dataset[index]
    with pytest.raises(IndexError, match="has 23 items"):
        dataset.__getitems__([0, index, 1])


@pytest.mark.parametrize(
    "index", [True, np.True_, torch.tensor(True), 1.0, torch.tensor(1.0), "1", slice(0, 2), None, [1], (1,)]
)
def test_an_index_that_is_no_integer_is_a_type_error(kind: Kind, in_memory: Place, index: Any) -> None:
    dataset = of(kind, in_memory)
    with pytest.raises(TypeError, match="selected by its index, an int, got"):
        dataset[index]
    with pytest.raises(TypeError, match="selected by its index, an int, got"):
        dataset.__getitems__([0, index])


def test_an_index_out_of_range_is_raised_after_the_batches_before_it(kind: Kind, in_memory: Place) -> None:
    items = kind.items(in_memory)
    batches = of(kind, in_memory).batches([[0], [1, 2], [3, 99], [4]])
    assert [next(batches), next(batches)] == [[items[0]], [items[1], items[2]]]
    with pytest.raises(IndexError, match="99"):
        next(batches)


# Under torch's loader

UNEVEN = [[3], [], [1, 1, 1], list(range(NUM_ITEMS)), [], [-1]]
SAMPLERS: dict[str, dict[str, Any]] = {
    "shuffled": {"batch_size": 4, "shuffle": True},
    "of tensors": {"batch_size": 4, "sampler": torch.randperm(NUM_ITEMS)},
    "single items": {"batch_size": None, "sampler": range(5)},
    "uneven batches": {"batch_sampler": UNEVEN},
}


@pytest.mark.parametrize("options", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_any_sampler_gives_the_batches_of_a_plain_dataset(
    kind: Kind, in_memory: Place, options: dict[str, Any]
) -> None:
    found = []
    for dataset in (of(kind, in_memory), Plain(kind.items(in_memory)), Subset(of(kind, in_memory), range(NUM_ITEMS))):
        torch.manual_seed(5)
        found.append(list(DataLoader(dataset, collate_fn=as_they_are, **options)))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("num_workers", "start_method"), [(3, "fork"), (2, "forkserver")])
def test_workers_give_the_items_of_a_plain_dataset_also_after_their_parent_has_read(
    kind: Kind, on_s3: Place, num_workers: int, start_method: str
) -> None:
    dataset, items = of(kind, on_s3), kind.items(on_s3)
    assert dataset[3] == items[3]
    options: dict[str, Any] = {
        "batch_size": 3,
        "sampler": random.Random(3).choices(range(NUM_ITEMS), k=30),
        "collate_fn": as_they_are,
    }
    loader = DataLoader(dataset, num_workers=num_workers, multiprocessing_context=start_method, **options)
    assert list(loader) == list(DataLoader(Plain(items), **options))
    assert dataset.__getitems__([3, 1]) == [items[3], items[1]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_with_threads_of_its_own(kind: Kind, in_memory: Place) -> None:
    dataset, items = of(kind, in_memory), kind.items(in_memory)
    assert dataset[0] == items[0]
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os._exit(7 if dataset.__getitems__([3, 1]) == [items[3], items[1]] else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert dataset.__getitems__([3, 1]) == [items[3], items[1]]


def test_concurrent_reads_by_threads_are_independent(kind: Kind, in_memory: Place) -> None:
    items, together = kind.items(in_memory), threading.Barrier(8)
    dataset = of(kind, in_memory, max_in_flight=3)
    wrong: list[object] = []

    def ask(seed: int) -> None:
        chosen = random.Random(seed)
        together.wait(DEADLINE_S)
        for _ in range(10):
            indices = chosen.choices(range(NUM_ITEMS), k=5)
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


def test_threads_end_with_the_dataset(kind: Kind, in_memory: Place) -> None:
    before = set(threading.enumerate())
    dataset = of(kind, in_memory, max_in_flight=4)
    for _ in range(3):
        dataset.__getitems__(range(NUM_ITEMS))
    batches = dataset.batches([[number] for number in range(NUM_ITEMS)])
    next(batches)
    batches.close()
    with pytest.raises(IndexError):
        dataset[NUM_ITEMS]
    del dataset, batches
    gc.collect()
    wait_for(lambda: not new_threads(before))


def test_a_pickle_is_small_and_reads_the_same(kind: Kind, in_memory: Place) -> None:
    dataset = of(kind, in_memory)
    items = dataset.__getitems__(range(NUM_ITEMS))
    data = pickle.dumps(dataset)
    assert len(data) < 6000
    assert pickle.loads(data).__getitems__(range(NUM_ITEMS)) == items


# The store


def test_an_error_keeps_its_type_and_comes_in_its_batch_with_the_url(kind: Kind, in_memory: Place) -> None:
    """In this process and from a worker; the refused object is asked for once, and no secret is shown."""
    items, lost = kind.items(in_memory), kind.object_of(10)
    refused = Response.of_error(403, "AccessDenied")
    for num_workers in (0, 2):
        with timed_store(in_memory.files(), lambda key: refused if key == lost else None) as store:
            dataset = kind.make(store.url, storage_options=store.options, retry=AT_ONCE)
            loader = DataLoader(dataset, batch_size=5, num_workers=num_workers, collate_fn=as_they_are)
            found, error = until_error(loader, AccessDeniedError)
            assert f"s3://timed/{lost}" in str(error)
            assert store.asked.count(lost) <= max(1, num_workers), "once by each that wants it"
            assert "canary" not in f"{dataset!r} {dataset} {error!r} {error} {vars(error)} {error.__cause__!r}"
        assert [len(batch) for batch in found] == [5, 5]
        without_place = [str(item).replace("s3://timed/", root_of(in_memory)) for batch in found for item in batch]
        assert without_place == list(map(str, items[:10]))


@pytest.mark.parametrize("fault", ["cut_body", "reset_in_body", "slow_down"])
def test_broken_responses_are_an_error_after_the_attempts_of_the_policy_and_the_dataset_stays_usable(
    kind: Kind, on_s3: Place, moto: S3Server, fault: str
) -> None:
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        dataset = kind.make(on_s3.url, storage_options=options, retry=AT_ONCE)
        dataset.__getitems__([5, 6])
        store.faults = only(fault)
        with pytest.raises(TransientStorageError, match=rf"{kind.object_of(5)}.*Gave up after 2 attempts"):
            dataset.__getitems__([5, 6])
        store.faults = Faults()
        assert dataset.__getitems__([6, 5]) == [kind.items(on_s3)[6], kind.items(on_s3)[5]]


def test_every_item_is_right_through_a_storm(kind: Kind, on_s3: Place, moto: S3Server) -> None:
    items = kind.items(on_s3)
    with faulty(moto, Faults.storm(0.3), seed=1) as (server, store):
        dataset = kind.make(on_s3.url, storage_options=server.storage_options, retry=PATIENT)
        for seed in range(3):
            order = random.Random(seed).choices(range(NUM_ITEMS), k=20)
            assert list(dataset.batches([order[:9], [], order[9:]])) == [
                [items[at] for at in order[:9]],
                [],
                [items[at] for at in order[9:]],
            ]
        assert sum(count for fault, count in store.counts.items() if fault != "well") > 5


def test_objects_of_a_batch_are_requested_concurrently_up_to_the_limit(kind: Kind, in_memory: Place) -> None:
    """None of five is answered before all have arrived; and never more than max_in_flight at once."""
    items, wanted = kind.items(in_memory), [0, 5, 10, 15, 20]
    idx, rest = Together(5, ".idx"), Together(5, kind.object_of(0)[-4:])
    with timed_store(in_memory.files(), lambda key: idx(key) or rest(key)) as store:
        dataset = kind.make(store.url, storage_options=store.options, retry=AT_ONCE)
        found = dataset.__getitems__(wanted)
        where = root_of(in_memory)
        assert [str(item).replace("s3://timed/", where) for item in found] == [str(items[number]) for number in wanted]
    lock, three, running, most = threading.Lock(), threading.Event(), 0, 0

    def count(key: str) -> None:
        nonlocal running, most
        if not key.endswith(kind.object_of(0)[-4:]):
            return
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                three.set()
        three.wait(DEADLINE_S)
        with lock:
            running -= 1

    with timed_store(in_memory.files(), count) as store:
        dataset = kind.make(store.url, storage_options=store.options, max_in_flight=3)
        assert len(dataset.__getitems__(range(NUM_ITEMS))) == NUM_ITEMS
    assert most == 3


def test_an_object_deleted_later_is_an_error_and_others_are_read(kind: Kind, place: Place) -> None:
    kind.fill(place)
    dataset, items = of(kind, place, retry=AT_ONCE), kind.items(place)
    place.delete(kind.object_of(12))
    batches = dataset.batches([[0, 1], [20], [3, 12], [4]])
    assert [next(batches), next(batches)] == [items[:2], [items[20]]]
    with pytest.raises(tdr.errors.ObjectNotFoundError, match=kind.object_of(12)) as caught:
        next(batches)
    assert str(caught.value.url).endswith(kind.object_of(12))
    assert dataset.__getitems__([6, 8, 6]) == [items[6], items[8], items[6]]


def test_an_object_replaced_later_is_an_error_and_never_another_item(kind: Kind, place: Place) -> None:
    kind.fill(place)
    dataset = of(kind, place, retry=AT_ONCE)
    before = dataset[6]
    name = kind.object_of(12)
    place.put({name: bytes(700) + place.files()[name]})
    with pytest.raises((StorageError, tdr.errors.ShardReadError), match=name):
        dataset[12]
    assert dataset[6] == before
