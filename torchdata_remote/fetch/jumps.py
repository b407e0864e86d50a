"""Streams that are read by jumps: what is passed over is not fetched; the next beginnings are prefetched.

The streams of ``streams`` fetch whole objects in parts, many ahead of the reader. These are for readers that want a few
bytes of each large object.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from functools import cached_property

from ..core.shard_view import ShardView, split_view_url
from ..core.urls import RemoteUrl, split_sample_range
from .engine import Lane
from .lazy_file import BUFFER_BYTES, LazyFile
from .object_stream import ObjectStream
from .read_ahead import ReadAhead, Segment
from .session import FetchSession
from .streams import StreamsState, numbered_urls, open_ahead


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


class JumpingStream(ObjectStream):
    """An object, or a view, that is read by requests of the thread that reads; its beginning is requested ahead."""

    most_ahead = 64 << 10

    def __init__(self, lane: Lane, url: str, number: int | None = None, start: int = 0) -> None:
        super().__init__(lane, url, number, start)
        _, self._view_of_shards = split_view_url(split_sample_range(url)[0])

    @cached_property
    def windows(self) -> ReadAhead:
        """The bytes, which may be skipped without a request. Waits for the beginning."""
        self._check_open()
        lane, download, view = self._lane, self.download, self._view_of_shards
        pieces: list[memoryview] = []
        while (piece := lane.next_piece(download, len(pieces[-1]) if pieces else 0)) is not None:
            pieces.append(piece)
        return ReadAhead(
            RemoteUrl(self.url, download.size, download.etag),
            lane.session.storage_options,
            retry=lane.options.retry,
            start=self.first_byte,
            stop=self.last_byte,
            segments=None if view is None else segments_of(view, self.first_byte, self.last_byte or 0),
            head=b"".join(pieces),
            first_bytes=self.most_ahead,
            in_flight=lane.running.in_flight,
            connection=lane.running.connection,
            sleep=lane.running.pool.sleep,
        )

    def file_of(self, name: str, start: int, size: int) -> LazyFile | None:
        """Return bytes ``start`` to ``start + size`` as a file; ``None`` if they are in several objects."""
        place = self.windows.place_of(start, size)
        if place is None:
            return None
        session = self._lane.session
        return LazyFile(
            *place,
            size,
            session.storage_options,
            name=name,
            retry=session.options.retry,
            connection=self._lane.running.connection,
            buffer_bytes=min(BUFFER_BYTES, session.options.max_buffer_bytes),
        )

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
