"""A lock that finalizers use without waiting."""

from __future__ import annotations

import threading

from torchdata_remote.core.threads import FinalizerLock


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
