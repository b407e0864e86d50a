"""``PrefetchingLoader`` divides its items over ranks, and goes on in any world."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

import torchdata_remote as tdr
from tests.datasets.stores import as_they_are, timed_store
from torchdata_remote.errors import StateError, UnsplitError

MOST = 130
INDEX = [f"memory://numbers/{number:03d}" for number in range(MOST)]


class Numbers(tdr.RemoteFiles):
    """Files whose items are their numbers, which takes no request; ``read`` are those that were asked for."""

    def __init__(self, num_items: int) -> None:
        super().__init__("memory://numbers/", index=INDEX, limit=num_items)
        self.read: list[int] = []

    def batches(self, batches: Iterable[Any]) -> Any:
        for batch in batches:
            self.read += batch
            yield list(batch)


dataset_of = functools.cache(Numbers)


def loader_of(num_items: int = 9, batch_size: int | None = 2, **options: Any) -> Any:
    return tdr.PrefetchingLoader(dataset_of(num_items), batch_size, collate_fn=as_they_are, **options)


def loaders(num_items: int, num_ranks: int, batch_size: int | None = 2, **options: Any) -> list[Any]:
    """One for each rank."""
    return [loader_of(num_items, batch_size, world=tdr.World(rank, num_ranks), **options) for rank in range(num_ranks)]


def in_step(ranks: list[Any], num_steps: int | None = None) -> list[list[list[int]]]:
    """The batches of so many steps: of each step those of all ranks. ``None`` takes all, equally many of each rank."""
    return [list(step) for step in zip(*[islice(rank, num_steps) for rank in ranks], strict=True)]


def items(steps: list[list[list[int]]]) -> list[int]:
    return list(chain.from_iterable(chain.from_iterable(steps)))


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


WORLDS = st.integers(1, 7)


@given(num_items=st.integers(1, 60), ranks=WORLDS, batch_size=st.integers(2, 7), seed=st.none() | st.integers(0, 9))
@example(num_items=23, ranks=3, batch_size=4, seed=None)
def test_all_ranks_together_read_each_item_once_in_equally_many_batches(
    num_items: int, ranks: int, batch_size: int, seed: int | None
) -> None:
    assume(num_items >= ranks)
    given_ranks = loaders(num_items, ranks, batch_size, shuffle=seed is not None, seed=seed)
    for _ in range(2):
        assert {rank.num_batches_left() for rank in given_ranks} == {-(-num_items // (ranks * batch_size))}
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
def test_any_number_of_ranks_and_any_batch_size_goes_on_from_the_state_of_any_rank(
    num_items: int, worlds: list[tuple[int, int, int]], seed: int | None, epoch: int
) -> None:
    """Repeatedly: each item once, in the order of one process."""
    assume(all(num_items >= ranks for ranks, _, _ in worlds))
    shuffling: dict[str, Any] = {"shuffle": seed is not None, "seed": seed}
    [alone] = loaders(num_items, 1, 5, **shuffling)
    alone.set_epoch(epoch)
    state, whole, found = alone.state_dict(), items(in_step([alone])), list[int]()
    for number, (ranks, batch_size, num_steps) in enumerate(worlds):
        current = loaders(num_items, ranks, batch_size, **shuffling)
        for rank in current:
            rank.load_state_dict(through_json(state))
        try:
            steps = in_step(current, None if number == len(worlds) - 1 else num_steps)
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
def test_equalize_drop_drops_fewer_items_than_ranks_and_others_in_each_epoch(
    num_items: int, ranks: int, shuffle: bool, batch_size: int | None
) -> None:
    assume(num_items >= ranks)
    given_ranks = loaders(num_items, ranks, batch_size, shuffle=shuffle, equalize="drop")
    seen: Counter[int] = Counter()
    for _ in range(num_items):
        steps: list[Any] = in_step(given_ranks)
        if batch_size is None:
            steps = [[[item] for item in step] for step in steps]
        counts = Counter(items(steps))
        assert sum(counts.values()) == len(counts) == num_items // ranks * ranks
        assert all(len({len(batch) for batch in step}) == 1 for step in steps)
        seen += counts
    assert shuffle or len(seen) == num_items


@given(num_items=st.integers(1, 40), ranks=WORLDS, shuffle=st.booleans(), stop=st.integers(0, 9), later=WORLDS)
def test_equalize_repeat_repeats_fewer_items_than_ranks_also_if_another_world_goes_on(
    num_items: int, ranks: int, shuffle: bool, stop: int, later: int
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 0 if shuffle else None, "equalize": "repeat"}
    counts = Counter(items(in_step(loaders(num_items, ranks, 1, **options))))
    assert len(counts) == num_items
    assert sum(counts.values()) == -(-num_items // ranks) * ranks
    started = loaders(num_items, ranks, 1, **options)
    first = items(in_step(started, min(stop, len(started[0]))))
    rest = loaders(num_items, later, 1, **options)
    for rank in rest:
        rank.load_state_dict(started[0].state_dict())
    both = Counter(first + items(in_step(rest)))
    assert len(both) == num_items
    assert sum(both.values()) < num_items + max(ranks, later)


@given(num_items=st.integers(1, 40), ranks=WORLDS, epoch=st.integers(0, 3), stop=st.integers(0, 9))
def test_a_state_continues_without_equalize(num_items: int, ranks: int, epoch: int, stop: int) -> None:
    assume(num_items >= ranks)
    started, [alone] = loaders(num_items, ranks, 1, equalize="drop"), loaders(num_items, 1)
    for rank in started:
        rank.set_epoch(epoch)
    first = items(in_step(started, min(stop, len(started[0]) - 1)))
    alone.load_state_dict(started[0].state_dict())
    assert sorted(first + items(in_step([alone]))) == list(range(num_items))


@given(num_items=st.integers(1, 40), ranks=WORLDS, batch_size=st.integers(1, 4))
def test_drop_last_keeps_as_many_full_batches_as_possible_in_all_ranks(
    num_items: int, ranks: int, batch_size: int
) -> None:
    given_ranks = loaders(num_items, ranks, batch_size, drop_last=True)
    steps = in_step(given_ranks)
    assert {len(batch) for step in steps for batch in step} <= {batch_size}
    assert len(steps) == len(given_ranks[0]) == num_items // (ranks * batch_size)
    assert items(steps) == list(range(len(steps) * ranks * batch_size))


@pytest.mark.parametrize(("num_items", "batch_size"), [(7, 1), (7, None), (1, 4)])
def test_unequal_numbers_of_batches_are_refused_before_the_first_item_with_remedies_that_work(
    num_items: int, batch_size: int | None
) -> None:
    for rank in loaders(num_items, 2, batch_size):
        rank.dataset.read.clear()
        for begin in (list, len):
            with pytest.raises(UnsplitError, match=r"2 ranks different numbers.*equalize='drop'.*equalize='repeat'"):
                begin(rank)
        assert not rank.dataset.read
    assert {len(rank) for rank in loaders(num_items, 2, batch_size, equalize="repeat")} == {(num_items + 1) // 2}
    assert {len(rank) for rank in loaders(num_items, 2, batch_size, equalize="drop")} == {num_items // 2}


def test_ranks_without_a_seed_use_seed_0_and_a_single_process_one_of_torchs_generator() -> None:
    ranks, seeded = loaders(30, 2, shuffle=True), loaders(30, 2, shuffle=True, seed=0)
    first = in_step(ranks)
    assert first == in_step(seeded)
    assert first != in_step(ranks), "another order in the next epoch"
    orders = []
    for _ in range(2):
        torch.manual_seed(5)
        alone = loader_of(30, shuffle=True)
        orders.append([list(alone), list(alone)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


@given(shuffled_alone=st.booleans(), num_steps=st.integers(1, 6))
def test_a_state_without_a_seed_has_that_of_its_epoch(shuffled_alone: bool, num_steps: int) -> None:
    """A single process continues what two ranks have begun, and the other way round."""
    before, after = loaders(30, 2, shuffle=True), [loader_of(30, shuffle=True)]
    before, after = (after, before) if shuffled_alone else (before, after)
    done = items(in_step(before, num_steps))
    for rank in after:
        rank.load_state_dict(through_json(before[0].state_dict()))
    assert sorted(done + items(in_step(after))) == list(range(30))


def test_the_world_is_that_of_the_environment_or_of_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(loader_of(5, world=tdr.World())) == [[0, 1], [2, 3], [4]]
    assert list(loader_of(5)) == [[1, 2], [4]]


def test_epochs_are_counted_across_states_and_set_epoch_sets_any() -> None:
    def make() -> Any:
        return loader_of(shuffle=True, seed=4)

    through = make()
    orders = [list(through) for _ in range(4)]
    assert len({str(order) for order in orders}) == 4
    started, later = make(), make()
    list(started)
    assert list(islice(started, 2)) == orders[1][:2]
    state = started.state_dict()
    later.load_state_dict(state)
    assert later.state_dict() == state
    later.set_epoch(1)
    assert [list(later) for _ in range(3)] == [orders[1][2:], orders[2], orders[3]]
    later.load_state_dict(state)
    later.set_epoch(3)
    assert list(later) == orders[3], "a state of another epoch is dropped"
    with pytest.raises(ValueError, match="at least 0"):
        later.set_epoch(-1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_without_a_batch_is_not_an_epoch(num_workers: int) -> None:
    """Trainers create iterators that they drop, and set the epoch of an existing one."""

    def make() -> Any:
        return loader_of(shuffle=True, seed=4, num_workers=num_workers)

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


def test_after_the_last_batch_nothing_is_left_and_after_the_pass_the_next_epoch_begins() -> None:
    loader, fresh = loader_of(4), loader_of(4)
    batches = iter(loader)
    assert loader.state_dict() == fresh.state_dict()
    next(batches), next(batches)
    fresh.load_state_dict(loader.state_dict())
    assert (list(fresh), list(fresh)) == ([], [[0, 1], [2, 3]])
    assert next(batches, None) is None
    fresh.set_epoch(1)
    assert loader.state_dict() == fresh.state_dict()


def test_the_length_is_that_of_a_whole_epoch_also_within_a_continued_one() -> None:
    two, three = loaders(120, 2, 4), loaders(120, 3, 4)
    in_step(two, 5)
    assert {len(rank) for rank in three} == {10}
    for rank in three:
        rank.load_state_dict(two[0].state_dict())
    assert {len(rank) for rank in three} == {10}
    assert {rank.num_batches_left() for rank in three} == {7}
    assert len(in_step(three)) == 7
    assert {len(rank) for rank in three} == {10}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_that_is_done_is_requested_again(num_workers: int) -> None:
    objects = {f"{number:02d}.bin": b"%d" % number for number in range(16)}
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "collate_fn": as_they_are, "num_workers": num_workers}
    with timed_store(objects) as store:

        def make() -> Any:
            dataset: Any = tdr.RemoteFiles(store.url, storage_options=store.options, max_in_flight=2)
            return tdr.PrefetchingLoader(dataset, 3, **options)

        whole = list(make())
        loader = make()
        assert list(islice(loader, 2)) == whole[:2]
        rest = make()
        rest.load_state_dict(through_json(loader.state_dict()))
        asked_before = len(store.asked)
        assert list(rest) == whole[2:]
        done = {url.rpartition("/")[2] for batch in whole[:2] for url, _ in batch}
        assert set(store.asked[asked_before:]) & set(objects) == set(objects) - done


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
    ("sampler", "num_workers"), [*((sampler, 0) for sampler in SAMPLERS), ("by a generator", 2), ("distributed", 2)]
)
def test_it_goes_on_with_a_sampler_that_yields_the_same_order(sampler: str, num_workers: int) -> None:
    """After any batch; then the sampler's next epoch follows."""

    def make() -> Any:
        return loader_of(23, **{"batch_size": 1, "num_workers": num_workers, **SAMPLERS[sampler](range(23))})

    through = make()
    epochs = [list(through) for _ in range(2)]
    for num_taken in (0, 1, len(epochs[0]) - 1, len(epochs[0])):
        loader, rest = make(), make()
        batches = iter(loader)
        assert list(islice(batches, num_taken)) == epochs[0][:num_taken]
        rest.load_state_dict(through_json(loader.state_dict()))
        assert [list(rest) for _ in range(2)] == [epochs[0][num_taken:], epochs[1]]


