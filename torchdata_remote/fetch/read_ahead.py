"""Read ranges of objects in the calling thread; in order, by requests that grow, and start small after a jump."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from ..core.stats import FETCH
from .ranges import ObjectReader

LEAST_BYTES = 4 << 10  # some headers and a small member between them
MOST_BYTES = 1 << 20
MOST_EXPECTED_BYTES = 8 << 20
FAR_BYTES = 64 << 10  # reading through fewer bytes costs no more than another request


class ReadAhead:
    """Yields the bytes of an object, or of a view, for a ``ByteReader``, which may jump.

    A window is one request, sent when the previous window is used up. Each is twice as long as the last one, from 4 KiB
    to 1 MiB, as in an operating system's read-ahead; after a jump over more than 64 KiB they start small again.

    Attributes:
        start, reader: as below.
        num_requests: that were sent, without retries.
        fetched_bytes: that they have returned.

    Args:
        reader: of the object. Its checksums are not verified: their blocks are longer than a window.
        start: the first byte.
        stop: the byte after the last one; ``None`` for the object's end.
        place_of: returns the reader of a byte of a view, the byte's place there, and the end of those that follow it.
        head: the first bytes, if they are here.
        first_bytes: length of the first window.

    Raises:
        StorageError: while iterating, if bytes cannot be read.

    Example:
        >>> import fsspec
        >>> from torchdata_remote.core.options import StorageOptions
        >>> from torchdata_remote.fetch.ranges import OneObject
        >>> fsspec.filesystem("memory").pipe("/windows/a", bytes(1 << 20))
        >>> windows = ReadAhead(OneObject("memory://windows/a", StorageOptions()))
        >>> parts = iter(windows)
        >>> len(next(parts)), windows.jump(1_000_000), len(next(parts))
        (4096, 1000000, 4096)
    """

    def __init__(
        self,
        reader: ObjectReader,
        *,
        start: int = 0,
        stop: int | None = None,
        place_of: Callable[[int], tuple[ObjectReader, int, int]] | None = None,
        head: bytes | None = None,
        first_bytes: int = LEAST_BYTES,
    ) -> None:
        self.start, self.reader, self._place_of = start, reader, place_of
        self._stop = sys.maxsize if stop is None else stop
        if stop is not None and reader.size is None and reader.listed_size is not None:
            reader.size = reader.listed_size  # not more is taken of a store that ignores ranges
        self._head = head  # the first window, until it is consumed
        self._at = start + len(head or b"")  # offset of the next window
        self._window_bytes, self._skipped_bytes, self._expected_bytes = first_bytes, 0, 0
        self.num_requests = self.fetched_bytes = 0

    def head(self) -> bytes:
        """Return the next window without consuming it; empty at the end."""
        if self._head is None:
            self._head = self._fetch()
        return self._head

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

    def place_of(self, byte: int) -> tuple[ObjectReader, int, int]:
        """Return the reader of a byte, the byte's place there, and the end of the bytes that follow it there."""
        return (self.reader, byte, sys.maxsize) if self._place_of is None else self._place_of(byte)

    def _end(self) -> int:
        size = self.reader.version.size if self._place_of is None else None
        return self._stop if size is None else min(self._stop, size)

    def _fetch(self) -> bytes:
        if self._skipped_bytes > FAR_BYTES:
            self._window_bytes = LEAST_BYTES
        elif self.num_requests:
            self._window_bytes = min(2 * self._window_bytes, MOST_BYTES)
        num_bytes = max(self._window_bytes, self._expected_bytes)
        self._skipped_bytes = self._expected_bytes = 0
        if self._at >= self._end():
            return b""
        reader, place, end = self.place_of(self._at)
        with FETCH.waiting():
            window = reader.read(place, place + min(num_bytes, min(end, self._end()) - self._at))
        self.num_requests += 1
        self.fetched_bytes += len(window)
        self._at += len(window)
        return window
