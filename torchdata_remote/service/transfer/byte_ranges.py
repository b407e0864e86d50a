"""Arithmetic of byte ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Span = tuple[int, int]  # first byte, byte after the last
REQUEST_PARTS = 16  # a larger file is transferred by several requests at once


def missing(ranges: Iterable[Span], num_bytes: int) -> list[Span]:
    """Return the gaps between ranges, which may overlap and be in any order.

    >>> missing([(4, 6), (0, 2), (5, 7)], 9)
    [(2, 4), (7, 9)]
    """
    gaps, position = [], 0
    for start, end in sorted(ranges):
        if start > position:
            gaps.append((position, min(start, num_bytes)))
        position = max(position, end)
        if position >= num_bytes:
            break
    if position < num_bytes:
        gaps.append((position, num_bytes))
    return gaps


def parts(gaps: Iterable[Span], part_bytes: int) -> Iterator[Span]:
    """Cut ranges at multiples of ``part_bytes``, so that every process cuts a file into the same parts.

    >>> list(parts([(0, 5), (7, 12)], 4))
    [(0, 4), (4, 5), (7, 8), (8, 12)]
    """
    for start, end in gaps:
        while start < end:
            cut = min(end, (start // part_bytes + 1) * part_bytes)
            yield start, cut
            start = cut


class CutPieces:
    """Cuts consecutive pieces of a stream at any byte.

    Args:
        pieces: of the stream.

    >>> pieces = CutPieces(iter([memoryview(b"wren"), memoryview(b"owl")]))
    >>> [b"".join(pieces.take(2)), b"".join(pieces.take(5))]
    [b'wr', b'enowl']
    """

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def take(self, num_bytes: int) -> Iterator[memoryview]:
        """Yield the next ``num_bytes`` bytes, or fewer if the stream ends."""
        while num_bytes:
            piece = self._rest or next(self._pieces, memoryview(b""))
            if not piece:
                return
            piece, self._rest = piece[:num_bytes], piece[num_bytes:]
            num_bytes -= len(piece)
            yield piece
