"""Read ranges of one object in the calling thread; in order, by requests that grow, and start small after a jump."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl, redact
from ..errors import ObjectChangedError
from ..storage import Connection, WithoutObstore, open_store
from .ranges import ObjectVersion, RangeRequest, RangeSource, at_most, read_range

LEAST_BYTES = 4 << 10  # some headers and a small member between them
MOST_BYTES = 1 << 20
MOST_EXPECTED_BYTES = 8 << 20
FAR_BYTES = 64 << 10  # reading through fewer bytes costs no more than another request


class OneObject:
    """Reads ranges of an object, all of one version, with retries. Not for several threads at once.

    Args:
        url: of the object; a ``RemoteUrl`` brings size and etag.
        options: for the store.
        retry: policy for transient faults.
        in_flight: limit shared with concurrent readers.
        connection: how to connect to the store.
        sleep: waits for a number of seconds; raises to stop waiting.
        by_obstore: whether obstore may be used, after which a process cannot be forked.
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
    ) -> None:
        self._retry, self._sleep = retry or RetryPolicy(), sleep
        connection = connection or Connection(read_timeout_s=self._retry.progress_timeout_s)
        self._store, self._path = open_store(url, options, connection)
        self._source: RangeSource = self._store if by_obstore else WithoutObstore(self._store)
        self._in_flight = in_flight or ConcurrencyLimit(1, check=lambda: None)
        self.version = url if isinstance(url, RemoteUrl) else RemoteUrl(url)  # size and etag, as far as they are known
        # A store that ignores ranges sends everything, and that is taken where more of it will be read
        self._size = None if self._store.may_ignore_ranges else self.version.size
        self.num_requests = self.fetched_bytes = 0

    def read(self, start: int, stop: int, *, most: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop`` (exclusive); fewer at the object's end.

        Args:
            start: the first byte.
            stop: the byte after the last one.
            most: the byte after the last one that is taken if a store sends more than it was asked for; ``None``: all.

        Raises:
            StorageError: for faults that retries did not solve.
        """
        version = self.version
        pieces = read_range(
            self._source,
            RangeRequest(str(version), self._path, start, stop, self._size, version.etag),
            self._retry,
            in_flight=self._in_flight,
            on_found=self._learn,
            sleep=self._sleep,
        )
        self.num_requests += 1
        with closing(pieces):
            data = b"".join(pieces if most is None else at_most(pieces, most - start))
        self.fetched_bytes += len(data)
        return data

    def _learn(self, found: ObjectVersion) -> None:
        self._size, version = found.size, self.version
        if version.size not in (None, found.size):
            shown = redact(version)
            raise ObjectChangedError(
                f"{shown} has {found.size:,} bytes, where it had {version.size:,}. It was replaced: list it again.",
                url=shown,
            )
        if version.size is None or version.etag is None:
            self.version = RemoteUrl(str(version), found.size, version.etag or found.etag)


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
        self._object = OneObject(url, options, retry, in_flight=in_flight, connection=connection, sleep=sleep)
        self.url, self.start, self._at, self._stop = str(url), start, start, stop
        self._window_bytes, self._skipped_bytes, self._expected_bytes = first_bytes, 0, 0
        self._head: bytes | None = None  # the first window, until it is consumed

    def head(self) -> bytes:
        """Return the first window without consuming it."""
        if self._head is None:
            self._head = self._fetch()
        return self._head

    def find_num_bytes(self) -> int:
        """Return the length of the object; requests the first window if the listing did not report it."""
        if self.size is None:
            self.head()
        assert self.size is not None  # every response reports it
        return self.size

    @property
    def version(self) -> RemoteUrl:
        """The URL with size and etag, as far as they are known."""
        return self._object.version

    @property
    def size(self) -> int | None:
        """Of the object; ``None`` before the first response if the listing did not report it."""
        return self._object.version.size

    @property
    def num_requests(self) -> int:
        """Number of requests that were sent, without retries."""
        return self._object.num_requests

    @property
    def fetched_bytes(self) -> int:
        """Bytes that they have returned."""
        return self._object.fetched_bytes

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
        return self.size if self.size is None or self._stop is None else min(self.size, self._stop)

    def _fetch(self) -> bytes:
        if self._skipped_bytes > FAR_BYTES:
            self._window_bytes = LEAST_BYTES
        elif self.num_requests:
            self._window_bytes = min(2 * self._window_bytes, MOST_BYTES)
        stop = self._at + max(self._window_bytes, self._expected_bytes)
        self._skipped_bytes = self._expected_bytes = 0
        stop = min(end for end in (stop, self._stop, self.size) if end is not None)
        if stop <= self._at and self.size is not None:
            return b""
        window = self._object.read(self._at, stop, most=self._stop)
        self._at += len(window)
        return window
