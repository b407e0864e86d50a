"""State of one object that is downloaded in parts: its version, its planned parts, its errors."""

from __future__ import annotations

from collections.abc import Callable

from ..core.object_version import same_etag
from ..core.options import StorageOptions
from ..core.threads.pool import Pool
from ..core.urls import RemoteUrl, redact
from ..errors import ObjectChangedError
from ..storage import Connection, open_store
from .cache.cached_object import CachedObject
from .cache.disk_cache import DiskCache
from .download import Download, Part
from .range_download import ObjectVersion, RangeRequest, RangeSource


class ObjectDownload(Download):
    """One object with its planned parts in order.

    Args:
        url: a ``RemoteUrl`` brings size and etag.
        options: for its store.
        connection: to its store.
        cache: stores whole objects; ``None`` for no cache.
        start: the first byte to read.
        stop: the byte after the last one to read; ``None`` for the object's end.
    """

    def __init__(
        self,
        url: str,
        options: StorageOptions,
        connection: Connection,
        cache: DiskCache | None,
        *,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        store, self.path = open_store(url, options, connection)
        self.url = str(url)
        listed = (url.size, url.etag) if isinstance(url, RemoteUrl) else (None, None)
        self.checksums = url.checksums if isinstance(url, RemoteUrl) else None
        self._listed_size, self.etag = listed
        size = None if store.may_ignore_ranges else self._listed_size
        # Blocks are verified as a whole
        super().__init__(start, stop, size, 1 if self.checksums is None else self.checksums.block_bytes)
        self._cached = None
        if cache is not None:
            whole = (start, stop) == (0, None)
            self._cached = CachedObject(
                store, cache, self.url, *listed, keep=whole, server=options.for_url(self.url).server()
            )
        self.source: RangeSource = self._cached or store
        self.mapped = store.maps_files and cache is None
        self.parts: list[Part] = []  # the first one is being consumed
        self.error: BaseException | None = None  # raised in the consumer; final

    def unplanned_bytes(self, expected_bytes: int) -> int:
        size = self.size if self.size is not None else self._listed_size
        return max(0, self._end(expected_bytes if size is None else size) - self.planned_bytes)

    def plan(self, part_bytes: int) -> Part:
        planned_bytes = self.planned_bytes
        start, end = self.next_range(part_bytes)
        part = Part(start, end, self.planned_bytes - planned_bytes)
        self.parts.append(part)
        return part

    def submit(self, part: Part, pool: Pool, fetch: Callable[..., None], on_ended: Callable[[Download], None]) -> None:
        pool.submit(fetch, self, part, on_dropped=None)

    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        return RemoteUrl(self.url, self.size, self.etag), byte

    def range_of(self, start: int, end: int | None) -> RangeRequest:
        """Describe a request for these bytes."""
        return RangeRequest(self.url, self.path, start, end, self.size, self.etag, self.checksums)

    def learn(self, found: ObjectVersion) -> None:
        """Record size and etag from the first response to a part.

        Raises:
            ObjectChangedError: if another part had another etag, or the listing another size.
        """
        if self._listed_size is not None and found.size != self._listed_size:
            url = redact(self.url)
            raise ObjectChangedError(
                f"{url} has {found.size:,} bytes, where {self._listed_size:,} were listed. It was replaced: list it "
                "again.",
                url=url,
            )
        if not same_etag(self.etag, found.etag):
            url = redact(self.url)
            raise ObjectChangedError(
                f"{url} has the etag {found.etag}, and another part of it had {self.etag}. It was replaced while "
                "it was read; list it again.",
                url=url,
            )
        self.found(found.size, found.end)
        self.etag = self.etag or found.etag

    def keep(self, start: int, piece: memoryview) -> None:
        """Store downloaded bytes in the cache, if there is one."""
        if self._cached is not None:
            self._cached.keep(start, piece)

    def distrust_cache(self) -> bool:
        """Remove wrong bytes from the cache; returns whether they were read from it."""
        return self._cached is not None and self._cached.distrust()

    def close(self) -> None:
        self.closed = True
        if self._cached is not None:
            self._cached.close()
