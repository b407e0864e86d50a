"""Download the samples of a view: the windows of a virtual archive, each by requests for ranges of several objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial

import numpy as np

from ..core.object_version import same_etag
from ..core.options import StorageOptions
from ..core.retry import call_with_retries
from ..core.shard_view import split_view_url
from ..core.stats.counters import FETCH
from ..core.threads.pool import Pool, PoolClosedError
from ..core.urls import RemoteUrl, redact
from ..errors import ObjectChangedError
from ..storage import LocalStore, open_store
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
        self.buffer = np.empty(end - start, np.uint8).data
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
        num_bytes = view.num_bytes
        super().__init__(start, num_bytes if stop is None else stop, num_bytes, 1)
        self._stop = self._end(num_bytes)
        self.started = start >= self._stop
        # Checksums are of blocks, which samples do not fill; windows are copies, also of local files
        self.checksums, self.etag, self.mapped = None, None, False
        self.parts, self.error = [], None
        self._stores = [open_store(shard, options, session.connection) for shard in view.urls]
        self._versions: dict[int, ObjectVersion] = {}  # by object
        self._windows: ViewWindows | None = None

    def _planned_windows(self, part_bytes: int) -> ViewWindows:
        if self._windows is None:
            local = [index for index, (store, _) in enumerate(self._stores) if isinstance(store, LocalStore)]
            self._windows = ViewWindows(self.view, self.planned_bytes, self._stop, part_bytes, local)
        return self._windows

    def next_part_bytes(self, part_bytes: int) -> int:
        if self.unplanned_bytes(0) == 0:
            return 0
        borders = self._planned_windows(part_bytes).borders
        following = int(np.searchsorted(borders, self.planned_bytes, side="right"))
        return int(borders[following]) - self.planned_bytes if following < len(borders) else 0

    def unplanned_bytes(self, expected_bytes: int) -> int:
        return max(0, self._stop - self.planned_bytes)

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
        wanted = list(zip(*(column.tolist() for column in request.pieces), strict=True))
        policy = self._session.options.retry
        sleep = partial(self._session.pool.sleep, is_closed=lambda: self._is_unwanted(part))
        if isinstance(store, LocalStore):
            began_s = time.perf_counter()
            ranges = [(start, part.buffer[offset : offset + stop - start]) for start, stop, offset in wanted]
            entry = call_with_retries(lambda: store.read_into(path, ranges), policy, url=str(shard), sleep=sleep)
            FETCH.worked(began_s, sum(len(memory) for _, memory in ranges), requests=1)
            assert entry.size is not None
            self._learn_version(request, ObjectVersion(entry.size, entry.etag, min(request.stop, entry.size)))
            return
        found = self._versions.get(request.object)
        size, etag = (shard.size, shard.etag) if found is None else (found.size, found.etag)
        pieces = read_range(
            store,
            RangeRequest(str(shard), path, request.start, request.stop, size, etag),
            policy,
            in_flight=self._session.in_flight,
            on_found=partial(self._learn_version, request),
            sleep=sleep,
        )
        with closing(pieces):
            for _ in _copied(pieces, request.start, wanted, part.buffer):
                self._session.pool.check()
                if self._is_unwanted(part):
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
        shard = self.view.urls[request.object]
        known = self._versions.setdefault(request.object, found)
        for size, etag, where in (
            (shard.size, shard.etag, "its samples were selected from a version of"),
            (known.size, known.etag, "another part of it had"),
        ):
            if size not in (None, found.size) or not same_etag(etag, found.etag):
                raise ObjectChangedError(
                    f"{shown} has {found.size:,} bytes and the etag {found.etag}, and {where} {size} bytes and the "
                    f"etag {etag}. It was replaced: list it again, and select again.",
                    url=shown,
                )

    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        ends = np.cumsum(self.view.stops - self.view.starts)
        at = min(int(np.searchsorted(ends, byte, side="right")), len(ends) - 1)
        place = int(self.view.stops[at] - ends[at]) + byte
        return self.view.urls[int(self.view.objects[at])], place

    def close(self) -> None:
        self.closed = True


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
