"""Read many members of many objects: close ones by one request, in parallel, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from types import TracebackType

import numpy as np

from ..core.options import MIB, StorageOptions
from ..core.stats.counters import FETCH
from ..core.threads.pool import next_item
from ..storage import Store
from .cache.blocks import BLOCK_BYTES
from .downloads import Download, Part
from .ranges import ObjectVersion
from .sample_table import Members
from .session import FetchSession
from .views import Ranges, ViewDownload, new_buffer

_WINDOW_BYTES = 8 * MIB  # one request for members that follow each other
_GAP_BYTES = 128 << 10  # between members of a batch, whose requests run at once


class CoalescedRead:
    """A pending read of members.

    Args:
        views: of their data, in memory or not yet.
        download: of what is not in memory.
    """

    def __init__(self, views: list[memoryview], download: ViewDownload | None = None) -> None:
        self._views, self._download = views, download

    @property
    def num_bytes(self) -> int:
        """Length of all data."""
        return sum(map(len, self._views))

    def wait(self) -> list[memoryview]:
        """Wait for the data of each member, in order.

        Raises:
            StorageError: for faults that retries did not solve.
        """
        FETCH.add(items=len(self._views))
        for part in [] if self._download is None else self._download.parts:
            with FETCH.waiting():
                piece = next_item(part.pieces)
            if piece is None:
                self.cancel()
                assert part.error is not None  # a window ends with its bytes or an error
                raise part.error
        return self._views

    def cancel(self) -> None:
        """Request no more."""
        if self._download is not None:
            self._download.close()


class RangeCoalescer:
    """Reads members: those of local files from the page cache, others by ranged requests.

    Args:
        session: limits and threads.
        options_of: storage options for a URL; ``None`` are those of the session.
    """

    def __init__(self, session: FetchSession, options_of: Callable[[str], StorageOptions] | None = None) -> None:
        self.session, self.running = session, session.start()
        self.options_of = options_of or session.storage_options.for_url
        self._mapped: dict[str, memoryview] = {}

    def __enter__(self) -> RangeCoalescer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._mapped.clear()
        self.running.open_no_more()
        self.running.leave()

    def open_store(self, url: str) -> tuple[Store, str]:
        """Return the store of a URL, and the path in it."""
        return self.running.open_store(url, self.options_of(url))

    def learn(self, download: Download, part: Part, version: ObjectVersion) -> None:
        """Sizes are known."""

    def part_ended(self, download: Download) -> None:
        """Nothing is planned with the room of a part."""

    def start_read(self, members: Members) -> CoalescedRead:
        """Request the data of members, of which two have the same bytes or none in common, without waiting.

        Memory for all of them is allocated at once.
        """
        order = np.lexsort((members.starts, members.objects))
        starts, sizes = members.starts[order], members.sizes[order]
        ones = np.ones(len(order), np.int64)
        view = Ranges(members.urls, ones, members.objects[order], starts, starts + sizes)
        buffer = new_buffer(view.num_bytes)
        # Two requests for the same block would store it twice
        gap_bytes = _GAP_BYTES if self.running.cache is None else BLOCK_BYTES
        download = ViewDownload(self, view, buffer=buffer, max_gap_bytes=gap_bytes)
        if all(store.maps_files for store, _ in download.stores):
            return CoalescedRead(list(self._mapped_views(members, download)))
        while download.can_plan:
            download.submit(download.plan(_WINDOW_BYTES), self)
        data, ends = buffer.toreadonly(), np.cumsum(sizes).tolist()
        views = [memoryview(b"")] * len(order)
        for at, (first, last) in zip(order.tolist(), pairwise([0, *ends]), strict=True):
            views[at] = data[first:last]
        return CoalescedRead(views, download)

    def _mapped_views(self, members: Members, download: ViewDownload) -> Iterator[memoryview]:
        ranges = zip(members.objects.tolist(), members.starts.tolist(), members.sizes.tolist(), strict=True)
        for index, start, size in ranges:
            url = members.urls[index]
            data = self._mapped.get(url)
            if data is None:
                store, path = download.stores[index]
                (data,) = store.read(path, 0, None, url.etag).chunks
                if size < len(data):  # an archive, of which more members may follow
                    self._mapped[str(url)] = data
            yield data[start : start + size]
