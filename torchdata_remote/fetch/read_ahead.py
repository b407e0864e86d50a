"""Read an object in order by requests that grow, and start small again after a long jump."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl
from ..storage import Connection, open_store
from .ranges import ObjectVersion, RangeRequest, at_most, read_range

LEAST_BYTES = 4 << 10  # some headers and a small member between them
MOST_BYTES = 1 << 20
MOST_EXPECTED_BYTES = 8 << 20
FAR_BYTES = 64 << 10  # reading through fewer bytes costs no more than another request


class ReadAhead:
    """Yields the bytes of an object for a ``ByteReader``, which may jump.

    A window is one request, sent when the previous window is used up. Each is twice as long as the last one, from 4 KiB
    to 1 MiB, as in an operating system's read-ahead; after a jump over more than 64 KiB they start small again.

    Args:
        url: of the object; a ``RemoteUrl`` brings size and etag. Its checksums are not verified: their blocks are
            longer than a window.
        options: for the store.
        retry: policy for transient faults.
        start: the first byte.
        stop: the byte after the last one; ``None`` for the object's end.
        first_bytes: length of the first window.
        in_flight: limit shared with concurrent readers.
        connection: how to connect to the store.
        sleep: waits for a number of seconds; raises to stop waiting.

    Raises:
        StorageError: while iterating, if bytes cannot be read.

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
        connection: Connection | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.url, self._retry, self._sleep = str(url), retry or RetryPolicy(), sleep
        connection = connection or Connection(read_timeout_s=self._retry.progress_timeout_s)
        self._store, self._path = open_store(url, options, connection)
        self._in_flight = in_flight or ConcurrencyLimit(1, check=lambda: None)
        size, self._etag = (url.size, url.etag) if isinstance(url, RemoteUrl) else (None, None)
        self._size = None if self._store.may_ignore_ranges else size
        self.start, self._at, self._stop = start, start, stop
        self._window_bytes, self._skipped_bytes, self._expected_bytes = first_bytes, 0, 0
        self._head: bytes | None = None  # the first window, until it is consumed
        self.num_requests = 0
        self.fetched_bytes = 0

    def head(self) -> bytes:
        """Return the first window without consuming it."""
        if self._head is None:
            self._head = self._fetch()
        return self._head

    def find_num_bytes(self) -> int:
        """Return the length of the object; requests the first window if the listing did not report it."""
        if self._size is None:
            self.head()
        assert self._size is not None  # every response reports it
        return self._size

    @property
    def version(self) -> RemoteUrl:
        """The URL with size and etag, as far as they are known."""
        return RemoteUrl(self.url, self._size, self._etag)

    @property
    def size(self) -> int | None:
        """Of the object; ``None`` before the first response if the listing did not report it."""
        return self._size

    def expect(self, num_bytes: int) -> None:
        """Make the next window at least so long, up to 8 MiB, because its bytes will be read."""
        self._expected_bytes = min(num_bytes, MOST_EXPECTED_BYTES)

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
        """Skip the next bytes; returns how many were skipped, fewer only at the end."""
        buffered = 0
        if self._head is not None:
            buffered = min(num_bytes, len(self._head))
            self._head = self._head[buffered:]
        end, beyond = self._end(), num_bytes - buffered
        skipped = beyond if end is None else max(0, min(beyond, end - self._at))
        self._at += skipped
        self._skipped_bytes += skipped
        return buffered + skipped

    def _end(self) -> int | None:
        if self._size is None or self._stop is None:
            return self._size
        return min(self._size, self._stop)

    def _fetch(self) -> bytes:
        if self._skipped_bytes > FAR_BYTES:
            self._window_bytes = LEAST_BYTES
        elif self.num_requests:
            self._window_bytes = min(2 * self._window_bytes, MOST_BYTES)
        end = self._at + max(self._window_bytes, self._expected_bytes)
        self._skipped_bytes = self._expected_bytes = 0
        if self._stop is not None:
            end = min(end, self._stop)
        if self._size is not None:
            end = min(end, self._size)
        if end <= self._at and self._size is not None:
            return b""
        request = RangeRequest(self.url, self._path, self._at, end, self._size, self._etag)
        pieces = read_range(
            self._store,
            request,
            self._retry,
            in_flight=self._in_flight,
            on_found=self._record_version,
            sleep=self._sleep,
        )
        self.num_requests += 1
        with closing(pieces):
            window = b"".join(pieces if self._stop is None else at_most(pieces, self._stop - self._at))
        self._at += len(window)
        self.fetched_bytes += len(window)
        return window

    def _record_version(self, version: ObjectVersion) -> None:
        self._size = version.size
        self._etag = self._etag or version.etag
