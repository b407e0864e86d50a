"""Read many members of many objects: close ones by one request, in parallel, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from types import TracebackType

import numpy as np

from ..core.options import MIB, StorageOptions
from ..core.stats.counters import FETCH
from ..core.threads.pool import next_item
from ..storage import Store, open_store
from .cache.blocks import BLOCK_BYTES
from .engine import Lane
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

    def __init__(self, views: list[memoryview], download: ViewDownload) -> None:
        self._views, self._download = views, download
        self.num_bytes = sum(map(len, views))

    def wait(self) -> list[memoryview]:
        """Wait for the data of each member, in order.

        Raises:
            StorageError: for faults that retries did not solve.
        """
        FETCH.add(items=len(self._views))
        for part in self._download.parts:
            with FETCH.waiting():
                piece = next_item(part.pieces)
            if piece is None:
                self.cancel()
                assert part.error is not None  # a window ends with its bytes or an error
                raise part.error
        return self._views

    def cancel(self) -> None:
        """Request no more."""
        self._download.close()


class RangeCoalescer(Lane):
    """Reads members: those of local files from the page cache, others by ranged requests.

    Args:
        session: limits and threads.
        options_of: storage options for a URL; ``None`` are those of the session.
    """

    def __init__(self, session: FetchSession, options_of: Callable[[str], StorageOptions] | None = None) -> None:
        super().__init__(session)
        self._options_of = options_of or session.storage_options.for_url
        self._mapped: dict[str, memoryview] = {}

    def __enter__(self) -> RangeCoalescer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._mapped.clear()
        self.release()

    def open_store(self, url: str) -> tuple[Store, str]:
        return open_store(url, self._options_of(url), self.running.connection)

    def start_read(self, members: Members) -> CoalescedRead:
        """Request the data of members, of which two have the same bytes or none in common, without waiting.

        Memory for all of them is allocated at once.
        """
        order = np.lexsort((members.starts, members.objects))
        starts, sizes, objects = members.starts[order], members.sizes[order], members.objects[order]
        view = Ranges(members.urls, np.ones(len(order), np.int64), objects, starts, starts + sizes)
        buffer = new_buffer(int(sizes.sum()))
        # Two requests for the same block would store it twice
        gap_bytes = _GAP_BYTES if self.running.cache is None else BLOCK_BYTES
        download = ViewDownload(self, view, buffer=buffer, max_gap_bytes=gap_bytes)
        if download.is_local:
            return CoalescedRead(list(self._mapped_views(members, download)), download)
        download.part_bytes = _WINDOW_BYTES
        while download.can_plan:
            download.submit(download.plan(), self)
        data, views = buffer.toreadonly(), [memoryview(b"")] * len(order)
        for at, (first, last) in zip(order.tolist(), pairwise([0, *np.cumsum(sizes).tolist()]), strict=True):
            views[at] = data[first:last]
        return CoalescedRead(views, download)

    def _mapped_views(self, members: Members, download: ViewDownload) -> Iterator[memoryview]:
        ranges = zip(members.objects.tolist(), members.starts.tolist(), members.sizes.tolist(), strict=True)
        for index, start, size in ranges:
            url, data = members.urls[index], self._mapped.get(members.urls[index])
            if data is None:
                (data,) = download.readers[index].pieces(0, None)
                if size < len(data):  # an archive, of which more members may follow
                    self._mapped[str(url)] = data
            yield data[start : start + size]
