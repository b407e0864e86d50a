"""Streams that are read by jumps: what is passed over is not fetched; the next beginnings are prefetched.

The streams of ``streams`` fetch whole objects in parts, many ahead of the reader. These are for readers that want a few
bytes of each large object.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from functools import cached_property

from .downloads import ObjectDownload
from .lazy_file import LazyFile
from .object_stream import ObjectStream
from .read_ahead import ReadAhead
from .session import FetchSession
from .streams import StreamsState, numbered_urls, open_ahead


class JumpingStream(ObjectStream):
    """An object, or a view, that is read by requests of the thread that reads; its beginning is requested ahead."""

    most_ahead = 64 << 10

    @cached_property
    def windows(self) -> ReadAhead:
        """The bytes, which may be skipped without a request. Waits for the beginning."""
        self._check_open()
        lane, download = self._lane, self.download
        pieces: list[memoryview] = []
        while (piece := lane.next_piece(download, len(pieces[-1]) if pieces else 0)) is not None:
            pieces.append(piece)
        is_object = isinstance(download, ObjectDownload)
        return ReadAhead(
            download.reader.version if isinstance(download, ObjectDownload) else self.url,
            lane.session.storage_options,
            retry=lane.options.retry,
            start=self.first_byte,
            stop=self.last_byte,
            place_of=None if is_object else download.place_of,
            head=b"".join(pieces),
            first_bytes=self.most_ahead,
            in_flight=lane.running.in_flight,
            connection=lane.running.connection,
            sleep=lane.running.pool.sleep,
        )

    def file_of(self, name: str, start: int, size: int) -> LazyFile | None:
        """Return bytes ``start`` to ``start + size`` as a file; ``None`` if they are in several objects."""
        url, place, end = self.windows.place_of(start)
        if start + size > end:
            return None
        options, connection = self._lane.session.storage_options, self._lane.running.connection
        return LazyFile(url, place, size, options, name=name, retry=self._lane.options.retry, connection=connection)

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
