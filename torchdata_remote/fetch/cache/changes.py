"""What happened in this process since the last exchange with the index of a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .object_table import Entry

_MAX_ENTRIES = 1 << 16  # that are remembered if exchanges fail


@dataclass
class Changes:
    """To be written to the index.

    Args:
        entries: of objects that were stored, with the checksums of their blocks, and whether each is alone in its pack.
        replaced: pack -> bytes in it that are not valid any more.
        used_packs: packs of which an object was read.
        lost_packs: packs of which the file is missing, or not what was written.
        sample: some of the objects that were read, each after so many bytes.
        num_reads: objects that were read.
        read_bytes: their bytes.
    """

    entries: list[tuple[Entry, Sequence[int], bool]] = field(default_factory=list)
    replaced: Counter[int] = field(default_factory=Counter)
    used_packs: set[int] = field(default_factory=set)
    lost_packs: set[int] = field(default_factory=set)
    sample: list[tuple[int, int]] = field(default_factory=list)
    num_reads: int = 0
    read_bytes: int = 0

    def put_back(self, earlier: Changes) -> None:
        """Add changes that could not be written; reads are left out."""
        self.entries = [*earlier.entries, *self.entries][-_MAX_ENTRIES:]
        self.replaced += earlier.replaced
        self.lost_packs |= earlier.lost_packs
