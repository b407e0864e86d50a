"""Read a view of shards, and batches of ranges: windows that are put together from ranges of several objects."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..core.options import MIB
from ..core.shard_view import ShardView, split_view_url
from ..core.threads.pool import PoolClosedError
from ..core.urls import RemoteUrl, redact
from ..errors import ObjectChangedError, UrlError
from .cache.blocks import CachedBlocks
from .cache.cached_object import say_uncached
from .engine import Download, Lane, Part
from .ranges import ObjectVersion

Ints = npt.NDArray[np.int64]

# Unwanted bytes that are read to save requests, at most: a share of the wanted ones, and one part of each shard
MOST_UNWANTED, PART_BYTES = 0.3, 8 * MIB
# A longer gap costs more than a request: 8 ms at 60 MB/s per connection, where stores answer after 20 ms
MAX_GAP_BYTES = 512 << 10


class Ranges(NamedTuple):
    """Ranges of objects that are put together, as those of a ``ShardView``, which begin at any byte.

    Args:
        urls: of the objects, with sizes and etags as far as they are known.
        counts: number of ranges of each sample; shape ``(num_samples,)``.
        objects: index in ``urls`` of each range; shape ``(num_ranges,)``.
        starts: first byte of each range; shape ``(num_ranges,)``.
        stops: the byte after its last one; shape ``(num_ranges,)``.
    """

    urls: Sequence[RemoteUrl]
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
        is_local: whether gaps cost no more than memory to copy.
    """

    def __init__(self, view: ShardView | Ranges, *, max_gap_bytes: int = MAX_GAP_BYTES, is_local: bool = False) -> None:
        some = np.flatnonzero(view.starts < view.stops)
        starts, stops, objects = view.starts[some], view.stops[some], view.objects[some]
        # Ranges that continue each other are one
        begun = np.flatnonzero(np.append(True, (starts[1:] != stops[:-1]) | (np.diff(objects) != 0))[: len(starts)])
        self._starts, self._objects = starts[begun], objects[begun]
        self._stops = stops[np.append(begun[1:], len(stops))[: len(begun)] - 1]
        self._ends = np.cumsum(self._stops - self._starts)  # in the view
        self._samples = sample_starts(view)
        self._max_gap_bytes = max_gap_bytes
        slack = len(np.unique(objects)) * PART_BYTES / max(1, int(self._samples[-1]))
        self._most_unwanted = np.inf if is_local else MOST_UNWANTED + slack  # for each wanted byte

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


class Window(Part):
    """A part that is put together from ranges of objects: queued, being downloaded, or downloaded as one piece.

    Args:
        start: its first byte in the download.
        requests: for its bytes.
        buffer: where they are copied to.
        reserved_bytes: of the memory budget.
    """

    __slots__ = ("buffer", "left", "requests")

    def __init__(self, start: int, requests: Sequence[GatherRequest], buffer: memoryview, reserved_bytes: int) -> None:
        super().__init__(start, start + len(buffer), reserved_bytes)
        self.requests, self.buffer = requests, buffer
        self.left = list(range(len(requests)))  # one is popped when a request has ended; the last one is 0


def new_buffer(num_bytes: int) -> memoryview:
    """Memory for so many bytes, which is not filled with zeros first, as that of a bytearray."""
    return np.empty(num_bytes, np.uint8).data


