"""What happened in this process since the last exchange with the index of a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from .index import CacheIndex
from .object_table import Entry
from .pack import remove_pack

_MAX_ENTRIES = 1 << 16  # that are remembered if exchanges fail


def _pack_of(entry: Entry) -> int:
    return entry.pack


@dataclass
class Changes:
    """To be written to the index.

    Args:
        entries: of objects that were stored, with the checksums of their blocks, and whether each is alone in its pack.
        dropped: entries of objects that are not valid any more.
        replaced: pack -> bytes in it that are not valid any more.
        used_packs: packs of which an object was read.
        lost_packs: packs of which the file is missing, or not what was written.
        sample: some of the objects that were read, each after so many bytes.
        num_reads: objects that were read.
        read_bytes: their bytes.
    """

    entries: list[tuple[Entry, Sequence[int], bool]] = field(default_factory=list)
    dropped: list[Entry] = field(default_factory=list)
    replaced: Counter[int] = field(default_factory=Counter)
    used_packs: set[int] = field(default_factory=set)
    lost_packs: set[int] = field(default_factory=set)
    sample: list[tuple[int, int]] = field(default_factory=list)
    num_reads: int = 0
    read_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.num_reads or self.entries or self.dropped or self.replaced or self.lost_packs)

    def write(self, index: CacheIndex) -> int:
        """Write to the index, within a transaction; return the last batch."""
        last = 0
        for pack, group in groupby(self.entries, lambda one: one[0].pack):
            added = list(group)
            entries, (_, crc32s, alone) = [entry for entry, _, _ in added], added[0]
            last = max(last, index.add_batch(pack, entries, crc32s[1:], is_complete=alone))
        for pack, dropped in groupby(sorted(self.dropped, key=_pack_of), _pack_of):
            last = max(last, index.add_dropped(pack, list(dropped)))
        index.record_reads(self.read_bytes, self.sample, self.used_packs)
        index.record_replaced(self.replaced)
        for pack in self.lost_packs:
            if remove_pack(index.packs, pack):
                index.remove_row(pack)
        return last

    def put_back(self, earlier: Changes) -> None:
        """Add changes that could not be written; reads are left out."""
        self.entries = [*earlier.entries, *self.entries][-_MAX_ENTRIES:]
        self.dropped = [*earlier.dropped, *self.dropped][-_MAX_ENTRIES:]
        self.replaced += earlier.replaced
        self.lost_packs |= earlier.lost_packs
