"""Read many ranges of many objects: merge close ones, fetch them in parallel, return them in any order."""

from __future__ import annotations

import queue
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple

import numpy as np

from ..core.options import MIB, StorageOptions
from ..core.stats.counters import FETCH
from ..core.threads.pool import next_item
from ..core.urls import RemoteUrl
from ..storage import Store, open_store
from .cache.blocks import BLOCK_BYTES, CachedBlocks
from .cache.cached_object import say_uncached
from .range_download import RangeRequest
from .range_reader import read_range
from .sample_table import Int64s, Members
from .session import ActiveSession, FetchSession

GAP_BYTES = 128 << 10  # gaps up to this size are read too: they cost less than another request
_CHUNK_BYTES = 8 * MIB  # of one request


class _Chunk(NamedTuple):
    """A request for bytes ``start`` to ``end`` of an object; ``members`` are indices, sorted by start."""

    url: RemoteUrl
    start: int
    end: int
    members: Int64s


class CoalescedRead:
    """A pending read of members.

    Args:
        members: to read.
        views: of their data, if they need no requests.
    """

    def __init__(self, members: Members, views: list[memoryview] | None) -> None:
        self.members, self._views = members, views
        self._ends = np.cumsum(members.sizes)
        self._data = memoryview(bytearray(0 if views is not None else int(members.sizes.sum())))
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._num_chunks = 0
        self.cancelled = False

    def wait(self) -> list[memoryview]:
        """Wait for the data of each member, in order.

        Raises:
            StorageError: for faults that retries did not solve.
        """
        FETCH.add(items=len(self.members.sizes))
        for _ in range(self._num_chunks):
            with FETCH.waiting():
                error = next_item(self._done)
            if error is not None:
                self.cancelled = True
                raise error
        if self._views is not None:
            return self._views
        data = self._data.toreadonly()
        return [data[start:end] for start, end in pairwise([0, *self._ends.tolist()])]

    def submit(self, session: ActiveSession, store: Store, path: str, server: str, chunk: _Chunk) -> None:
        """Queue a request for the threads."""
        self._num_chunks += 1
        session.pool.submit(self._read, session, store, path, server, chunk, on_dropped=self._done.put)

    def _read(self, session: ActiveSession, store: Store, path: str, server: str, chunk: _Chunk) -> None:
        """Fetch a chunk in a thread of the pool, and copy its members into the buffer."""
        try:
            if not self.cancelled:
                self._copy(self._pieces(session, store, path, server, chunk), chunk)
            self._done.put(None)
        except BaseException as error:  # noqa: BLE001  # raised by wait(), whatever it is
            self._done.put(error)

    def _pieces(
        self, session: ActiveSession, store: Store, path: str, server: str, chunk: _Chunk
    ) -> Iterator[memoryview]:
        """Read a chunk, through the cache if there is one."""
        url = chunk.url

        def fetch(start: int, end: int) -> Iterator[memoryview]:
            return read_range(
                store,
                RangeRequest(str(url), path, start, end, url.size, url.etag),
                session.options.retry,
                in_flight=session.in_flight,
                on_found=lambda version: None,
                sleep=lambda seconds: session.pool.sleep(seconds, is_closed=lambda: self.cancelled),
            )

        if session.cache is None:
            return fetch(chunk.start, chunk.end)
        if url.etag is None or url.size is None:
            say_uncached(url)
            return fetch(chunk.start, chunk.end)
        return CachedBlocks(session.cache, str(url), url.size, url.etag, server, fetch).read(chunk.start, chunk.end)

    def _copy(self, pieces: Iterator[memoryview], chunk: _Chunk) -> None:
        starts = self.members.starts[chunk.members]
        sizes = self.members.sizes[chunk.members]
        offsets = (self._ends[chunk.members] - sizes).tolist()  # in the buffer
        members = list(zip(starts.tolist(), (starts + sizes).tolist(), offsets, strict=True))
        position, at = chunk.start, 0
        for piece in pieces:
            stop = position + len(piece)
            for start, end, offset in members[at : bisect_left(members, (stop,))]:
                first, last = max(start, position), min(end, stop)
                self._data[offset + first - start : offset + last - start] = piece[first - position : last - position]
                at += end <= stop
            position = stop


class RangeCoalescer:
    """Reads members: those of local files from the page cache, others by ranged requests.

    Args:
        session: limits and threads.
        options_of: storage options for a URL.
    """

    def __init__(self, session: FetchSession, options_of: Callable[[str], StorageOptions]) -> None:
        self._options_of = options_of
        self._session = session.start()
        self._mapped: dict[str, memoryview] = {}

    @property
    def session(self) -> ActiveSession:
        """The running session: threads and limits."""
        return self._session

    def unmap(self, url: str) -> None:
        """Keep a local file mapped no longer than its data are used."""
        self._mapped.pop(url, None)

    def __enter__(self) -> RangeCoalescer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._mapped.clear()
        self._session.open_no_more()
        self._session.leave()

    def start_read(self, members: Members) -> CoalescedRead:
        """Request the data of members, of which two have the same bytes or none in common, without waiting.

        Memory for all of them is allocated at once.
        """
        opened = [open_store(url, self._options_of(url), self._session.connection) for url in members.urls]
        if all(store.maps_files for store, _ in opened):
            return CoalescedRead(members, list(self._mapped_views(members, opened)))
        read = CoalescedRead(members, None)
        # Two requests for the same block would store it twice
        gap_bytes = GAP_BYTES if self._session.cache is None else BLOCK_BYTES
        for index, chunk in _chunks(members, gap_bytes):
            server = self._options_of(chunk.url).for_url(chunk.url).server()
            read.submit(self._session, *opened[index], server, chunk)
        return read

    def _mapped_views(self, members: Members, opened: list[tuple[Store, str]]) -> Iterator[memoryview]:
        ranges = zip(members.objects.tolist(), members.starts.tolist(), members.sizes.tolist(), strict=True)
        for index, start, size in ranges:
            url = members.urls[index]
            data = self._mapped.get(url)
            if data is None:
                store, path = opened[index]
                (data,) = store.read(path, 0, None, url.etag).chunks
                if size < len(data):  # an archive, of which more members may follow
                    self._mapped[str(url)] = data
            yield data[start : start + size]


def _chunks(members: Members, gap_bytes: int) -> Iterator[tuple[int, _Chunk]]:
    """Yield the requests for these members, each with the index of its object."""
    order = np.lexsort((members.starts, members.objects))
    order = order[members.sizes[order] > 0]
    if not len(order):
        return
    objects, starts = members.objects[order], members.starts[order]
    ends = starts + members.sizes[order]
    apart = np.flatnonzero((np.diff(objects) != 0) | (starts[1:] - ends[:-1] > gap_bytes)) + 1
    for first, last in pairwise([0, *apart.tolist(), len(order)]):
        index = int(objects[first])
        begin, end = int(starts[first]), int(ends[last - 1])
        num_chunks = max(1, -(-(end - begin) // _CHUNK_BYTES))
        cuts = np.linspace(begin, end, num_chunks + 1).astype(np.int64).tolist()
        for start, stop in pairwise(cuts):
            within = slice(
                first + int(np.searchsorted(ends[first:last], start, side="right")),
                first + int(np.searchsorted(starts[first:last], stop, side="left")),
            )
            if within.start < within.stop:
                yield index, _Chunk(members.urls[index], start, stop, order[within])
