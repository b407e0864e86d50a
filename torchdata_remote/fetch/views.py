"""Read ranges of many objects: those of a view of shards, in windows, and the members of a batch, in any order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..core.options import MIB
from ..core.shard_view import ShardView, split_view_url
from ..core.stats import FETCH
from ..core.urls import redact
from ..errors import ObjectChangedError, UrlError
from .cache.blocks import BLOCK_BYTES, CachedBlocks
from .cache.cached_object import say_uncached
from .engine import Download, Lane, Part
from .ranges import ObjectReader
from .sample_table import Members
from .session import FetchSession

Ints = npt.NDArray[np.int64]

# Unwanted bytes that are read to save requests, at most: a share of the wanted ones, and one part of each shard
MOST_UNWANTED, PART_BYTES = 0.3, 8 * MIB
# A longer gap costs more than a request: 8 ms at 60 MB/s per connection, where stores answer after 20 ms
MAX_GAP_BYTES = 512 << 10
# Of a batch of members, whose requests run at once
_BATCH_GAP_BYTES, _WINDOW_BYTES = 128 << 10, 8 * MIB


class Ranges(NamedTuple):
    """Ranges of objects that are put together, as those of a ``ShardView``, which begin at any byte.

    Args:
        urls: of the objects, with sizes and etags as far as they are known.
        counts: number of ranges of each sample; shape ``(num_samples,)``.
        objects: index in ``urls`` of each range; shape ``(num_ranges,)``.
        starts: first byte of each range; shape ``(num_ranges,)``.
        stops: the byte after its last one; shape ``(num_ranges,)``.
    """

    urls: Sequence[str]
    counts: Ints
    objects: Ints
    starts: Ints
    stops: Ints


class GatherRequest(NamedTuple):
    """One request: bytes ``start`` to ``stop`` (exclusive) of an object, and what is wanted of them.

    ``pieces`` are first byte, the byte after the last one, and offset in the window of each wanted range, in the order
    of the first bytes; they may overlap.
    """

    object: int
    start: int
    stop: int
    pieces: list[tuple[int, int, int]]


class ViewPlan:
    """The requests for any bytes of a view.

    Args:
        view: to read.
        max_gap_bytes: unwanted bytes between two ranges that are read, to save a request.
    """

    def __init__(self, view: ShardView | Ranges, *, max_gap_bytes: int = MAX_GAP_BYTES) -> None:
        some = np.flatnonzero(view.starts < view.stops)
        starts, stops, objects = view.starts[some], view.stops[some], view.objects[some]
        # Ranges that continue each other are one
        begun = np.flatnonzero(np.append(True, (starts[1:] != stops[:-1]) | (np.diff(objects) != 0))[: len(starts)])
        self._starts, self._objects = starts[begun], objects[begun]
        self._stops = stops[np.append(begun[1:], len(stops))[: len(begun)] - 1]
        self._ends = np.cumsum(self._stops - self._starts)  # in the view
        self._samples = sample_starts(view)
        self._max_gap_bytes = max_gap_bytes
        self.num_bytes = int(self._samples[-1])
        slack = len(np.unique(objects)) * PART_BYTES / max(1, self.num_bytes)
        self._most_unwanted = MOST_UNWANTED + slack  # for each wanted byte

    def place_of(self, byte: int) -> tuple[int, int, int]:
        """Return the object of a byte of the view, its place there, and the end of the view's bytes that follow it."""
        at = min(int(np.searchsorted(self._ends, byte, side="right")), len(self._ends) - 1)
        end = int(self._ends[at])
        return int(self._objects[at]), int(self._stops[at]) - end + byte, end

    def border(self, start: int, most: int) -> int:
        """Return where a window from ``start`` on ends: between samples, unless one is larger than a window."""
        between = int(self._samples[np.searchsorted(self._samples, start + most, side="right") - 1])
        return between if between > start else start + most

    def requests(self, start: int, stop: int) -> list[GatherRequest]:
        """Return the requests for some bytes of the view, and what is wanted of each.

        Ranges of one object that overlap or are close are one request, those with the smallest gaps first.
        """
        first, last = np.searchsorted(self._ends, (start, stop - 1), side="right")
        ends, stops = self._ends[first : last + 1], self._stops[first : last + 1]
        starts, objects = self._starts[first : last + 1], self._objects[first : last + 1]
        offsets = ends - stops + starts - start
        starts, stops = starts - np.minimum(0, offsets), stops - np.maximum(0, ends - stop)
        offsets = np.maximum(0, offsets)
        order = np.lexsort((starts, objects))
        starts, stops, objects, offsets = starts[order], stops[order], objects[order], offsets[order]
        apart = np.diff(objects) != 0
        # The largest end so far in each object: pieces may overlap
        groups = np.append(0, np.cumsum(apart)) * int(stops.max() + 1)
        furthest = np.maximum.accumulate(stops + groups) - groups
        gaps = starts[1:] - furthest[:-1]
        merged = ~apart & (gaps <= 0)
        candidates = np.flatnonzero(~apart & (gaps > 0) & (gaps <= self._max_gap_bytes))
        candidates = candidates[np.argsort(gaps[candidates], kind="stable")]
        merged[candidates[np.cumsum(gaps[candidates]) <= self._most_unwanted * (stop - start)]] = True
        pieces = list(zip(starts.tolist(), stops.tolist(), offsets.tolist(), strict=True))
        borders = [0, *(np.flatnonzero(~merged) + 1).tolist(), len(pieces)]
        return [
            GatherRequest(int(objects[begin]), pieces[begin][0], int(furthest[end - 1]), pieces[begin:end])
            for begin, end in pairwise(borders)
        ]


