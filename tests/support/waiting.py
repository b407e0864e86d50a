"""Wait for what happens in other threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

DEADLINE_S = 60.0


def wait_for(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def new_threads(before: set[threading.Thread]) -> set[threading.Thread]:
    """Those that run now, and did not before."""
    return set(threading.enumerate()) - before


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "torchdata_remote"}
