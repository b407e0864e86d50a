"""Histograms of sizes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.inspection.histograms import histogram

NUMBERS = st.lists(st.integers(0, 2_000) | st.integers(0, 1 << 40), min_size=1, max_size=60)


@given(NUMBERS, st.integers(2, 20))
def test_each_number_is_in_one_bin(numbers: list[int], max_bins: int) -> None:
    """The bins follow each other without a gap, are few, and none is empty at either end."""
    found = histogram(numbers, max_bins=max_bins)
    assert found.counts == [sum(low <= number < high for number in numbers) for low, high in pairwise(found.edges)]
    assert sum(found.counts) == len(numbers)
    assert len(found.counts) <= max_bins + 1
    assert found.counts[0] > 0
    assert found.counts[-1] > 0
