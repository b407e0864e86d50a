"""Download an object in parts, each by one request at a time, from its store or the disk cache."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing
from functools import partial

from ..core.urls import RemoteUrl
from ..formats.nested import is_archive_name
from .cache.cached_object import CachedObject
from .engine import Download, Lane, Part
from .ranges import ObjectVersion, RangeRequest, RangeSource, ignore_version, read_range, require_same

FIRST_BYTES = 1 << 20  # of an object of unknown size that is no shard


def first_bytes_of(path: str) -> int:
    """Return how many bytes of an object of unknown size are asked for first, at most: a tar is no small object."""
    return sys.maxsize if is_archive_name(path) else FIRST_BYTES


class ObjectDownload(Download):
    """One object, or a range of it.

    Args:
        lane: downloads it.
        url: a ``RemoteUrl`` brings size and etag.
        start: the first byte to read.
        stop: the byte after the last one to read; ``None`` for the object's end.
        checked: whether checksums that a manifest has are verified: parts are whole blocks then.
    """

    def __init__(self, lane: Lane, url: str, start: int = 0, stop: int | None = None, *, checked: bool = True) -> None:
        cache = lane.running.cache
        store, self.path = lane.open_store(url)
        known = url if isinstance(url, RemoteUrl) else RemoteUrl(url)
        self.url, self._listed_size = str(url), known.size
        if known.etag is not None:
            self.etag = known.etag
        size = None if store.may_ignore_ranges else known.size
        super().__init__(start, stop, size, known.checksums if checked else None)
        self._cached = None
        if cache is not None:
            whole, server = (start, stop) == (0, None), lane.session.storage_options.for_url(url).server()
            self._cached = CachedObject(store, cache, self.url, known.size, known.etag, keep=whole, server=server)
        self.source: RangeSource = self._cached or store
        self.mapped = store.maps_files and cache is None
        if not self.mapped:
            self.first_bytes = first_bytes_of(self.path)

    def fetch(self, part: Part, lane: Lane) -> None:
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
        self, lane: Lane, start: int, end: int | None, part: Part | None = None
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
            on_found=ignore_version if part is None else partial(self._found, lane, part),
            sleep=partial(running.pool.sleep, is_closed=lambda: self.closed),
            on_damage=lambda: self._cached and self._cached.distrust(),
        )

    def _found(self, lane: Lane, part: Part, version: ObjectVersion) -> None:
        if (version.size, version.etag, version.end) != (self.size, self.etag, part.end):
            lane.learn(self, part, version)

    def learn(self, found: ObjectVersion) -> None:
        """Record size and etag from the first response to a part.

        Raises:
            ObjectChangedError: if another part had another etag, or the listing another size.
        """
        # One call that no other thread interrupts, as parts of two versions may arrive at once
        etag = self.etag if found.etag is None else vars(self).setdefault("etag", found.etag)
        require_same(self.url, found, self._listed_size, etag)
        super().learn(found)

    def close(self) -> None:
        super().close()
        if self._cached is not None:
            self._cached.close()
