"""Base of what the footer of a file says of its row groups: their rows, their bytes, and their decoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .columns import Resolved
from .footer import Footer
from .row_filter import RowFilter

if TYPE_CHECKING:
    import pyarrow as pa

Range = tuple[int, int]
Fetch = Callable[[int, int], bytes]

BATCH_BYTES = 16 << 20  # of the values that are decoded at once
MAX_BATCH_ROWS = 8192


class TableIndex(ABC):
    """What the footer of one file says. A row group of Arrow is a record batch.

    Args:
        footer: of the file.
        url: as errors may show it.
    """

    schema: pa.Schema
    counts: Sequence[int]
    """Number of rows of each row group."""

    def __init__(self, footer: Footer, url: str) -> None:
        self.footer, self.url = footer, url

    def kept(self, row_filter: RowFilter | None, groups: Sequence[int]) -> Sequence[int]:
        """Return those of some row groups that may have rows that the filter accepts, in order."""
        return groups

    @abstractmethod
    def ranges(self, group: int, columns: Resolved) -> list[Range]:
        """Return the bytes that a row group needs, sorted, without overlaps: first, and the one after the last."""

    @abstractmethod
    def batches(
        self, group: int, columns: Resolved, pieces: Sequence[memoryview], fetch: Fetch
    ) -> Iterator[pa.RecordBatch]:
        """Decode a row group, in batches of a bounded size.

        Args:
            group: its number.
            columns: to decode.
            pieces: the bytes of ``ranges``.
            fetch: reads other bytes, in case that the library asks for some.
        """


def merged(ranges: Sequence[Range], num_bytes: int) -> list[Range]:
    """Sort ranges and merge those that touch or overlap.

    Raises:
        ValueError: for a range outside of the file.

    Example:
        >>> merged([(8, 9), (0, 5), (4, 7)], 9)
        [(0, 7), (8, 9)]
    """
    found: list[Range] = []
    for start, stop in sorted(ranges):
        if not 0 <= start <= stop <= num_bytes:
            raise ValueError(f"bytes {start:,} to {stop:,} of a file of {num_bytes:,} bytes")
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        elif stop > start:
            found.append((start, stop))
    return found
