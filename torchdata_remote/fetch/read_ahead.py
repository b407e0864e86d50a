"""An object in order, by requests that are small wherever much of it is left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl
from ..storage.registry import Connection, open_store
from .range_download import ObjectVersion, RangeRequest
from .range_reader import read_range

LEAST_BYTES = 4 << 10  # some headers and a small member between them
MOST_BYTES = 1 << 20
FAR_BYTES = 64 << 10  # reading on through less costs no more than a request more


class ReadAhead:
    """The bytes of an object as parts for a cursor, which may jump (``cursor.Jumping``).

    A window is one request, and is asked for when what came before it is used up. Each is twice as long as the last
    one, from 4 KiB to 1 MiB, as an operating system reads ahead; behind a jump over more than 64 KiB they begin anew.

    Args:
        url: of the object; a ``RemoteUrl`` tells size and etag. Its checksums are not compared: they are of blocks
            longer than a window.
        options: for the store.
        retry: what is done about faults that may pass.
        start: the first byte.
        stop: behind the last byte; ``None`` for the object's end.
        first_bytes: length of the first window.
        in_flight: shared by those that read at the same time.
        sleep: waits for so many seconds; raises to end the waiting.

    Raises:
        StorageError: while iterating, for what cannot be read.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/windows/a", bytes(1 << 20))
        >>> windows = ReadAhead("memory://windows/a", StorageOptions())
        >>> parts = iter(windows)
        >>> len(next(parts)), windows.jump(1_000_000), len(next(parts))
        (4096, 1000000, 4096)
    """

    def __init__(
        self,
        url: str,
        options: StorageOptions,
        *,
        retry: RetryPolicy | None = None,
        start: int = 0,
        stop: int | None = None,
        first_bytes: int = LEAST_BYTES,
        in_flight: ConcurrencyLimit | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.url, self._retry, self._sleep = str(url), retry or RetryPolicy(), sleep
        connection = Connection(read_timeout_s=self._retry.progress_timeout_s)
        self._store, self._path = open_store(url, options, connection)
        self._in_flight = in_flight or ConcurrencyLimit(1, check=lambda: None)
        size, self._etag = (url.size, url.etag) if isinstance(url, RemoteUrl) else (None, None)
        self._size = None if self._store.may_ignore_ranges else size
        self.start, self._at, self._stop = start, start, stop
        self._window_bytes, self._left_out_bytes = first_bytes, 0
        self._head: bytes | None = None  # the first window, while it has not been handed on
        self.num_requests = 0
        self.fetched_bytes = 0

    def head(self) -> bytes:
        """The first window, before iteration begins."""
        if self._head is None:
            self._head = self._fetch()
        return self._head

    def find_num_bytes(self) -> int:
        """Length of the object; asks for the first window where the listing did not tell."""
        if self._size is None:
            self.head()
        assert self._size is not None  # every answer tells it
        return self._size

    def __iter__(self) -> Iterator[memoryview]:
        if self._head is not None:
            head, self._head = self._head, None
            yield memoryview(head)
        while (end := self._end()) is None or self._at < end:
            window = self._fetch()
            if not window:
                return
            yield memoryview(window)

    def jump(self, num_bytes: int) -> int:
        """Leave out the bytes that would come next; returns how many were there."""
        at_hand = 0
        if self._head is not None:
            at_hand = min(num_bytes, len(self._head))
            self._head = self._head[at_hand:]
        end, beyond = self._end(), num_bytes - at_hand
        passed = beyond if end is None else max(0, min(beyond, end - self._at))
        self._at += passed
        self._left_out_bytes += passed
        return at_hand + passed

    def _end(self) -> int | None:
        if self._size is None or self._stop is None:
            return self._size
        return min(self._size, self._stop)

    def _fetch(self) -> bytes:
        if self._left_out_bytes > FAR_BYTES:
            self._window_bytes = LEAST_BYTES
        elif self.num_requests:
            self._window_bytes = min(2 * self._window_bytes, MOST_BYTES)
        self._left_out_bytes = 0
        end = self._at + self._window_bytes
        if self._stop is not None:
            end = min(end, self._stop)
        if self._size is not None:
            end = min(end, self._size)
        if end <= self._at and self._size is not None:
            return b""
        wanted = RangeRequest(self.url, self._path, self._at, end, self._size, self._etag)
        pieces = read_range(
            self._store, wanted, self._retry, in_flight=self._in_flight, on_found=self._learn, sleep=self._sleep
        )
        self.num_requests += 1
        window = b"".join(pieces)
        self._at += len(window)
        self.fetched_bytes += len(window)
        return window

    def _learn(self, found: ObjectVersion) -> None:
        self._size = found.size
        self._etag = self._etag or found.etag