def sample_starts(view: ShardView | Ranges) -> Ints:
    """Return the first byte in the view of each sample, then the end of the last one; shape ``(num_samples + 1,)``."""
    ends = np.append(0, np.cumsum(view.stops - view.starts))
    starts: Ints = ends[np.append(0, np.cumsum(view.counts))]
    return starts


class SelectedSamples(NamedTuple):
    """What a reader compares with the samples that it finds.

    Args:
        starts: the first byte in the view of each sample, then the end of the last one; shape ``(num_samples + 1,)``.
        key_sums: of the samples' keys; shape ``(num_samples,)``, or ``None``.
    """

    starts: Ints
    key_sums: Ints | None


def selected_in(url: str, samples: tuple[int, int] | None) -> SelectedSamples:
    """Return where the samples of a view begin, and the checksums of their keys.

    Args:
        url: of the view.
        samples: number of the first sample, and of the one after the last; ``None`` for all.

    Raises:
        UrlError: if the view has no such samples.
    """
    _, view = split_view_url(url)
    assert view is not None  # else it would be an object
    first, last = samples or (0, len(view.counts))
    if samples is not None and not first < last <= len(view.counts):
        shown = redact(url)
        raise UrlError(f"{shown}: no samples {first} to {last} in a view of {len(view.counts):,} samples.", url=shown)
    key_sums = None if view.key_sums is None else view.key_sums[first:last]
    return SelectedSamples(sample_starts(view)[first : last + 1], key_sums)


def new_buffer(num_bytes: int) -> memoryview:
    """Memory for so many bytes, which is not filled with zeros first, as that of a bytearray."""
    return np.empty(num_bytes, np.uint8).data


class ViewDownload(Download):
    """A view with its planned windows in order. Positions are bytes of the whole view.

    Args:
        lane: downloads it.
        view: to read; ``None`` if the first part has to find it.
        start: the first byte to read.
        stop: the byte after the last one to read.
        buffer: of the whole view; ``None`` makes one for each window.
        max_gap_bytes: unwanted bytes between two ranges that are read, to save a request.
    """

    def __init__(
        self,
        lane: Lane,
        view: ShardView | Ranges | None,
        start: int = 0,
        stop: int = sys.maxsize,
        *,
        buffer: memoryview | None = None,
        max_gap_bytes: int = MAX_GAP_BYTES,
    ) -> None:
        self._buffer, self._max_gap_bytes = buffer, max_gap_bytes
        self.readers: list[ObjectReader] = []
        super().__init__(lane, start, stop, None if view is None else self._set_view(view, lane))
        self.can_plan = start < self._stop

    def _set_view(self, view: ShardView | Ranges, lane: Lane) -> int:
        """Plan the windows of a view; return its number of bytes."""
        self.url, self.readers = str(view.urls[0]) if view.urls else "", [lane.reader(url) for url in view.urls]
        # Checksums are of blocks, which samples do not fill; windows are copies, also of local files
        self._plan = ViewPlan(view, max_gap_bytes=self._max_gap_bytes)
        return self._plan.num_bytes

    @property
    def next_bytes(self) -> int:
        if self.size is None:
            return 1  # of what finds the view
        return min(self._plan.border(self.planned_bytes, self.part_bytes), self._stop) - self.planned_bytes

    def plan(self, num_bytes: int) -> Part:
        part = super().plan(num_bytes)
        if self.size is None:
            part.end = None
        else:
            part.buffer = new_buffer(num_bytes) if self._buffer is None else self._buffer[part.start : part.end]
        return part

    def requests(self, part: Part) -> Sequence[GatherRequest]:
        assert part.end is not None  # of a window
        return self._plan.requests(part.start, part.end)

    def fetch(self, request: GatherRequest, part: Part) -> None:
        lane, reader = self.lane, self.readers[request.object]
        cache = lane.running.cache
        fetch: Callable[[int, int], Generator[memoryview, None, None]] = reader.pieces
        if cache is not None and not reader.store.maps_files:
            url = reader.version
            if url.size is None or url.etag is None:
                say_uncached(url)
            else:
                server = lane.session.storage_options.for_url(url).server()
                fetch = CachedBlocks(cache, str(url), url.size, url.etag, server, fetch).read
        pieces = list(fetch(request.start, request.stop))
        if self.closed or part.buffer is None:
            return
        data = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        if len(data) < request.stop - request.start:
            shown = redact(reader.url)
            raise ObjectChangedError(
                f"{shown} has {request.start + len(data):,} bytes, and samples were selected up to byte "
                f"{request.stop:,}. It was replaced, or its index is that of another shard: list it again, and select "
                "again.",
                url=shown,
            )
        for start, stop, offset in request.pieces:
            part.buffer[offset : offset + stop - start] = data[start - request.start : stop - request.start]

    def close(self) -> None:
        super().close()
        for reader in self.readers:
            reader.closed = True

    def place_of(self, byte: int) -> tuple[ObjectReader, int, int]:
        """Return the reader of a byte, the byte's place there, and the end of the bytes that follow it there."""
        index, place, end = self._plan.place_of(byte)
        return self.readers[index], place, end


