"""A store in memory for tests of ``torchdata_remote.fetch``, whose responses a test can delay, count or break."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator

import pytest

from torchdata_remote.core.options import FetchOptions, RetryPolicy
from torchdata_remote.storage import Answer, RangeNotSatisfiableError

AT_ONCE = RetryPolicy(first_wait_s=0, max_wait_s=0)


def in_pieces(data: bytes, piece_bytes: int) -> Generator[memoryview, None, None]:
    for start in range(0, len(data), piece_bytes):
        yield memoryview(data)[start : start + piece_bytes]


class FakeStore:
    """Objects in a dict, by URL. ``before_read`` may block, count or raise."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.may_ignore_ranges = False
        self.maps_files = False
        self.reads: list[tuple[str, int, int | None, str | None]] = []
        self.lock = threading.Lock()
        self.running = self.most = 0
        self.before_read: Callable[[str, int], None] = lambda path, start: None
        self.piece_bytes = 1 << 30

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        with self.lock:
            self.reads.append((path, start, end, etag))
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            self.before_read(path, start)
            data = self.objects[path]
            if end is not None and start >= len(data):
                raise RangeNotSatisfiableError("behind the end")
            if self.may_ignore_ranges:
                return Answer(0, len(data), len(data), "etag of " + path, in_pieces(data, self.piece_bytes))
            piece = data[start:end]
            return Answer(start, start + len(piece), len(data), "etag of " + path, in_pieces(piece, self.piece_bytes))
        finally:
            with self.lock:
                self.running -= 1


@contextlib.contextmanager
def store_of(objects: dict[str, bytes]) -> Iterator[FakeStore]:
    """Let every URL be read from this store."""
    store = FakeStore(objects)
    with pytest.MonkeyPatch.context() as patch:
        for user in ("object_download", "local_files"):
            patch.setattr(
                f"torchdata_remote.fetch.{user}.open_store", lambda url, options, connection: (store, str(url))
            )
        yield store


def options(
    max_in_flight: int = 4, part_bytes: int = 10, max_buffer_bytes: int = 1000, *, in_order: bool = True
) -> FetchOptions:
    return FetchOptions(
        max_in_flight=max_in_flight,
        part_bytes=part_bytes,
        max_buffer_bytes=max_buffer_bytes,
        in_order=in_order,
        retry=AT_ONCE,
    )
