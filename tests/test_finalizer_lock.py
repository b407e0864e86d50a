"""A lock that finalizers use without waiting."""

from __future__ import annotations

import os
import threading

from torchdata_remote.finalizer_lock import FinalizerLock


def test_settles_at_once_when_nobody_holds_it() -> None:
    """Items are settled in the caller, in order, with the lock held."""
    seen: list[tuple[int, bool]] = []
    lock: FinalizerLock[int] = FinalizerLock(lambda item: seen.append((item, lock._lock.locked())))
    for item in range(3):
        lock.settle(item)
    assert seen == [(0, True), (1, True), (2, True)]
    assert not lock._lock.locked()


def test_the_holder_settles_on_its_way_out() -> None:
    """Whoever asks while it is held goes on at once, also the holder itself; the holder does it when it leaves."""
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


def test_what_comes_while_settling_is_settled_too() -> None:
    """Settling may drop things whose finalizers ask in turn."""
    seen: list[int] = []

    def settle(item: int) -> None:
        seen.append(item)
        if item < 3:
            lock.settle(item + 1)

    lock: FinalizerLock[int] = FinalizerLock(settle)
    lock.settle(0)
    assert seen == [0, 1, 2, 3]


def test_an_exception_in_the_block_lets_it_go() -> None:
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
