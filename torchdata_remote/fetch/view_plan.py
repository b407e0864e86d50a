"""Plan the requests for a view of shards: windows of its bytes, and which gaps between wanted ranges are read too."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..core.options import MIB
from ..core.shard_view import ShardView

Ints = npt.NDArray[np.int64]

# Unwanted bytes that are read to save requests, at most: a share of the wanted ones, and one part of each shard
MOST_UNWANTED, PART_BYTES = 0.3, 8 * MIB
# A longer gap costs more than a request: 8 ms at 60 MB/s per connection, where stores answer after 20 ms
MAX_GAP_BYTES = 512 << 10


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
    """

    def __init__(self, view: ShardView, start: int, stop: int, part_bytes: int, local: Collection[int] = ()) -> None:
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
        self._set_requests(_most_unwanted(view, stop - start))

    def _set_requests(self, most_unwanted: int) -> None:
        """Merge pieces of one window and object that overlap or are close, those with the smallest gaps first."""
        starts, stops, _ = self._pieces
        apart = (np.diff(self._objects) != 0) | (np.diff(self._windows) != 0)
        # The largest end so far in each window and object: pieces may overlap
        groups = np.append(0, np.cumsum(apart)) * int(stops.max() + 1)
        furthest = np.maximum.accumulate(stops + groups) - groups
        gaps = starts[1:] - furthest[:-1]
        merged = ~apart & (gaps <= 0)
        merged |= ~apart & self._is_local[1:]
        candidates = np.flatnonzero(~apart & ~merged & (gaps <= MAX_GAP_BYTES))
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


def sample_starts(view: ShardView) -> Ints:
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


def _most_unwanted(view: ShardView, num_bytes: int) -> int:
    """Return how many unwanted bytes may be read for some bytes of a view; those of all of its parts add up."""
    slack = len(np.unique(view.objects)) * PART_BYTES
    return int(num_bytes * (MOST_UNWANTED + slack / max(1, view.num_bytes)))
