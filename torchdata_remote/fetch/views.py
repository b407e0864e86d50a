"""Read a view of shards: the windows of a virtual archive, each by requests for ranges of several objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..core.object_version import same_etag
from ..core.options import MIB
from ..core.retry import call_with_retries
from ..core.shard_view import ShardView, split_view_url
from ..core.stats.counters import FETCH
from ..core.threads.pool import PoolClosedError
from ..core.urls import RemoteUrl, redact
from ..errors import ObjectChangedError, UrlError
from ..storage import LocalStore
from .cache.blocks import CachedBlocks
from .cache.cached_object import say_uncached
from .downloads import Download, Part, Planner
from .ranges import ObjectVersion, RangeRequest, read_range

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

    @property
    def num_bytes(self) -> int:
        """Bytes of all ranges."""
        return int((self.stops - self.starts).sum())


class Pieces(NamedTuple):
    """Wanted ranges of one object, in the order of their first bytes; they may overlap.

    ``starts`` and ``stops`` are bytes of the object; ``offsets`` are those of the window where the range belongs.
    """

    starts: Ints
    stops: Ints
    offsets: Ints


class ViewRequest(NamedTuple):
    """One request: bytes ``start`` to ``stop`` (exclusive) of an object of the view, and what is wanted of them."""

    object: int
    start: int
    stop: int
    pieces: Pieces


class ViewWindows:
    """The windows in which a view is read, each complete in memory before it is handed out, and their requests.

    Windows begin and end between samples; only a sample that is larger than a window is cut.

    Args:
        view: to read.
        start: the first byte, of those of the whole view.
        stop: the byte after the last one, which is behind ``start``.
        part_bytes: largest length of a window.
        local: indices of the objects that are local files. What is wanted of one for a window is one request, because
            ranges are copied without what is between them.
        max_gap_bytes: unwanted bytes between two ranges that are read, to save a request.
    """

    def __init__(
        self,
        view: ShardView | Ranges,
        start: int,
        stop: int,
        part_bytes: int,
        local: Collection[int] = (),
        *,
        max_gap_bytes: int = MAX_GAP_BYTES,
    ) -> None:
        lengths = view.stops - view.starts
        ends = np.cumsum(lengths)
        self.borders = _borders(sample_starts(view), start, stop, part_bytes)
        firsts = ends - lengths
        # A piece is the bytes of one range in one window
        cuts = np.unique(np.concatenate([firsts[(firsts > start) & (firsts < stop)], self.borders[:-1]]))
        ranges = np.searchsorted(ends, cuts, side="right")
        starts = view.starts[ranges] + cuts - firsts[ranges]
        stops = starts + np.diff(cuts, append=stop)
        objects, windows = view.objects[ranges], np.searchsorted(self.borders, cuts, side="right") - 1
        continued = np.zeros(len(cuts), bool)
        continued[1:] = (starts[1:] == stops[:-1]) & (np.diff(objects) == 0) & (np.diff(windows) == 0)
        begun = np.flatnonzero(~continued)
        starts, objects, windows = starts[begun], objects[begun], windows[begun]
        stops = stops[np.append(begun[1:], len(cuts)) - 1]
        offsets = cuts[begun] - self.borders[windows]
        order = np.lexsort((starts, objects, windows))
        self._pieces = Pieces(starts[order], stops[order], offsets[order])
        self._objects, self._windows = objects[order], windows[order]
        self._is_local = np.isin(self._objects, list(local))
        self._set_requests(_most_unwanted(view, stop - start), max_gap_bytes)

    def _set_requests(self, most_unwanted: int, max_gap_bytes: int) -> None:
        """Merge pieces of one window and object that overlap or are close, those with the smallest gaps first."""
        starts, stops, _ = self._pieces
        apart = (np.diff(self._objects) != 0) | (np.diff(self._windows) != 0)
        # The largest end so far in each window and object: pieces may overlap
        groups = np.append(0, np.cumsum(apart)) * int(stops.max() + 1)
        furthest = np.maximum.accumulate(stops + groups) - groups
        gaps = starts[1:] - furthest[:-1]
        merged = ~apart & (gaps <= 0)
        merged |= ~apart & self._is_local[1:]
        candidates = np.flatnonzero(~apart & ~merged & (gaps <= max_gap_bytes))
        candidates = candidates[np.argsort(gaps[candidates], kind="stable")]
        merged[candidates[np.cumsum(gaps[candidates]) <= most_unwanted]] = True
        self._firsts = np.append(0, np.flatnonzero(~merged) + 1)  # index of each request's first piece
        self._lasts = np.append(self._firsts[1:], len(starts))
        self._request_stops = furthest[self._lasts - 1]
        self._requests = np.searchsorted(self._windows[self._firsts], np.arange(len(self.borders)))  # first of each

    def requests(self, window: int) -> list[ViewRequest]:
        """Return the requests for a window."""
        first, last = self._requests[window : window + 2].tolist()
        return [self._request(number) for number in range(first, last)]

    def _request(self, number: int) -> ViewRequest:
        first, last = int(self._firsts[number]), int(self._lasts[number])
        pieces = Pieces(*(column[first:last] for column in self._pieces))
        return ViewRequest(int(self._objects[first]), int(pieces.starts[0]), int(self._request_stops[number]), pieces)

    def costs(self) -> tuple[int, int]:
        """Return the number of requests for all windows, and the number of bytes that they read."""
        starts, stops, _ = self._pieces
        remote = ~self._is_local[self._firsts]
        num_bytes = (self._request_stops - starts[self._firsts])[remote].sum() + (stops - starts)[self._is_local].sum()
        return len(self._firsts), int(num_bytes)


def sample_starts(view: ShardView | Ranges) -> Ints:
    """Return the first byte in the view of each sample, then the end of the last one; shape ``(num_samples + 1,)``."""
    ends = np.append(0, np.cumsum(view.stops - view.starts))
    starts: Ints = ends[np.append(0, np.cumsum(view.counts))]
    return starts


def _borders(starts: Ints, start: int, stop: int, part_bytes: int) -> Ints:
    """Return the first byte of each window, then the end of the last one."""
    borders = [start]
    while borders[-1] < stop:
        following = min(borders[-1] + part_bytes, stop)
        between = int(starts[np.searchsorted(starts, following, side="right") - 1])
        borders.append(between if between > borders[-1] else following)
    return np.array(borders, np.int64)


def _most_unwanted(view: ShardView | Ranges, num_bytes: int) -> int:
    """Return how many unwanted bytes may be read for some bytes of a view; those of all of its parts add up."""
    slack = len(np.unique(view.objects)) * PART_BYTES
    return int(num_bytes * (MOST_UNWANTED + slack / max(1, view.num_bytes)))


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
        UrlError: if the view has no such samples, or its URL was changed.
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

    def __init__(self, start: int, requests: Sequence[ViewRequest], buffer: memoryview, reserved_bytes: int) -> None:
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
        self, lane: Planner, urls: Sequence[RemoteUrl], start: int = 0, stop: int | None = None, size: int | None = None
    ) -> None:
        super().__init__(start, stop, size)
        self.url, self.urls = str(urls[0]) if urls else "", urls
        self.stores = [lane.open_store(url) for url in urls]
        self._versions: dict[int, ObjectVersion] = {}  # by object

    def submit(self, part: Part, lane: Planner) -> None:
        assert isinstance(part, Window)
        if not part.requests:
            self._end_part(part, lane)
        for request in part.requests:
            lane.running.pool.submit(self._fetch, part, request, lane, on_dropped=None)

    def _fetch(self, part: Window, request: ViewRequest, lane: Planner, dropped: PoolClosedError | None = None) -> None:
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
            self._end_part(part, lane)

    def _end_part(self, part: Window, lane: Planner) -> None:
        if not self._is_unwanted(part):
            part.pieces.put(part.buffer.toreadonly())
        part.buffer = memoryview(b"")
        lane.part_ended(self)
        part.pieces.put(None)

    def _is_unwanted(self, part: Part) -> bool:
        return self.closed or part.error is not None

    def _read(self, part: Window, request: ViewRequest, lane: Planner) -> None:
        url, (store, path) = self.urls[request.object], self.stores[request.object]
        wanted = list(zip(*(column.tolist() for column in request.pieces), strict=True))
        running = lane.running
        sleep = partial(running.pool.sleep, is_closed=lambda: self._is_unwanted(part))
        if isinstance(store, LocalStore):
            began_s = time.perf_counter()
            ranges = [(start, part.buffer[offset : offset + stop - start]) for start, stop, offset in wanted]
            read = partial(store.read_into, path, ranges)
            entry = call_with_retries(read, running.options.retry, url=str(url), sleep=sleep)
            FETCH.worked(began_s, sum(len(memory) for _, memory in ranges), requests=1)
            assert entry.size is not None
            self._learn_version(
                request.object, request.stop, ObjectVersion(entry.size, entry.etag, min(request.stop, entry.size))
            )
            return
        known = self._versions.get(request.object)
        size, etag = (url.size, url.etag) if known is None else (known.size, known.etag)

        def fetch(start: int, stop: int) -> Generator[memoryview, None, None]:
            return read_range(
                store,
                RangeRequest(str(url), path, start, stop, size, etag),
                running.options.retry,
                in_flight=running.in_flight,
                on_found=partial(self._learn_version, request.object, min(stop, request.stop)),
                sleep=sleep,
            )

        read_pieces: Callable[[int, int], Generator[memoryview, None, None]] = fetch
        if running.cache is not None:
            if size is None or etag is None:
                say_uncached(url)
            else:
                server = lane.options_of(url).server()
                read_pieces = CachedBlocks(running.cache, str(url), size, etag, server, fetch).read
        with closing(read_pieces(request.start, request.stop)) as pieces:
            for _ in _copied(pieces, request.start, wanted, part.buffer):
                running.pool.check()
                if self._is_unwanted(part):
                    return

    def _learn_version(self, index: int, stop: int, found: ObjectVersion) -> None:
        """Require that all requests for an object are answered by one version of it, which is long enough.

        Raises:
            ObjectChangedError: if they are not.
        """
        url = self.urls[index]
        shown = redact(url)
        if found.end < stop:
            raise ObjectChangedError(
                f"{shown} has {found.size:,} bytes, and samples were selected up to byte {stop:,}. It was "
                "replaced, or its index is that of another shard: list it again, and select again.",
                url=shown,
            )
        known = self._versions.setdefault(index, found)
        for size, etag, where in (
            (url.size, url.etag, "its samples were selected from a version of"),
            (known.size, known.etag, "another part of it had"),
        ):
            if size not in (None, found.size) or not same_etag(etag, found.etag):
                raise ObjectChangedError(
                    f"{shown} has {found.size:,} bytes and the etag {found.etag}, and {where} {size} bytes and the "
                    f"etag {etag}. It was replaced: list it again, and select again.",
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
        lane: Planner,
        view: ShardView | Ranges,
        start: int = 0,
        stop: int | None = None,
        *,
        buffer: memoryview | None = None,
        max_gap_bytes: int = MAX_GAP_BYTES,
    ) -> None:
        num_bytes = view.num_bytes
        # Checksums are of blocks, which samples do not fill; windows are copies, also of local files
        super().__init__(lane, view.urls, start, num_bytes if stop is None else stop, num_bytes)
        self.view, self._buffer, self._max_gap_bytes = view, buffer, max_gap_bytes
        self._stop = self._end_of(num_bytes)
        self.can_plan = start < self._stop
        self._windows: ViewWindows | None = None

    def _planned_windows(self, part_bytes: int) -> ViewWindows:
        if self._windows is None:
            local = [index for index, (store, _) in enumerate(self.stores) if isinstance(store, LocalStore)]
            self._windows = ViewWindows(
                self.view, self.planned_bytes, self._stop, part_bytes, local, max_gap_bytes=self._max_gap_bytes
            )
        return self._windows

    def next_part_bytes(self, part_bytes: int) -> int:
        if not self.can_plan:
            return 0
        borders = self._planned_windows(part_bytes).borders
        following = int(np.searchsorted(borders, self.planned_bytes, side="right"))
        return int(borders[following]) - self.planned_bytes if following < len(borders) else 0

    def plan(self, part_bytes: int) -> Part:
        windows = self._planned_windows(part_bytes)
        start, end = self.next_range(part_bytes)
        assert end is not None  # views without bytes are planned completely
        buffer = new_buffer(end - start) if self._buffer is None else self._buffer[start:end]
        part = Window(start, windows.requests(int(np.searchsorted(windows.borders, start))), buffer, end - start)
        self.parts.append(part)
        return part

    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        ends = np.cumsum(self.view.stops - self.view.starts)
        at = min(int(np.searchsorted(ends, byte, side="right")), len(ends) - 1)
        place = int(self.view.stops[at] - ends[at]) + byte
        return self.view.urls[int(self.view.objects[at])], place


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
        for number in range(at, len(wanted)):
            start, stop, offset = wanted[number]
            if start >= end:
                break
            first, last = max(start, position), min(stop, end)
            if first < last:
                buffer[offset + first - start : offset + last - start] = piece[first - position : last - position]
        while at < len(wanted) and wanted[at][1] <= end:
            at += 1
        position = end
        yield
