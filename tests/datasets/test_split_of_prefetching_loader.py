"""``PrefetchingLoader`` divides its items over ranks, and goes on in any world."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from tests.datasets.stores import as_they_are, timed_store
from torchdata_remote import World
from torchdata_remote.datasets import PrefetchingLoader, RemoteFiles
from torchdata_remote.datasets._map_style import MapStyle
from torchdata_remote.errors import StateError, UnsplitError


class Numbers(MapStyle[int]):
    """Items that are their own numbers; ``read`` are those that were asked for."""

    def __init__(self, num_items: int) -> None:
        self.num_items = num_items
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.num_items

    def _items(self, batches: Iterable[Any]) -> Any:
        for batch in batches:
            self.read += batch
            yield list(batch)


def loaders(dataset: Numbers, num_ranks: int, batch_size: int | None = 2, **options: Any) -> list[Any]:
    """One for each rank."""
    return [
        PrefetchingLoader(dataset, batch_size, collate_fn=as_they_are, world=World(rank, num_ranks), **options)
        for rank in range(num_ranks)
    ]


def in_step(ranks: list[Any], num_steps: int | None = None) -> list[list[list[int]]]:
    """The batches of so many steps: of each step those of all ranks. ``None`` takes all, equally many of each rank."""
    return [list(step) for step in zip(*[islice(rank, num_steps) for rank in ranks], strict=True)]


def items(steps: list[list[list[int]]]) -> list[int]:
    return list(chain.from_iterable(chain.from_iterable(steps)))


WORLDS = st.integers(1, 7)


@given(num_items=st.integers(0, 60), ranks=WORLDS, batch_size=st.integers(2, 7), seed=st.none() | st.integers(0, 9))
@example(num_items=23, ranks=3, batch_size=4, seed=None)
def test_all_ranks_together_read_each_item_once(num_items: int, ranks: int, batch_size: int, seed: int | None) -> None:
    """In equally many batches, none of them empty or too long; ``len`` is their number."""
    assume(num_items == 0 or num_items >= ranks)
    given_ranks = loaders(Numbers(num_items), ranks, batch_size, shuffle=seed is not None, seed=seed)
    for _ in range(2):
        steps = in_step(given_ranks)
        assert sorted(items(steps)) == list(range(num_items))
        assert all(1 <= len(batch) <= batch_size for step in steps for batch in step)
        assert {len(rank) for rank in given_ranks} == {len(steps)} == {-(-num_items // (ranks * batch_size))}


@given(
    num_items=st.integers(1, 60),
    worlds=st.lists(st.tuples(WORLDS, st.integers(2, 5), st.integers(0, 4)), min_size=1, max_size=4),
    seed=st.none() | st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_any_number_of_ranks_resumes_from_the_state_of_any_rank(
    num_items: int, worlds: list[tuple[int, int, int]], seed: int | None, epoch: int
) -> None:
    """With any batch size, repeatedly: each item once, in the order of one process."""
    assume(all(num_items >= ranks for ranks, _, _ in worlds))
    shuffling: dict[str, Any] = {"shuffle": seed is not None, "seed": seed}
    [alone] = loaders(Numbers(num_items), 1, 5, **shuffling)
    alone.set_epoch(epoch)
    whole = items(in_step([alone]))
    found: list[int] = []
    state: Any = alone.state_dict() | {"epoch": epoch}
    for number, (ranks, batch_size, num_steps) in enumerate(worlds):
        current = loaders(Numbers(num_items), ranks, batch_size, **shuffling)
        for rank in current:
            rank.load_state_dict(json.loads(json.dumps(state)))
        is_last = number == len(worlds) - 1
        try:
            steps = in_step(current, None if is_last else num_steps)
        except UnsplitError:
            assert 0 < num_items - len(found) < ranks  # fewer are left than there are ranks
            return
        found += items(steps)
        states = [rank.state_dict() for rank in current]
        assert all(other == states[0] for other in states)
        state = states[0]
        if state["epoch"] > epoch:
            break
    assert found == whole


@given(num_items=st.integers(1, 40), ranks=WORLDS, shuffle=st.booleans(), batch_size=st.sampled_from([None, 1, 3]))
def test_equalize_drop_drops_fewer_items_than_ranks(
    num_items: int, ranks: int, shuffle: bool, batch_size: int | None
) -> None:
    """Different ones each epoch; all are read within ``num_items`` epochs."""
    assume(num_items >= ranks)
    given_ranks = loaders(Numbers(num_items), ranks, batch_size, shuffle=shuffle, equalize="drop")
    steps_of_epochs = [in_step([*given_ranks]) for _ in range(num_items)]
    seen: Counter[int] = Counter()
    for steps in steps_of_epochs:
        counts = Counter(steps_items(steps, batch_size))
        assert sum(counts.values()) == len(counts) == num_items // ranks * ranks
        assert all(len({1 if batch_size is None else len(batch) for batch in step}) == 1 for step in steps)
        seen += counts
    assert shuffle or len(seen) == num_items


def steps_items(steps: list[Any], batch_size: int | None) -> list[int]:
    return [item for step in steps for batch in step for item in ([batch] if batch_size is None else batch)]


@given(num_items=st.integers(1, 40), ranks=WORLDS, shuffle=st.booleans(), stop=st.integers(0, 9), later=WORLDS)
def test_equalize_repeat_repeats_fewer_items_than_ranks(
    num_items: int, ranks: int, shuffle: bool, stop: int, later: int
) -> None:
    """Also if another world resumes."""
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 0 if shuffle else None, "equalize": "repeat"}
    counts = Counter(items(in_step(loaders(Numbers(num_items), ranks, 1, **options))))
    assert len(counts) == num_items
    assert sum(counts.values()) == -(-num_items // ranks) * ranks
    started = loaders(Numbers(num_items), ranks, 1, **options)
    first = items(in_step(started, min(stop, len(started[0]))))
    rest = loaders(Numbers(num_items), later, 1, **options)
    for rank in rest:
        rank.load_state_dict(started[0].state_dict())
    both = Counter(first + items(in_step(rest)))
    assert len(both) == num_items
    assert sum(both.values()) < num_items + max(ranks, later)


@given(num_items=st.integers(0, 40), ranks=WORLDS, batch_size=st.integers(1, 4))
def test_drop_last_keeps_full_batches_in_all_ranks(num_items: int, ranks: int, batch_size: int) -> None:
    """As many as possible."""
    given_ranks = loaders(Numbers(num_items), ranks, batch_size, drop_last=True)
    steps = in_step(given_ranks)
    assert {len(batch) for step in steps for batch in step} <= {batch_size}
    assert len(steps) == len(given_ranks[0]) == num_items // (ranks * batch_size)
    assert items(steps) == list(range(len(steps) * ranks * batch_size))


@pytest.mark.parametrize(("num_items", "batch_size"), [(7, 1), (7, None), (1, 4)])
def test_unequal_numbers_of_batches_are_refused(num_items: int, batch_size: int | None) -> None:
    """Before the first item; each of the two remedies in the message works."""
    dataset = Numbers(num_items)
    for rank in loaders(dataset, 2, batch_size):
        for begin in (iter, len):
            with pytest.raises(UnsplitError, match=r"2 ranks different numbers.*equalize='drop'.*equalize='repeat'"):
                begin(rank)
    assert not dataset.read
    assert {len(rank) for rank in loaders(dataset, 2, batch_size, equalize="repeat")} == {(num_items + 1) // 2}
    if num_items == 1:
        with pytest.raises(UnsplitError, match=r"1 items for 2 ranks.*equalize='repeat'"):
            iter(loaders(dataset, 2, batch_size, equalize="drop")[0])


def test_ranks_without_a_seed_use_seed_0() -> None:
    """A single process uses torch's generator, unless it resumes their state."""
    dataset = Numbers(30)
    ranks, seeded = loaders(dataset, 2, shuffle=True), loaders(dataset, 2, shuffle=True, seed=0)
    first = in_step(ranks)
    assert first == in_step(seeded)
    assert first != in_step(ranks)
    [alone] = loaders(dataset, 1, shuffle=True)
    torch.manual_seed(5)
    batches = list(alone)
    torch.manual_seed(5)
    assert batches == list(DataLoader(dataset, 2, shuffle=True, collate_fn=as_they_are))
    started = loaders(dataset, 2, shuffle=True)
    done = items(in_step(started, 3))
    alone.load_state_dict(started[1].state_dict())
    assert sorted(done + list(chain.from_iterable(alone))) == list(range(30))


