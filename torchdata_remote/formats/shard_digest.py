"""Compute size and checksums of a shard from a stream of its bytes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator

from ..core.checksums import BLOCK_BYTES, BlockSummer
from .manifest import ShardInfo


class ShardDigest:
    """Passes on the bytes of an object, and computes its checksums.

    All iterators of it share one stream, so a second one continues where the first has stopped.

    Args:
        parts: the bytes.
        block_bytes: size of the blocks that have checksums of their own.
    """

    def __init__(self, parts: Iterable[bytes | memoryview], block_bytes: int = BLOCK_BYTES) -> None:
        self._parts = iter(parts)
        self._md5, self._blocks = hashlib.md5(usedforsecurity=False), BlockSummer(block_bytes)
        self._num_bytes = 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for part in self._parts:
            self._num_bytes += len(part)
            self._md5.update(part)
            self._blocks.update(part)
            yield part

    def info(self, url: str, num_samples: int, index: bytes | None = None, keys: bytes | None = None) -> ShardInfo:
        """Return the manifest entry of the shard, after all bytes have passed.

        Args:
            url: of the shard.
            num_samples: in the shard.
            index: content of its index, if it has one.
            keys: content of its file of keys, if it has one.
        """
        beside = [None if data is None else zlib.crc32(data) for data in (index, keys)]
        md5, checksums = self._md5.hexdigest(), self._blocks.checksums()
        return ShardInfo(url, num_samples, self._num_bytes, md5, checksums, *beside)
