"""Cache files: lengths, and checksums of pieces that are written in any order."""

from __future__ import annotations

import os
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.fetch.cache import block_checksums as cache_blocks
from torchdata_remote.fetch.cache.block_checksums import (
    BLOCK_BYTES,
    ArrivingBlocks,
    file_bytes,
    num_blocks,
    object_bytes,
    pack_trailer,
    unpack_trailer,
)

NAME = "0123456789abcdef" * 4


@given(
    num_bytes=st.integers(0, 5 * BLOCK_BYTES) | st.sampled_from([n * BLOCK_BYTES + d for n in (1, 2) for d in (0, 1)])
)
def test_object_length_and_file_length_are_computed_from_each_other(num_bytes: int) -> None:
    """And the other way round, at the ends of blocks too."""
    assert object_bytes(file_bytes(num_bytes)) == num_bytes
    assert 0 <= object_bytes(num_bytes) <= num_bytes


@given(crc32s=st.lists(st.integers(0, 2**32 - 1), max_size=5), other=st.binary(max_size=30))
def test_a_trailer_of_another_object_is_rejected(crc32s: list[int], other: bytes) -> None:
    """A trailer of another name, or any other bytes, returns no checksums."""
    trailer = memoryview(pack_trailer(crc32s, NAME))
    assert len(trailer) == file_bytes(len(crc32s) * BLOCK_BYTES) - len(crc32s) * BLOCK_BYTES
    assert unpack_trailer(trailer, NAME) == tuple(crc32s)
    assert unpack_trailer(trailer, "f" * 64) is None
    assert unpack_trailer(memoryview(other), NAME) is None


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
