"""Record keys and members of the samples of a shard where their bytes are joined, in the thread that joins them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter, itemgetter

import numpy as np

from ..formats.key_index import KeyColumns, KeyIndex, member_starts
from ..formats.tar import BLOCK
from .packed_sample import PackedSample, join_samples

_KEY, _SUFFIXES, _VALUES = itemgetter(0), itemgetter(3), itemgetter(2)
_IS_PLAIN = attrgetter("is_plain")


class PackedMembers:
    """Keys and members of the samples that were joined: 12 bytes a sample and 8 bytes a member, besides the keys."""

    def __init__(self) -> None:
        self._columns = KeyColumns(lambda suffixes: tuple([suffix[1:] for suffix in suffixes]))
        self._sizes = array("q")
        self._extended: dict[int, int] = {}  # number of a member -> bytes of its headers, if they are several

    def join(self, samples: Sequence[PackedSample], end: bytes = b"") -> bytes:
        """As ``join_samples``; the samples are recorded."""
        self.record(samples)
        return join_samples(samples, end)

    def record(self, samples: Sequence[PackedSample]) -> bytes:
        """Append samples; returns no bytes, for samples whose bytes are written in pieces."""
        self._columns.add(list(map(_KEY, samples)), list(map(_SUFFIXES, samples)))
        if all(map(_IS_PLAIN, samples)):
            self._sizes.extend(map(len, chain.from_iterable(map(_VALUES, samples))))
            return b""
        for sample in samples:
            if sample.is_plain:
                self._sizes.extend(map(len, sample.values))
            for header_bytes, size in sample.extents:
                if header_bytes != BLOCK:
                    self._extended[len(self._sizes)] = header_bytes
                self._sizes.append(size)
        return b""

    def index(self) -> KeyIndex:
        """Return the index of the samples."""
        sizes = np.array(self._sizes, np.int64)
        gaps = np.full(len(sizes), BLOCK, np.int64)
        for number, header_bytes in self._extended.items():
            gaps[number] = header_bytes
        return self._columns.index(member_starts(gaps, sizes), sizes)
