"""A function for each item, in threads: order, look-ahead, errors in their place, and what is given back at the end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.waiting import wait_for
from torchdata_remote import IterDataPipe, Resumable, thread_loader
from torchdata_remote.testing import write_small_shards


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "torchdata_remote"}


def same(item: Any) -> Any:
    return item


def key_of(sample: Any) -> str:
    return str(sample["__key__"])


@given(
    num_items=st.integers(0, 30),
    num_threads=st.integers(0, 3),
    max_ahead=st.none() | st.integers(1, 40),
    wait_for_next=st.sets(st.integers(0, 29)),
)
def test_results_have_the_order_of_the_items_whatever_time_each_takes(
    num_items: int, num_threads: int, max_ahead: int | None, wait_for_next: set[int]
) -> None:
    """Some wait for the one behind them, where threads take it meanwhile."""
    begun = [threading.Event() for _ in range(num_items + 1)]
    begun[-1].set()

    def function(item: int) -> int:
        begun[item].set()
        if num_threads > 1 and max_ahead is None and item in wait_for_next and item % 2 == 0:
            assert begun[item + 1].wait(60)
        return item * 2

    pipe = IterableWrapper(range(num_items)).parallel_map(function, num_threads=num_threads, max_ahead=max_ahead)
    assert len(pipe) == num_items
    assert list(pipe) == list(range(0, 2 * num_items, 2))


def test_as_many_items_are_handled_at_once_as_there_are_threads() -> None:
    barrier, most, busy = threading.Barrier(3, timeout=120), [], []

    def meet(item: int) -> int:
        busy.append(item)
        most.append(len(busy))
        barrier.wait()
        busy.remove(item)
        return item

    assert list(IterableWrapper(range(9)).parallel_map(meet, num_threads=3)) == list(range(9))
    assert 3 <= max(most) <= 4, "with the thread that iterates, if it had to wait"


class Numbers(IterDataPipe[int]):
    """Numbers, and how many were taken."""

    def __init__(self, count: int, then: type[BaseException] | None = None) -> None:
        self.count, self.then, self.numbers = count, then, list[int]()  # which copies of this pipe share

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.numbers.append(number)
            yield number
        if self.then is not None:
            raise self.then("no more")


@pytest.mark.parametrize(
    ("options", "ahead"),
    [
        ({}, 0),
        ({"num_threads": 0}, 0),
        ({"num_threads": 1}, 2),
        ({"num_threads": 2}, 4),
        ({"num_threads": 2, "max_ahead": 1}, 1),
        ({"num_threads": 2, "max_ahead": 7}, 7),
    ],
)
def test_the_look_ahead_is_bounded(options: dict[str, Any], ahead: int) -> None:
    """By default, twice the threads; nothing without."""
    source = Numbers(30)
    for number in source.parallel_map(abs, **options):
        assert len(source.numbers) == min(30, number + 1 + ahead)


def test_streams_share_the_look_ahead_and_the_threads(memory_folder: str) -> None:
    """One item ahead each, at least; together no more threads than of one."""
    write_small_shards(memory_folder, num_shards=40, samples_per_shard=2)
    taken: list[str] = []
    used: set[int] = set()

    def take(sample: Any) -> str:
        taken.append(key_of(sample))
        return taken[-1]

    def use(key: str) -> str:
        used.add(threading.get_ident())
        return key

    before = engine_threads()
    read = IterableWrapper([memory_folder]).list_remote(pattern="*.tar").sharding_filter_rank().shard_tar_reader()
    data = Resumable(read.map(take).parallel_map(use, num_threads=3), num_streams=40)
    items = iter(data)
    head = list(islice(items, 15))
    assert len(taken) == 30
    assert len({*head, *items}) == 80
    assert len(used - {threading.get_ident()}) <= 3
    del items
    wait_for(lambda: engine_threads() <= before)


def test_loaders_give_threads_to_pipes_that_were_given_no_number() -> None:
    readers: set[int] = set()
    used: dict[int | None, set[int]] = {None: set(), 0: set()}
    together = threading.Barrier(2, timeout=120)

    def use(given: int | None, item: int) -> int:
        used[given].add(threading.get_ident())
        if given is None:
            together.wait()
        return item

    def note(item: int) -> int:
        readers.add(threading.get_ident())
        return item

    source = IterableWrapper(range(40)).sharding_filter_rank().map(note)
    pipe = source.parallel_map(partial(use, None)).parallel_map(partial(use, 0), num_threads=0)
    assert list(thread_loader(pipe, num_threads=2)) == list(range(40))
    assert 1 <= len(used[None] - readers) <= 2
    assert used[0] == readers
    plain = IterableWrapper(range(40)).parallel_map(partial(use, 0))
    used[0].clear()
    assert list(plain) == list(range(40))
    assert used[0] == {threading.get_ident()}


# Errors


def test_an_error_is_raised_in_the_place_of_its_item_and_the_rest_can_be_read() -> None:
    def fail(number: int) -> int:
        if number == 5:
            raise LookupError("item 5")
        return number

    outcomes = []
    for num_threads in (0, 2):
        data = Resumable(IterableWrapper(range(9)).parallel_map(fail, num_threads=num_threads))
        states: list[Any] = []
        with pytest.raises(LookupError, match="item 5"):
            states.extend((item, data.state_dict()) for item in data)
        outcomes.append(states)
        rest = Resumable(IterableWrapper(range(9)).parallel_map(same, num_threads=num_threads))
        rest.load_state_dict(states[-1][1])
        assert [*(item for item, _ in states), *rest] == list(range(9))
        key = IterableWrapper([3]).sharding_filter_rank().parallel_map({}.__getitem__, num_threads=num_threads)
        with pytest.raises(KeyError) as caught:
            list(Resumable(key))
        assert caught.value.args == (3,)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_error_of_the_source_is_raised_after_the_items_before_it(num_threads: int) -> None:
    items = iter(Numbers(3, OSError).parallel_map(same, num_threads=num_threads))
    assert [next(items), next(items), next(items)] == [0, 1, 2]
    with pytest.raises(OSError, match="no more"):
        next(items)
    assert next(items, None) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, MemoryError])
def test_errors_of_any_kind_arrive_as_without_threads(error: type[BaseException]) -> None:
    def fail(item: int) -> int:
        if item == 2:
            raise error
        return item

    kinds = []
    for num_threads in (0, 2):
        items = iter(IterableWrapper(range(5)).parallel_map(fail, num_threads=num_threads))
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            next(items)
        kinds.append(type(caught.value))
    assert kinds[0] is kinds[1]
    assert list(IterableWrapper(range(5)).parallel_map(abs, num_threads=2)) == list(range(5))


# Threads


class Item:
    """Something that can be counted while it lives."""


def test_a_break_ends_the_threads_and_releases_all_items() -> None:
    before = engine_threads()
    alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def make(_: int) -> Item:
        item = Item()
        alive.add(item)
        return item

    for _ in IterableWrapper(range(100)).parallel_map(make, num_threads=0).parallel_map(same, num_threads=2):
        break
    del _
    wait_for(lambda: engine_threads() <= before)
    gc.collect()
    wait_for(lambda: not alive)
    items = iter(IterableWrapper(range(4)).parallel_map(make, num_threads=1, max_ahead=1))
    first = weakref.ref(next(items))
    next(items)
    wait_for(lambda: first() is None)


def test_a_function_may_read_a_chain_with_threads_and_none_waits_for_another_forever() -> None:
    def read(number: int) -> list[int]:
        return list(IterableWrapper(range(number)).parallel_map(abs, num_threads=2))

    def read_in_a_thread(number: int) -> list[int]:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(read, number).result(120)

    for function in (read, read_in_a_thread):
        made = list(IterableWrapper(range(9)).parallel_map(function, num_threads=2))
        assert made == [list(range(number)) for number in range(9)]


def test_items_are_handled_by_their_consumer_while_others_keep_all_threads_busy() -> None:
    hold, begun = threading.Event(), threading.Semaphore(0)
    calls: list[tuple[int, int]] = []

    def block(_: int) -> None:
        begun.release()
        hold.wait(120)

    def noted(number: int) -> int:
        calls.append((number, threading.get_ident()))
        return number

    busy = threading.Thread(target=lambda: list(IterableWrapper(range(2)).parallel_map(block, num_threads=2)))
    busy.start()
    try:
        for _ in range(2):
            assert begun.acquire(timeout=120)
        assert list(IterableWrapper(range(30)).parallel_map(noted, num_threads=2)) == list(range(30))
        assert calls == [(number, threading.get_ident()) for number in range(30)]
    finally:
        hold.set()
        busy.join(120)
