"""Compute size, checksums and sample offsets of a shard from a stream of its bytes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing

from ..core.checksums import BLOCK_BYTES, BlockSummer
from ..core.urls import redact
from .compression.decompress import CompressionLimits, decompressed
from .error_policy import OnBadMember, raise_error
from .grouping import samples_of
from .manifest import ShardInfo
from .position import ReadPosition
from .tar.members import read_member_batches
from .tar.parser import TarOptions


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

    def info(self, url: str, num_samples: int, index: bytes | None = None) -> ShardInfo:
        """Return the manifest entry of the shard, after all bytes have passed.

        Args:
            url: of the shard.
            num_samples: in the shard.
            index: content of its index, if it has one.
        """
        index_crc32 = None if index is None else zlib.crc32(index)
        md5, checksums = self._md5.hexdigest(), self._blocks.checksums()
        return ShardInfo(url, num_samples, self._num_bytes, md5, checksums, index_crc32)


def sample_offsets(
    url: str, parts: Iterable[bytes | memoryview], on_bad_member: OnBadMember = raise_error
) -> tuple[str | None, list[int]]:
    """Return a shard's compression (``None`` for none), and the offsets of its samples and of the last one's end.

    Offsets count bytes of the decompressed tar.

    Args:
        url: of the shard.
        parts: its bytes, all of which are read.
        on_bad_member: called with the error of a member that cannot be part of a sample. The bytes of one that is
            skipped count as bytes of the sample before it, or of the first one.

    Raises:
        ShardReadError: for a shard that is damaged, or not made of samples.
    """
    shown, position = redact(url), ReadPosition()
    compression, bare = decompressed(parts, url=shown, limits=CompressionLimits())
    with closing(bare):
        runs = read_member_batches(bare, url=shown, options=TarOptions(copy=False), position=position)
        samples = samples_of(runs, url=shown, on_bad_member=on_bad_member, position=position)
        return compression, [0, *(position.archive_end if position.ended else position.next_byte() for _ in samples)]
