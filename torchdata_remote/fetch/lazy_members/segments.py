"""Byte ranges of one object or several, read one after the other as one archive, with jumps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...core.shard_view import ShardView
from ...core.stats.counters import FETCH
from ...core.urls import RemoteUrl
from ..read_ahead import ReadAhead


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