class CoalescedRead:
    """A pending read of members.

    Args:
        views: of their data, in memory or not yet.
        lane: downloads it.
        download: of what is not in memory.
    """

    def __init__(self, views: list[memoryview], lane: Lane, download: ViewDownload | None) -> None:
        self._views, self._lane, self._download = views, lane, download
        self.num_bytes = sum(map(len, views))

    def wait(self) -> list[memoryview]:
        """Wait for the data of each member, in order.

        Raises:
            StorageError: for faults that retries did not solve.
        """
        FETCH.add(items=len(self._views))
        if self._download is not None:
            try:
                for _ in self._lane.pieces(self._download):
                    pass  # it is in the buffer
            finally:
                self.cancel()
        return self._views

    def cancel(self) -> None:
        """Request no more."""
        if self._download is not None:
            self._lane.close(self._download)


class RangeCoalescer(Lane, AbstractContextManager["RangeCoalescer"]):
    """Reads members: those of local files from the page cache, others by ranged requests.

    Args:
        session: limits and threads.
    """

    def __init__(self, session: FetchSession) -> None:
        super().__init__(session)
        self._part_bytes, self._mapped = [_WINDOW_BYTES] * 2, dict[str, memoryview]()

    def __exit__(self, *error: object) -> None:
        self._mapped.clear()
        self.release()

    def start_read(self, members: Members) -> CoalescedRead:
        """Request the data of members, of which two have the same bytes or none in common, without waiting.

        Memory for all of them is allocated at once.
        """
        readers = [self.reader(url) for url in members.urls]
        if all(reader.store.maps_files for reader in readers):
            ranges = zip(members.objects.tolist(), members.starts.tolist(), members.sizes.tolist(), strict=True)
            return CoalescedRead([self._mapped_view(readers[at], *one) for at, *one in ranges], self, None)
        order = np.lexsort((members.starts, members.objects))
        starts, sizes, objects = members.starts[order], members.sizes[order], members.objects[order]
        view = Ranges(members.urls, np.ones(len(order), np.int64), objects, starts, starts + sizes)
        buffer = new_buffer(int(sizes.sum()))
        # Two requests for the same block would store it twice
        gap_bytes = _BATCH_GAP_BYTES if self.running.cache is None else BLOCK_BYTES
        download = self.add(ViewDownload(self, view, buffer=buffer, max_gap_bytes=gap_bytes))
        data, ends = buffer.toreadonly(), np.cumsum(sizes)[np.argsort(order)]
        views = [data[end - size : end] for end, size in zip(ends.tolist(), members.sizes.tolist(), strict=True)]
        return CoalescedRead(views, self, download)

    def _mapped_view(self, reader: ObjectReader, start: int, size: int) -> memoryview:
        data = self._mapped.get(reader.url)
        if data is None:
            data = next(reader.pieces(0, None), memoryview(b""))  # all of a file is one piece
            if size < len(data):  # an archive, of which more members may follow
                self._mapped[reader.url] = data
        return data[start : start + size]
