"""``PrefetchingLoader``: the batches of torch's ``DataLoader``, the next ones under way, in any world."""

from __future__ import annotations

import functools
import gc
import json
import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

import torchdata_remote as tdr
from tests.datasets.stores import AT_ONCE, Plain, Together, as_they_are, timed_store, until_error
from tests.servers.scripted import Response
from tests.support.shard_places import Place
from tests.support.waiting import new_threads, wait_for
from tests.support.written import read, without_url
from torchdata_remote.errors import AccessDeniedError, StateError

NUM_ITEMS = 23
OBJECTS = {f"{number:02d}.bin": bytes([number]) * (1 + number * 31 % 200) for number in range(NUM_ITEMS)}
INDEX = [f"memory://numbers/{number:03d}" for number in range(130)]
WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
pytestmark = pytest.mark.filterwarnings(
    "ignore:Ranks have different numbers of batches:RuntimeWarning", "ignore:This DataLoader will create:UserWarning"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder of files, and one of shards with the same data."""
    place = Place(f"{tmp_path_factory.mktemp('loader')}/")
    place.below("files").put(OBJECTS)
    with tdr.ShardWriter(f"{place.url}shards/{{shard}}.tar", max_shard_samples=5) as writer:
        for name, data in OBJECTS.items():
            writer.write({"__key__": name[:2], "bin": data})
    return place


def files_of(place: Place, **options: Any) -> Any:
    return tdr.RemoteFiles(f"{place.url}files/", **options)


class Numbers(tdr.RemoteFiles):
    """Files whose items are their numbers, which takes no request; ``read`` are those that were asked for."""

    def __init__(self, num_items: int) -> None:
        super().__init__("memory://numbers/", index=INDEX, limit=num_items)
        self.read: list[int] = []

    def batches(self, batches: Iterable[Any]) -> Any:
        for batch in batches:
            self.read += map(int, batch)
            yield list(map(int, batch))


numbers_of = functools.cache(Numbers)


def loader_of(num_items: int = 9, batch_size: int | None = 2, **options: Any) -> Any:
    return tdr.PrefetchingLoader(numbers_of(num_items), batch_size, collate_fn=as_they_are, **options)


def loaders(num_items: int, num_ranks: int, batch_size: int | None = 2, **options: Any) -> list[Any]:
    """One for each rank."""
    return [loader_of(num_items, batch_size, world=tdr.World(rank, num_ranks), **options) for rank in range(num_ranks)]


def items(ranks: list[Any], num_steps: int | None = None) -> list[int]:
    """The items of so many steps of all ranks. ``None`` takes all."""
    return [item for rank in ranks for batch in islice(rank, num_steps) for item in batch]


def merged(ranks: list[Any]) -> Any:
    """The state of all ranks, as it comes back from a checkpoint."""
    return json.loads(json.dumps(tdr.merge_states([rank.state_dict() for rank in ranks])))


# One rank

ORDERS: dict[str, Any] = {
    "as it is": dict,
    "in batches": lambda: {"batch_size": 3},
    "last left out": lambda: {"batch_size": 4, "drop_last": True},
    "more workers than batches": lambda: {"batch_size": 20},
    "single items": lambda: {"batch_size": None},
    "single items, by a sampler": lambda: {"batch_size": None, "sampler": torch.arange(10)},
    "shuffled by a sampler": lambda: {"batch_size": 4, "sampler": random_sampler()},
    "with replacement": lambda: {"batch_size": 4, "sampler": random_sampler(replacement=True, num_samples=40)},
    "from behind": lambda: {"batch_size": 2, "sampler": [-1, -2, -NUM_ITEMS]},
    "of torch": lambda: {"batch_size": 3, "sampler": torch.arange(10)},
    "uneven batches": lambda: {"batch_sampler": [[3], [1, 1, 1], list(range(NUM_ITEMS)), [22]]},
    "batches of a sampler": lambda: {"batch_sampler": BatchSampler(random_sampler(), 4, drop_last=True)},
    "nothing": lambda: {"batch_size": 4, "sampler": []},
    "of a distributed sampler": lambda: {"sampler": distributed(NUM_ITEMS)},
}


def distributed(num_items: int) -> Any:
    return DistributedSampler(range(num_items), 2, 1, seed=3)  # type: ignore[arg-type]


def random_sampler(**options: Any) -> Any:
    return RandomSampler(range(NUM_ITEMS), generator=torch.Generator().manual_seed(3), **options)


def check_same(place: Place, make: Any, num_epochs: int = 2, **options: Any) -> None:
    """``DataLoader`` over a plain dataset gives the same, and ``len`` is the same."""
    shards = place.below("shards")
    loader: Any = tdr.PrefetchingLoader(tdr.ShardedDataset(shards.url, transform=key_of), **make(), **options)
    plain: Any = DataLoader(Plain(read(shards), key_of), **make(), **{**options, "num_workers": 0})
    assert len(loader) == len(plain)
    assert [list(loader) for _ in range(num_epochs)] == [list(plain) for _ in range(num_epochs)]


def key_of(sample: dict[str, Any]) -> Any:
    return sample["__key__"]


@pytest.mark.parametrize("order", ORDERS)
def test_batches_and_their_number_are_those_of_data_loader_in_each_epoch(place: Place, order: str) -> None:
    check_same(place, ORDERS[order])


@pytest.mark.parametrize(
    "order", ["in batches", "more workers than batches", "shuffled by a sampler", "uneven batches"]
)
def test_workers_give_the_batches_of_data_loader_in_its_order(place: Place, order: str) -> None:
    loader: Any = tdr.PrefetchingLoader(files_of(place), collate_fn=names_of, num_workers=3, **ORDERS[order]())
    plain: Any = DataLoader(files_of(place), collate_fn=names_of, **ORDERS[order]())
    assert [list(loader), list(loader)] == [list(plain), list(plain)]


def names_of(batch: list[Any]) -> list[str]:
    return [url for url, _ in batch]


@given(batches=st.lists(st.lists(st.integers(-NUM_ITEMS, NUM_ITEMS - 1), max_size=9), max_size=9))
def test_any_batch_sampler_gives_the_batches_of_data_loader_and_empty_ones_reach_collate_fn(
    place: Place, batches: list[list[int]]
) -> None:
    check_same(place, lambda: {"batch_sampler": batches}, 1, collate_fn=as_they_are)


def test_options_reach_the_loader_and_are_checked(place: Place) -> None:
    numbers = multiprocessing.Queue()  # type: ignore[var-annotated]
    dataset = files_of(place)
    list(tdr.PrefetchingLoader(dataset, 4, prefetch_factor=1, worker_init_fn=numbers.put, collate_fn=len, **WORKERS))
    assert sorted(numbers.get(timeout=60) for _ in range(2)) == [0, 1]
    loader = tdr.PrefetchingLoader(dataset, 4, shuffle=True, drop_last=True)
    assert (loader.batch_size, loader.drop_last) == (4, True), "trainers read them"
    for wrong, kind, message in (
        ({"no_such": 1}, TypeError, "no_such"),
        ({"generator": torch.Generator()}, TypeError, "generator"),
        ({"seed": 1}, ValueError, "seed= requires shuffle=True"),
        ({"shuffle": True, "sampler": [1]}, ValueError, "A sampler selects"),
        ({"batch_sampler": [[1]], "equalize": "drop"}, ValueError, "A sampler selects"),
        ({"sampler": [1], "world": tdr.World()}, ValueError, "A sampler selects"),
        ({"batch_sampler": [[1]], "sampler": [1]}, ValueError, "batch_sampler= makes the batches"),
        ({"batch_sampler": [[1]], "batch_size": 2}, ValueError, "batch_sampler= makes the batches"),
        ({"batch_sampler": [[1]], "drop_last": True}, ValueError, "batch_sampler= makes the batches"),
        ({"equalize": "no_such"}, ValueError, "no_such"),
    ):
        with pytest.raises(kind, match=message):
            tdr.PrefetchingLoader(dataset, **wrong)
    for other in (Plain([]), torch.utils.data.Subset(dataset, [1])):
        with pytest.raises(TypeError, match="another dataset by DataLoader; for a subset"):
            tdr.PrefetchingLoader(other)  # type: ignore[arg-type]
    for index in (1.5, True, "1", None):
        with pytest.raises(TypeError, match="by its index"):
            list(tdr.PrefetchingLoader(dataset, sampler=[0, index]))  # type: ignore[list-item]


@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["here", "workers"])
def test_an_error_comes_in_its_batch_with_its_type_and_url_and_the_next_epoch_is_read(workers: dict[str, Any]) -> None:
    refused: list[str] = ["13.bin"]
    answer = Response.of_error(403, "AccessDenied")
    with timed_store(OBJECTS, lambda key: answer if key in refused else None) as store:
        dataset: Any = tdr.RemoteFiles(store.url, storage_options=store.options, retry=AT_ONCE)
        options: dict[str, Any] = {"collate_fn": as_they_are, **workers}
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
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_next_batch_is_requested_before_the_current_one_is_answered(
    place: Place, num_workers: int, shuffle: bool
) -> None:
    """No request of the first two batches is answered before all of them have arrived."""
    options: dict[str, Any] = {
        "batch_size": 4,
        "num_workers": num_workers,
        "collate_fn": as_they_are,
        "shuffle": shuffle,
    }
    with timed_store(OBJECTS, Together(8)) as store:
        files: Any = tdr.RemoteFiles(store.url, storage_options=store.options, max_in_flight=8, retry=AT_ONCE)
        found = [data for batch in tdr.PrefetchingLoader(files, **options) for _, data in batch]
        assert sorted(found) == sorted(OBJECTS.values())
    with timed_store(place.below("shards").files(), Together(3, ".tar")) as store:
        shards: Any = tdr.ShardedDataset(store.url, storage_options=store.options, retry=AT_ONCE)
        samples = [sample for batch in tdr.PrefetchingLoader(shards, **options) for sample in batch]
        assert sorted(without_url(samples), key=key_of) == read(place.below("shards"))


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
def test_processes_and_threads_end_with_the_loader_also_after_an_early_break(place: Place, num_workers: int) -> None:
    before, processes = set(threading.enumerate()), set(multiprocessing.active_children())  # others' may still end
    dataset = files_of(place, max_in_flight=4)
    loader: Any = tdr.PrefetchingLoader(dataset, batch_size=2, num_workers=num_workers, collate_fn=as_they_are)
    for _ in range(3):
        for _ in loader:
            break
    assert [data for batch in loader for _, data in batch] == list(OBJECTS.values())
    del dataset, loader
    gc.collect()
    assert set(multiprocessing.active_children()) <= processes
    wait_for(lambda: not new_threads(before))


class Counting:
    """A sampler that counts its epochs."""

    def __init__(self) -> None:
        self.num_epochs = 0

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[int]:
        self.num_epochs += 1
        return iter(range(5))


@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["here", "workers"])
def test_a_sampler_is_iterated_once_an_epoch_in_the_process_that_iterates(place: Place, workers: Any) -> None:
    sampler = Counting()
    loader: Any = tdr.PrefetchingLoader(files_of(place), batch_size=2, sampler=sampler, **workers)
    for _ in range(2):
        assert len(loader) == 3
        assert [len(urls) for urls, _ in loader] == [2, 2, 1]
    assert sampler.num_epochs == 2


# Several ranks

WORLDS = st.integers(1, 7)


@given(num_items=st.integers(1, 60), ranks=WORLDS, batch_size=st.integers(1, 7), drop_last=st.booleans())
def test_ranks_that_shuffle_split_an_order_and_end_together(
    num_items: int, ranks: int, batch_size: int, drop_last: bool
) -> None:
    """Only what does not fill a batch in each rank is left out, other items in each epoch."""
    given_ranks = loaders(num_items, ranks, batch_size, shuffle=True, drop_last=drop_last)
    for _ in range(2):
        batches = [list(rank) for rank in given_ranks]
        assert {len(of_rank) for of_rank in batches} == {len(rank) for rank in given_ranks}
        found = [item for of_rank in batches for batch in of_rank for item in batch]
        assert len(set(found)) == len(found) > num_items - ranks * (batch_size if drop_last else 1)


@given(num_items=st.integers(1, 60), ranks=WORLDS, batch_size=st.integers(1, 7))
def test_ranks_that_do_not_shuffle_take_the_batches_of_one_by_turns(
    num_items: int, ranks: int, batch_size: int
) -> None:
    [alone] = loaders(num_items, 1, batch_size)
    whole = list(alone)
    for rank, loader in enumerate(loaders(num_items, ranks, batch_size)):
        assert list(loader) == whole[rank::ranks]
        assert len(loader) == len(whole[rank::ranks])


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(
    num_items=st.integers(1, 60),
    worlds=st.lists(st.tuples(WORLDS, st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_any_number_of_ranks_goes_on_from_the_state_of_all_and_with_shuffle_with_any_batch_size(
    num_items: int, worlds: list[tuple[int, int, int]], shuffle: bool, epoch: int
) -> None:
    """Repeatedly: each item once, but for what is left out so that all ranks end together."""
    state, found = None, list[int]()
    for number, (num_ranks, batch_size, num_steps) in enumerate(worlds):
        assume(num_items >= num_ranks)
        current = loaders(
            num_items, num_ranks, batch_size if shuffle else 2, shuffle=shuffle, seed=3 if shuffle else None
        )
        for rank in current:
            rank.set_epoch(epoch) if state is None else rank.load_state_dict(state)
        found += items(current, None if number == len(worlds) - 1 else num_steps)
        state = merged(current)
        if state["epoch"] > epoch:
            break
    assert len(set(found)) == len(found)
    assert len(found) > num_items - 7 * 5 if shuffle else len(found) == num_items


@given(num_items=st.integers(7, 40), ranks=WORLDS, shuffle=st.booleans(), batch_size=st.integers(1, 3))
def test_equalize_drops_or_repeats_fewer_items_than_ranks_and_others_in_each_epoch(
    num_items: int, ranks: int, shuffle: bool, batch_size: int
) -> None:
    dropping = loaders(num_items, ranks, batch_size, shuffle=shuffle, equalize="drop")
    seen: Counter[int] = Counter()
    for _ in range(num_items):
        counts = [Counter(items([rank])) for rank in dropping]
        assert {sum(count.values()) for count in counts} == {num_items // ranks}
        seen.update(chain.from_iterable(counts))
    assert len(seen) == num_items
    assert shuffle or max(seen.values()) - min(seen.values()) <= ranks
    repeating = loaders(num_items, ranks, batch_size, shuffle=shuffle, equalize="repeat")
    counts = [Counter(items([rank])) for rank in repeating]
    assert {sum(count.values()) for count in counts} == {-(-num_items // ranks)}
    assert len(set(chain.from_iterable(counts))) == num_items


def test_unequal_numbers_of_batches_are_said() -> None:
    for options in ({}, {"shuffle": True}):
        [loader, _] = loaders(7, 2, 1, **options)
        with pytest.warns(
            RuntimeWarning, match="Ranks have different numbers of batches: rank 1 has 3 and rank 0 has 4"
        ):
            assert len(list(loader)) == (3 if options else 4)


def test_the_world_is_that_of_the_environment_or_of_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(loader_of(5, world=tdr.World())) == [[0, 1], [2, 3], [4]]
    assert list(loader_of(5)) == [[2, 3]]
    assert list(loader_of(5, sampler=[4, 3])) == [[4, 3]], "ranks do not split a sampler"


# Epochs and states


def test_each_pass_is_an_epoch_and_set_epoch_sets_any() -> None:
    through = loader_of(30, shuffle=True, seed=4)
    orders = [list(through) for _ in range(3)]
    assert len({str(order) for order in orders}) == 3
    later = loader_of(30, shuffle=True, seed=4)
    later.set_epoch(1)
    assert [list(later) for _ in range(2)] == orders[1:]
    assert list(loader_of(30, shuffle=True)) == list(loader_of(30, shuffle=True, seed=0)) != orders[0]


@pytest.mark.parametrize("is_of_batches", [False, True])
def test_set_epoch_reaches_a_distributed_sampler(is_of_batches: bool) -> None:
    sampler = distributed(20)
    batches = BatchSampler(sampler, 3, drop_last=False)
    loader = loader_of(20, 1, batch_sampler=batches) if is_of_batches else loader_of(20, sampler=sampler)
    first = list(loader)
    loader.set_epoch(3)
    assert list(loader) != first
    loader.set_epoch(0)
    assert list(loader) == first


SAMPLERS: dict[str, Any] = {
    "none": lambda: {"batch_size": 3},
    "in order": lambda: {"sampler": SequentialSampler(range(23))},
    "batches": lambda: {"batch_sampler": [[1, 2], [3], [], [5, 6, 7]]},
    "seeded": lambda: {"sampler": random_sampler(), "batch_size": 4},
    "distributed": lambda: {"sampler": distributed(23)},
    "single items": lambda: {"sampler": SequentialSampler(range(23)), "batch_size": None},
}


@pytest.mark.parametrize(("sampler", "workers"), [*((sampler, {}) for sampler in SAMPLERS), ("seeded", WORKERS)])
def test_it_goes_on_with_a_sampler_that_yields_the_same_order(sampler: str, workers: dict[str, Any]) -> None:
    """After any batch; then the sampler's next epoch follows."""

    def make() -> Any:
        return loader_of(23, **{"batch_size": 1, **workers, **SAMPLERS[sampler]()})

    through = make()
    epochs = [list(through) for _ in range(2)]
    for num_taken in (0, 1, len(epochs[0]) - 1, len(epochs[0])):
        loader, rest = make(), make()
        batches = iter(loader)
        assert list(islice(batches, num_taken)) == epochs[0][:num_taken]
        rest.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert [list(rest) for _ in range(2)] == [epochs[0][num_taken:], epochs[1]]


@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["here", "workers"])
def test_nothing_that_is_done_is_requested_again(workers: dict[str, Any]) -> None:
    objects = {f"{number:02d}.bin": b"%d" % number for number in range(16)}
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "collate_fn": as_they_are, **workers}
    with timed_store(objects) as store:

        def make() -> Any:
            dataset: Any = tdr.RemoteFiles(store.url, storage_options=store.options, max_in_flight=2)
            return tdr.PrefetchingLoader(dataset, 3, **options)

        whole = list(make())
        loader = make()
        assert list(islice(loader, 2)) == whole[:2]
        rest = make()
        rest.load_state_dict(loader.state_dict())
        asked_before = len(store.asked)
        assert list(rest) == whole[2:]
        done = {url.rpartition("/")[2] for batch in whole[:2] for url, _ in batch}
        assert set(store.asked[asked_before:]) & set(objects) == set(objects) - done


