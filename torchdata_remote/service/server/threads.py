"""Run blocking calls in threads, of which each kind of work has a number of its own.

So quick calls, such as reading, always find one. No thread may wait for one of another kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

T = TypeVar("T")
_NUM_THREADS = {
    "quick": 128,  # waits for a disk or a store
    "write": 64,  # until bytes and names are on disk
    "list": 16,  # folders, which may have hundreds of thousands of files
    "hash": 8,  # digests that are not stored
    "unpack": 8,  # archives
    "look": 4,  # into datasets; pictures
    "remove": 4,  # datasets with all their files, and what killed services left
}
_limiters: RunVar[dict[str, anyio.CapacityLimiter]] = RunVar("limiters")


async def run_blocking(call: Callable[[], T], kind: str = "quick") -> T:
    """Run a blocking call in a thread of the event loop, of the kind of work that it is."""
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = {kind: anyio.CapacityLimiter(number) for kind, number in _NUM_THREADS.items()}
        _limiters.set(limiters)
    return await anyio.to_thread.run_sync(call, limiter=limiters[kind])
