"""Convert scalars to Python's: one rule for arguments, labels and members.

NumPy's scalars, tensors without dimensions, and subclasses such as ``IntEnum`` are converted. Neither library is
imported.
"""

from __future__ import annotations

import operator
from typing import Any


def int_of(value: Any) -> int | None:
    """Return what has ``__index__`` as an int; ``None`` for anything else, such as a bool, a float or an array.

    >>> int_of(3), int_of(True), int_of(3.0)
    (3, None, None)
    """
    if type(value) is int:
        return value
    return None if is_bool(value) else _index(value)


def bool_of(value: Any) -> bool | None:
    """Return a bool, or an integer that is 0 or 1, as a bool; ``None`` for anything else.

    >>> bool_of(1), bool_of(2), bool_of("True")
    (True, None, None)
    """
    if is_bool(value):
        return bool(value)
    number = _index(value)
    return bool(number) if number in (0, 1) else None


def is_bool(value: Any) -> bool:
    """Whether it is a bool, of another library too."""
    # "bool" is NumPy's and "torch.bool" torch's
    return isinstance(value, bool) or (_is_scalar(value) and str(getattr(value, "dtype", "")).endswith("bool"))


def float_of(value: Any) -> float | None:
    """Return a number as an int, if it is an integer, or a float; ``None`` for anything else, such as a bool or a text.

    Raises:
        OverflowError: for an integer that a float cannot hold.

    >>> float_of(3), float_of(0.5), float_of("0.5")
    (3, 0.5, None)
    """
    if is_bool(value) or not hasattr(value, "__float__") or not _is_scalar(value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):  # a complex tensor; a signaling NaN of decimal
        return None
    whole = int_of(value)
    return number if whole is None else whole


def _is_scalar(value: Any) -> bool:
    return getattr(value, "ndim", 0) == 0


def _index(value: Any) -> int | None:
    if not _is_scalar(value):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
