"""A worker: order, backlog, result, errors, and that its thread always ends."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.threads.worker import Worker

PATIENCE_S = 10.0


def started_threads(before: set[threading.Thread]) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "torchdata_remote"} - before


@given(items=st.lists(st.integers(), max_size=30), max_backlog=st.integers(0, 5))
def test_a_worker_handles_all_items_in_order_and_returns_the_result(items: list[int], max_backlog: int) -> None:
    """Whatever the bound; the result can be asked for again."""
    worker: Worker[int, list[int]] = Worker(list, max_backlog=max_backlog)
    for item in items:
        worker.put(item)
    passed: list[list[int]] = []
    worker.end(passed.append)
    assert worker.result() == worker.result() == items
    assert passed == [items]
    assert worker.settled


def test_put_waits_while_the_backlog_exceeds_its_bound() -> None:
    """The item at hand counts until the next one is asked for; an item without weight never waits."""
    permits, taken = threading.Semaphore(0), threading.Semaphore(0)

    def take(items: Iterator[str]) -> int:
        count = 0
        for _ in items:
            count += 1
            taken.release()
            assert permits.acquire(timeout=PATIENCE_S)
        return count

    worker = Worker(take, max_backlog=10)
    worker.put("a", 10)
    worker.put("b", 7)  # a backlog of 10 does not exceed the bound
    worker.put("c", 0)
    assert worker.backlog == 17
    waiting = threading.Thread(target=worker.put, args=("d", 1))
    waiting.start()
    assert taken.acquire(timeout=PATIENCE_S)
    assert waiting.is_alive()
    permits.release()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert worker.backlog == 8
    for _ in range(3):
        permits.release()
    worker.end()
    assert worker.result() == 4


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)], ids=type)
def test_an_error_of_the_function_is_raised_by_put_and_by_result(error: BaseException) -> None:
    """The error itself, whatever its kind, and each time."""

    def fail(items: Iterator[int]) -> None:
        next(items)
        raise error

    worker = Worker(fail, max_backlog=0)

    def put_many() -> None:
        for number in range(1000):
            worker.put(number)

    for call in (put_many, worker.result, worker.result):
        with pytest.raises(type(error)) as caught:
            call()
        assert caught.value is error


def test_an_error_of_what_follows_is_raised_by_result() -> None:
    """After the function has returned."""

    def then(result: object) -> None:
        raise OSError("no journal")

    worker: Worker[int, list[int]] = Worker(list, max_backlog=1)
    worker.end(then)
    with pytest.raises(OSError, match="no journal"):
        worker.result()


@pytest.mark.parametrize("way", ["give up", "forget", "cycle"])
def test_a_worker_that_is_given_up_is_interrupted_after_the_items_that_were_put(way: str) -> None:
    """By a call, or when it is collected."""
    handled: list[int] = []
    raised: list[BaseException] = []

    def handle(items: Iterator[int]) -> None:
        try:
            handled.extend(items)
        except BaseException as error:
            raised.append(error)
            raise

    before = started_threads(set())
    worker = Worker(handle, max_backlog=9)
    (thread,) = started_threads(before)
    for number in range(3):
        worker.put(number)
    if way == "give up":
        worker.give_up()
        with pytest.raises(InterruptedError):
            worker.result()
    elif way == "cycle":
        cycle: list[object] = [worker]
        cycle.append(cycle)
        del cycle
    del worker
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert handled == [0, 1, 2]
    assert [type(error) for error in raised] == [InterruptedError]


def test_a_worker_that_was_ended_is_not_interrupted() -> None:
    """Giving it up afterwards changes nothing."""
    worker: Worker[int, list[int]] = Worker(list, max_backlog=9)
    worker.put(1)
    worker.end()
    worker.give_up()
    worker.join()
    assert worker.result() == [1]


def test_a_forked_child_cannot_use_the_worker_of_its_parent() -> None:
    """The thread stayed with the parent: the child would wait for ever."""
    worker: Worker[int, list[int]] = Worker(list, max_backlog=9)
    child = os.fork()
    if child == 0:
        refused = 0
        worker.give_up()  # does nothing here
        for call in (lambda: worker.put(1), worker.end, worker.result):
            try:
                call()
            except RuntimeError as error:
                refused += "another process" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    worker.end()
    assert worker.result() == []
