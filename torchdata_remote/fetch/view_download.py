"""Download the samples of a view: the windows of a virtual archive, each by requests for ranges of several objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..core.options import StorageOptions
from ..core.shard_view import ShardView, split_view_url
from ..core.threads.pool import Pool, PoolClosedError
from ..core.urls import RemoteUrl, redact
from ..errors import ObjectChangedError
from ..storage import open_store
from .download import Download, Part
from .range_download import ObjectVersion, RangeRequest
from .range_reader import read_range
from .session import ActiveSession
from .view_plan import ViewRequest, ViewWindows


class ViewPart(Part):
    """A window of a view: queued, being downloaded, or downloaded as one piece."""

    __slots__ = ("buffer", "left", "requests")

    def __init__(self, start: int, end: int, requests: list[ViewRequest]) -> None:
        super().__init__(start, end, end - start)
        self.requests = requests
        # Not a bytearray, which would be filled with zeros first
        self.buffer = memoryview(np.empty(end - start, np.uint8))
        self.left = list(range(len(requests)))  # one is popped when a request has ended; the last one is 0


class ViewDownload(Download):
    """A view with its planned windows in order. Positions are bytes of the whole view.

    Args:
        url: of the view.
        options: for its stores.
        session: limits and threads.
        start: the first byte to read.
        stop: the byte after the last one to read.
    """

    def __init__(self, url: str, options: StorageOptions, session: ActiveSession, start: int, stop: int | None) -> None:
        _, view = split_view_url(url)
        assert view is not None  # else it would be an object
        self.url, self.view, self._session = str(url), view, session
        size = view.num_bytes
        super().__init__(start, stop, size, 1)
        self.started = start >= self._end(size)
        # Checksums are of blocks, which samples do not fill; windows are copies, also of local files
        self.checksums, self.etag, self.mapped = None, None, False
        self.parts, self.error = [], None
        self._stores = [open_store(shard, options, session.connection) for shard in view.urls]
        self._versions: dict[int, ObjectVersion] = {}  # by object
        self._windows: ViewWindows | None = None

    def _planned_windows(self, part_bytes: int) -> ViewWindows:
        if self._windows is None:
            self._windows = ViewWindows(self.view, self.planned_bytes, self._end(self.view.num_bytes), part_bytes)
        return self._windows

    def next_part_bytes(self, part_bytes: int) -> int:
        borders = self._planned_windows(part_bytes).borders
        following = int(np.searchsorted(borders, self.planned_bytes, side="right"))
        return int(borders[following]) - self.planned_bytes if following < len(borders) else 0

    def unplanned_bytes(self, expected_bytes: int) -> int:
        return max(0, self._end(self.view.num_bytes) - self.planned_bytes)

    def plan(self, part_bytes: int) -> Part:
        windows = self._planned_windows(part_bytes)
        start, end = self.next_range(part_bytes)
        assert end is not None  # views without bytes are planned completely
        part = ViewPart(start, end, windows.requests(int(np.searchsorted(windows.borders, start))))
        self.parts.append(part)
        return part

    def submit(self, part: Part, pool: Pool, fetch: Callable[..., None], on_ended: Callable[[Download], None]) -> None:
        assert isinstance(part, ViewPart)
        for request in part.requests:
            pool.submit(self._fetch, part, request, on_ended, on_dropped=None)

    def _fetch(
        self,
        part: ViewPart,
        request: ViewRequest,
        on_ended: Callable[[Download], None],
        dropped: PoolClosedError | None = None,
    ) -> None:
        """Read one range in a thread of the pool; the last one of a window hands out its bytes, or the error."""
        try:
            if dropped is not None:
                raise dropped
            if not self._is_unwanted(part):
                self._read(part, request)
        except BaseException as error:  # noqa: BLE001  # raised in the consumer, whatever it is
            dropped = None  # or it and this frame would keep each other
            if not self._is_unwanted(part):
                part.error = error
        if part.left.pop() == 0:
            if not self._is_unwanted(part):
                part.pieces.put(part.buffer.toreadonly())
            part.buffer = memoryview(b"")
            on_ended(self)
            part.pieces.put(None)

    def _is_unwanted(self, part: ViewPart) -> bool:
        return self.closed or part.error is not None

    def _read(self, part: ViewPart, request: ViewRequest) -> None:
        shard, (store, path) = self.view.urls[request.object], self._stores[request.object]
        found = self._versions.get(request.object)
        size, etag = (shard.size, shard.etag) if found is None else (found.size, found.etag)
        pieces = read_range(
            store,
            RangeRequest(str(shard), path, request.start, request.stop, size, etag),
            self._session.options.retry,
            in_flight=self._session.in_flight,
            on_found=partial(self._learn_version, request),
            sleep=lambda seconds: self._session.pool.sleep(seconds, is_closed=lambda: self._is_unwanted(part)),
        )
        wanted = list(zip(*(column.tolist() for column in request.pieces), strict=True))
        position, at = request.start, 0
        for piece in pieces:
            end = position + len(piece)
            for start, stop, offset in wanted[at:]:
                if start >= end:
                    break
                first, last = max(start, position), min(stop, end)
                if first < last:  # ranges may overlap
                    part.buffer[offset + first - start : offset + last - start] = piece[
                        first - position : last - position
                    ]
            while at < len(wanted) and wanted[at][1] <= end:
                at += 1
            position = end
            self._session.pool.check()
            if self._is_unwanted(part):
                pieces.close()
                return

    def _learn_version(self, request: ViewRequest, found: ObjectVersion) -> None:
        """Require that all requests for an object are answered by one version of it, which is long enough.

        Raises:
            ObjectChangedError: if they are not.
        """
        shown = redact(self.view.urls[request.object])
        if found.end < request.stop:
            raise ObjectChangedError(
                f"{shown} has {found.size:,} bytes, and samples were selected up to byte {request.stop:,}. It was "
                "replaced, or its index is that of another shard: list it again, and select again.",
                url=shown,
            )
        known = self._versions.setdefault(request.object, found)
        etags = {known.etag, found.etag} - {None}
        if known.size != found.size or len(etags) > 1:
            raise ObjectChangedError(
                f"{shown} has {found.size:,} bytes and the etag {found.etag}, and another part of it had "
                f"{known.size:,} and {known.etag}. It was replaced while it was read; list it again.",
                url=shown,
            )

    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        ends = np.cumsum(self.view.stops - self.view.starts)
        at = min(int(np.searchsorted(ends, byte, side="right")), len(ends) - 1)
        place = int(self.view.stops[at] - ends[at]) + byte
        return self.view.urls[int(self.view.objects[at])], place

    def close(self) -> None:
        self.closed = True
