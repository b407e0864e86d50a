"""Read a view of shards, and batches of ranges: windows that are put together from ranges of several objects."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
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
from .ranges import ObjectVersion, RangeRequest, read_range, require_same

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
        self._starts, self._stops, self._objects = view.starts, view.stops, view.objects
        self._ends = np.cumsum(self._stops - self._starts)  # in the view
        self._samples = sample_starts(view)
        self.num_bytes = int(self._samples[-1])
        self._max_gap_bytes = max_gap_bytes
        slack = len(np.unique(self._objects)) * PART_BYTES / max(1, self.num_bytes)
        self._most_unwanted = np.inf if is_local else MOST_UNWANTED + slack  # for each wanted byte

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
        some = starts < stops
        starts, stops, objects, offsets = starts[some], stops[some], objects[some], np.maximum(0, offsets)[some]
        # Ranges that continue each other are one piece
        begun = np.append(0, 1 + np.flatnonzero((starts[1:] != stops[:-1]) | (np.diff(objects) != 0)))
        starts, objects, offsets = starts[begun], objects[begun], offsets[begun]
        stops = stops[np.append(begun[1:], len(stops)) - 1]
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

    @property
    def first_byte(self) -> int:
        """Of the first sample."""
        return int(self.starts[0])

    @property
    def last_byte(self) -> int:
        """The byte after the last sample."""
        return int(self.starts[-1])


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
        self.stores = [lane.open_store(url) for url in urls]
        self._versions: dict[int, ObjectVersion] = {}  # by object

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
        url, (store, path), running = self.urls[request.object], self.stores[request.object], lane.running
        known = self._versions.get(request.object, url)

        def fetch(start: int, stop: int) -> Generator[memoryview, None, None]:
            return read_range(
                store,
                RangeRequest(str(url), path, start, stop, known.size, known.etag),
                running.options.retry,
                in_flight=running.in_flight,
                on_found=partial(self._note_version, request.object, min(stop, request.stop)),
                sleep=partial(running.pool.sleep, is_closed=lambda: self._is_unwanted(part)),
            )

        read: Callable[[int, int], Generator[memoryview, None, None]] = fetch
        if running.cache is not None and not store.maps_files:
            if known.size is None or known.etag is None:
                say_uncached(url)
            else:
                server = lane.session.storage_options.for_url(url).server()
                read = CachedBlocks(running.cache, str(url), known.size, known.etag, server, fetch).read
        with closing(read(request.start, request.stop)) as pieces:
            for _ in _copied(pieces, request.start, request.pieces, part.buffer):
                running.pool.check()
                if self._is_unwanted(part):
                    return

    def _note_version(self, index: int, stop: int, found: ObjectVersion) -> None:
        """Require that all requests for an object are answered by one version of it, which is long enough.

        Raises:
            ObjectChangedError: if they are not.
        """
        url, known = self.urls[index], self._versions.setdefault(index, found)
        if found.end < stop:
            shown = redact(url)
            raise ObjectChangedError(
                f"{shown} has {found.size:,} bytes, and samples were selected up to byte {stop:,}. It was "
                "replaced, or its index is that of another shard: list it again, and select again.",
                url=shown,
            )
        require_same(url, found, url.size, url.etag)
        require_same(url, found, known.size, known.etag)


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
        self._view, self._buffer = view, buffer
        # Checksums are of blocks, which samples do not fill; windows are copies, also of local files
        self.is_local = all(store.maps_files for store, _ in self.stores)
        self._plan = ViewPlan(view, max_gap_bytes=max_gap_bytes, is_local=self.is_local)

    @property
    def next_bytes(self) -> int:
        return min(self._plan.border(self.planned_bytes, self.part_bytes), self._stop) - self.planned_bytes

    def _part(self, start: int, num_bytes: int) -> Part:
        stop = start + num_bytes
        buffer = new_buffer(num_bytes) if self._buffer is None else self._buffer[start:stop]
        return Window(start, self._plan.requests(start, stop), buffer, num_bytes)

    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        view = self._view
        ends = np.cumsum(view.stops - view.starts)
        at = min(int(np.searchsorted(ends, byte, side="right")), len(ends) - 1)
        return view.urls[int(view.objects[at])], int(view.stops[at] - ends[at]) + byte


def _copied(
    pieces: Iterable[memoryview], position: int, wanted: Sequence[tuple[int, int, int]], buffer: memoryview
) -> Iterator[None]:
    """Copy what is wanted of the bytes from ``position`` on to its place, and yield after each piece.

    Args:
        pieces: consecutive bytes.
        position: of the first one in the object.
        wanted: first byte, the one after the last, and offset in the buffer of each range, in the order of the first;
            ranges may overlap.
        buffer: to write to.
    """
    at = 0
    for piece in pieces:
        end = position + len(piece)
        for start, stop, offset in wanted[at:]:
            if start >= end:
                break
            first, last = max(start, position), min(stop, end)
            if first < last:
                buffer[offset + first - start : offset + last - start] = piece[first - position : last - position]
        while at < len(wanted) and wanted[at][1] <= end:
            at += 1
        position = end
        yield
