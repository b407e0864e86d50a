"""Decode numbers, text and arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..npy_header import npy_header


def integer(data: bytes) -> int:
    """Decode a decimal number, such as the class number in a ``cls`` member.

    Raises:
        ValueError: if the data are not a number.

    Example:
        >>> integer(b"42")
        42
    """
    return int(data)


def text(data: bytes) -> str:
    """Decode UTF-8 text.

    Raises:
        UnicodeDecodeError: if the data are not UTF-8.

    Example:
        >>> text(b"kit fox")
        'kit fox'
    """
    return data.decode("utf-8")


def npy(data: bytes) -> np.ndarray[Any, Any]:
    """Decode an array in NumPy's ``npy`` format (NEP 1), in the byte order of this machine, as torch needs it.

    Raises:
        ValueError: if the array holds pickled objects, is shorter than its header says, or is an ``npz`` archive.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> np.save(file, np.arange(3))
        >>> npy(file.getvalue())
        array([0, 1, 2])
    """
    if data[:6] != b"\x93NUMPY":
        raise ValueError(f"it begins with {data[:6]!r}, where an npy array was expected; allow_pickle is off")
    shape, fortran_order, dtype, begin = npy_header(data)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which would need unpickling (allow_pickle is off)")
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape}")
    left, claimed = len(data) - begin, math.prod(shape) * dtype.itemsize
    if claimed > left:
        raise ValueError(f"an array of shape {shape} and {dtype} has {claimed:,} bytes, of which {left:,} are there")
    array = np.frombuffer(data, dtype, math.prod(shape), begin)
    return array.reshape(shape, order="F" if fortran_order else "C").astype(dtype.newbyteorder("="))
