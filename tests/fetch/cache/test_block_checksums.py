"""Checksums of pieces that are written in any order."""

from __future__ import annotations

import os
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.fetch.cache import block_checksums as cache_blocks
from torchdata_remote.fetch.cache.block_checksums import ArrivingBlocks, num_blocks


@given(data=st.data(), num_bytes=st.integers(0, 60))
def test_pieces_in_any_order_make_the_checksums_of_the_whole(data: st.DataObject, num_bytes: int) -> None:
    """Also pieces that cross block borders, and blocks whose first bytes are written last."""
    whole = memoryview(os.urandom(num_bytes))
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, max(1, num_bytes)), max_size=9)) | {num_bytes})]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_blocks, "BLOCK_BYTES", 7)
        arriving = ArrivingBlocks(num_bytes)
        for start, end in data.draw(st.permutations(list(pairwise(cuts)))):
            for block, at, piece, crc32 in arriving.pieces(start, whole[start:end]):
                arriving.record(block, at + len(piece), zlib.crc32(piece, crc32))
        expected = [zlib.crc32(whole[start : start + 7]) for start in range(0, num_bytes, 7)]
        assert len(expected) == num_blocks(num_bytes)
        assert arriving.crc32s(lambda start, end: whole[start:end]) == expected
