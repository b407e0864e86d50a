"""The thread of a ``thread_loader``: how far it is ahead, its errors, and its end."""

from __future__ import annotations

import contextvars
import gc
import os
import queue
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from torchdata_remote import IterDataPipe, ThreadLoader, stateful_loader, thread_loader
from torchdata_remote.errors import StateError
from torchdata_remote.loaders.thread.batches_ahead import BatchThread

TIMEOUT_S = 60


class Numbers(IterDataPipe[int]):
    """Numbers from 0, with a position; ``function`` is called with each before it is handed out."""

    def __init__(self, count: int, function: Callable[[int], object] = lambda number: None) -> None:
        self.count, self.function = count, function
        self.closed_at: list[int] = []  # of all copies
        self._next = self._first = 0

    def __iter__(self) -> Iterator[int]:
        self._next, self._first = self._first, 0
        try:
            for number in range(self._next, self.count):
                self.function(number)
                self._next = number + 1
                yield number
        finally:
            self.closed_at.append(self._next)

    def state_dict(self) -> int:
        return self._next

    def load_state_dict(self, state: int) -> None:
        self._next = self._first = state


def loader_of(count: int, function: Callable[[int], object] = lambda number: None, **options: Any) -> ThreadLoader:
    return thread_loader(Numbers(count, function), **{"batch_size": 4, "collate_fn": list, **options})


def batch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "torchdata_remote-batches"]


def await_end() -> None:
    """Wait until no thread makes batches."""
    for thread in batch_threads():
        thread.join(TIMEOUT_S)
    assert not batch_threads()


@pytest.mark.parametrize("prefetch_batches", [1, 2, 5])
def test_at_most_so_many_batches_are_made_ahead(prefetch_batches: int) -> None:
    """And exactly so many, while the consumer is busy."""
    made: queue.SimpleQueue[int] = queue.SimpleQueue()
    loader = loader_of(80, made.put, prefetch_batches=prefetch_batches)
    num_made = 0
    for num_taken, _ in enumerate(loader, 1):
        expected = min(80, 4 * (num_taken + prefetch_batches))
        while num_made < expected:
            assert made.get(timeout=TIMEOUT_S) == num_made
            num_made += 1
        if num_taken == 5:
            assert len(batch_threads()) == 1
        assert made.empty()
    await_end()


def test_nothing_is_read_before_the_first_batch_is_asked_for() -> None:
    made: list[int] = []
    batches = iter(loader_of(8, made.append))
    assert not batch_threads()
    assert made == []
    assert next(batches) == [0, 1, 2, 3]


