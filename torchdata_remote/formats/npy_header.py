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
    rb"\x93NUMPY(?:\x01\x00(..)|\x02\x00(....))\{'descr': '([^',(\\]{1,40})', 'fortran_order': (False|True), "
    rb"'shape': \((%b,(?: %b(?:, %b)*)?)?\),? *\} *\n?" % ((_NUMBER,) * 3),
    re.DOTALL,
)
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
    if found := _PLAIN.match(content):
        length, begin = found[1] or found[2], found.end(1 if found[1] else 2)
        # What is not as numpy writes it is left to numpy, which has an error for it
        with contextlib.suppress(TypeError, ValueError):
            if found.end() == begin + int.from_bytes(length, "little"):
                shape = tuple(int(number) for number in (found[5] or b"").split(b",") if number)
                return NpyHeader(shape, found[4] == b"True", np.dtype(found[3].decode("ascii")), found.end())
    for _ in range(_MAX_TRIES - 1):
        with contextlib.suppress(SystemError):  # of literal_eval, by chance
            return _header_by_numpy(content)
    return _header_by_numpy(content)


def _header_by_numpy(content: bytes) -> NpyHeader:
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return NpyHeader(*read_header(file), file.tell())
