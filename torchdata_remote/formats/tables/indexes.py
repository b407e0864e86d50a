"""Choose what reads the row groups of a file: Parquet or Arrow."""

from __future__ import annotations

from .arrow_index import ArrowIndex
from .footer import Footer
from .index import TableIndex
from .parquet_index import ParquetIndex


def index_of(footer: Footer, url: str) -> TableIndex:
    """Return the row groups of a file.

    Raises:
        ShardReadError: if the footer is damaged.
    """
    return ParquetIndex(footer, url) if footer.batches is None else ArrowIndex(footer, url)