def test_world_of_one_rank_reads_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sampler can."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader: Any = PrefetchingLoader(Numbers(5), 2, collate_fn=as_they_are, world=World())
    assert list(loader) == [[0, 1], [2, 3], [4]]
    half: Any = PrefetchingLoader(Numbers(5), 2, collate_fn=as_they_are)
    assert list(half) == [[1, 2], [4]]


def test_epochs_are_counted_across_resumes() -> None:
    """``set_epoch`` sets any epoch, and drops a state of another one."""

    def make() -> Any:
        return PrefetchingLoader(Numbers(9), 2, shuffle=True, seed=4, collate_fn=as_they_are)

    through = make()
    orders = [list(through) for _ in range(4)]
    assert len({str(order) for order in orders}) == 4
    started, later = make(), make()
    for _ in started:
        pass
    assert list(islice(started, 2)) == orders[1][:2]
    state = started.state_dict()
    later.load_state_dict(state)
    assert later.state_dict() == state
    later.set_epoch(1)
    assert [list(later) for _ in range(3)] == [orders[1][2:], orders[2], orders[3]]
    later.load_state_dict(state)
    later.set_epoch(3)
    assert list(later) == orders[3]
    with pytest.raises(ValueError, match="at least 0"):
        later.set_epoch(-1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iterator_without_a_batch_is_not_an_epoch(num_workers: int) -> None:
    """Trainers create iterators that they drop, and set the epoch of an existing one."""

    def make() -> Any:
        options: dict[str, Any] = {"shuffle": True, "seed": 4, "num_workers": num_workers}
        return PrefetchingLoader(Numbers(9), 2, collate_fn=as_they_are, **options)

    through = make()
    orders = [list(through) for _ in range(3)]
    loader = make()
    iter(loader)
    batches = iter(loader)
    loader.set_epoch(0)
    assert list(islice(batches, 2)) == orders[0][:2]
    later = make()
    later.load_state_dict(loader.state_dict())
    iter(later)
    batches = iter(later)
    later.set_epoch(0)
    assert list(batches) == orders[0][2:]
    batches = iter(later)
    later.set_epoch(2)
    assert list(batches) == orders[2]


def test_state_after_the_last_batch_and_after_the_pass() -> None:
    """Nothing is left of the epoch; then it is the start of the next one."""
    loader: Any = PrefetchingLoader(Numbers(4), 2, collate_fn=as_they_are)
    fresh: Any = PrefetchingLoader(Numbers(4), 2, collate_fn=as_they_are)
    batches = iter(loader)
    assert loader.state_dict() == fresh.state_dict()
    next(batches), next(batches)
    fresh.load_state_dict(loader.state_dict())
    assert (list(fresh), list(fresh)) == ([], [[0, 1], [2, 3]])
    assert next(batches, None) is None
    assert loader.state_dict() == {**PrefetchingLoader(Numbers(4), 2).state_dict(), "epoch": 1}


def test_length_of_a_resumed_epoch_includes_the_batches_done() -> None:
    """In any world, so that a trainer that counts steps reaches the end."""
    two = loaders(Numbers(120), 2, 4)
    in_step(two, 5)
    three = loaders(Numbers(120), 3, 4)
    assert {len(rank) for rank in three} == {10}
    for rank in three:
        rank.load_state_dict(two[0].state_dict())
    assert {len(rank) for rank in three} == {5 + 7}
    assert len(in_step(three)) == 7
    assert {len(rank) for rank in three} == {10}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_requests_nothing_that_is_done(num_workers: int) -> None:
    """With and without workers; the rest has the same order."""
    objects = {f"{number:02d}.bin": b"%d" % number for number in range(16)}
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "collate_fn": as_they_are, "num_workers": num_workers}
    with timed_store(objects) as store:

        def make() -> Any:
            dataset = RemoteFiles(store.url, storage_options=store.options, max_in_flight=2)
            return PrefetchingLoader(dataset, 3, **options)

        whole = list(make())
        loader = make()
        assert list(islice(loader, 2)) == whole[:2]
        rest = make()
        rest.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        asked_before = len(store.asked)
        assert list(rest) == whole[2:]
        done = {url.rpartition("/")[2] for batch in whole[:2] for url, _ in batch}
        again = {key.rpartition("/")[2] for key in store.asked[asked_before:]}
        assert again & set(objects) == set(objects) - done


