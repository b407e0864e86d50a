"""Byte offsets of a shard's samples, in the file format of Energon's ``.tar.idx``.

Unsigned 64-bit integers, little-endian: the first byte of each sample, headers included, then the byte after the last
sample's padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.urls import url_beside
from .tar import BLOCK

Offsets = np.ndarray[Any, np.dtype[np.uint64]]

ENTRY_BYTES = 8


def index_url(url: str) -> str:
    """Return the URL of a shard's index."""
    return url_beside(url, ".idx")


def dump_index(offsets: Sequence[int]) -> bytes:
    """Encode an index.

    Args:
        offsets: the first byte of each sample, then the byte after the last sample.
    """
    return np.asarray(offsets, "<u8").tobytes()


def parse_index(
    data: bytes,
    *,
    num_samples: int | None = None,
    shard_bytes: int | None = None,
    first: int = 0,
    last: int | None = None,
) -> Offsets:
    """Decode an index, or some of its entries: uint64, ascending, multiples of 512, within the shard.

    Args:
        data: entries ``first`` to ``last``, both included; at least two.
        num_samples: of the shard; ``None`` computes it from the length of ``data``, which is then the whole index.
        shard_bytes: size of the shard, if it is known.
        first: number of the first entry in ``data``.
        last: number of the last entry; ``None`` is the entry after the last sample.

    Raises:
        ValueError: if ``data`` is not an index of such a shard. The message continues a sentence that begins with the
            index's URL.
    """
    if num_samples is None:
        num_samples = len(data) // ENTRY_BYTES - 1
    last = num_samples if last is None else last
    if last <= first or len(data) != (last + 1 - first) * ENTRY_BYTES:
        raise ValueError(
            f"has {len(data):,} bytes for entries {first:,} to {last:,} of a shard of {num_samples} samples"
        )
    offsets = np.frombuffer(data, "<u8")
    if (offsets % BLOCK).any():
        raise ValueError(f"has an offset that is not a multiple of {BLOCK}")
    if (offsets[1:] <= offsets[:-1]).any():
        raise ValueError("has offsets that do not ascend")
    if (first == 0) != (offsets[0] == 0):
        raise ValueError(f"says that sample {first:,} begins at byte {offsets[0]:,}")
    # Each sample after the last entry takes a block at least
    end = int(offsets[-1]) + (num_samples - last) * BLOCK
    if shard_bytes is not None and end > shard_bytes:
        raise ValueError(f"has offsets up to {offsets[-1]:,}, of a shard of {shard_bytes:,} bytes")
    return offsets
