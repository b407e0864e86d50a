"""A lock that finalizers use without waiting."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest

from torchdata_remote.core.concurrency_limit import ConcurrencyLimit
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.stats import counters
from torchdata_remote.core.stats.counters import StageCounter, StageStats
from torchdata_remote.core.stats.timing import timed_runs
from torchdata_remote.core.threads.finalizer_lock import FinalizerLock
from torchdata_remote.storage import registry as storage
from torchdata_remote.storage.transports import make_store


def test_an_item_is_settled_at_once_when_the_lock_is_free() -> None:
    """Items are settled in the caller, in order, with the lock held."""
    seen: list[tuple[int, bool]] = []
    lock: FinalizerLock[int] = FinalizerLock(lambda item: seen.append((item, lock._lock.locked())))
    for item in range(3):
        lock.settle(item)
    assert seen == [(0, True), (1, True), (2, True)]
    assert not lock._lock.locked()


def test_the_holder_settles_items_on_release() -> None:
    """``settle`` never waits for the holder of the lock, which may be its own thread; the holder settles on release."""
    seen: list[str] = []
    lock: FinalizerLock[str] = FinalizerLock(seen.append)
    with lock:
        lock.settle("mine")  # as a finalizer does that runs in the thread that holds it
        other = threading.Thread(target=lock.settle, args=("another thread's",))
        other.start()
        other.join(20)
        assert not other.is_alive()
        assert seen == []
    assert seen == ["mine", "another thread's"]


def test_items_left_while_settling_are_settled() -> None:
    """Settling may drop things whose finalizers ask in turn."""
    seen: list[int] = []

    def settle(item: int) -> None:
        seen.append(item)
        if item < 3:
            lock.settle(item + 1)

    lock: FinalizerLock[int] = FinalizerLock(settle)
    lock.settle(0)
    assert seen == [0, 1, 2, 3]


def test_the_lock_is_released_by_an_exception() -> None:
    """A block that raises leaves the lock free and what was asked for settled."""
    seen: list[int] = []
    lock: FinalizerLock[int] = FinalizerLock(seen.append)
    try:
        with lock:
            lock.settle(1)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert seen == [1]
    with lock:
        pass


def test_every_item_is_settled_once_among_threads() -> None:
    """However threads meet, each item is settled exactly once."""
    seen: list[int] = []
    lock: FinalizerLock[int] = FinalizerLock(seen.append)

    def work(first: int) -> None:
        for item in range(first, first + 500):
            if item % 3:
                lock.settle(item)
            else:
                with lock:
                    lock.settle(item)

    threads = [threading.Thread(target=work, args=(500 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    with lock:
        pass
    assert sorted(seen) == list(range(2_000))


def test_a_forked_child_settles_nothing() -> None:
    """A child whose parent held the lock at the fork neither waits for it nor ends what is the parent's."""
    seen: list[int] = []
    lock: FinalizerLock[int] = FinalizerLock(seen.append)
    with lock:
        child = os.fork()
        if child == 0:
            lock.settle(1)
            os._exit(len(seen))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def within_a_deadline(function: Callable[[], object]) -> None:
    """Call it in a thread of its own, which must end."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "deadlock"


def abandoned(finalize: Callable[[], object]) -> Generator[None, None, None]:
    """A generator that was begun and will not be continued; it is finalized when it is closed or collected."""

    def suspended() -> Generator[None, None, None]:
        try:
            yield
        finally:
            finalize()

    generator = suspended()
    next(generator)
    return generator


def test_a_snapshot_of_counters_may_finalize_a_timed_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may run while the numbers are taken; what it finalizes counts in the same counter."""
    stage, other = StageCounter("stage"), StageCounter("other")
    left = [timed_runs(iter([iter([1, 2])]), stage, within=other)]
    assert next(next(left[0])) == 1

    def collected(*numbers: float) -> StageStats:
        for generator in left:
            generator.close()
        return StageStats(*numbers)  # type: ignore[arg-type]  # as the module does

    monkeypatch.setattr(counters, "StageStats", collected)
    within_a_deadline(stage.snapshot)
    monkeypatch.undo()
    assert stage.snapshot().items == 1


@pytest.mark.parametrize("stage", counters.stages, ids=lambda stage: stage.name)
def test_a_finalizer_may_count_while_the_same_thread_counts(stage: StageCounter) -> None:
    """At any place within the locked region: both are counted."""
    before = stage.snapshot()

    def both() -> None:
        with stage._lock:
            abandoned(lambda: stage.add(items=1)).close()
        stage.add(items=1)

    within_a_deadline(both)
    assert (stage.snapshot() - before).items == 2


def test_a_finalizer_may_give_back_a_permit_while_the_same_thread_changes_the_limit() -> None:
    """A range that was given up is finalized while the thread that does it halves the limit."""
    left: list[Generator[None, None, None]] = []

    def clock() -> float:
        while left:
            left.pop().close()
        return 10.0

    in_flight = ConcurrencyLimit(4, check=lambda: None, clock=clock)
    in_flight.slow_down()  # now permits are counted
    permit = in_flight.permit()
    permit.__enter__()
    left.append(abandoned(lambda: permit.__exit__(None, None, None)))
    within_a_deadline(in_flight.slow_down)
    assert not left
    assert in_flight.limit == 3


def test_a_finalizer_may_open_a_store_while_the_same_thread_opens_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening one imports modules and builds many objects, so the collector will run; a user's generator may read."""
    make, options = make_store, StorageOptions()
    opened: list[Any] = []
    left = [abandoned(lambda: opened.append(storage.open_store("memory://inner/a", options)))]

    def collected(*arguments: Any) -> Any:
        while left:
            left.pop().close()
        return make(*arguments)

    monkeypatch.setattr(storage, "_stores", {})
    monkeypatch.setattr(storage, "make_store", collected)
    within_a_deadline(lambda: opened.append(storage.open_store("memory://outer/a", options)))
    assert len(opened) == 2
    assert storage.open_store("memory://inner/a", options)[0] is opened[0][0]


def test_a_lock_that_has_ended_does_not_keep_its_owner() -> None:
    """Without a collection; what is settled later is dropped."""

    class Owner:
        def __init__(self) -> None:
            self.lock: FinalizerLock[int] = FinalizerLock(self.settle)
            self.settled = 0

        def settle(self, item: int) -> None:
            self.settled += item
            if item == 2:
                self.lock.end()

    owner = Owner()
    for item in (1, 2, 4):
        owner.lock.settle(item)
    assert owner.settled == 3
    alive, lock = weakref.ref(owner), owner.lock
    gc.disable()
    try:
        del owner
        assert alive() is None
    finally:
        gc.enable()
    lock.settle(8)