def test_an_error_is_raised_in_its_place_with_the_traceback_of_the_function() -> None:
    """After the batches before it; the state has the rule of stateful_loader."""

    def fail(number: int) -> None:
        if number == 9:
            raise ZeroDivisionError("on purpose")

    for loader in (loader_of(16, fail), stateful_loader(Numbers(16, fail), batch_size=4, collate_fn=list)):
        batches = iter(loader)
        assert list(islice(batches, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        state = loader.state_dict()
        with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
            next(batches)
        assert "in fail" in "".join(traceback.format_exception(caught.value))
        with pytest.raises(StateError, match="cannot go on"):
            next(batches)
        assert loader.state_dict() == state
        loader.load_state_dict(state)
        with pytest.raises(ZeroDivisionError):
            next(iter(loader))
    await_end()


def test_an_error_of_collate_fn_leaves_the_state_of_the_batch_before() -> None:
    """Samples that were read and not handed out are read again."""

    def collate(numbers: list[int]) -> list[int]:
        if 9 in numbers and is_bad:
            raise KeyError("bad batch")
        return numbers

    is_bad = [True]
    loader = loader_of(12, collate_fn=collate)
    batches = iter(loader)
    assert len(list(islice(batches, 2))) == 2
    with pytest.raises(KeyError, match="bad batch"):
        next(batches)
    loader.load_state_dict(loader.state_dict())
    is_bad.clear()
    assert list(loader) == [[8, 9, 10, 11]]


def test_a_pass_that_is_left_ends_its_thread_and_closes_its_chain() -> None:
    """By ``break``; the next pass is the next epoch, and the loop's state is where it was left."""
    source = Numbers(40)
    loader = thread_loader(source, batch_size=4, collate_fn=list)
    for batch in loader:
        if batch[0] == 8:
            break
    await_end()
    assert len(source.closed_at) == 1
    assert 12 < source.closed_at[0] <= 12 + 2 * 4
    state = loader.state_dict()
    assert (state["epoch"], state["streams"][0][1]["passed"]) == (0, 12)
    assert next(iter(loader)) == [0, 1, 2, 3]
    assert loader.state_dict()["epoch"] == 1


def test_the_next_pass_waits_for_the_function_of_the_pass_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that functions without locks are called by one thread at a time."""
    entered, blocked = queue.SimpleQueue[None](), queue.SimpleQueue[None]()
    calls: list[int] = []
    num_running = [0]

    def function(number: int) -> None:
        num_running[0] += 1
        calls.append(num_running[0])
        if len(calls) == 6:
            entered.put(None)
            blocked.get(timeout=TIMEOUT_S)
        num_running[0] -= 1

    join = BatchThread.join

    def released(thread: BatchThread, deadline: float | None = None) -> None:
        blocked.put(None)
        join(thread, deadline)

    monkeypatch.setattr(BatchThread, "join", released)
    loader = loader_of(12, function, prefetch_batches=1)
    batches = iter(loader)
    assert next(batches) == [0, 1, 2, 3]
    entered.get(timeout=TIMEOUT_S)
    del batches
    assert len(list(loader)) == 3
    assert max(calls) == 1


def test_two_passes_can_be_read_at_once() -> None:
    """Each is an epoch, as with stateful_loader."""
    loader = loader_of(8)
    assert [first + second for first, second in zip(loader, loader, strict=True)] == [
        [0, 1, 2, 3, 0, 1, 2, 3],
        [4, 5, 6, 7, 4, 5, 6, 7],
    ]
    assert loader.state_dict()["epoch"] == 2


def test_a_forgotten_loader_is_collected_with_its_thread() -> None:
    """The thread refers neither to the loader nor to its iterator."""
    loader = loader_of(4_000)
    batches = iter(loader)
    next(batches)
    reference = weakref.ref(loader)
    del loader, batches
    gc.collect()
    await_end()
    assert reference() is None


def test_the_thread_sees_the_context_variables_of_the_loop() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []
    variable.set("of the loop")
    assert len(list(loader_of(4, lambda number: seen.append(variable.get())))) == 1
    assert set(seen) == {"of the loop"}


def test_ctrl_c_while_a_batch_is_awaited_leaves_the_state_of_the_last_batch() -> None:
    """The thread ends after the sample that it is reading."""
    main, release = threading.main_thread().ident, queue.SimpleQueue[None]()

    def function(number: int) -> None:
        if number == 6 and not release_was_needed:
            release_was_needed.append(True)
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            release.get(timeout=TIMEOUT_S)

    release_was_needed: list[bool] = []
    loader = loader_of(12, function)
    seen: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(loader)
    release.put(None)
    await_end()
    again = loader_of(12)
    again.load_state_dict(loader.state_dict())
    assert seen + list(again) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_to_begin_a_pass_of_its_own() -> None:
    """And can; it has no copy of the thread."""
    loader = loader_of(12)
    batches = iter(loader)
    next(batches)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "nothing"
        try:
            next(batches)
        except RuntimeError as error:
            answer = f"{error} / {len(list(loader))}"
        finally:
            os.write(writing, answer.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    assert "begun in another process" in answer
    assert answer.endswith(" / 3")
    assert len(list(batches)) == 2


def test_set_epoch_between_iter_and_the_first_batch_keeps_the_pass() -> None:
    """As trainers call it; at the pass's end the state is the start of the next epoch."""
    for loader in (loader_of(12), stateful_loader(Numbers(12), batch_size=4, collate_fn=list)):
        batches = iter(loader)
        loader.set_epoch(0)
        assert loader.state_dict()["epoch"] == 0
        assert next(batches) == [0, 1, 2, 3]
        assert loader.state_dict()["streams"][0][1]["passed"] == 4
        assert len(list(batches)) == 2


def test_a_chain_without_items_gives_no_batch() -> None:
    """And the state is the start of the next epoch."""
    loader = loader_of(0)
    assert list(loader) == []
    assert loader.state_dict()["epoch"] == 1
