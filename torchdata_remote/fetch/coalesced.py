"""Many ranges of many objects at once: merged where they are close, read in parallel, handed on in any order."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple

import numpy as np

from ..core.options import MIB, StorageOptions
from ..core.stats.counters import FETCH
from ..core.threads.pool import next_item
from ..core.urls import RemoteUrl
from ..storage.registry import Store, open_store
from .range_download import RangeRequest
from .range_reader import read_range
from .sample_table import Int64s, Members
from .session import ActiveSession, FetchSession

GAP_BYTES = 128 << 10  # that nobody wants are read along: they cost less than another request
_CHUNK_BYTES = 8 * MIB  # of one request


class _Chunk(NamedTuple):
    """A request: bytes ``start`` to ``end`` of an object, for the members at ``wanted``, sorted by their places."""

    url: RemoteUrl
    start: int
    end: int
    wanted: Int64s


class CoalescedRead:
    """Some members under way.

    Args:
        members: whose data are wanted.
        views: of their data, where these are at hand already.
    """

    def __init__(self, members: Members, views: list[memoryview] | None) -> None:
        self.members, self._views = members, views
        self._ends = np.cumsum(members.sizes)
        self._data = memoryview(bytearray(0 if views is not None else int(members.sizes.sum())))
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._num_chunks = 0
        self.given_up = False

    def wait(self) -> list[memoryview]:
        """The data of each member, in order.

        Raises:
            StorageError: for what no repetition mended.
        """
        FETCH.add(items=len(self.members.sizes))
        for _ in range(self._num_chunks):
            with FETCH.waiting():
                error = next_item(self._done)
            if error is not None:
                self.given_up = True
                raise error
        if self._views is not None:
            return self._views
        data = self._data.toreadonly()
        return [data[start:end] for start, end in pairwise([0, *self._ends.tolist()])]

    def begin(self, running: ActiveSession, open_object: Store, path: str, chunk: _Chunk) -> None:
        """Queue a request for the threads."""
        self._num_chunks += 1
        running.pool.submit(self._read, running, open_object, path, chunk, on_dropped=self._done.put)

    def _read(self, running: ActiveSession, store: Store, path: str, chunk: _Chunk) -> None:
        """In a thread: fetch a chunk, and copy what is wanted of it to its place."""
        try:
            if not self.given_up:
                self._copy(running, store, path, chunk)
            self._done.put(None)
        except BaseException as error:  # noqa: BLE001  # it belongs to who waits, whatever it is
            self._done.put(error)

    def _copy(self, running: ActiveSession, store: Store, path: str, chunk: _Chunk) -> None:
        starts = self.members.starts[chunk.wanted]
        sizes = self.members.sizes[chunk.wanted]
        places = (self._ends[chunk.wanted] - sizes).tolist()
        wanted = list(zip(starts.tolist(), (starts + sizes).tolist(), places, strict=True))
        pieces = read_range(
            store,
            RangeRequest(str(chunk.url), path, chunk.start, chunk.end, chunk.url.size, chunk.url.etag),
            running.options.retry,
            in_flight=running.in_flight,
            on_found=lambda found: None,
            sleep=lambda seconds: running.pool.sleep(seconds, is_closed=lambda: self.given_up),
        )
        position, at = chunk.start, 0
        for piece in pieces:
            stop = position + len(piece)
            while at < len(wanted) and wanted[at][0] < stop:
                start, end, place = wanted[at]
                first, last = max(start, position), min(end, stop)
                self._data[place + first - start : place + last - start] = piece[first - position : last - position]
                if end > stop:
                    break
                at += 1
            position = stop


class RangeCoalescer:
    """Gathers members, of local files out of the page cache, of others by ranged requests.

    Args:
        engine: limits and threads.
        options_of: the storage options for a URL.
    """

    def __init__(self, engine: FetchSession, options_of: Callable[[str], StorageOptions]) -> None:
        self._options_of = options_of
        self._running = engine.start()
        self._mapped: dict[str, memoryview] = {}

    def __enter__(self) -> RangeCoalescer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._mapped.clear()
        self._running.open_no_more()
        self._running.leave()

    def begin(self, members: Members) -> CoalescedRead:
        """Ask for the data of members, of which no two overlap, without waiting for them.

        It takes the memory of all of them at once.
        """
        opened = [open_store(url, self._options_of(url), self._running.connection) for url in members.urls]
        if all(store.maps_files for store, _ in opened):
            return CoalescedRead(members, list(self._mapped_views(members, opened)))
        gathering = CoalescedRead(members, None)
        for index, chunk in _chunks(members):
            gathering.begin(self._running, *opened[index], chunk)
        return gathering

    def _mapped_views(self, members: Members, opened: list[tuple[Store, str]]) -> Iterator[memoryview]:
        places = zip(members.objects.tolist(), members.starts.tolist(), members.sizes.tolist(), strict=True)
        for index, start, size in places:
            url = members.urls[index]
            data = self._mapped.get(url)
            if data is None:
                store, path = opened[index]
                (data,) = store.read(path, 0, None, url.etag).chunks
                if size < len(data):  # an archive, of which more will be wanted
                    self._mapped[str(url)] = data
            yield data[start : start + size]


def _chunks(members: Members) -> Iterator[tuple[int, _Chunk]]:
    """The requests that bring these members, each with the number of its object."""
    order = np.lexsort((members.starts, members.objects))
    order = order[members.sizes[order] > 0]
    if not len(order):
        return
    objects, starts = members.objects[order], members.starts[order]
    ends = starts + members.sizes[order]
    apart = np.flatnonzero((np.diff(objects) != 0) | (starts[1:] - ends[:-1] > GAP_BYTES)) + 1
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
