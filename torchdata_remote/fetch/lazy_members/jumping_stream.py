"""Read an object, samples of it, or a view by jumps: what is passed over is not fetched."""

from __future__ import annotations

import io
import queue
from collections.abc import Iterator
from contextlib import suppress

from ...core.shard_view import split_view_url
from ...core.stats.counters import FETCH
from ...core.threads.pool import PoolClosedError, next_item
from ...core.urls import RemoteUrl, redact, split_sample_range
from ..read_ahead import ReadAhead
from ..sample_ranges import wanted_bytes
from ..views import selected_in
from .jumping_lane import Lane
from .lazy_file import BUFFER_BYTES, LazyFile
from .segments import Segment, SegmentReader, segments_of


class JumpingStream(io.BufferedIOBase):
    """An object that is read by requests of the thread that reads; its beginning is requested ahead.

    Attributes:
        url: of the object.
        number: of the object among those of its pipe; ``None`` if their order cannot be repeated.
        first_byte: the first byte that is read.
        last_byte: the byte after the last one; ``None`` for the object's end.

    Args:
        lane: opens it.
        url: of the object, of samples of it, or of a view.
        number: as above.
        start: byte to start from.
    """

    def __init__(self, lane: Lane, url: str, number: int | None, start: int) -> None:
        self._lane, self.number, self._is_open = lane, number, False
        whole, samples = split_sample_range(url)
        session = lane.session
        _, view = split_view_url(whole)
        if view is None:
            stop: int | None = None
            if samples is not None:
                begin, stop = wanted_bytes(whole, samples, session.storage_options, session.options.retry)
                start = max(start, begin)
            segments = [Segment(whole, start, stop, start)]
            self._num_bytes: int | None = None
        else:
            self.selected = selected_in(whole, samples)  # only a view has them: its reader compares them
            start, stop = max(start, self.selected.first_byte), self.selected.last_byte
            segments, self._num_bytes = segments_of(view, start, stop), view.num_bytes
        self.url, self.first_byte, self.last_byte = str(whole if view is None else url), start, stop
        self.segments = SegmentReader(segments, lane.opened)
        self._parts: Iterator[memoryview] | None = None
        self._view = memoryview(b"")
        self._head: queue.SimpleQueue[BaseException | None] | None = None
        lane.enter()
        self._is_open = True

    def request_head(self) -> None:
        """Request the first bytes in a thread."""
        if self.segments.first is None:
            return
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._head = done
        with suppress(PoolClosedError):
            self._lane.pool.submit(_fetch_head, self.segments.first, done, on_dropped=done.put)
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
            connection=self._lane.connection,
            buffer_bytes=min(BUFFER_BYTES, options.max_buffer_bytes),
        )

    def parts(self) -> Iterator[memoryview]:
        """Yield the rest in consecutive pieces of any length."""
        self._check_open()
        self._wait_for_head()
        view, self._view = self._view, memoryview(b"")
        if view:
            yield view
        if self._parts is None:
            self._parts = iter(self.segments)
        yield from self._parts

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_open()
        self._wait_for_head()
        if self._parts is None:
            self._parts = iter(self.segments)
        limit, pieces = -1 if size is None else size, []
        while limit:
            if not self._view:
                self._view = next(self._parts, memoryview(b""))
                if not self._view:
                    break
            piece = self._view if limit < 0 else self._view[:limit]
            self._view = self._view[len(piece) :]
            limit -= len(piece) if limit > 0 else 0
            pieces.append(piece)
        return b"".join(pieces)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"{redact(self.url)}: read from a closed stream.")

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return not self._is_open

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._lane.leave()


def _fetch_head(windows: ReadAhead, done: queue.SimpleQueue[BaseException | None]) -> None:
    try:
        windows.head()
        done.put(None)
    except BaseException as error:  # noqa: BLE001  # raised in the consumer, whatever it is
        done.put(error)