SEEDED: dict[str, Any] = {"shuffle": True, "seed": 1}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another seed": (SEEDED, {"shuffle": True, "seed": 0}, "seed was 1, is 0"),
    "shuffled": ({}, SEEDED, "chain"),
    "other items": (SEEDED, {**SEEDED, "num_items": 8}, "MapStyleItems: names_digest was"),
    "another batch size": ({}, {"batch_size": 3}, "order of sampler or batch size"),
    "a sampler's order": ({"sampler": range(9)}, {"sampler": range(8, -1, -1)}, "order of sampler or batch size"),
    "a sampler": ({}, {"sampler": range(8)}, "order of sampler or batch size"),
}


def loaded(loader: Any, state: Any) -> Any:
    loader.load_state_dict(state)
    return loader


@pytest.mark.parametrize(("before", "after", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_another_order_than_that_of_the_state_is_refused_before_the_first_item(
    before: dict[str, Any], after: dict[str, Any], message: str
) -> None:
    begun, loader = loader_of(**before), loader_of(**after)
    next(iter(begun))
    dataset = numbers_of(after.get("num_items", 9))
    dataset.read.clear()
    with pytest.raises(StateError, match=message):
        list(loaded(loader, begun.state_dict()))
    assert not dataset.read


@pytest.mark.filterwarnings("ignore:Ranks have different numbers")
@pytest.mark.parametrize(("before", "after"), [(3, 2), (4, 3), (3, 5), (2, 2)])
@pytest.mark.parametrize("num_steps", [0, 3, None])
def test_a_job_that_goes_on_with_other_ranks_leaves_out_few_items_then_and_later(
    before: int, after: int, num_steps: int | None
) -> None:
    """In the epoch that is resumed less than a batch for each stream, and what equal ranks need in those after it."""
    first = loaders(120, before, shuffle=True)
    seen = items(first, num_steps) if num_steps != 0 else []
    state = merged(first)
    ranks = loaders(120, after, shuffle=True)
    for rank in ranks:
        rank.load_state_dict(state)
    if num_steps is not None:
        rest = items(ranks)
        assert len({*seen, *rest}) == len(seen) + len(rest) > 120 - 2 * 4 * max(before, after)
    for _ in range(2):
        later = items(ranks)
        assert len(set(later)) == len(later) > 120 - 2 * after
