"""``LazyFile``: a member of a shard in a store, as a file that is fetched where it is read."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

from ..core.options import MIB, RetryPolicy, StorageOptions
from ..core.urls import redact
from ..errors import ObjectChangedError, RemoteDataError
from ..formats.member_file import MemberFile
from ..storage import Connection
from .read_ahead import OneObject

BLOCK_BYTES = 64 << 10
BUFFER_BYTES = 4 * MIB
_MOST_BLOCKS = 16  # of one request, while a file is read in order


class LazyFile(MemberFile):
    """Bytes of an object as a seekable, read-only binary file, by ranged requests in the thread that reads.

    Blocks of 64 KiB are kept, those that were used last, up to ``buffer_bytes``. A request is for the blocks that a
    read needs; where the file is read in order, it is for more of them, twice as many each time, up to 1 MiB. Nothing
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
        buffer_bytes: bound on the bytes that are kept; at least two blocks.

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
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._blocks: OrderedDict[int, bytes] = OrderedDict()  # the one that was used last is the last one
        super().__init__(name or redact(url), size)
        self._url: str = url
        self._start, self._options = start, options
        self._retry, self._buffer_bytes = retry or RetryPolicy(), max(buffer_bytes, 2 * BLOCK_BYTES)
        self._connection = connection or Connection(read_timeout_s=self._retry.progress_timeout_s)
        self._forget()

    def _forget(self) -> None:
        """Start without blocks and without a lock that another thread of a forked process may hold."""
        self._pid, self._lock = os.getpid(), threading.RLock()
        self._blocks = OrderedDict()
        self._next_block, self._num_ahead = -1, 1  # after the last request, and how many the next one is for
        self._object: OneObject | None = None

    @property
    def url(self) -> str:
        """Of the object, without credentials."""
        return redact(self._url)

    def _check_open(self) -> None:
        super()._check_open()
        if self._pid != os.getpid():
            self._forget()

    def _read_at(self, start: int, stop: int) -> bytes:
        if stop - start > self._buffer_bytes // 2:
            return self._fetched(start, stop)  # it would only replace all blocks
        first, last = start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        pieces = []
        for number in range(first, last + 1):
            if number in self._blocks:
                self._blocks.move_to_end(number)
            else:
                self._fetch_blocks(number, last)
            begin = number * BLOCK_BYTES
            pieces.append(self._blocks[number][max(0, start - begin) : stop - begin])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _fetch_blocks(self, first: int, last: int) -> None:
        """Fetch blocks ``first`` to ``last`` and those ahead of them, up to the next one that is here."""
        most = min(_MOST_BLOCKS, self._buffer_bytes // BLOCK_BYTES // 2)
        self._num_ahead = min(2 * self._num_ahead, most) if first == self._next_block else 1
        end = min(max(last + 1, first + self._num_ahead), -(-self.size // BLOCK_BYTES))
        stop = next((number for number in range(first + 1, end) if number in self._blocks), end)
        data = self._fetched(first * BLOCK_BYTES, min(stop * BLOCK_BYTES, self.size))
        self._next_block = stop
        for number in range(stop - 1, first - 1, -1):  # the one that is read first is dropped last
            begin = (number - first) * BLOCK_BYTES
            self._blocks[number] = data[begin : begin + BLOCK_BYTES]
            self._blocks.move_to_end(number)
        while len(self._blocks) > self._buffer_bytes // BLOCK_BYTES:
            self._blocks.popitem(last=False)

    def _fetched(self, start: int, stop: int) -> bytes:
        if self._object is None:
            self._object = OneObject(self._url, self._options, self._retry, connection=self._connection)
        begin, end = self._start + start, self._start + stop
        data = self._object.read(begin, end, most=end)
        self._url = self._object.version
        if len(data) != stop - start:
            raise ObjectChangedError(
                f"{self.url} ends at byte {begin + len(data):,}, and {self.name!r:.200} has bytes "
                f"{self._start:,} to {self._start + self.size:,} of it. It was replaced: list it again.",
                url=self.url,
            )
        return data

    @property
    def num_requests(self) -> int:
        """Number of requests that this copy has sent, without retries."""
        return 0 if self._object is None else self._object.num_requests

    @property
    def fetched_bytes(self) -> int:
        """Bytes that they have returned."""
        return 0 if self._object is None else self._object.fetched_bytes

    def close(self) -> None:
        if getattr(self, "_pid", None) not in (None, os.getpid()):
            self._forget()  # a lock that is held forever
        super().close()

    def _drop(self) -> None:
        self._blocks.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        with self._lock:
            fields = (self._url, self._start, self.size, self._options)
            return _lazy_file_at, (fields, self.name, self._retry, self._connection, self._buffer_bytes, self._position)


def _lazy_file_at(
    fields: tuple[str, int, int, StorageOptions],
    name: str,
    retry: RetryPolicy,
    connection: Connection,
    buffer_bytes: int,
    position: int,
) -> LazyFile:
    try:
        file = LazyFile(*fields, name=name, retry=retry, connection=connection, buffer_bytes=buffer_bytes)
    except TypeError as error:
        raise RemoteDataError(f"{name!r:.200} was pickled by another version of torchdata_remote: {error}") from error
    file.seek(position)
    return file
