"""Check arguments that are numbers: counts, bytes, seconds. Any library's are accepted, bools and texts are not."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from numbers import Real
from typing import Any

from .check import marked, shown
from .scalars import float_of, int_of

_AMOUNT = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
_FACTORS = {
    "": 1,
    "b": 1,
    "bytes": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1000**power for power, unit in enumerate(("k", "m", "g", "t"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
}
_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 0.001, "min": 60.0, "m": 60.0, "h": 3600.0}


def whole(name: str, value: Any, *, at_least: int | None = 1, or_none: bool = False, of: str = "") -> int:
    """Return an int, also from NumPy's integers.

    Args:
        name: of the argument.
        value: that was passed.
        at_least: lower limit; ``None`` for any int.
        or_none: whether the caller accepts ``None``, which the message mentions.
        of: what is counted, such as ``"samples"``.

    Raises:
        TypeError: if it is not an integer. A text such as ``"100MB"`` is answered with the number to write.
        ValueError: if it is below the limit.

    Example:
        >>> whole("part_bytes", "8MiB")
        Traceback (most recent call last):
            ...
        TypeError: part_bytes must be an int of at least 1, got '8MiB' (str). Write 8_388_608.
    """
    number = int_of(value)
    if number is not None and (at_least is None or number >= at_least):
        return number
    limit = "" if at_least is None else f" of at least {at_least}"
    counted = f"a number of {of}, " if of else ""
    expected = f"{name} must be {counted}an int{limit}{' or None' if or_none else ''}"
    if number is not None:
        raise marked(ValueError(f"{expected}, got {number}."))
    raise marked(TypeError(f"{expected}, got {shown(value)}.{number_to_write(value, at_least)}"))


def whole_or_none(name: str, value: Any, *, at_least: int | None = 1) -> int | None:
    """Return an int or ``None``.

    Raises:
        TypeError, ValueError: as :func:`whole`.
    """
    return None if value is None else whole(name, value, at_least=at_least, or_none=True)


def seed_of(value: Any, *, or_none: str | None = None) -> int:
    """Return the seed of an order.

    Args:
        value: that was passed.
        or_none: what ``None`` means where it is allowed.

    Raises:
        TypeError: if it is not an int.
    """
    number = int_of(value)
    if number is not None:
        return number
    expected = "seed must be an int" + (f", or None for {or_none}" if or_none else "")
    advice = "" if value is not None else " Leave it out for 0; the order differs in each epoch by itself."
    raise marked(TypeError(f"{expected}, got {shown(value)}.{advice or number_to_write(value, None)}"))


def seconds(name: str, value: Any, *, positive: bool = True) -> float:
    """Return a number of seconds.

    Args:
        name: of the argument.
        value: that was passed.
        positive: whether it must be more than 0, or may be 0.

    Raises:
        TypeError: if it is not a number. A ``timedelta`` or ``"30s"`` is answered with the number to write.
        ValueError: if it is negative, 0 though it must not be, or not a number (NaN).
    """
    return real(name, value, positive=positive, unit="a number of seconds")


def real(name: str, value: Any, *, positive: bool = True, unit: str = "a number") -> float:
    """Return a number as Python's int or float, whatever its type: waits and libraries refuse a ``Decimal``.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is negative, 0 though it must not be, or not a number (NaN).
    """
    try:
        number = float_of(value)
    except OverflowError:
        advice = " Write float('inf') for no limit." if positive else ""
        raise marked(ValueError(f"{name} must be a number that a float holds, got {shown(value)}.{advice}")) from None
    if number is None:
        advice = ""
        if isinstance(value, timedelta):
            advice = f" Write {value.total_seconds():g}."
        elif isinstance(value, str) and (found := _AMOUNT.fullmatch(value)) and found[2].lower() in _SECONDS:
            advice = f" Write {float(found[1].replace(',', '')) * _SECONDS[found[2].lower()]:g}."
        raise marked(TypeError(f"{name} must be {unit}, got {shown(value)}.{advice}"))
    if math.isnan(number) or number < 0 or (positive and number == 0):
        limit = "positive" if positive else "0 or more"
        raise marked(ValueError(f"{name} must be {limit}, got {value}."))
    return number


def number_to_write(value: object, at_least: int | None) -> str:
    """Return advice with the int that the value stands for, if that is plain."""
    number: float | None = None
    if isinstance(value, str) and (found := _AMOUNT.fullmatch(value)) and found[2].lower() in _FACTORS:
        number = float(found[1].replace(",", "").replace("_", "")) * _FACTORS[found[2].lower()]
    elif isinstance(value, list | tuple) and len(value) == 1:
        number = int_of(value[0])
    elif not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value):
        number = float(value)
    if number is None or number != int(number) or (at_least is not None and number < at_least):
        return ""
    return f" Write {int(number):_}."