def begun_state(**options: Any) -> Any:
    """A state in mid-epoch."""
    loader = loader_of(**options)
    batches = iter(loader)
    next(batches), next(batches)
    return loader.state_dict()


def distributed(num_ranks: int) -> Any:
    return DistributedSampler(range(9), num_ranks, 0)  # type: ignore[arg-type]


SEEDED: dict[str, Any] = {"shuffle": True, "seed": 1}
ANOTHER_ORDER = "the sampler yields another order"
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another seed": (SEEDED, {"shuffle": True, "seed": 0}, "the state has seed=1, here it is 0"),
    "not shuffled": (SEEDED, {}, "the state has shuffle=True, here it is False"),
    "shuffled": ({}, SEEDED, r"the state has shuffle=False, here it is True.*set_epoch.1."),
    "other items": (SEEDED, {**SEEDED, "num_items": 8}, "the state has num_items=9, here it is 8"),
    "a sampler's order": ({"sampler": range(9)}, {"sampler": range(8, -1, -1)}, ANOTHER_ORDER),
    "no sampler": ({"sampler": range(9)}, {}, "the state has sampler=True, here it is False"),
    "a sampler": ({}, {"sampler": range(9)}, "the state has sampler=False, here it is True"),
    "another world": ({"sampler": distributed(2)}, {"sampler": distributed(3)}, ANOTHER_ORDER),
}


