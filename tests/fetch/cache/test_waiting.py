"""Objects that wait to be stored: each is stored once, by one thread at a time, and nobody waits forever."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from torchdata_remote.fetch.cache.waiting import _MAX_WAITING, WaitingObjects

NUM_THREADS, NUM_EACH = 8, 200


def test_each_call_is_made_once_by_one_thread_at_a_time() -> None:
    """However the threads that add calls and make them interleave."""
    waiting, made, running = WaitingObjects(), list[int](), list[int]()

    def call(key: int) -> None:
        running.append(key)
        assert running == [key], "two at once"
        made.append(key)
        running.clear()

    def work(first: int) -> None:
        for key in range(first, first + NUM_EACH):
            waiting.add(key, partial(call, key))
            waiting.store()

    threads = [threading.Thread(target=work, args=(number * NUM_EACH,)) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(NUM_THREADS * NUM_EACH))
    assert not waiting._by_key


def test_others_go_on_while_one_stores_until_too_many_wait() -> None:
    """The one that stores takes over what they added."""
    waiting, made, entered, go_on = WaitingObjects(), list[int](), threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        assert go_on.wait(60)

    waiting.add(-1, slow)
    storing = threading.Thread(target=waiting.store)
    storing.start()
    assert entered.wait(60)
    for key in range(_MAX_WAITING):
        waiting.add(key, partial(made.append, key))
        waiting.store()  # returns at once
    waiting.add(_MAX_WAITING, partial(made.append, _MAX_WAITING))
    blocked = threading.Thread(target=waiting.store)
    blocked.start()
    blocked.join(0.05)
    assert blocked.is_alive()
    assert not made
    assert 3 in waiting._by_key
    go_on.set()
    for thread in (storing, blocked):
        thread.join(60)
    assert made == list(range(_MAX_WAITING + 1))


def test_settling_waits_for_the_thread_that_stores() -> None:
    """What was added before is stored then."""
    waiting, made, entered, go_on = WaitingObjects(), list[str](), threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        assert go_on.wait(60)
        made.append("slow")

    waiting.add(0, slow)
    storing = threading.Thread(target=waiting.store)
    storing.start()
    assert entered.wait(60)
    waiting.add(1, partial(made.append, "next"))
    settling = threading.Thread(target=waiting.settle)
    settling.start()
    go_on.set()
    for thread in (storing, settling):
        thread.join(60)
    assert made == ["slow", "next"]


def test_one_object_is_waited_for_while_others_never_end() -> None:
    """A pass that reads one object again is not kept waiting by what another pass stores."""
    waiting, made, go_on = WaitingObjects(), list[int](), threading.Event()

    def endless(key: int) -> None:
        made.append(key)
        if not go_on.is_set():
            waiting.add(key + 1, partial(endless, key + 1))

    waiting.add(0, partial(endless, 0))
    storing = threading.Thread(target=waiting.store)
    storing.start()
    waiting.add(-1, partial(made.append, -1))
    waiting.wait_for(-1)
    assert -1 in made
    waiting.settle()
    go_on.set()
    storing.join(60)
    assert made.count(-1) == 1


def test_an_object_whose_thread_was_stopped_is_stored_by_another_one() -> None:
    """As those of the threads of a worker that ends."""
    waiting, stored = WaitingObjects(), threading.Event()
    waiting.add(0, stored.set)
    assert stored.wait(60)


def test_an_object_that_cannot_be_stored_does_not_stop_others() -> None:
    """Other threads do not wait for it."""
    waiting, made = WaitingObjects(), list[int]()

    def fail() -> None:
        raise RuntimeError("a log handler that raises")

    waiting.add(0, fail)
    waiting.add(1, partial(made.append, 1))
    with pytest.raises(RuntimeError, match="log handler"):
        waiting.store()
    waiting.store()
    assert made == [1]
    assert not waiting._by_key
