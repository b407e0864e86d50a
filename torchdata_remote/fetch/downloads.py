"""What a lane downloads: something that is planned in parts, each of which is requested and handed out in order."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Protocol

from ..core.checksums import Checksums
from ..core.object_version import same_etag
from ..core.options import StorageOptions
from ..core.threads.pool import PoolClosedError
from ..core.urls import RemoteUrl, redact
from ..errors import ObjectChangedError
from ..formats.nested import is_archive_name
from ..storage import Store
from .cache.cached_object import CachedObject
from .ranges import ObjectVersion, RangeRequest, RangeSource, ignore_version, read_range
from .session import ActiveSession, FetchSession

FIRST_BYTES = 1 << 20  # of an object of unknown size that is no shard


class Part:
    """A range of a download: queued, being requested, or here."""

    __slots__ = ("end", "error", "pieces", "reserved_bytes", "start")

    def __init__(self, start: int, end: int | None, reserved_bytes: int) -> None:
        self.start, self.end, self.reserved_bytes = start, end, reserved_bytes
        self.pieces: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()  # consecutive; then None
        self.error: BaseException | None = None  # why the pieces end early


def first_bytes_of(path: str) -> int | None:
    """Return how many bytes of an object of unknown size are asked for first: a tar is no small object."""
    return None if is_archive_name(path) else FIRST_BYTES


class Planner(Protocol):
    """What a download needs of the lane that plans its parts."""

    session: FetchSession
    running: ActiveSession

    def options_of(self, url: str) -> StorageOptions:
        """Return the options for the store of a URL."""

    def open_store(self, url: str) -> tuple[Store, str]:
        """Return the store of a URL, and the path in it."""

    def learn(self, download: Download, part: Part, version: ObjectVersion) -> None:
        """Record what the first response to a part says."""

    def part_ended(self, download: Download) -> None:
        """Called in the thread that downloaded a part, before the consumer sees its end."""


class Download:
    """The parts of an object or a view, in order: those that are planned, and how long the next one is.

    Attributes:
        url: of it.
        etag: of the version that is read, if it is known.
        checksums: of its blocks, if they are verified.
        mapped: whether its bytes are mapped files.
        parts: those that are planned; the first one is being consumed.
        error: raised in the consumer; final.
        size: of the object; ``None`` until the first response reports it.
        planned_bytes: the byte after those for which parts are planned.
        can_plan: whether a part can be planned now; not while the first response has to report the size.
        first_bytes: most bytes of the first part of an object of unknown size, which may be small.
        closed: whether the rest is not wanted.
        number, turn, is_queued: its place in the plan of its lane.

    Args:
        start: the first byte to read.
        stop: the byte after the last one to read; ``None`` for the object's end.
        size: of the object; ``None`` until the first response reports it.
        block_bytes: length of the blocks that are verified as a whole: parts begin and end at their borders.
    """

    url = ""
    etag: str | None = None
    checksums: Checksums | None = None
    mapped = False
    first_bytes: int | None = None

    def __init__(self, start: int, stop: int | None, size: int | None, block_bytes: int = 1) -> None:
        self.size, self._block_bytes = size, block_bytes
        self.planned_bytes = self.first_byte = start - start % block_bytes
        self._last_byte = stop if stop is None else stop + -stop % block_bytes
        self._end = None if size is None else self._end_of(size)
        self.can_plan = start == 0 or size is None or start < size  # an empty object is asked for once
        self.closed = self.is_queued = False
        self.number = self.turn = 0
        self.parts: list[Part] = []
        self.error: BaseException | None = None

    def _end_of(self, size: int) -> int:
        return size if self._last_byte is None else min(size, self._last_byte)

    @property
    def is_planned(self) -> bool:
        """Whether no further part will be planned."""
        return not self.can_plan and (self.closed or self.size is not None)

    def unplanned_bytes(self, expected_bytes: int) -> int:
        """Bytes for which no part is planned.

        Args:
            expected_bytes: size of an object whose size is unknown.
        """
        return max(0, (self._end_of(expected_bytes) if self._end is None else self._end) - self.planned_bytes)

    def unplanned_parts(self, part_bytes: int, unplanned_bytes: int) -> int:
        """Number of the parts in so many bytes that are not planned."""
        return -(-unplanned_bytes // part_bytes)

    def next_part_bytes(self, part_bytes: int) -> int:
        """Largest length of the next part."""
        if self._end is None and self.first_bytes is not None:
            part_bytes = min(part_bytes, self.first_bytes)
        if self._block_bytes > 1:  # of whole blocks
            part_bytes = max(1, part_bytes // self._block_bytes) * self._block_bytes
        return min(part_bytes, self.unplanned_bytes(self.planned_bytes + part_bytes))

    def next_range(self, part_bytes: int) -> tuple[int, int | None]:
        """Plan the next part, of at most ``part_bytes``.

        Returns:
            Its first byte, and the byte after its last one; ``None`` for the end of an object that is empty.
        """
        num_bytes, start = self.next_part_bytes(part_bytes), self.planned_bytes
        self.planned_bytes += num_bytes
        self.can_plan = self._end is not None and self.planned_bytes < self._end
        return start, start + num_bytes if num_bytes else None

    def learn(self, found: ObjectVersion) -> None:
        """Record the size, and the end of its part, from the first response."""
        if self.size is None:
            self.planned_bytes, self.size, self._end = found.end, found.size, self._end_of(found.size)
            self.can_plan = not self.closed and found.end < self._end

    def plan(self, part_bytes: int) -> Part:
        """Add the next part, of at most ``part_bytes``."""
        planned_bytes = self.planned_bytes
        start, end = self.next_range(part_bytes)
        part = Part(start, end, self.planned_bytes - planned_bytes)
        self.parts.append(part)
        return part

    def submit(self, part: Part, lane: Planner) -> None:
        """Queue the requests for a part that was planned.

        Raises:
            PoolClosedError: if the pool is closed.
        """
        raise NotImplementedError

    def _run(
        self,
        work: Callable[[Part, Planner], None],
        part: Part,
        lane: Planner,
        dropped: PoolClosedError | None = None,
    ) -> None:
        """Do the work for a part in a thread of the pool; the consumer gets its end, or the error."""
        try:
            if dropped is not None:
                raise dropped
            if not self.closed:
                work(part, lane)
        except BaseException as error:  # noqa: BLE001  # raised in the consumer, whatever it is
            dropped = None  # or it and this frame would keep each other
            if not self.closed:
                part.error = error
        finally:
            lane.part_ended(self)
            part.pieces.put(None)

    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        """Return the object that has a byte, and where the byte is there."""
        return RemoteUrl(self.url, self.size, self.etag), byte

    def close(self) -> None:
        """Download no more. Safe in a finalizer."""
        self.closed, self.can_plan = True, False


def planned_ranges(plan: Download, part_bytes: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the range of each request that reads an object without a fault: first byte, and the one after the last.

    Args:
        plan: of the object; its size may be unknown.
        part_bytes: length of a part.
        size: of the object, as its first response will report it.
    """
    while plan.can_plan:
        is_asked = plan.size is None
        start, end = plan.next_range(part_bytes)
        end = size if end is None else min(end, size)
        if is_asked and start == size == 0:
            yield 0, 0  # an empty object has no ranges: it is requested again as a whole
        yield start, end
        plan.learn(ObjectVersion(size, None, end))


