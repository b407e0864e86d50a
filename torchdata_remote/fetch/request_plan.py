"""Count the requests that reading objects sends, without reading them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from ..core.options import FetchOptions, StorageOptions
from ..core.shard_view import is_view
from ..core.urls import RemoteUrl, split_sample_range
from ..storage import GET, counted_requests, open_store
from .engine import Download
from .object_stream import first_bytes_of
from .sample_ranges import wanted_bytes
from .session import connection_of
from .views import selected_in


class ReadRequests(NamedTuple):
    """Requests for the bytes of an object, and these bytes. Those for the index of its samples are GETs too."""

    gets: int
    num_bytes: int


class RequestPlan:
    """Plans the requests for objects as ``async_prefetch`` does.

    Only the index beside a shard is read, and the borders of samples without its checksum, for a URL with a range of
    samples: the range of bytes has to be known.

    Args:
        fetch: options of the pipe.
        options: for the stores.
        size_of: returns the size of an object that the listing does not have; ``None`` if no request tells it.
        num_lanes: iterations of the pipe in one process.
    """

    def __init__(
        self,
        fetch: FetchOptions,
        options: StorageOptions,
        size_of: Callable[[str], int | None],
        num_lanes: int = 1,
    ) -> None:
        self._fetch, self._options, self._size_of, self._num_lanes = fetch, options, size_of, num_lanes
        self.part_bytes = fetch.actual_part_bytes(num_lanes=num_lanes)  # of an object that is not a local file
        self._ranges: dict[str, tuple[int, int | None, ReadRequests]] = {}  # of samples

    def requests_for(self, url: str) -> ReadRequests:
        """Plan the requests for an object, or a range of its samples, that none of its responses breaks.

        An object whose size is unknown counts as one request of no bytes, and selected samples as a request for each
        part of their bytes.
        """
        whole, samples = split_sample_range(url)
        if is_view(whole):
            starts = selected_in(whole, samples).starts
            num_bytes = int(starts[-1] - starts[0])
            return ReadRequests(-(-num_bytes // self.part_bytes), num_bytes)
        start, stop, index = self._range_of(whole, samples) if samples else (0, None, ReadRequests(0, 0))
        known = whole if isinstance(whole, RemoteUrl) else RemoteUrl(whole)
        size = self._size_of(str(whole)) if known.size is None else known.size
        if size is None:
            return ReadRequests(1 + index.gets, index.num_bytes)
        store, path = open_store(whole, self._options, connection_of(self._fetch))
        plan = Download(start, stop, None if store.may_ignore_ranges else known.size, known.checksums)
        is_mapped = store.maps_files and self._fetch.cache_dir is None
        plan.part_bytes = self._fetch.actual_part_bytes(mapped=is_mapped, num_lanes=self._num_lanes)
        plan.first_bytes = sys.maxsize if is_mapped else first_bytes_of(path)
        gets, num_bytes = index
        while plan.can_plan:
            is_empty = plan.size is None and size == 0  # which has no ranges: it is requested again as a whole
            part = plan.plan()
            end = min(part.end or 0, size)
            gets, num_bytes = gets + 1 + is_empty, num_bytes + end - part.start
            plan.learn(size, end)
        return ReadRequests(gets, num_bytes)

    def _range_of(self, whole: str, samples: tuple[int, int]) -> tuple[int, int | None, ReadRequests]:
        """Find the bytes of samples, by the requests that a reader sends."""
        key = f"{whole} {samples}"
        if key not in self._ranges:
            with counted_requests() as requests:
                start, stop = wanted_bytes(whole, samples, self._options, self._fetch.retry)
            self._ranges[key] = start, stop, ReadRequests(requests.sent[GET], requests.num_bytes)
        return self._ranges[key]
