"""Thread pools that all consumers of a process share: one for each number of threads."""

from __future__ import annotations

import os

from .finalizer_lock import FinalizerLock
from .pool import Pool


class SharedPools:
    """The pools of a process. The first consumer starts one, and its threads end with the last one."""

    def __init__(self) -> None:
        self._pools: dict[int, Pool] = {}
        self._num_users: dict[Pool, int] = {}
        self._lock: FinalizerLock[Pool] = FinalizerLock(self._settle)

    def join(self, num_threads: int) -> Pool:
        """Return the pool of so many threads, with one more user. Each calls :meth:`leave` once."""
        with self._lock:
            pool = self._pools.get(num_threads)
            if pool is None or pool.closed:
                pool = self._pools[num_threads] = Pool(num_threads)
            self._num_users[pool] = self._num_users.get(pool, 0) + 1
            return pool

    def leave(self, pool: Pool) -> None:
        """Record that a user needs the pool no longer. Safe in a finalizer; does nothing in a forked child."""
        self._lock.settle(pool)

    def _settle(self, pool: Pool) -> None:  # with the lock held
        self._num_users[pool] -= 1
        if not self._num_users[pool]:
            del self._num_users[pool]
            pool.close()


_pools = SharedPools()


def shared_pools() -> SharedPools:
    """The pools of this process. A forked child has none of its parent's."""
    return _pools


def _after_fork() -> None:
    global _pools
    _pools = SharedPools()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