@pytest.mark.parametrize(("before", "after", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_another_order_than_that_of_the_state_is_refused_before_the_first_item(
    before: dict[str, Any], after: dict[str, Any], message: str
) -> None:
    """A state of the start of an epoch fits any order."""
    state, loader = begun_state(**before), loader_of(**after)
    loader.dataset.read.clear()
    loader.load_state_dict(state)
    with pytest.raises(StateError, match=message):
        list(loader)
    assert not loader.dataset.read
    loader.load_state_dict(loader_of(**before).state_dict())
    assert sum(map(len, loader)) == sum(map(len, loader_of(**after)))


@pytest.mark.parametrize("is_of_batches", [False, True])
def test_set_epoch_reaches_a_distributed_sampler(is_of_batches: bool) -> None:
    sampler: Any = DistributedSampler(range(20), 2, 1)  # type: ignore[arg-type]
    batches = BatchSampler(sampler, 3, drop_last=False)
    loader = loader_of(20, 1, batch_sampler=batches) if is_of_batches else loader_of(20, sampler=sampler)
    first = list(loader)
    loader.set_epoch(3)
    assert list(loader) != first
    loader.set_epoch(0)
    assert list(loader) == first


@pytest.mark.parametrize("state", [None, [], {}, {"version": 1, "epoch": 0}, "epoch", "items_done", "version"], ids=str)
def test_a_damaged_state_is_refused_when_it_is_loaded(state: Any) -> None:
    if isinstance(state, str):
        begun = begun_state()
        for damaged in ({**begun, state: 7}, {key: value for key, value in begun.items() if key != state}):
            with pytest.raises(StateError, match="Expected the state_dict"):
                loader_of().load_state_dict(damaged)
        return
    with pytest.raises(StateError, match="Expected the state_dict"):
        loader_of().load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "seed= requires shuffle=True"),
        ({"shuffle": True, "seed": 1, "generator": torch.Generator()}, "without a generator"),
        ({"shuffle": True, "seed": 1, "sampler": [1]}, "without a sampler"),
        ({"sampler": [1], "equalize": "drop"}, "A sampler selects"),
        ({"sampler": [1], "world": tdr.World()}, "A sampler selects"),
        ({"equalize": "no_such"}, "no_such"),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader_of(**options)


def test_another_loader_that_is_built_from_its_samplers_is_refused() -> None:
    """As by a trainer: the position would be unknown."""
    loader = loader_of(12, shuffle=True, seed=0, world=tdr.World(0, 2))
    for read in (loader.sampler, loader.batch_sampler):
        with pytest.raises(StateError, match=r"another loader.* Iterate the PrefetchingLoader itself"):
            next(iter(read))


def test_the_sampler_of_a_rank_is_a_distributed_sampler_which_trainers_keep() -> None:
    """Ray's wrapper copies ``vars``, where training loops find it."""
    loader = loader_of(world=tdr.World(1, 3))
    assert isinstance(loader.sampler, DistributedSampler)
    vars(loader)["sampler"].set_epoch(2)
    assert loader.state_dict()["epoch"] == 2
