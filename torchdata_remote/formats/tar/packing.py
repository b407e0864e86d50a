"""Pack many members at once: NumPy fills in what differs between their headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from .header import BLOCK, MAX_SIZE, NAME_BYTES, plain_header

Data = bytes | memoryview

_BLANK = plain_header(b"", 0)
_PADDINGS = tuple(bytes(-size % BLOCK) for size in range(BLOCK))
_SUM_WITHOUT_FIELDS = sum(_BLANK[:124]) + sum(_BLANK[135:148]) + 8 * ord(" ") + sum(_BLANK[156:])
_SIZE_SHIFTS = np.arange(30, -1, -3)
_CHECKSUM_SHIFTS = np.arange(15, -1, -3)
_ZERO = np.uint8(ord("0"))
_BYTES_AT_0_2, _LANE = np.uint32(0x00FF00FF), np.uint32(0xFFFF)


def is_plain(name: str, size: int) -> bool:
    """Return whether a header has room for name and size, as most have."""
    return len(name) <= NAME_BYTES and size <= MAX_SIZE and name.isascii()


def pack_plain_members(names: Sequence[str], values: Sequence[Data]) -> bytes:
    """Pack regular files, one after the other: header, data and padding of each.

    Args:
        names: for which ``is_plain`` is true.
        values: data of each.

    >>> len(pack_plain_members(["a.txt", "b.txt"], [b"wren", b""]))
    1536
    """
    sizes = np.array(list(map(len, values)), np.int64)
    pieces: list[Data] = [_BLANK] * (3 * len(names))
    pieces[1::3] = values
    pieces[2::3] = map(_PADDINGS.__getitem__, (sizes % BLOCK).tolist())
    packed = bytearray().join(pieces)

    blocks = 1 + (sizes + BLOCK - 1) // BLOCK
    firsts = np.cumsum(blocks) - blocks
    fields = "".join([name.ljust(NAME_BYTES, "\0") for name in names]).encode("ascii")
    digits = _octal(sizes, _SIZE_SHIFTS)
    checksums = _SUM_WITHOUT_FIELDS + _sums(fields) + digits.sum(axis=1, dtype=np.int64)
    headers = np.frombuffer(packed, np.uint8).reshape(-1, BLOCK)
    headers[firsts, :NAME_BYTES] = np.frombuffer(fields, np.uint8).reshape(-1, NAME_BYTES)
    headers[firsts, 124:135] = digits
    headers[firsts, 148:154] = _octal(checksums, _CHECKSUM_SHIFTS)
    # Nothing changes it any more, and bytes would be another copy
    return cast(bytes, packed)


def _octal(numbers: npt.NDArray[np.int64], shifts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    return ((numbers[:, None] >> shifts) & 7).astype(np.uint8) + _ZERO


def _sums(fields: bytes) -> npt.NDArray[np.int64]:
    """Return the sum of the bytes of each name."""
    words = np.frombuffer(fields, "<u4").reshape(-1, NAME_BYTES // 4)
    lanes = ((words & _BYTES_AT_0_2) + ((words >> np.uint32(8)) & _BYTES_AT_0_2)).sum(axis=1, dtype=np.uint32)
    sums: npt.NDArray[np.int64] = ((lanes & _LANE) + (lanes >> np.uint32(16))).astype(np.int64)
    return sums
