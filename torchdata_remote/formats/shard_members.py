"""Read what a shard holds: checksums, where its samples begin, their keys and members, in one pass over its bytes."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import NamedTuple

import numpy as np

from ..core.checksums import BLOCK_BYTES, BlockSummer
from ..core.urls import redact
from ..errors import ShardReadError
from .compression import CompressionLimits, decompressed
from .error_policy import LinkCounter, OnBadMember, raise_error
from .grouping import MemberBatch, sample_runs
from .key_index import KeyColumns, KeyIndex, dump_keys
from .manifest import ShardInfo
from .position import ReadPosition
from .sample import KEY
from .sample_index import dump_index
from .tar import Data, TarOptions, read_member_offsets

_FIRST = 2  # after key and URL


class ShardDigest:
    """Passes on the bytes of an object, and computes its checksums.

    All iterators of it share one stream, so a second one continues where the first has stopped.

    Args:
        parts: the bytes.
        block_bytes: size of the blocks that have checksums of their own.
    """

    def __init__(self, parts: Iterable[Data], block_bytes: int = BLOCK_BYTES) -> None:
        self._parts = iter(parts)
        self._md5, self._blocks = hashlib.md5(usedforsecurity=False), BlockSummer(block_bytes)
        self._num_bytes = 0

    def __iter__(self) -> Iterator[Data]:
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


class ShardMembers(NamedTuple):
    """What a shard holds.

    Args:
        compression: of the shard; ``None`` for none.
        links: in it, which readers leave out.
        offsets: of the samples in the tar, and of the last one's end.
        keys: of the samples, and their members.
    """

    compression: str | None
    links: LinkCounter
    offsets: list[int]
    keys: KeyIndex

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.offsets) - 1

    def beside(self) -> tuple[bytes, bytes] | tuple[None, None]:
        """Return the index and the keys, as they are stored beside the shard; ``None`` beside a compressed one."""
        return (None, None) if self.compression is not None else (dump_index(self.offsets), dump_keys(self.keys))


def read_shard_members(
    url: str,
    parts: Iterable[Data],
    on_bad_member: OnBadMember = raise_error,
    on_empty: Callable[[ShardReadError], object] = lambda error: None,
) -> ShardMembers:
    """Read the headers of a shard. No data of members are held in memory.

    Offsets count bytes of the decompressed tar.

    Args:
        url: of the shard.
        parts: its bytes, all of which are read.
        on_bad_member: called with the error of a member that cannot be part of a sample. The bytes of one that is
            skipped count as bytes of the sample before it, or of the first one; among the keys, as headers of the
            member that follows.
        on_empty: called with the error of a shard without a sample.

    Raises:
        ShardReadError: for a shard that is damaged, or not made of samples.
    """
    shown = redact(url)
    links = LinkCounter(shown)
    compression, bare = decompressed(parts, url=shown, limits=CompressionLimits())
    with closing(bare):
        found = read_samples(bare, shown, TarOptions(on_link=links), on_bad_member, on_empty)
    return ShardMembers(compression, links, *found)


def read_samples(
    parts: Iterable[Data],
    url: str,
    options: TarOptions,
    on_bad_member: OnBadMember,
    on_empty: Callable[[ShardReadError], object] = lambda error: None,
) -> tuple[list[int], KeyIndex]:
    """Read the headers of a tar: offsets of its samples and of the last one's end, and the index of their keys.

    Args:
        parts: bytes of the tar; data of members are not downloaded if they have ``jump``.
        url: of the shard, redacted.
        options: limits.
        on_bad_member: as in :func:`read_shard_members`.
        on_empty: as in :func:`read_shard_members`.
    """
    position, columns = ReadPosition(), KeyColumns(lambda names: names[_FIRST:])
    # Of all members: first byte of the data, their size, and bytes of the headers; and numbers of those of samples
    places, used = (array("q"), array("q"), array("q")), array("q")

    def batches() -> Iterator[MemberBatch]:
        for names, *more, header_bytes in read_member_offsets(parts, url=url, options=options, position=position):
            begin = len(places[0])
            for column, values in zip(places, (*more, [header_bytes] * len(names)), strict=True):
                column.extend(values)
            yield names, list(range(begin, begin + len(names)))

    for run in sample_runs(batches(), url=url, on_bad_member=on_bad_member, on_empty=on_empty):
        samples = list(run)
        columns.add([sample[KEY] for sample in samples], list(map(tuple, samples)))
        used.extend(chain.from_iterable([list(sample.values())[_FIRST:] for sample in samples]))
    starts, sizes, header_bytes = (np.array(column, np.int64)[np.array(used, np.int64)] for column in places)
    index = columns.index(starts, sizes)
    offsets = (starts - header_bytes)[index.firsts()[:-1]]
    # What was skipped in front of the first sample is a part of it
    offsets[:1] = options.first_byte
    return [*offsets.tolist(), position.archive_end], index
