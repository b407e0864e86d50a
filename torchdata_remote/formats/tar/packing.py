"""Pack the headers of tar members. Equal samples become equal bytes: mode 0644, owner 0, time 0."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from .parser import BLOCK, Data, padding

NAME_BYTES = 100
MAX_SIZE = 0o77777777777

_PREFIX_BYTES = 155
# Name, mode, uid, gid, size, mtime, checksum (counted as spaces), type, target, magic, owners, devices, prefix
_USTAR = struct.Struct("100s8s8s8s12s12s8ss100s8s64s8s8s155s12x")
_ZEROS = b"0000000\0"
_PADDINGS = tuple(bytes(padding(size)) for size in range(BLOCK))
_SIZE_SHIFTS, _CHECKSUM_SHIFTS = np.arange(30, -1, -3), np.arange(15, -1, -3)


def pack_header(name: str, size: int, records: Mapping[str, str] | None = None) -> bytes:
    """Pack the header of a regular file.

    Args:
        name: path inside the archive; one that does not fit into ustar's fields gets a pax record.
        size: bytes of data that follow, padded to 512.
        records: further pax records, keyword -> value.

    Returns:
        bytes: 512 bytes, or at least 1,536 with a pax record.
    """
    fields, raw, prefix = dict(records or {}), name.encode("ascii", "replace"), b""
    slash = raw.find(b"/", len(raw) - NAME_BYTES - 1) if len(raw) > NAME_BYTES else -1
    if name.isascii() and 0 < slash <= _PREFIX_BYTES and slash + 1 < len(raw):
        prefix, raw = raw[:slash], raw[slash + 1 :]
    elif not name.isascii() or len(raw) > NAME_BYTES:
        fields["path"] = name
    if size > MAX_SIZE:
        fields["size"] = str(size)
    record = b"".join(_pax_line(key, value) for key, value in sorted(fields.items()))
    extended = _ustar(b"pax", len(record), b"x") + record + bytes(padding(len(record))) if record else b""
    return extended + _ustar(raw, 0 if "size" in fields else size, b"0", prefix)


def _pax_line(key: str, value: str) -> bytes:
    rest = f" {key}=".encode() + value.encode("utf-8", "surrogateescape") + b"\n"
    # The length counts its own digits
    length = len(rest) + len(str(len(rest)))
    length = len(rest) + len(str(length))
    return str(length).encode() + rest


def _ustar(name: bytes, size: int, kind: bytes, prefix: bytes = b"") -> bytes:
    numbers = b"0000644\0", _ZEROS, _ZEROS, b"%011o\0" % size, b"00000000000\0", b" " * 8
    header = _USTAR.pack(name, *numbers, kind, b"", b"ustar\x0000", b"", _ZEROS, _ZEROS, prefix)
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def is_plain(name: str, size: int) -> bool:
    """Return whether a header has room for name and size, as most have."""
    return len(name) <= NAME_BYTES and size <= MAX_SIZE and name.isascii()


_BLANK = _ustar(b"", 0, b"0")
_SUM_WITHOUT_FIELDS = sum(_BLANK[:124]) + sum(_BLANK[135:148]) + 8 * ord(" ") + sum(_BLANK[156:])


def pack_plain_members(names: Sequence[str], values: Sequence[Data]) -> bytes:
    """Pack regular files, one after the other: header, data and padding of each. NumPy fills in what differs.

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
    text = "".join([name.ljust(NAME_BYTES, "\0") for name in names]).encode("ascii")
    fields, digits = np.frombuffer(text, np.uint8).reshape(-1, NAME_BYTES), _octal(sizes, _SIZE_SHIFTS)
    checksums = _SUM_WITHOUT_FIELDS + _sums(text) + digits.sum(axis=1, dtype=np.int64)
    headers = np.frombuffer(packed, np.uint8).reshape(-1, BLOCK)
    headers[firsts, :NAME_BYTES] = fields
    headers[firsts, 124:135] = digits
    headers[firsts, 148:154] = _octal(checksums, _CHECKSUM_SHIFTS)
    # Nothing changes it any more, and bytes would be another copy
    return cast(bytes, packed)


def _octal(numbers: npt.NDArray[np.int64], shifts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    return ((numbers[:, None] >> shifts) & 7).astype(np.uint8) + np.uint8(ord("0"))


def _sums(fields: bytes) -> npt.NDArray[np.int64]:
    """Return the sum of the bytes of each name, two bytes of a word at once."""
    words = np.frombuffer(fields, "<u4").reshape(-1, NAME_BYTES // 4)
    lanes = ((words & 0x00FF00FF) + ((words >> 8) & 0x00FF00FF)).sum(axis=1, dtype=np.uint32)
    sums: npt.NDArray[np.int64] = ((lanes & 0xFFFF) + (lanes >> 16)).astype(np.int64)
    return sums
