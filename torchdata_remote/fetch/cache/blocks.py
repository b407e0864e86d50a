"""Read ranges of large objects through the disk cache, which then has blocks of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from .disk_cache import DiskCache, shown

BLOCK_BYTES = 256 << 10  # a few samples; a block is read and verified as a whole
Fetch = Callable[[int, int], Iterator[memoryview]]


class CachedBlocks:
    """The blocks of one version of an object.

    Args:
        cache: stores them.
        url: of the object.
        num_bytes: of the object.
        version: of the object.
        server: distinguishes objects of the same URL on several servers.
        fetch: downloads bytes ``start`` to ``end`` (exclusive) of the object, in consecutive pieces.
    """

    def __init__(self, cache: DiskCache, url: str, num_bytes: int, version: str, server: str, fetch: Fetch) -> None:
        self._cache, self._num_bytes, self._version, self._fetch = cache, num_bytes, version, fetch
        self._name = f"{server}\n{url}#block"

    def read(self, start: int, end: int) -> Generator[memoryview, None, None]:
        """Yield bytes ``start`` to ``end`` (exclusive). Blocks for which there is room are fetched as a whole."""
        at = missing = start  # what is missing is fetched when a block follows that is not
        while at < end:
            block, stop = self._cached(at), min(end, self._end(at))
            if block is not None:
                yield from self._download(missing, at)
                yield block[at % BLOCK_BYTES :][: stop - at]
                missing = stop
            at = stop
        yield from self._download(missing, end)

    def _end(self, byte: int) -> int:
        """Return where the block of a byte ends."""
        return min(byte - byte % BLOCK_BYTES + BLOCK_BYTES, self._num_bytes)

    def _cached(self, byte: int) -> memoryview | None:
        """Return the block that has a byte, if it is in the cache."""
        first = byte - byte % BLOCK_BYTES
        name, num_bytes = f"{self._name}@{first}", self._end(byte) - first
        # An epoch reads the first byte of each block once
        found = self._cache.find(name, num_bytes, self._version, counts=byte == first)
        return None if found is None else found.read(0, None)

    def _download(self, start: int, end: int) -> Iterator[memoryview]:
        if start == end:
            return
        first, last = start, end
        if self._cache.has_room(self._name, BLOCK_BYTES, self._version):  # else not more than is wanted
            first, last = start - start % BLOCK_BYTES, self._end(end - 1)
        collected, at = bytearray(), first
        for piece in self._fetch(first, last):
            while piece and at < last:
                part, piece = piece[: self._end(at) - at], piece[self._end(at) - at :]
                collected += part
                at += len(part)
                if at in (self._end(at - 1), last):  # stored before a reader who has all bytes closes this
                    self._keep(at, collected)
                    begin = at - len(collected)
                    yield memoryview(collected)[max(0, start - begin) : max(0, end - begin)]
                    collected = bytearray()

    def _keep(self, end: int, data: bytearray) -> None:
        """Store a block that ends here, if all of it was fetched."""
        first = (end - 1) - (end - 1) % BLOCK_BYTES
        if len(data) == end - first:
            try:
                self._cache.put(f"{self._name}@{first}", self._version, memoryview(data))
            except OSError as error:
                self._cache.warn_once(f"{shown(self._name)} is not cached: {error}")
