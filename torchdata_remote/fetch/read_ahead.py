"""Read ranges of objects in the calling thread; in order, by requests that grow, and start small after a jump."""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import RetryPolicy, StorageOptions
from ..core.stats.counters import FETCH
from ..core.urls import RemoteUrl
from ..storage import Connection, WithoutObstore, open_store
from .ranges import ObjectVersion, RangeRequest, RangeSource, read_range, require_same

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
        self._retry, self._sleep = retry or RetryPolicy(), sleep
        connection = connection or Connection(read_timeout_s=self._retry.progress_timeout_s)
        self._store, self._path = open_store(url, options, connection)
        self._source: RangeSource = self._store if by_obstore else WithoutObstore(self._store)
        self._in_flight = in_flight or ConcurrencyLimit(1, check=lambda: None)
        self.version = url if isinstance(url, RemoteUrl) else RemoteUrl(url)  # size and etag, as far as they are known
        self._takes_all = takes_all and self._store.may_ignore_ranges
        self.num_requests = self.fetched_bytes = 0

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` (exclusive); fewer at the object's end.

        Raises:
            StorageError: for faults that retries did not solve.
        """
        version = self.version
        size = None if self._takes_all else version.size
        pieces = read_range(
            self._source,
            RangeRequest(str(version), self._path, start, stop, size, version.etag),
            self._retry,
            in_flight=self._in_flight,
            on_found=self._learn,
            sleep=self._sleep,
        )
        self.num_requests += 1
        with closing(pieces):
            data = b"".join(pieces)
        self.fetched_bytes += len(data)
        return data

    def _learn(self, found: ObjectVersion) -> None:
        version = self.version
        require_same(version, found, version.size, version.etag)
        self.version, self._takes_all = RemoteUrl(str(version), found.size, version.etag or found.etag), False


class Segment(NamedTuple):
    """A byte range of an object.

    Args:
        url: of the object.
        start: first byte.
        stop: the byte after the last one; ``None`` for the object's end.
        at: offset of its first byte in the archive.
    """

    url: str
    start: int
    stop: int | None
    at: int


class ReadAhead:
    """Yields the bytes of an object, or of ranges of several, for a ``ByteReader``, which may jump.

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
        segments: ranges that follow each other in an archive, which are read instead of one object.
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
        segments: Sequence[Segment] | None = None,
        head: bytes | None = None,
        first_bytes: int = LEAST_BYTES,
        in_flight: ConcurrencyLimit | None = None,
        connection: Connection | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._segments = [Segment(url, start, stop, start)] if segments is None else segments
        self._open = partial(
            OneObject, options=options, retry=retry, in_flight=in_flight, connection=connection, sleep=sleep
        )
        self._objects: dict[str, OneObject] = {}
        self._head, self._number = head, 0  # the first window, until it is consumed; of the segment
        self._at = start + len(head or b"")  # offset of the next window in the archive
        self._window_bytes, self._skipped_bytes, self._expected_bytes = first_bytes, 0, 0
        self.num_requests = self.fetched_bytes = 0

    def head(self) -> bytes:
        """Return the first window without consuming it."""
        if self._head is None:
            self._head = self._fetch()
        return self._head

    def find_num_bytes(self) -> int:
        """Return the length of the object; requests the first window if the listing did not report it."""
        if self._object(self._segments[0]).version.size is None:
            self.head()
        size = self._object(self._segments[0]).version.size
        assert size is not None  # every response reports it
        return size

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
        last = self._segments[-1]
        size = self._object(last).version.size
        stop = min(end for end in (last.stop, size, sys.maxsize) if end is not None)
        skipped = max(0, min(num_bytes - len(head), last.at + stop - last.start - self._at))
        self._at += skipped
        self._skipped_bytes += skipped
        return len(head) + skipped

    def place_of(self, start: int, size: int) -> tuple[RemoteUrl, int] | None:
        """Return the object with bytes ``start`` to ``start + size`` of the archive, and the first one's place in it.

        ``None`` if they are in several objects.
        """
        number = bisect_right(self._segments, start, key=lambda segment: segment.at) - 1
        following = self._segments[number + 1 : number + 2]
        if number < 0 or (following and start + size > following[0].at):
            return None
        segment = self._segments[number]
        return self._object(segment).version, segment.start + start - segment.at

    def _object(self, segment: Segment) -> OneObject:
        if segment.url not in self._objects:
            self._objects[segment.url] = self._open(segment.url, takes_all=segment.stop is None)
        return self._objects[segment.url]

    def _fetch(self) -> bytes:
        if self._skipped_bytes > FAR_BYTES:
            self._window_bytes = LEAST_BYTES
        elif self.num_requests:
            self._window_bytes = min(2 * self._window_bytes, MOST_BYTES)
        num_bytes = max(self._window_bytes, self._expected_bytes)
        self._skipped_bytes = self._expected_bytes = 0
        for segment in self._segments[self._number :]:
            source, start = self._object(segment), segment.start + self._at - segment.at
            ends = [end for end in (start + num_bytes, segment.stop, source.version.size) if end is not None]
            if start < min(ends) or source.version.size is None:
                with FETCH.waiting():
                    window = source.read(start, min(ends))
                self.num_requests += 1
                self.fetched_bytes += len(window)
                self._at += len(window)
                return window
            self._number += 1
        return b""