SAMPLERS: dict[str, Any] = {
    "in order": lambda data: {"sampler": SequentialSampler(data)},
    "batches": lambda data: {"batch_sampler": [[1, 2], [3], [], [5, 6, 7]]},
    "batches of a sampler": lambda data: {"batch_sampler": BatchSampler(SequentialSampler(data), 3, drop_last=True)},
    "seeded": lambda data: {"sampler": RandomSampler(data, generator=torch.Generator().manual_seed(3))},
    "by a generator": lambda data: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "distributed": lambda data: {"sampler": DistributedSampler(data, 2, 1)},
    "single items": lambda data: {"sampler": SequentialSampler(data), "batch_size": None},
}


@pytest.mark.parametrize(
    ("sampler", "num_workers"),
    [*((sampler, 0) for sampler in SAMPLERS), ("by a generator", 2), ("distributed", 2)],
)
def test_resumes_with_a_sampler_that_yields_the_same_order(sampler: str, num_workers: int) -> None:
    """After any batch; then the sampler's next epoch follows."""

    def make() -> Any:
        data = Numbers(23)
        return PrefetchingLoader(data, collate_fn=as_they_are, num_workers=num_workers, **SAMPLERS[sampler](data))

    through = make()
    epochs = [list(through) for _ in range(2)]
    for num_taken in (0, 1, len(epochs[0]) - 1, len(epochs[0])):
        loader, rest = make(), make()
        batches = iter(loader)
        assert list(islice(batches, num_taken)) == epochs[0][:num_taken]
        rest.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert [list(rest) for _ in range(2)] == [epochs[0][num_taken:], epochs[1]]


