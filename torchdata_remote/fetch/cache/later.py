"""Call a method a little later, unless its object is collected before."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from ...core.threads.forks import ForkSafeThread

T = TypeVar("T")


def call_later(owner: T, method: Callable[[T], None], wait_s: float) -> None:
    """Call ``method(owner)`` in another thread. A process that ends waits for it."""
    with contextlib.suppress(RuntimeError):  # the interpreter is ending
        ForkSafeThread(
            target=_wait_and_call, args=(weakref.ref(owner), method, wait_s), name="torchdata_remote"
        ).start()


def _wait_and_call(reference: Callable[[], T | None], method: Callable[[T], None], wait_s: float) -> None:
    time.sleep(wait_s)
    owner = reference()
    if owner is not None:
        method(owner)
