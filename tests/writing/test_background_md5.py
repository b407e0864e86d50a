"""MD5 beside whoever makes the bytes."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.writing.background_md5 import MAX_BEHIND_BYTES, BackgroundMd5

SIZES = st.sampled_from([0, 1, 1 << 10, (1 << 18) - 1, 1 << 18, 3 << 20])


@given(sizes=st.lists(SIZES, max_size=6))
def test_it_is_the_md5_of_all_chunks(sizes: list[int]) -> None:
    """Whether they are small or large, in whatever order; no thread is left."""
    md5, expected = BackgroundMd5(), hashlib.md5(usedforsecurity=False)
    for number, size in enumerate(sizes):
        chunk = bytes([number]) * size
        md5.update(chunk)
        expected.update(chunk)
    assert md5.end() == expected.hexdigest()
    assert md5._worker is None or md5._worker.settled


def test_it_holds_little() -> None:
    """Of many chunks only a few wait."""
    md5 = BackgroundMd5()
    for _ in range(64):
        md5.update(bytes(1 << 20))
        assert md5._worker is not None
        assert md5._worker.backlog <= MAX_BEHIND_BYTES + (1 << 20)
    assert md5.end() == hashlib.md5(bytes(64 << 20), usedforsecurity=False).hexdigest()