def begun_state(num_items: int = 9, **options: Any) -> Any:
    """A state in mid-epoch."""
    loader: Any = PrefetchingLoader(Numbers(num_items), 2, collate_fn=as_they_are, **options)
    batches = iter(loader)
    next(batches), next(batches)
    return loader.state_dict()


SEEDED: dict[str, Any] = {"shuffle": True, "seed": 1}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another seed": (SEEDED, {"shuffle": True, "seed": 2}, "the state has seed=1, here it is 2"),
    "not shuffled": (SEEDED, {}, "the state has shuffle=True, here it is False"),
    "other items": (SEEDED, {**SEEDED, "num_items": 8}, "the state has num_items=9, here it is 8"),
    "torch's order": ({"shuffle": True}, {"shuffle": True}, "no sampler but shuffle=True and seed="),
    "torch's order, divided": ({"shuffle": True}, SEEDED, "or shuffled without seed=.*set_epoch.1."),
    "a sampler's order": ({"sampler": range(9)}, {"sampler": range(8, -1, -1)}, "'digest .* the sampler yields"),
    "no sampler": ({"sampler": range(9)}, {}, "had a sampler"),
    "a sampler": ({}, {"sampler": range(9)}, "had no sampler"),
    "another rank's epoch": (
        {"sampler": DistributedSampler(range(9), 2, 0)},  # type: ignore[arg-type]
        {"sampler": DistributedSampler(range(9), 3, 0)},  # type: ignore[arg-type]
        "DistributedSampler of 9 items, 2 ranks.*seed=0.*3 ranks",
    ),
}


