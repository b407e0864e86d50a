"""Pools of threads that all consumers of a process share."""

from __future__ import annotations

import gc
import threading

import pytest

from torchdata_remote.core.threads.pool import PoolClosedError
from torchdata_remote.core.threads.shared_pool import SharedPools


def test_one_pool_for_each_number_of_threads() -> None:
    """Consumers that want as many share one."""
    pools = SharedPools()
    two, three = pools.join(2), pools.join(3)
    assert pools.join(2) is two
    assert three is not two


def test_pool_is_closed_by_its_last_user() -> None:
    """The next one starts another pool."""
    pools = SharedPools()
    pool = pools.join(2)
    pools.join(2)
    pools.leave(pool)
    pool.check()
    pools.leave(pool)
    with pytest.raises(PoolClosedError):
        pool.submit(print)
    assert pools.join(2) is not pool


def test_pool_that_was_closed_by_others_is_replaced() -> None:
    """As when the interpreter ends and a reader begins once more; the users of the old one still leave it."""
    pools = SharedPools()
    old = pools.join(2)
    old.close()
    new = pools.join(2)
    assert new is not old
    pools.leave(old)
    assert not new.closed
    pools.leave(new)
    assert new.closed


def test_users_leave_in_finalizers() -> None:
    """The collector runs them at any allocation, also while another thread joins."""
    pools = SharedPools()

    class User:
        def __init__(self) -> None:
            self.pool, self.own = pools.join(2), self

        def __del__(self) -> None:
            pools.leave(self.pool)

    def use() -> None:
        for _ in range(2_000):
            User()

    threads = [threading.Thread(target=use) for _ in range(3)]
    last = pools.join(2)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    gc.collect()
    assert not last.closed
    pools.leave(last)
    assert last.closed
