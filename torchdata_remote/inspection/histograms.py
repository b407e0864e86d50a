"""Histograms of sizes, with bins between round numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

_WIDE = 50  # largest by smallest: beyond this, bins grow by a factor


@dataclass(frozen=True)
class Histogram:
    """How many numbers are in each bin.

    Args:
        edges: bin ``i`` holds the numbers from ``edges[i]`` to ``edges[i + 1] - 1``.
        counts: of each bin.
    """

    edges: list[int]
    counts: list[int]


def histogram(numbers: Sequence[int], *, max_bins: int = 12) -> Histogram:
    """Count numbers in bins of equal width; in bins that grow by a power of two, if they differ by more than 50 times.

    Args:
        numbers: none of them negative; at least one.
        max_bins: of equal width; bins that grow may be one more.

    Example:
        >>> histogram([1_010, 1_250, 1_280, 1_399], max_bins=5)
        Histogram(edges=[1000, 1100, 1200, 1300, 1400], counts=[1, 0, 2, 1])
        >>> histogram([0, 9, 700], max_bins=5)
        Histogram(edges=[0, 1, 4, 16, 64, 256, 1024], counts=[1, 0, 1, 0, 0, 1])
        >>> histogram([7, 7])
        Histogram(edges=[7, 8], counts=[2])
    """
    least, most = min(numbers), max(numbers)
    edges = _growing(least, most, max_bins) if most > _WIDE * max(1, least) else _equal(least, most, max_bins)
    counts = [0] * (len(edges) - 1)
    for number in numbers:
        counts[bisect_right(edges, number) - 1] += 1
    return Histogram(edges, counts)


def _equal(least: int, most: int, max_bins: int) -> list[int]:
    widths = (digit * 10**power for power in count() for digit in (1, 2, 5))
    for width in widths:
        first, last = least // width, most // width
        if last - first < max_bins:
            return [width * number for number in range(first, last + 2)]
    raise AssertionError("widths have no end")


def _growing(least: int, most: int, max_bins: int) -> list[int]:
    for power in count(1):
        factor = 2**power
        edges = [1]
        while edges[-1] <= most:
            edges.append(edges[-1] * factor)
        edges = edges[max(0, bisect_right(edges, least) - 1) :]
        if len(edges) - 1 <= max_bins:
            return edges if least else [0, *edges]
    raise AssertionError("factors have no end")