class GatheredDownload(Download):
    """Something that is put together from ranges of objects, window by window.

    Args:
        lane: downloads it.
        urls: of the objects, with sizes and etags as far as they are known.
        start: the first byte to read.
        stop: the byte after the last one to read; ``None`` for the end.
        size: of all of it; ``None`` if it is not known yet.
    """

    def __init__(
        self, lane: Lane, urls: Sequence[RemoteUrl], start: int = 0, stop: int | None = None, size: int | None = None
    ) -> None:
        super().__init__(start, stop, size)
        self.url, self.urls = str(urls[0]) if urls else "", urls
        self.readers = [lane.reader(url) for url in urls]

    def submit(self, part: Part, lane: Lane) -> None:
        assert isinstance(part, Window)
        if not part.requests:
            self._end_window(part, lane)
        for request in part.requests:
            lane.running.pool.submit(self._gather, part, request, lane, on_dropped=None)

    def _gather(self, part: Window, request: GatherRequest, lane: Lane, dropped: PoolClosedError | None = None) -> None:
        """Read one range in a thread of the pool; the last one of a window hands out its bytes, or the error."""
        try:
            if dropped is not None:
                raise dropped
            if not self._is_unwanted(part):
                self._read(part, request, lane)
        except BaseException as error:  # noqa: BLE001  # raised in the consumer, whatever it is
            dropped = None  # or it and this frame would keep each other
            if not self._is_unwanted(part):
                part.error = error
        if part.left.pop() == 0:
            self._end_window(part, lane)

    def _end_window(self, part: Window, lane: Lane) -> None:
        if not self._is_unwanted(part):
            part.pieces.put(part.buffer.toreadonly())
        part.buffer = memoryview(b"")
        lane.end_part(self, part)

    def _is_unwanted(self, part: Part) -> bool:
        return self.closed or part.error is not None

    def _read(self, part: Window, request: GatherRequest, lane: Lane) -> None:
        reader, running = self.readers[request.object], lane.running
        sleep = partial(running.pool.sleep, is_closed=lambda: self._is_unwanted(part))

        def fetch(start: int, stop: int) -> Generator[memoryview, None, None]:
            require = partial(_require_end, reader.plain_url, min(stop, request.stop))
            return reader.pieces(start, stop, sleep=sleep, on_found=require)

        read: Callable[[int, int], Generator[memoryview, None, None]] = fetch
        if running.cache is not None and not reader.store.maps_files:
            url = reader.version
            if url.size is None or url.etag is None:
                say_uncached(url)
            else:
                server = lane.session.storage_options.for_url(url).server()
                read = CachedBlocks(running.cache, str(url), url.size, url.etag, server, fetch).read
        found: list[memoryview] = []
        with closing(read(request.start, request.stop)) as pieces:
            for piece in pieces:
                found.append(piece)
                running.pool.check()
                if self._is_unwanted(part):
                    return
        data = found[0] if len(found) == 1 else memoryview(b"".join(found))
        for start, stop, offset in request.pieces:
            part.buffer[offset : offset + stop - start] = data[start - request.start : stop - request.start]


def _require_end(url: str, stop: int, found: ObjectVersion) -> None:
    """Require that an object is as long as what was selected of it.

    Raises:
        ObjectChangedError: if it is not.
    """
    if found.end < stop:
        shown = redact(url)
        raise ObjectChangedError(
            f"{shown} has {found.size:,} bytes, and samples were selected up to byte {stop:,}. It was replaced, or its "
            "index is that of another shard: list it again, and select again.",
            url=shown,
        )


class ViewDownload(GatheredDownload):
    """A view with its planned windows in order. Positions are bytes of the whole view.

    Args:
        lane: downloads it.
        view: to read.
        start: the first byte to read.
        stop: the byte after the last one to read; ``None`` for the end.
        buffer: of the whole view; ``None`` makes one for each window.
        max_gap_bytes: unwanted bytes between two ranges that are read, to save a request.
    """

    def __init__(
        self,
        lane: Lane,
        view: ShardView | Ranges,
        start: int = 0,
        stop: int | None = None,
        *,
        buffer: memoryview | None = None,
        max_gap_bytes: int = MAX_GAP_BYTES,
    ) -> None:
        num_bytes = int((view.stops - view.starts).sum())
        super().__init__(lane, view.urls, start, stop, num_bytes)
        self.can_plan = start < self._stop
        self._buffer = buffer
        # Checksums are of blocks, which samples do not fill; windows are copies, also of local files
        self.is_local = all(reader.store.maps_files for reader in self.readers)
        self._plan = ViewPlan(view, max_gap_bytes=max_gap_bytes, is_local=self.is_local)

    @property
    def next_bytes(self) -> int:
        return min(self._plan.border(self.planned_bytes, self.part_bytes), self._stop) - self.planned_bytes

    def _part(self, start: int, num_bytes: int) -> Part:
        stop = start + num_bytes
        buffer = new_buffer(num_bytes) if self._buffer is None else self._buffer[start:stop]
        return Window(start, self._plan.requests(start, stop), buffer, num_bytes)

    def place_of(self, byte: int) -> tuple[RemoteUrl, int, int]:
        """Return the object that has a byte, the byte's place there, and the end of the bytes that follow it there."""
        index, place, end = self._plan.place_of(byte)
        return self.readers[index].version, place, end
