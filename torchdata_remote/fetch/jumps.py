"""Streams that are read by jumps: what is passed over is not fetched; the next beginnings are prefetched.

The streams of ``streams`` fetch whole objects in parts, many ahead of the reader. These are for readers that want a few
bytes of each large object.
"""

from __future__ import annotations

import queue
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ..core.shard_view import ShardView, split_view_url
from ..core.stats.counters import FETCH
from ..core.threads.pool import PoolClosedError, next_item
from ..core.urls import RemoteUrl, split_sample_range
from .engine import Lane
from .lazy_file import BUFFER_BYTES, LazyFile
from .object_stream import PieceStream
from .read_ahead import ReadAhead
from .sample_ranges import wanted_bytes
from .session import FetchSession
from .streams import StreamsState, numbered_urls
from .views import selected_in

HEAD_BYTES = 64 << 10  # of a shard that is prefetched


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


def segments_of(view: ShardView, first: int, last: int) -> list[Segment]:
    """Return the ranges of a view that have its bytes ``first`` to ``last``; adjacent ones are one."""
    found: list[Segment] = []
    at = 0
    ranges = zip(view.objects.tolist(), view.starts.tolist(), view.stops.tolist(), strict=True)
    for number, start, stop in ranges:
        begin, end = max(at, first), min(at + stop - start, last)
        if begin < end:
            segment = Segment(view.urls[number], start + begin - at, start + end - at, begin)
            if found and (found[-1].url, found[-1].stop) == (segment.url, segment.start):
                segment = Segment(segment.url, found[-1].start, segment.stop, found.pop().at)
            found.append(segment)
        at += stop - start
    return found


class SegmentReader:
    """Yields the bytes of segments for a ``ByteReader``, which may jump over them.

    Args:
        segments: adjacent in the archive.
        opened: opens a segment; it is called when the first byte of it is read or skipped.
    """

    def __init__(self, segments: Sequence[Segment], opened: Callable[[Segment], ReadAhead]) -> None:
        self._segments, self._opened = segments, opened
        self._starts = [segment.at for segment in segments]
        self._number, self._windows = 0, opened(segments[0]) if segments else None
        self._versions: dict[str, RemoteUrl] = {}

    @property
    def first(self) -> ReadAhead | None:
        """Of the segment that is read; ``None`` at the end."""
        return self._windows

    def __iter__(self) -> Iterator[memoryview]:
        while (windows := self._windows) is not None:
            parts = iter(windows)
            while True:
                with FETCH.waiting():
                    part = next(parts, None)
                if part is None:
                    break
                yield part
            if self._windows is windows:
                self._advance()

    def jump(self, num_bytes: int) -> int:
        """Skip the next bytes; return how many there were."""
        skipped = 0
        while self._windows is not None:
            skipped += self._windows.jump(num_bytes - skipped)
            if skipped == num_bytes:
                break
            self._advance()
        return skipped

    def expect(self, num_bytes: int) -> None:
        """Say that the next bytes will be read."""
        if self._windows is not None:
            self._windows.expect(num_bytes)

    def _advance(self) -> None:
        assert self._windows is not None  # callers have asked
        version = self._windows.version
        self._versions[version] = version
        self._number += 1
        more = self._number < len(self._segments)
        self._windows = self._opened(self._segments[self._number]) if more else None

    def place_of(self, start: int, size: int) -> tuple[RemoteUrl, int] | None:
        """Return the object with bytes ``start`` to ``start + size`` of the archive, and the first one's place in it.

        ``None`` if they are in several objects.
        """
        number = bisect_right(self._starts, start) - 1
        if number < 0:
            return None
        segment = self._segments[number]
        if number + 1 < len(self._segments) and start + size > self._starts[number + 1]:
            return None
        if number == self._number and self._windows is not None:
            return self._windows.version, segment.start + start - segment.at
        url = segment.url
        known = url if isinstance(url, RemoteUrl) else RemoteUrl(url)
        found = self._versions.get(url) or RemoteUrl(str(url), known.size, known.etag)
        return found, segment.start + start - segment.at


