"""Read ranges of objects in the calling thread; in order, by requests that grow, and start small after a jump."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import RetryPolicy, StorageOptions
from ..core.stats.counters import FETCH
from ..core.urls import RemoteUrl
from ..storage import Connection, WithoutObstore, open_store
from .ranges import ObjectReader

LEAST_BYTES = 4 << 10  # some headers and a small member between them
MOST_BYTES = 1 << 20
MOST_EXPECTED_BYTES = 8 << 20
FAR_BYTES = 64 << 10  # reading through fewer bytes costs no more than another request


class OneObject(ObjectReader):
    """Reads ranges of an object in the calling thread, where no lane has opened it.

    Attributes:
        num_requests: that were sent, without retries.
        fetched_bytes: that they have returned.

    Args:
        url: of the object; a ``RemoteUrl`` brings size and etag.
        options: for the store.
        retry: policy for transient faults.
        in_flight: limit shared with concurrent readers.
        connection: how to connect to the store.
        sleep: waits for a number of seconds; raises to stop waiting.
        by_obstore: whether obstore may be used, after which a process cannot be forked.
        takes_all: whether all bytes of the first response are taken if the store ignores ranges.
    """

    def __init__(
        self,
        url: str,
        options: StorageOptions,
        retry: RetryPolicy | None = None,
        *,
        in_flight: ConcurrencyLimit | None = None,
        connection: Connection | None = None,
        sleep: Callable[[float], object] = time.sleep,
        by_obstore: bool = True,
        takes_all: bool = False,
    ) -> None:
        retry = retry or RetryPolicy()
        store, path = open_store(url, options, connection or Connection(read_timeout_s=retry.progress_timeout_s))
        super().__init__(url, store, path, retry, in_flight or ConcurrencyLimit(1, check=lambda: None))
        if not by_obstore:
            self.source = WithoutObstore(store)
        if self.listed_size is not None and not takes_all:
            self.size = self.listed_size
        self._sleep = sleep
        self.num_requests = self.fetched_bytes = 0

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` (exclusive); fewer at the object's end.

        Raises:
            StorageError: for faults that retries did not solve.
        """
        self.num_requests += 1
        with closing(self.pieces(start, stop, sleep=self._sleep)) as pieces:
            data = b"".join(pieces)
        self.fetched_bytes += len(data)
        return data


class ReadAhead:
    """Yields the bytes of an object, or of a view, for a ``ByteReader``, which may jump.

    A window is one request, sent when the previous window is used up. Each is twice as long as the last one, from 4 KiB
    to 1 MiB, as in an operating system's read-ahead; after a jump over more than 64 KiB they start small again.

    Attributes:
        num_requests: that were sent, without retries.
        fetched_bytes: that they have returned.

    Args:
        url: of the object; a ``RemoteUrl`` brings size and etag. Its checksums are not verified: their blocks are
            longer than a window.
        options: for the store.
        retry: policy for transient faults.
        start: the first byte.
        stop: the byte after the last one; ``None`` for the object's end.
        place_of: returns the object of a byte of a view, the byte's place there, and the end of those that follow it.
        head: the first bytes, if they are here.
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
        place_of: Callable[[int], tuple[RemoteUrl, int, int]] | None = None,
        head: bytes | None = None,
        first_bytes: int = LEAST_BYTES,
        in_flight: ConcurrencyLimit | None = None,
        connection: Connection | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._open = partial(
            OneObject,
            options=options,
            retry=retry,
            in_flight=in_flight,
            connection=connection,
            sleep=sleep,
            takes_all=stop is None,
        )
        self._objects = {url: self._open(url)}
        self._url, self._place_of, self._stop = url, place_of, sys.maxsize if stop is None else stop
        self._head = head  # the first window, until it is consumed
        self._at = start + len(head or b"")  # offset of the next window
        self._window_bytes, self._skipped_bytes, self._expected_bytes = first_bytes, 0, 0
        self.num_requests = self.fetched_bytes = 0

    @property
    def version(self) -> RemoteUrl:
        """The URL with size and etag, as far as they are known."""
        return self._objects[self._url].version

    def head(self) -> bytes:
        """Return the next window without consuming it; empty at the end."""
        if self._head is None:
            self._head = self._fetch()
        return self._head

    def find_num_bytes(self) -> int:
        """Return the length of the object; requests the first window if the listing did not report it."""
        if self.version.size is None:
            self.head()
        assert self.version.size is not None  # every response reports it
        return self.version.size

    def expect(self, num_bytes: int) -> None:
        """Make the next window at least so long, up to 8 MiB, because its bytes will be read."""
        self._expected_bytes = min(num_bytes, MOST_EXPECTED_BYTES)

    def __iter__(self) -> Iterator[memoryview]:
        while window := self.head():
            self._head = None
            yield memoryview(window)

    def jump(self, num_bytes: int) -> int:
        """Skip the next bytes; returns how many were skipped, fewer only at the end."""
        head, self._head = self._head or b"", None
        if num_bytes < len(head):
            self._head = head[num_bytes:]
            return num_bytes
        skipped = max(0, min(num_bytes - len(head), self._end() - self._at))
        self.seek(self._at + skipped)
        return len(head) + skipped

    def seek(self, at: int) -> None:
        """Continue at another byte."""
        self._skipped_bytes += abs(at - self._at)
        self._at, self._head = at, None

    def place_of(self, byte: int) -> tuple[RemoteUrl, int, int]:
        """Return the object that has a byte, the byte's place there, and the end of the bytes that follow it there."""
        return (self.version, byte, sys.maxsize) if self._place_of is None else self._place_of(byte)

    def _end(self) -> int:
        size = self.version.size if self._place_of is None else None
        return self._stop if size is None else min(self._stop, size)

    def _fetch(self) -> bytes:
        if self._skipped_bytes > FAR_BYTES:
            self._window_bytes = LEAST_BYTES
        elif self.num_requests:
            self._window_bytes = min(2 * self._window_bytes, MOST_BYTES)
        num_bytes = max(self._window_bytes, self._expected_bytes)
        self._skipped_bytes = self._expected_bytes = 0
        url, place, end = self.place_of(self._at)
        num_bytes = min(num_bytes, min(end, self._end()) - self._at)
        if num_bytes <= 0:
            return b""
        if url not in self._objects:
            self._objects[url] = self._open(url)
        with FETCH.waiting():
            window = self._objects[url].read(place, place + num_bytes)
        self.num_requests += 1
        self.fetched_bytes += len(window)
        self._at += len(window)
        return window
