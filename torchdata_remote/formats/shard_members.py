"""Read what a shard holds: where its samples begin, their keys and members, in one pass over its bytes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, cast

import numpy as np

from ..core.urls import redact
from ..errors import ShardReadError
from .compression import CompressionLimits, decompressed
from .error_policy import LinkCounter, OnBadMember, raise_error
from .grouping import sample_runs
from .key_columns import KeyColumns
from .key_index import Ints, KeyIndex, dump_keys
from .position import ReadPosition
from .sample import KEY, Sample
from .sample_index import dump_index
from .tar import BLOCK, MemberOffsets, TarOptions, read_member_offsets

_BATCH_MEMBERS = 120  # a multiple of 2 to 6 members of a sample; one that is unlike the others slows its batch down
_FIRST = 2  # after key and URL


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
    parts: Iterable[bytes | memoryview],
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
    shown, position, links = redact(url), ReadPosition(), LinkCounter(redact(url))
    compression, bare = decompressed(parts, url=shown, limits=CompressionLimits())
    with closing(bare):
        members = _Members()
        found = read_member_offsets(bare, url=shown, options=TarOptions(on_link=links), position=position)
        batches = members.numbered(found)
        for run in sample_runs(batches, url=shown, on_bad_member=on_bad_member, on_empty=on_empty):
            members.add(list(run))
    return ShardMembers(compression, links, *members.offsets_and_keys(position.archive_end))


class _Members:
    """Members of an archive: those of samples are known by their number among all of them."""

    def __init__(self) -> None:
        self._starts, self._sizes = array("q"), array("q")  # of all members
        self._extended: dict[int, int] = {}  # number of a member -> bytes of its headers, if they are several
        self._columns = KeyColumns(lambda names: names[_FIRST:])
        self._of_samples = array("q")  # numbers of the members of samples

    def numbered(self, batches: Iterable[MemberOffsets]) -> Iterator[tuple[Sequence[str], list[memoryview]]]:
        """Yield names and numbers of members."""
        for names, starts, sizes, header_bytes in batches:
            begin = len(self._starts)
            self._starts.extend(starts)
            self._sizes.extend(sizes)
            if header_bytes != BLOCK:
                self._extended[begin] = header_bytes
            for first in range(0, len(names), _BATCH_MEMBERS):
                some = names[first : first + _BATCH_MEMBERS]
                # Grouping passes data on, whatever they are
                yield some, cast(list[memoryview], list(range(begin + first, begin + first + len(some))))

    def add(self, samples: list[Sample]) -> None:
        """Append samples, whose members are numbers."""
        if not samples:
            return
        self._columns.add([sample[KEY] for sample in samples], list(map(tuple, samples)))
        first, last = (list(sample.values()) for sample in (samples[0], samples[-1]))
        num_members = sum(map(len, samples)) - _FIRST * len(samples)
        if last[-1] - first[_FIRST] + 1 == num_members:  # none was skipped
            self._of_samples.extend(range(first[_FIRST], last[-1] + 1))
            return
        for sample in samples:
            self._of_samples.extend(list(sample.values())[_FIRST:])

    def offsets_and_keys(self, archive_end: int) -> tuple[list[int], KeyIndex]:
        """Return the offsets of the samples and of the last one's end, and the index of keys."""
        used = _column(self._of_samples)
        starts, sizes = (_column(column)[used] for column in (self._starts, self._sizes))
        firsts = np.cumsum(counts := self._columns.counts()) - counts
        begins = starts[firsts] - BLOCK
        for sample, number in enumerate(used[firsts].tolist()) if self._extended else ():
            begins[sample] += BLOCK - self._extended.get(number, BLOCK)
        return [*[0][: len(begins)], *begins[1:].tolist(), archive_end], self._columns.index(starts, sizes)


def _column(numbers: array[int]) -> Ints:
    return np.array(numbers, np.int64)
