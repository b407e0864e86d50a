"""Read ranges of large objects through the disk cache, which then has blocks of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from .disk_cache import DiskCache
from .files import DamagedError

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
        found = self._cache.find(f"{self._name}@{first}", self._end(byte) - first, self._version)
        if found is None:
            return None
        try:
            return found.read(0, None)
        except DamagedError:
            self._cache.drop(found.path)
            return None

    def _download(self, start: int, end: int) -> Iterator[memoryview]:
        if start == end:
            return
        first, last = start, end
        border = start + -start % BLOCK_BYTES  # an epoch reads the first byte of each block once
        if self._cache.has_room(f"{self._name}@{border}" if border < end else "", BLOCK_BYTES):
            first, last = start - start % BLOCK_BYTES, self._end(end - 1)  # else not more than is wanted
        buffer, at = bytearray(), first
        for piece in self._fetch(first, last):
            buffer += piece
            while at < last and len(buffer) >= (num_bytes := min(self._end(at), last) - at):
                block = memoryview(bytes(buffer[:num_bytes]))
                del buffer[:num_bytes]
                self._keep(at, block)  # before a reader who has all bytes closes this
                yield block[max(0, start - at) : max(0, end - at)]
                at += num_bytes

    def _keep(self, first: int, block: memoryview) -> None:
        """Store a block that begins here, if all of it was fetched."""
        if first % BLOCK_BYTES == 0 and first + len(block) == self._end(first):
            try:
                file = self._cache.fill(f"{self._name}@{first}", len(block), self._version)
                if file is not None:
                    file.write(0, block)
            except OSError as error:
                self._cache.warn_once(self._name, str(error))