class JumpingStream(PieceStream):
    """An object that is read by requests of the thread that reads; its beginning is requested ahead.

    Args:
        lane: opens it.
        url: of the object, of samples of it, or of a view.
        number: as above.
        start: byte to start from.
    """

    def __init__(self, lane: Lane, url: str, number: int | None, start: int) -> None:
        self._is_closed = True  # nothing to release if the URL is refused
        self._lane, session = lane, lane.session
        whole, samples = split_sample_range(url)
        _, view = split_view_url(whole)
        stop: int | None = None
        self._num_bytes: int | None = None
        if view is None:
            if samples is not None:
                begin, stop = wanted_bytes(whole, samples, session.storage_options, session.options.retry)
                start = max(start, begin)
            segments = [Segment(whole, start, stop, start)]
        else:
            self.selected = selected_in(whole, samples)  # only a view has them: its reader compares them
            start, stop = max(start, self.selected.first_byte), self.selected.last_byte
            segments, self._num_bytes = segments_of(view, start, stop), view.num_bytes
        self.segments = SegmentReader(segments, self._opened)
        self._parts = iter(self.segments)
        self._head: queue.SimpleQueue[BaseException | None] | None = None
        lane.enter()
        super().__init__(str(whole if view is None else url), number, start, stop)

    def _opened(self, segment: Segment) -> ReadAhead:
        session, running = self._lane.session, self._lane.running
        return ReadAhead(
            segment.url,
            session.storage_options,
            retry=session.options.retry,
            start=segment.start,
            stop=segment.stop,
            first_bytes=HEAD_BYTES,
            in_flight=running.in_flight,
            connection=running.connection,
            sleep=running.pool.sleep,
        )

    def request_head(self) -> None:
        """Request the first bytes in a thread."""
        if self.segments.first is None:
            return
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._head = done
        with suppress(PoolClosedError):
            self._lane.running.pool.submit(_fetch_head, self.segments.first, done, on_dropped=done.put)
            return
        self._head = None  # requested when it is read

    def _wait_for_head(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            with FETCH.waiting():
                error = next_item(head)
            if error is not None:
                raise error

    def head(self) -> bytes:
        """Return the first bytes without consuming them."""
        self._check_open()
        self._wait_for_head()
        windows = self.segments.first
        return b"" if windows is None else windows.head()

    def find_num_bytes(self) -> int:
        """Return the length of the archive; waits for the first response if the listing did not report it."""
        self.head()
        if self._num_bytes is None:
            windows = self.segments.first
            assert windows is not None  # an object has one segment
            self._num_bytes = windows.find_num_bytes()
        return self._num_bytes

    @property
    def num_bytes(self) -> int | None:
        """Length of the archive; ``None`` before the first response if the listing did not report it."""
        windows = self.segments.first
        return self._num_bytes if self._num_bytes is not None or windows is None else windows.size

    def place_of(self, byte: int) -> tuple[RemoteUrl, int] | None:
        """Return the object with this byte of the archive, and its place in it."""
        return self.segments.place_of(byte, 1)

    def file_of(self, name: str, start: int, size: int) -> LazyFile | None:
        """Return bytes ``start`` to ``start + size`` as a file; ``None`` if they are in several objects."""
        place = self.segments.place_of(start, size)
        if place is None:
            return None
        options = self._lane.session.options
        return LazyFile(
            place[0],
            place[1],
            size,
            self._lane.session.storage_options,
            name=name,
            retry=options.retry,
            connection=self._lane.running.connection,
            buffer_bytes=min(BUFFER_BYTES, options.max_buffer_bytes),
        )

    def _advance(self) -> bool:
        self._wait_for_head()
        self._view = next(self._parts, memoryview(b""))
        return bool(self._view)

    def close(self) -> None:
        if not self._is_closed:
            super().close()
            self._lane.leave()


def _fetch_head(windows: ReadAhead, done: queue.SimpleQueue[BaseException | None]) -> None:
    try:
        windows.head()
        done.put(None)
    except BaseException as error:  # noqa: BLE001  # raised in the consumer, whatever it is
        done.put(error)


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
    source, lane = numbered_urls(urls, state), Lane(session)
    room = lane.running.lane_bytes(session.num_lanes) // HEAD_BYTES
    most_ahead = max(1, min(session.options.max_in_flight, room))
    ahead: deque[tuple[str, JumpingStream]] = deque()
    ended: Exception | None = None
    try:
        while True:
            while ended is None and len(ahead) <= most_ahead:
                try:
                    number, url, start = next(source)
                    stream = JumpingStream(lane, url, number if session.options.in_order else None, start)
                    ahead.append((url, stream))
                    stream.request_head()
                except Exception as error:  # noqa: BLE001, PERF203  # earlier objects are handed out first
                    ended = error
            if ahead:
                FETCH.add(items=1)
                yield ahead.popleft()
            elif isinstance(ended, StopIteration):
                return
            elif ended is not None:
                raise ended
    finally:
        ended = None  # it refers to this frame, which would keep all of this until a collection
        for _, stream in ahead:
            stream.close()
        lane.release()
