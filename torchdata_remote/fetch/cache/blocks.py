"""Read ranges of large objects through the disk cache, which then has blocks of them."""

from __future__ import annotations

from collections.abc import Generator

from ...core.object_version import same_etag
from ...core.urls import redact
from ...errors import ObjectChangedError, TransientStorageError
from ...storage import Answer, Entry, Store
from .disk_cache import DiskCache

BLOCK_BYTES = 256 << 10  # a few samples; a block is read and verified as a whole


class CachedBlocks:
    """One version of an object of a store, of which the cache has blocks.

    Args:
        store: of the object.
        cache: stores blocks.
        url: of the object.
        size: in bytes.
        etag: of the version.
        server: distinguishes objects of the same URL on several servers.
    """

    def __init__(self, store: Store, cache: DiskCache, url: str, size: int, etag: str, server: str) -> None:
        self._store, self._cache, self._url, self._num_bytes, self._etag = store, cache, url, size, etag
        self._name = f"{server}\n{url}#block"

    def find(self, path: str) -> Entry | None:
        """Find the object as the store does, for errors."""
        return self._store.find(path)

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read a range as the store does. Blocks for which there is room are fetched as a whole.

        Requests are sent, and their errors raised, when the chunks are read.
        """
        stop = self._num_bytes if end is None else min(end, self._num_bytes)
        return Answer(start, stop, self._num_bytes, self._etag, self._chunks(path, start, stop))

    def _chunks(self, path: str, start: int, end: int) -> Generator[memoryview, None, None]:
        at = missing = start  # what is missing is fetched when a block follows that is not
        while at < end:
            block, stop = self._cached(at), min(end, self._end(at))
            if block is not None:
                yield from self._download(path, missing, at)
                yield block[at % BLOCK_BYTES :][: stop - at]
                missing = stop
            at = stop
        yield from self._download(path, missing, end)

    def _end(self, byte: int) -> int:
        """Return where the block of a byte ends."""
        return min(byte - byte % BLOCK_BYTES + BLOCK_BYTES, self._num_bytes)

    def _cached(self, byte: int) -> memoryview | None:
        """Return the block that has a byte, if it is in the cache."""
        first = byte - byte % BLOCK_BYTES
        name, num_bytes = f"{self._name}{first}", self._end(byte) - first
        # An epoch reads the first byte of each block once
        found = self._cache.find(name, num_bytes, self._etag, counts=byte == first)
        return None if found is None else found.read(0, None)

    def _download(self, path: str, start: int, end: int) -> Generator[memoryview, None, None]:
        if start == end:
            return
        first, last = start, end
        if self._cache.has_room(self._url, BLOCK_BYTES, self._etag):  # else not more than is wanted
            first, last = start - start % BLOCK_BYTES, self._end(end - 1)
        answer = self._store.read(path, first, last, self._etag)
        try:
            self._require_same_version(answer, first, last)
            at, collected = answer.start, bytearray()
            for piece in answer.chunks:
                while piece and at < last:
                    part, piece = piece[: self._end(at) - at], piece[self._end(at) - at :]
                    collected += part
                    at += len(part)
                    if at in (self._end(at - 1), last):  # stored before a reader who has enough closes this
                        self._keep(at, collected)
                        begin = at - len(collected)
                        yield memoryview(collected)[max(0, start - begin) : max(0, end - begin)]
                        collected = bytearray()
        finally:
            answer.chunks.close()

    def _require_same_version(self, answer: Answer, first: int, last: int) -> None:
        url = redact(self._url)
        if answer.total_bytes != self._num_bytes or not same_etag(answer.etag, self._etag):
            raise ObjectChangedError(
                f"{url} has {answer.total_bytes:,} bytes and the etag {answer.etag}, where {self._num_bytes:,} and "
                f"{self._etag} were listed. It was replaced: list it again.",
                url=url,
            )
        if answer.start > first or answer.end < last:
            raise TransientStorageError(f"{url}: asked for bytes {first:,} to {last:,}, got others.", url=url)

    def _keep(self, end: int, data: bytearray) -> None:
        """Store a block that ends here, if all of it was fetched."""
        first = (end - 1) - (end - 1) % BLOCK_BYTES
        if len(data) == end - first:
            try:
                self._cache.put(f"{self._name}{first}", self._etag, memoryview(data))
            except OSError as error:
                self._cache.warn_once(f"{redact(self._url)} is not cached: {error}")
