"""The index beside a shard: at which byte each sample begins, in the layout of Energon's ``.tar.idx``.

Unsigned 64-bit integers, little-endian: the first byte of each sample, headers included, and the byte after the last
one's padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Offsets = np.ndarray[Any, np.dtype[np.uint64]]

ENTRY_BYTES = 8


def index_url(url: str) -> str:
    """Where a shard's index lies."""
    return f"{url}.idx"


def dump_index(offsets: Sequence[int]) -> bytes:
    """The index of samples that begin at these bytes; the last one is where the last sample ends."""
    return np.asarray(offsets, "<u8").tobytes()
