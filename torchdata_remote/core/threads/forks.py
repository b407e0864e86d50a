"""Fork only while no other thread holds a lock of OpenSSL.

A forked child has a copy of each lock, but not the thread that would release it. OpenSSL, which is Python's TLS, takes
locks of the process when a thread makes its first TLS context, and again, after Python has let go of it, when that
thread ends. A DataLoader worker forked in that moment waits forever (12 of 1,000 forks, if threads end just before).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

num_forks = 0
"""Forks between the first process that imported this and the present one: compared faster than process ids."""
_MAX_WAIT_S = 5.0
_POLL_S = 0.0005

_end = threading.RLock()  # held while a fork is under way: no thread ends
_block = threading.RLock()  # held while a fork is under way, and by ``hold_forks``
_fork = threading.local()  # of the thread that forks: the locks that it holds
_ending: deque[int] = deque()  # native ids of threads that may still be in OpenSSL


class ForkSafeThread(threading.Thread):  # noqa: TID251  # the only use
    """A thread whose end a fork waits for."""

    def run(self) -> None:
        try:
            super().run()
        finally:
            with _end:
                _forget_ended()
                _ending.append(threading.get_native_id())


@contextmanager
def hold_forks() -> Iterator[None]:
    """Delay forks of other threads, and other such blocks, until this block ends, for 5 s at most."""
    block = _block  # a child has another one
    with block:
        yield


def _forget_ended() -> None:
    while _ending and not _exists(_ending[0]):
        _ending.popleft()


def _exists(thread: int) -> bool:
    return os.path.exists(f"/proc/self/task/{thread}")  # Linux; elsewhere fork is not the default


def _before_fork() -> None:
    deadline = time.monotonic() + _MAX_WAIT_S
    _fork.held = [lock for lock in (_block, _end) if lock.acquire(timeout=_MAX_WAIT_S)]
    _forget_ended()
    while _ending and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        _forget_ended()


def _after_fork_in_parent() -> None:
    for lock in _fork.held:
        lock.release()


def _after_fork_in_child() -> None:
    global _end, _block, num_forks
    _end, _block = threading.RLock(), threading.RLock()
    num_forks += 1
    _ending.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
