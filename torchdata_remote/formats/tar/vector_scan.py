"""Many headers at once: NumPy finds those that are plain, and proves that they follow each other.

Reading a header field by field costs Python about two microseconds, as much as all the rest of a small member. But
nearly all headers of a shard are alike: a short name, an octal size, no extension. So a whole window is looked at in a
few vector operations: each 512-byte block that holds the word "usta" where a header has it is a candidate, and its
checksum, type, size and name are compared for all candidates together. A candidate may be data that looks like a
header; but if the block at hand is a header, and its size leads exactly to the next candidate, then that one is a
header too, and so on. Whatever breaks the chain is left to ``walk``, which reads one header with all its cases.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .header import BLOCK, text_field

WINDOW_BYTES = 2 << 20  # what fits a processor's cache

_WORTH_MEMBERS = 4

_WORD = int.from_bytes(b"usta", "little")
_DIGIT = np.uint8(ord("0"))
_BYTES_AT_0_2_4_6 = np.uint64(0x00FF00FF00FF00FF)
_LANE = np.uint64(0xFFFF)
_SIZE_WEIGHTS = 8 ** np.arange(10, -1, -1, dtype=np.int64)
_CHECKSUM_WEIGHTS = 8 ** np.arange(5, -1, -1, dtype=np.int64)

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """Members that follow each other: names, where in the view their data start and end, and the next header begins."""

    names: list[str]
    starts: list[int]
    ends: list[int]
    after: int


class HeaderScan:
    """The plain headers in a window of an archive.

    Args:
        view: bytes of an archive.
        start: a place in it where a header begins.
        max_member_bytes: larger members are not plain.
    """

    def __init__(self, view: memoryview, start: int, max_member_bytes: int) -> None:
        self.start = start
        num_blocks = min(len(view) - start, WINDOW_BYTES) // BLOCK
        self.end = start + num_blocks * BLOCK
        words = np.ndarray((num_blocks,), "<u4", view, offset=start + 257, strides=(BLOCK,))
        blocks = np.flatnonzero(words == _WORD)
        all_blocks = np.frombuffer(view, np.uint8, num_blocks * BLOCK, start).reshape(num_blocks, BLOCK)
        headers = all_blocks[blocks]

        self._sizes, plain = _sizes(headers)
        plain &= _checksums_fit(headers)
        plain &= headers[:, 156] == ord("0")
        plain &= headers[:, 345] == 0  # the second field for a long path
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
        """The members that follow each other from the header at ``position`` on, if there are enough of them."""
        block = (position - self.start) // BLOCK
        first = bisect_left(self._block_list, block)
        if first == len(self._block_list) or self._block_list[first] != block:
            return None
        last = self._breaks[bisect_left(self._breaks, first)]
        if last - first < _WORTH_MEMBERS:
            return None
        stop = last + 1 if self._plain[last] else last
        starts = self._data_starts[first:stop]
        ends = starts + self._sizes[first:stop]
        names = _texts(self._names[first:stop].tolist())
        return Found(names, starts.tolist(), ends.tolist(), int(self._after[stop - 1]))


def _digits(field: Bytes) -> tuple[Bytes, Bools]:
    """Octal digits, and whether they are some."""
    digits: Bytes = np.subtract(field, _DIGIT)  # which wraps around below "0"
    return digits, np.all(digits < 8, axis=1)


def _sizes(headers: Bytes) -> tuple[Ints, Bools]:
    """Of the data in bytes, and whether the field is the usual one: eleven digits and a NUL or a space."""
    digits, usual = _digits(headers[:, 124:135])
    return digits.astype(np.int64) @ _SIZE_WEIGHTS, usual & ((headers[:, 135] | 0x20) == 0x20)


def _checksums_fit(headers: Bytes) -> Bools:
    """Whether the checksum field is the usual one, six digits, and says the sum of the bytes with itself as spaces."""
    words = headers.view("<u8")
    lanes = ((words & _BYTES_AT_0_2_4_6) + ((words >> np.uint64(8)) & _BYTES_AT_0_2_4_6)).sum(axis=1)
    sums = sum((lanes >> np.uint64(shift)) & _LANE for shift in (0, 16, 32, 48))  # 64 words of 510 at most: no overflow
    field = headers[:, 148:156]
    digits, usual = _digits(field[:, :6])
    expected = digits.astype(np.int64) @ _CHECKSUM_WEIGHTS
    usual &= ((field[:, 6:] | 0x20) == 0x20).all(axis=1)
    usual &= np.asarray(sums, np.int64) - field.sum(axis=1, dtype=np.int64) + 8 * 0x20 == expected
    return usual


def _texts(names: Sequence[bytes]) -> list[str]:
    """Names as text, all by one call where possible; what comes after a NUL is no part of a name."""
    joined = b"\n".join(names)
    if b"\0" not in joined:
        texts = text_field(joined).split("\n")
        if len(texts) == len(names):
            return texts
    return [text_field(name.partition(b"\0")[0]) for name in names]
