"""Headers of NumPy's ``npy`` format (NEP 1), which several threads decode at once.

NumPy parses them by ``ast.literal_eval``, which fails in threads: before 3.11.8 and 3.12.2, CPython 3.11 and 3.12 count
the depth of all trees that are being made in one number (gh-106905), so a thread may find it changed: "SystemError: AST
constructor recursion depth mismatch". Headers as NumPy writes them of plain numbers and texts need no such tree.
"""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any, NamedTuple

import numpy as np

_NUMBER = rb"(?:0|[1-9][0-9]{0,18})"
_PLAIN = re.compile(
    rb"\{'descr': '([^',(\\]{1,40})', 'fortran_order': (False|True), 'shape': "
    rb"\(((?:%b, ?)*(?:%b)?)\),? *\} *\n?" % (_NUMBER, _NUMBER)
)
_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4}
_BEGINNING = len(b"\x93NUMPY\x01\x00")
_MAX_TRIES = 20


class NpyHeader(NamedTuple):
    """What the header of an array says.

    Args:
        shape: of the array.
        fortran_order: whether its first axis changes fastest.
        dtype: of the values.
        size: bytes of the header; the values follow.
    """

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    size: int


def npy_header(content: bytes) -> NpyHeader:
    """Decode the header of an array.

    Args:
        content: of the file, from its first byte.

    Raises:
        ValueError: if it is no header of this format. What else numpy raises for damaged ones differs by its version.

    Example:
        >>> file = io.BytesIO()
        >>> np.save(file, np.zeros((2, 3), "<f4"))
        >>> npy_header(file.getvalue())
        NpyHeader(shape=(2, 3), fortran_order=False, dtype=dtype('float32'), size=128)
    """
    for _ in range(_MAX_TRIES - 1):
        with contextlib.suppress(SystemError):  # of literal_eval, by chance
            return _plain_header(content) or _header_by_numpy(content)
    return _header_by_numpy(content)


def _plain_header(content: bytes) -> NpyHeader | None:
    """Return a header as numpy writes it of a plain dtype; ``None`` if it is another one, or damaged."""
    num_bytes = _LENGTH_BYTES.get(bytes(content[_BEGINNING - 2 : _BEGINNING]))
    if num_bytes is None or content[: _BEGINNING - 2] != b"\x93NUMPY":
        return None
    begin = _BEGINNING + num_bytes
    end = begin + int.from_bytes(content[_BEGINNING:begin], "little")
    found = _PLAIN.fullmatch(content, begin, end)
    if found is None or end > len(content):
        return None
    lengths = [length.strip() for length in found[3].split(b",")]
    if len(lengths) == 1 and lengths[0]:
        return None  # a number in parentheses
    try:
        dtype = np.dtype(found[1].decode("ascii"))
    except (TypeError, ValueError):
        return None  # numpy's reader has an error for it
    return NpyHeader(tuple(int(length) for length in lengths if length), found[2] == b"True", dtype, end)


def _header_by_numpy(content: bytes) -> NpyHeader:
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read_header(file)
    return NpyHeader(shape, fortran_order, dtype, file.tell())
