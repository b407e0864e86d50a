"""A lock that finalizers use without waiting."""

from __future__ import annotations

import os
import threading

from torchdata_remote.core.threads.finalizer_lock import FinalizerLock


def test_the_holder_settles_items_on_release() -> None:
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
    seen: list[int] = []

    def settle(item: int) -> None:
        seen.append(item)
        if item < 3:
            lock.settle(item + 1)

    lock: FinalizerLock[int] = FinalizerLock(settle)
    lock.settle(0)
    assert seen == [0, 1, 2, 3]


def test_the_lock_is_released_by_an_exception() -> None:
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
    seen: list[int] = []
    lock: FinalizerLock[int] = FinalizerLock(seen.append)
    with lock:
        child = os.fork()
        if child == 0:
            lock.settle(1)
            os._exit(len(seen))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
