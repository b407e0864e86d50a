"""Parse many headers at once with NumPy, and prove that they form a chain.

Parsing a header field by field takes Python about two microseconds, as long as the rest of a small member. But nearly
all headers of a shard are alike: a short name, an octal size, no extension. So a whole window is parsed in a few vector
operations. Each 512-byte block with the word "usta" at the offset of a header's magic is a candidate, and checksum,
type, size and name of all candidates are checked together. A candidate may be data that look like a header. But if the
current block is a header, and its size leads exactly to the next candidate, then that one is a header, too, and so on.
A header that breaks the chain is left to ``parser``, which handles all cases.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .header import BLOCK, text_field

# Fits into a processor's cache
WINDOW_BYTES = 2 << 20

_MIN_CHAIN = 4

_WORD = int.from_bytes(b"usta", "little")
_BYTES_AT_0_2_4_6 = np.uint64(0x00FF00FF00FF00FF)
_LANES_0_2 = np.uint64(0x0000FFFF0000FFFF)
# Adds up the four 16-bit lanes of a word in its highest one
_LANE_SUM = np.uint64(0x0001000100010001)
# In a word of characters: "0" in each byte, what no octal digit has besides, and the same of six and of three bytes
_ZEROS = np.uint64(0x3030303030303030)
_NO_DIGIT_8 = np.uint64(0xF8F8F8F8F8F8F8F8)
_NO_DIGIT_6 = np.uint64(0x0000F8F8F8F8F8F8)
_NO_DIGIT_3 = np.uint64(0x0000000000F8F8F8)
_SPACE, _TWO_SPACES = np.uint64(0x20), np.uint64(0x2020)

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """Adjacent members: names, start and end of their data in the view, and where the next header begins."""

    names: list[str]
    starts: list[int]
    ends: list[int]
    after: int


class HeaderScan:
    """The plain headers in a window of an archive.

    Args:
        view: bytes of an archive.
        start: the offset of a header in it.
        max_member_bytes: larger members are not plain.
    """

    def __init__(self, view: memoryview, start: int, max_member_bytes: int) -> None:
        self.start = start
        num_blocks = min(len(view) - start, WINDOW_BYTES) // BLOCK
        self.end = start + num_blocks * BLOCK
        words = np.ndarray((num_blocks,), "<u4", view, offset=start + 257, strides=(BLOCK,))
        blocks = np.flatnonzero(words == _WORD)
        all_blocks = np.frombuffer(view, np.uint8, num_blocks * BLOCK, start).reshape(num_blocks, BLOCK)
        headers = all_blocks.take(blocks, axis=0)

        self._sizes, plain = _sizes(headers)
        plain &= _checksums_fit(headers)
        plain &= headers[:, 156] == ord("0")
        # The prefix of a long path
        plain &= headers[:, 345] == 0
        plain &= self._sizes <= max_member_bytes
        after = blocks + 1 + (self._sizes + BLOCK - 1) // BLOCK
        plain &= after <= num_blocks
        leads_on = plain[:-1] & (after[:-1] == blocks[1:])
        self._breaks: list[int] = [*np.flatnonzero(~leads_on).tolist(), len(blocks) - 1]
        self._plain = plain
        self._names = np.ascontiguousarray(headers[:, :100]).view("S100")[:, 0]
        self._data_starts = start + (blocks + 1) * BLOCK
        self._after = start + after * BLOCK
        self._block_list: list[int] = blocks.tolist()

    def members_from(self, position: int) -> Found | None:
        """Return the chain of members from the header at ``position`` on; ``None`` if it is short."""
        block = (position - self.start) // BLOCK
        first = bisect_left(self._block_list, block)
        if first == len(self._block_list) or self._block_list[first] != block:
            return None
        last = self._breaks[bisect_left(self._breaks, first)]
        if last - first < _MIN_CHAIN:
            return None
        stop = last + 1 if self._plain[last] else last
        starts = self._data_starts[first:stop]
        ends = starts + self._sizes[first:stop]
        names = _texts(self._names[first:stop].tolist())
        return Found(names, starts.tolist(), ends.tolist(), int(self._after[stop - 1]))


def _words(headers: Bytes, start: int, end: int) -> Words:
    """Return the word of 4 or 8 characters in these bytes of each header."""
    return headers[:, start:end].view(f"<u{end - start}")[:, 0].astype(np.uint64)


def _octal_pairs(digits: Words) -> Words:
    """Return the number of each two octal digits, in the lower byte of each 16-bit lane."""
    return ((digits << np.uint64(3)) | (digits >> np.uint64(8))) & _BYTES_AT_0_2_4_6


def _octal(digits: Words) -> Words:
    """Return the number of eight octal digits, each in a byte, the first one in the lowest."""
    pairs = _octal_pairs(digits)
    fours = (pairs << np.uint64(6)) | (pairs >> np.uint64(16))
    return ((fours & np.uint64(0xFFF)) << np.uint64(12)) | ((fours >> np.uint64(32)) & np.uint64(0xFFF))


def _sizes(headers: Bytes) -> tuple[Ints, Bools]:
    """Return sizes in bytes, and whether the fields are plain: eleven digits and a NUL or a space."""
    first, rest = _words(headers, 124, 132) ^ _ZEROS, _words(headers, 132, 136)
    end, rest = rest >> np.uint64(24), rest ^ _ZEROS
    plain = ((first & _NO_DIGIT_8) | (rest & _NO_DIGIT_3)) == 0
    plain &= (end | _SPACE) == _SPACE
    # Three digits, of which the first weighs most
    low = (
        ((rest & np.uint64(7)) << np.uint64(6))
        | ((rest >> np.uint64(5)) & np.uint64(0x38))
        | ((rest >> np.uint64(16)) & np.uint64(7))
    )
    return ((_octal(first) << np.uint64(9)) | low).astype(np.int64), plain


def _checksums_fit(headers: Bytes) -> Bools:
    """Return whether the checksum fields are plain, six digits, and correct."""
    field = _words(headers, 148, 156)
    digits = field ^ _ZEROS
    plain = (digits & _NO_DIGIT_6) == 0
    plain &= ((field >> np.uint64(48)) | _TWO_SPACES) == _TWO_SPACES
    # As if two zeros stood before the six digits
    expected = _octal(digits << np.uint64(16))
    fits: Bools = plain & (_byte_sums(headers) - _sums_of_words(field) + np.uint64(8 * 0x20) == expected)
    return fits


def _byte_sums(headers: Bytes) -> Words:
    """Return the sum of the bytes of each header."""
    words = headers.view("<u8")
    # Most words are the same in all headers: to compare them takes a third of the time of a sum
    differ = words != words[:1]
    # Eight bools at once
    others = np.flatnonzero(np.bitwise_or.reduce(differ.view(np.uint64), axis=0).view(np.bool_))
    first = words[:1].copy()
    first[:, others] = 0
    return _sums(words.T[others]) + _sums(first.T)


def _lanes(words: Words) -> Words:
    return (words & _BYTES_AT_0_2_4_6) + ((words >> np.uint64(8)) & _BYTES_AT_0_2_4_6)


def _sums(words: Words) -> Words:
    """Return the sum of the bytes of each column."""
    # At most 64 words of 510: no lane overflows, but the sum of four would
    lanes = _lanes(words).sum(axis=0)
    halves = (lanes & _LANES_0_2) + ((lanes >> np.uint64(16)) & _LANES_0_2)
    return np.asarray((halves + (halves >> np.uint64(32))) & np.uint64(0xFFFFFFFF), np.uint64)


def _sums_of_words(words: Words) -> Words:
    """Return the sum of the bytes of each word."""
    return (_lanes(words) * _LANE_SUM) >> np.uint64(48)


def _texts(names: Sequence[bytes]) -> list[str]:
    """Decode names, all in one call if possible. A NUL ends a name."""
    joined = b"\n".join(names)
    if b"\0" not in joined:
        texts = text_field(joined).split("\n")
        if len(texts) == len(names):
            return texts
    return [text_field(name.partition(b"\0")[0]) for name in names]
