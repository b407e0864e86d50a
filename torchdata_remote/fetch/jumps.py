"""Streams that are read by jumps: what is passed over is not fetched; the next beginnings are prefetched.

The streams of ``streams`` fetch whole objects in parts, many ahead of the reader. These are for readers that want a few
bytes of each large object.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from ..core.options import MIB, RetryPolicy, StorageOptions
from ..core.urls import redact
from ..errors import ObjectChangedError
from ..formats.member_file import MemberFile
from ..storage import Connection
from .object_stream import ObjectDownload, ObjectStream
from .ranges import OneObject
from .read_ahead import ReadAhead
from .session import FetchSession
from .streams import StreamsState, numbered_urls, open_ahead

BLOCK_BYTES = 64 << 10
BUFFER_BYTES = 4 * MIB  # that are kept of a file


class _Window(NamedTuple):
    """Bytes of the file that were fetched by one request."""

    start: int
    data: bytes


class LazyFile(MemberFile):
    """Bytes of an object as a seekable, read-only binary file, by ranged requests in the thread that reads.

    What was fetched is kept, the requests that were used last, up to 4 MiB. A request is for the blocks of 64 KiB that
    a read needs; where the file is read in order, it is for more of them, twice as many each time, up to 1 MiB. Nothing
    is requested before the first read, and no thread runs beside it. All responses are of the version that the shard's
    reader has seen. A copy, also by pickle and in a forked child, has the position and fetches on its own. A pickled
    file contains the storage options, and so the credentials in them.

    Args:
        url: of the object; a ``RemoteUrl`` brings its size and etag.
        start: first byte of the file in the object.
        size: of the file in bytes.
        options: for the store.
        name: of the file, for messages and libraries that guess a format; the URL if it is empty.
        retry: policy for transient faults.
        connection: how to connect to the store.

    Raises:
        ObjectChangedError: while reading, if the object was replaced, or is shorter than the file.
        StorageError: while reading, for other faults that retries did not solve.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/lazy/0", b"0123456789")
        >>> file = LazyFile("memory://lazy/0", 2, 6, StorageOptions())
        >>> file.seek(4), file.read(), file.seek(0), file.read(2), bytes(file)
        (4, b'67', 0, b'23', b'234567')
    """

    def __init__(
        self,
        url: str,
        start: int,
        size: int,
        options: StorageOptions,
        *,
        name: str = "",
        retry: RetryPolicy | None = None,
        connection: Connection | None = None,
    ) -> None:
        self._windows: list[_Window] = []  # the one that was used last is the last one
        super().__init__(name or redact(url), size)
        self._url, self._start, self._options, self._retry, self._connection = url, start, options, retry, connection
        self._forget()

    def _forget(self) -> None:
        """Start without bytes and without a lock that another thread of a forked process may hold."""
        self._pid, self._lock = os.getpid(), threading.RLock()
        self._windows = []
        self._ahead: ReadAhead | None = None

    def _check_open(self) -> None:
        super()._check_open()
        if self._pid != os.getpid():
            self._forget()

    def _read_at(self, start: int, stop: int) -> bytes:
        pieces = []
        while start < stop:
            window = self._window_at(start, stop)
            pieces.append(window.data[start - window.start : stop - window.start])
            start = window.start + len(window.data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _window_at(self, start: int, stop: int) -> _Window:
        """Return the window with a byte: one that is kept, or that of a request for the bytes up to ``stop``."""
        found = next((one for one in self._windows if 0 <= start - one.start < len(one.data)), None)
        if found is None:
            found = self._fetched(start - start % BLOCK_BYTES, stop + -stop % BLOCK_BYTES)
        else:
            self._windows.remove(found)
        self._windows.append(found)
        while sum(len(one.data) for one in self._windows) > BUFFER_BYTES:
            del self._windows[0]
        return found

    def _fetched(self, start: int, stop: int) -> _Window:
        if self._ahead is None:
            end = self._start + self.size
            reader = OneObject(self._url, self._options, self._retry, connection=self._connection)
            self._ahead = ReadAhead(reader, start=self._start, stop=end, first_bytes=BLOCK_BYTES)
        ahead, begin = self._ahead, self._start + start
        ahead.seek(begin)
        ahead.expect(stop - start)
        data = ahead.head()
        self._url = ahead.place_of(begin)[0].version
        if not data:
            url = redact(self._url)
            raise ObjectChangedError(
                f"{url} ends before byte {begin:,}, and {self.name!r:.200} has bytes {self._start:,} to "
                f"{self._start + self.size:,} of it. It was replaced: list it again.",
                url=url,
            )
        return _Window(start, data)

    @property
    def fetched_bytes(self) -> int:
        """Bytes that the requests of this copy have returned."""
        return 0 if self._ahead is None else self._ahead.fetched_bytes

    def _drop(self) -> None:
        self._windows.clear()

    def __getstate__(self) -> dict[str, Any]:
        self._check_open()
        with self._lock:
            return {**vars(self), "_windows": [], "_ahead": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()


class JumpingStream(ObjectStream):
    """An object, or a view, that is read by requests of the thread that reads; its beginning is requested ahead."""

    most_ahead = 64 << 10

    @cached_property
    def windows(self) -> ReadAhead:
        """The bytes, which may be skipped without a request. Waits for the beginning."""
        self._check_open()
        download = self.download
        return ReadAhead(
            download.place_of(self.first_byte)[0],
            start=self.first_byte,
            stop=self.last_byte,
            place_of=None if isinstance(download, ObjectDownload) else download.place_of,
            head=b"".join(self._lane.pieces(download)),
            first_bytes=self.most_ahead,
        )

    def file_of(self, name: str, start: int, size: int) -> LazyFile | None:
        """Return bytes ``start`` to ``start + size`` as a file; ``None`` if they are in several objects."""
        reader, place, end = self.windows.place_of(start)
        if start + size > end:
            return None
        options, connection = self._lane.session.storage_options, self._lane.running.connection
        retry = self._lane.options.retry
        return LazyFile(reader.version, place, size, options, name=name, retry=retry, connection=connection)

    @cached_property
    def _rest(self) -> Iterator[memoryview]:
        return iter(self.windows)

    def _advance(self) -> bool:
        self._view = next(self._rest, memoryview(b""))
        return bool(self._view)


def stream_by_jumps(
    urls: Iterable[str], session: FetchSession, state: StreamsState | None = None
) -> Generator[tuple[str, JumpingStream], None, None]:
    """Like ``stream_objects``, with streams that fetch what is read, and in order.

    Args:
        urls: read only in the thread that iterates.
        session: limits and threads. Its cache is not used.
        state: where to resume.

    Raises:
        StateError: if there are fewer URLs than the state expects.
    """
    return open_ahead(numbered_urls(urls, state), session, JumpingStream)
