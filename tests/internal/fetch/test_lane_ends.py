"""The end of a part whose size is settled late: by another thread, just before the consumer has the lock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.core.threads import FinalizerLock
from torchdata_remote.fetch.engine import Download, Lane, Part
from torchdata_remote.fetch.session import FetchSession, call


class Late(FinalizerLock[Callable[[], None]]):
    """Another thread has the lock whenever an item is left, and has settled it when the next one gets the lock."""

    def settle(self, item: Callable[[], None]) -> None:
        self._items.append(item)

    def __enter__(self) -> None:
        self._settle_all()
        super().__enter__()


class Empty(Download):
    """An object of unknown size that turns out to be empty."""

    added = threading.Event()  # before, the thread that adds it has the lock

    def fetch(self, request: None, part: Part) -> None:
        self.added.wait()
        self.lane.learn(self, part, 0, 0)


def test_an_empty_object_ends_when_its_size_is_settled_after_its_end_was_seen() -> None:
    lane = Lane(FetchSession(FetchOptions(), StorageOptions()))
    lane._lock = Late(call)
    empty = lane.add(Empty(lane, 0, sys.maxsize, None))
    empty.added.set()
    assert lane.next_piece(empty, 0) is None
    assert lane._reserved_bytes == 0
    lane.close(empty)
    lane.release()
    with lane._lock:
        pass
