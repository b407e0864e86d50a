"""Count the requests that reading objects sends, without reading them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..core.options import FetchOptions, StorageOptions
from ..core.shard_view import is_view, split_view_url
from ..core.urls import RemoteUrl, object_path, split_sample_range
from ..storage import GET, LocalStore, counted_requests, open_store
from .downloads import Download, first_bytes_of, planned_ranges
from .sample_ranges import wanted_bytes
from .session import connection_of
from .views import ViewWindows, selected_in


class ReadRequests(NamedTuple):
    """Requests for the bytes of an object, and these bytes. Those for the index of its samples are GETs too."""

    gets: int
    num_bytes: int


class RequestPlan:
    """Plans the requests for objects as ``async_prefetch`` does.

    Only the index beside a shard is read, for a URL with a range of samples: the range of bytes has to be known.

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
        self._fetch, self._options, self._size_of = fetch, options, size_of
        self._part_bytes = {
            mapped: fetch.actual_part_bytes(mapped=mapped, num_lanes=num_lanes) for mapped in (False, True)
        }
        self._planned: dict[tuple[object, ...], ReadRequests] = {}
        self._ranges: dict[str, tuple[int, int | None, ReadRequests]] = {}  # of samples
        self._has_cache = fetch.cache_dir is not None

    @property
    def part_bytes(self) -> int:
        """Length of a part of an object that is not a local file."""
        return self._part_bytes[False]

    def requests_for(self, url: str) -> ReadRequests:
        """Plan the requests for an object, or a range of its samples, that none of its responses breaks.

        An object whose size is unknown counts as one request of no bytes.
        """
        whole, samples = split_sample_range(url)
        if is_view(whole):
            return self._requests_for_view(whole, samples)
        index, stop = ReadRequests(0, 0), None
        start = 0
        if samples is not None:
            if url not in self._ranges:
                self._ranges[url] = self._range_of(whole, samples)
            start, stop, index = self._ranges[url]
        store, _ = open_store(whole, self._options, connection_of(self._fetch))
        listed = whole.size if isinstance(whole, RemoteUrl) else None
        checksums = whole.checksums if isinstance(whole, RemoteUrl) else None
        size = listed if listed is not None else self._size_of(str(whole))
        if size is None:
            return ReadRequests(1 + index.gets, index.num_bytes)
        known = None if store.may_ignore_ranges else listed
        is_mapped = store.maps_files and not self._has_cache
        first_bytes = None if is_mapped else first_bytes_of(object_path(whole))
        key = start, stop, size, known, checksums and checksums.block_bytes, is_mapped, first_bytes
        planned = self._planned.get(key)
        if planned is None:
            plan = Download(start, stop, known, 1 if checksums is None else checksums.block_bytes)
            plan.first_bytes = first_bytes
            part_bytes = self._part_bytes[is_mapped]
            ranges = list(planned_ranges(plan, part_bytes, size))
            planned = self._planned[key] = ReadRequests(len(ranges), sum(end - start for start, end in ranges))
        return ReadRequests(planned.gets + index.gets, planned.num_bytes + index.num_bytes)

    def _requests_for_view(self, url: str, samples: tuple[int, int] | None) -> ReadRequests:
        """Plan the requests for selected samples, or for some of them."""
        _, view = split_view_url(url)
        assert view is not None
        starts = selected_in(url, samples).starts
        if starts[0] == starts[-1]:
            return ReadRequests(0, 0)
        stores = [open_store(shard, self._options, connection_of(self._fetch))[0] for shard in view.urls]
        local = [index for index, store in enumerate(stores) if isinstance(store, LocalStore)]
        return ReadRequests(*ViewWindows(view, int(starts[0]), int(starts[-1]), self.part_bytes, local).costs())

    def _range_of(self, whole: str, samples: tuple[int, int]) -> tuple[int, int | None, ReadRequests]:
        """Find the bytes of samples, by the requests that a reader sends."""
        with counted_requests() as requests:
            start, stop = wanted_bytes(whole, samples, self._options, self._fetch.retry)
        return start, stop, ReadRequests(requests.sent[GET], requests.num_bytes)