class ObjectDownload(Download):
    """One object, or a range of it.

    Args:
        lane: downloads it.
        url: a ``RemoteUrl`` brings size and etag.
        start: the first byte to read.
        stop: the byte after the last one to read; ``None`` for the object's end.
    """

    def __init__(self, lane: Planner, url: str, start: int = 0, stop: int | None = None) -> None:
        cache = lane.running.cache
        store, self.path = lane.open_store(url)
        self._listed_size, etag, checksums = None, None, None
        if isinstance(url, RemoteUrl):
            self._listed_size, etag, checksums = url.size, url.etag, url.checksums
        size = None if store.may_ignore_ranges else self._listed_size
        super().__init__(start, stop, size, 1 if checksums is None else checksums.block_bytes)
        self.url, self.etag, self.checksums = str(url), etag, checksums
        self._cached = None
        if cache is not None:
            whole, server = (start, stop) == (0, None), lane.options_of(url).server()
            self._cached = CachedObject(store, cache, self.url, self._listed_size, etag, keep=whole, server=server)
        self.source: RangeSource = self._cached or store
        self.mapped = store.maps_files and cache is None
        if size is None and not self.mapped:
            self.first_bytes = first_bytes_of(self.path)

    def unplanned_bytes(self, expected_bytes: int) -> int:
        return super().unplanned_bytes(expected_bytes if self._listed_size is None else self._listed_size)

    def submit(self, part: Part, lane: Planner) -> None:
        lane.running.pool.submit(self._run, self._receive, part, lane, on_dropped=None)

    def _receive(self, part: Part, lane: Planner) -> None:
        at, cached = part.start, self._cached
        with closing(self.read_range(lane, at, part.end, part)) as pieces:
            for piece in pieces:
                if cached is not None:
                    cached.keep(at, piece)
                    at += len(piece)
                part.pieces.put(piece)
                if self.closed:
                    return
                lane.running.pool.check()

    def read_range(
        self, lane: Planner, start: int, end: int | None, part: Part | None = None
    ) -> Generator[memoryview, None, None]:
        """Read bytes of the object in the thread that iterates. Closing the iterator ends the request.

        Args:
            lane: with threads and limits.
            start: the first byte.
            end: the byte after the last one.
            part: whose bytes these are: what the first response says about the object is recorded.
        """
        running = lane.running
        return read_range(
            self.source,
            RangeRequest(self.url, self.path, start, end, self.size, self.etag, self.checksums),
            running.options.retry,
            in_flight=running.in_flight,
            on_found=ignore_version if part is None else partial(self._update_plan, lane, part),
            sleep=partial(running.pool.sleep, is_closed=lambda: self.closed),
            on_damage=self._distrust_cache,
        )

    def _update_plan(self, lane: Planner, part: Part, version: ObjectVersion) -> None:
        if (version.size, version.etag, version.end) != (self.size, self.etag, part.end):
            lane.learn(self, part, version)  # not always: its lock would slow down many threads

    def learn(self, found: ObjectVersion) -> None:
        """Record size and etag from the first response to a part.

        Raises:
            ObjectChangedError: if another part had another etag, or the listing another size.
        """
        url = redact(self.url)
        if self._listed_size not in (None, found.size):
            raise ObjectChangedError(
                f"{url} has {found.size:,} bytes, where {self._listed_size:,} were listed. It was replaced: list it "
                "again.",
                url=url,
            )
        if not same_etag(self.etag, found.etag):
            raise ObjectChangedError(
                f"{url} has the etag {found.etag}, and another part of it had {self.etag}. It was replaced while "
                "it was read; list it again.",
                url=url,
            )
        super().learn(found)
        self.etag = self.etag or found.etag

    def _distrust_cache(self) -> bool:
        """Remove wrong bytes from the cache; returns whether they were read from it."""
        return self._cached is not None and self._cached.distrust()

    def close(self) -> None:
        super().close()
        if self._cached is not None:
            self._cached.close()
