"""Run blocking calls in threads, of which each kind of work has a number of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")
_NUM_THREADS = 128  # for quick calls, which wait for a disk or a store


class Lane:
    """A kind of work, and the most threads that do it."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads

    @cached_property
    def limiter(self) -> anyio.CapacityLimiter:
        """Its limiter, which older versions of anyio create in a running event loop only."""
        return anyio.CapacityLimiter(self._num_threads)


class Lanes:
    """Limits of the threads of slow work, so that quick calls, such as reading, always find one.

    Attributes:
        writing: that files become durable. Requests that hold the lock of a file or an upload in the event loop need
            this lane, so no thread of it, or of the one for quick calls, may wait for such a lock.
        batching: files of batches, one after the other. Its threads wait for the locks of files.
        joining: copying the bytes of a whole file, such as the parts of an upload.
        unpacking: archives, each with threads of its own.
        hashing: files whose digest is not stored.
        listing: folders, which may have hundreds of thousands of files.
        summarizing: looking into datasets, drawing pictures.
        removing: datasets with all their files.
        maintaining: what a killed service left.
    """

    def __init__(self) -> None:
        self.writing = Lane(64)
        self.batching = Lane(64)
        self.joining = Lane(8)
        self.unpacking = Lane(4)
        self.hashing = Lane(8)
        self.listing = Lane(16)
        self.summarizing = Lane(4)
        self.removing = Lane(4)
        self.maintaining = Lane(1)


def set_number_of_threads() -> None:
    """Set the number of threads for quick calls, in a running event loop."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = _NUM_THREADS


async def run_blocking(call: Callable[[], T], lane: Lane | None = None) -> T:
    """Run a blocking call in a thread of the event loop, in the lane of slow work that it belongs to."""
    return await anyio.to_thread.run_sync(call, limiter=None if lane is None else lane.limiter)
