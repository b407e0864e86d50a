"""Choose the objects of unknown size whose first parts are requested now: the responses report their sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from ..core.options import FetchOptions
from .download import Download

# Of the memory budget: it covers a round trip of usual stores
_FRACTION_AHEAD = 4


class Lookahead(NamedTuple):
    """How far ahead sizes are asked for: early enough that parts can be planned without waiting for a size.

    No further, because the first parts of large objects that are read later would hold the memory budget.

    Args:
        lane_bytes: the memory budget.
        options: for the number of objects that are read in turn.
        part_bytes: length of a part, for mapped files and for others.
        expected_bytes: size of the next object, from those before; ``None`` if there were none.
    """

    lane_bytes: int
    options: FetchOptions
    part_bytes: Mapping[bool, int]
    expected_bytes: int | None

    def unasked(self, in_order: Iterable[Download], unasked: Collection[Download]) -> Iterator[Download]:
        """Yield the objects to ask, in order.

        Args:
            in_order: objects that are not completely planned.
            unasked: those of them without a request; the caller removes what is yielded.
        """
        share_bytes, ahead_bytes = self.options.share_bytes(self.lane_bytes), 0
        for number, download in enumerate(in_order):
            is_read_in_turn = number < self.options.interleave
            if not unasked or not (is_read_in_turn or ahead_bytes <= self.lane_bytes // _FRACTION_AHEAD):
                return
            if download in unasked:
                yield download
            expected_bytes = self.expected_bytes or 2 * self.part_bytes[download.mapped]
            ahead_bytes += min(share_bytes, download.unplanned_bytes(expected_bytes))
