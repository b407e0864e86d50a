"""Estimate how much memory a sample takes, by a rule that gives the same number in every process and Python version."""

from __future__ import annotations

import io
from array import array
from dataclasses import fields, is_dataclass
from typing import Any

from ..core.arguments import is_pil_image

# Measured with CPython 3.11, rounded up: the dict, and the objects that hold the members
_SAMPLE_BYTES = 256
_VALUE_BYTES = 48


def sample_bytes(sample: Any) -> int:
    """Estimate the memory that a sample takes, in bytes.

    Bytes, text, arrays, tensors, ``io.BytesIO`` and PIL images count with their content; dicts, lists, tuples, sets and
    dataclasses with that of their values. Any other object counts 48 bytes, because its size differs between Python
    versions, and with it the order of a shuffle that is bounded in bytes. A view of an array or tensor counts with what
    it shows, and not with the array that it keeps in memory, which many samples may share: copy it
    (``array[:10].copy()``) where it keeps much more.

    >>> sample_bytes({"__key__": "a", "jpg": bytes(1_000)})
    1353
    """
    if type(sample) is not dict:
        return _SAMPLE_BYTES + _value_bytes(sample)
    total = _SAMPLE_BYTES + _VALUE_BYTES * len(sample)
    for value in sample.values():
        if type(value) is bytes or type(value) is str:
            total += len(value)
        else:
            total += _value_bytes(value) - _VALUE_BYTES
    return total


def _value_bytes(value: Any) -> int:
    if isinstance(value, (bytes, bytearray, str)):
        return _VALUE_BYTES + len(value)
    if isinstance(value, dict):
        return _VALUE_BYTES + sum(map(_value_bytes, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return _VALUE_BYTES + sum(map(_value_bytes, value))
    if isinstance(value, io.BytesIO):
        return _VALUE_BYTES + (0 if value.closed else value.getbuffer().nbytes)
    if isinstance(value, array):
        return _VALUE_BYTES + len(value) * value.itemsize
    content = getattr(value, "nbytes", None)  # of memoryview, NumPy and torch
    if isinstance(content, int):
        return _VALUE_BYTES + content
    if is_pil_image(value):
        return _VALUE_BYTES + value.width * value.height * len(value.getbands())
    if is_dataclass(value) and not isinstance(value, type):
        return _VALUE_BYTES + sum(_value_bytes(getattr(value, field.name, None)) for field in fields(value))
    return _VALUE_BYTES