@pytest.mark.parametrize(("before", "after", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_resuming_with_another_order_is_refused(before: dict[str, Any], after: dict[str, Any], message: str) -> None:
    """Before the first item; a state of the start of an epoch fits any order."""
    state, options = begun_state(**before), {**after}
    dataset = Numbers(options.pop("num_items", 9))
    loader: Any = PrefetchingLoader(dataset, 2, collate_fn=as_they_are, **options)
    loader.load_state_dict(state)
    with pytest.raises(StateError, match=message):
        list(loader)
    assert not dataset.read
    loader.load_state_dict({**state, "batches_done": 0, "items_done": 0})
    assert sum(map(len, loader)) == (3 if "DistributedSampler" in message else len(dataset))


def test_state_with_a_distributed_sampler_is_the_same_in_all_ranks() -> None:
    """So a checkpoint of rank 0 suffices; ``set_epoch`` reaches the sampler."""
    data = Numbers(20)

    def make(rank: int) -> Any:
        sampler: Any = DistributedSampler(data, 2, rank)
        return PrefetchingLoader(data, 2, sampler=sampler, collate_fn=as_they_are)

    first, second = make(0), make(1)
    first.set_epoch(3)
    second.set_epoch(3)
    assert second.sampler.epoch == 3
    whole = list(second)
    second.set_epoch(3)
    batches = iter(first)
    next(batches), next(batches)
    second.load_state_dict(first.state_dict())
    assert list(second) == whole[2:]
    second.load_state_dict(first.state_dict())
    second.sampler.set_epoch(4)
    with pytest.raises(StateError, match=r"epoch=3.*epoch=4"):
        list(second)


@pytest.mark.parametrize("state", [None, [], {}, {"version": 2}, {"version": 1, "epoch": 0}])
def test_invalid_state_is_refused_when_it_is_loaded(state: Any) -> None:
    """Before iteration."""
    with pytest.raises(StateError, match="Expected the state_dict"):
        PrefetchingLoader(Numbers(9)).load_state_dict(state)


@pytest.mark.parametrize(
    "damaged",
    [
        {"moved": 3},
        {"moved": [10, 0]},
        {"epoch": -1},
        {"epoch": True},
        {"items_done": 10},
        {"batches_done": "1"},
        {"seed": "1"},
        {"order": 1},
    ],
)
def test_damaged_state_is_refused_when_it_is_loaded(damaged: dict[str, Any]) -> None:
    """It never leads to other items."""
    with pytest.raises(StateError, match="Expected the state_dict"):
        PrefetchingLoader(Numbers(9)).load_state_dict({**begun_state(), **damaged})


@pytest.mark.parametrize("missing", ["items_done", "moved"])
def test_incomplete_state_is_refused_when_it_is_loaded(missing: str) -> None:
    """As a damaged one."""
    state = {name: value for name, value in begun_state().items() if name != missing}
    with pytest.raises(StateError, match="Expected the state_dict"):
        PrefetchingLoader(Numbers(9)).load_state_dict(state)


def test_contradicting_options_are_refused() -> None:
    """By a ``ValueError``."""
    data: Any = Numbers(3)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"seed": 1}, "seed= requires shuffle=True"),
        ({"shuffle": True, "seed": 1, "generator": torch.Generator()}, "without a generator"),
        ({"shuffle": True, "seed": 1, "sampler": [1]}, "a sampler exclude each other"),
        ({"sampler": [1], "equalize": "drop"}, "A sampler selects"),
        ({"sampler": [1], "world": World()}, "A sampler selects"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            PrefetchingLoader(data, **options)
    with pytest.raises(ValueError, match="no_such"):
        PrefetchingLoader(data, equalize="no_such")


def test_state_is_refused_while_another_loader_reads_by_the_sampler() -> None:
    """A trainer has rebuilt the loader: the position is unknown, and a state of the start would be wrong."""
    loader: Any = PrefetchingLoader(Numbers(12), 2, shuffle=True, seed=0, collate_fn=as_they_are)
    before = loader.state_dict()
    assert len(loader.sampler) == 12
    assert loader.state_dict() == before
    for read in (loader.sampler, loader.batch_sampler):
        next(iter(read))
        with pytest.raises(StateError, match=r"another loader.* Iterate the PrefetchingLoader itself"):
            loader.state_dict()
        loader.sampler.set_epoch(0)
    batches = iter(loader)
    next(batches)
    started = loader.state_dict()
    list(loader.batch_sampler)
    assert loader.state_dict() == started


def test_rank_sampler_is_kept_by_ray() -> None:
    """``prepare_data_loader`` replaces other samplers. Its wrapper copies ``vars``, where training loops find it."""
    loader: Any = PrefetchingLoader(Numbers(9), 2, world=World(1, 3))
    assert isinstance(loader.sampler, DistributedSampler)
    vars(loader)["sampler"].set_epoch(2)
    assert loader.state_dict()["epoch"] == 2
