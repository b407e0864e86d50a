"""A lock that finalizers can use without waiting for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from . import forks

T = TypeVar("T")


def _ignore(item: object) -> None:
    pass


class FinalizerLock(Generic[T]):
    """A lock whose holder, when it releases it, settles the items that finalizers left meanwhile.

    Finalizers run at any allocation, even in a thread that holds the lock, so they must not wait for it.

    Args:
        settle: called with each item, with the lock held; it must not raise.
    """

    def __init__(self, settle: Callable[[T], None]) -> None:
        self._settle = settle
        # Not reentrant: not even a finalizer of the same thread may see the guarded state half changed
        self._lock = threading.Lock()  # noqa: TID251  # finalizers try it and never wait for it
        self._items: deque[T] = deque()
        self._num_forks = forks.num_forks

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
        if self._items:
            self._settle_all()

    def settle(self, item: T) -> None:
        """Settle an item now, or leave it to the holder of the lock. Does nothing in a forked child."""
        self._items.append(item)
        self._settle_all()

    def end(self) -> None:
        """Drop what is settled from now on. Call this when the owner of the lock has ended.

        The lock keeps ``settle``, mostly a method of its owner: without this, the two would keep each other until a
        collection. Safe in a finalizer, and in ``settle``.
        """
        self._settle = _ignore

    def _settle_all(self) -> None:
        while self._items and forks.num_forks == self._num_forks and self._lock.acquire(blocking=False):
            try:
                while self._items:
                    self._settle(self._items.popleft())
            finally:
                self._lock.release()
