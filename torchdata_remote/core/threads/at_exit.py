"""End threads before the interpreter ends: stopping one inside a native call would abort the process."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import Protocol

_AT_EXIT_S = 2.0


class _Closable(Protocol):
    """What has threads that are ended before the interpreter ends."""

    def close(self) -> None: ...

    def join(self, deadline: float) -> None: ...

    def drop_queued(self) -> None: ...


_live: weakref.WeakSet[_Closable] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _live.clear())  # the threads stayed with the parent


def close_at_exit(owner: _Closable) -> None:
    """Close an owner of threads before the interpreter ends, and wait for its threads: for all owners 2 s at most."""
    _live.add(owner)


@atexit.register
def _close_all() -> None:
    owners = list(_live)
    for owner in owners:
        owner.close()
    deadline = time.monotonic() + _AT_EXIT_S
    for owner in owners:
        owner.join(deadline)
    for owner in owners:
        owner.drop_queued()
