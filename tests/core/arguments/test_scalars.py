"""Scalars of any library are converted by one rule."""

from __future__ import annotations

import enum
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from torchdata_remote.core.arguments.check import flag, flag_or_none
from torchdata_remote.core.arguments.scalars import bool_of, float_of, int_of


class Switch(enum.IntEnum):
    """A flag as an ``IntEnum``."""

    OFF = 0
    ON = 1


class Number(enum.IntEnum):
    """An integer as an ``IntEnum``."""

    THREE = 3


class Count(int):
    """A subclass of ``int``."""


@pytest.mark.parametrize(
    "value",
    [
        True,
        1,
        Switch.ON,
        Count(1),
        np.True_,
        np.uint8(1),
        np.array(True),
        np.array(1),
        torch.tensor(True),
        torch.tensor(1),
    ],
)
def test_a_flag_is_a_bool_or_an_integer_that_is_0_or_1(value: Any) -> None:
    """What is returned is a bool of Python: torch refuses others."""
    assert bool_of(value) is flag("drop_last", value) is flag_or_none("drop_last", value) is True
    assert flag("drop_last", type(value)(0) if isinstance(value, int) else value * 0) is False


@pytest.mark.parametrize(
    "value",
    [
        None,
        2,
        -1,
        1.0,
        np.float32(1),
        Decimal(1),
        "True",
        [],
        [True],
        np.array([True]),
        torch.tensor([1]),
        bool,
        np.nan,
    ],
)
def test_anything_else_is_no_flag(value: Any) -> None:
    """A text and a list are true whatever they say."""
    assert bool_of(value) is None
    with pytest.raises(TypeError, match=r"^drop_last must be True or False, got "):
        flag("drop_last", value)


@pytest.mark.parametrize("value", [3, np.int8(3), np.array(3), torch.tensor(3), Count(3), Number.THREE])
def test_an_integer_becomes_an_int(value: Any) -> None:
    """So JSON holds a number, whatever it was computed by."""
    assert type(int_of(value)) is int
    assert int_of(value) == 3


@pytest.mark.parametrize(
    "value", [True, np.True_, torch.tensor(True), 3.0, "3", None, [3], np.array([3]), torch.tensor([3])]
)
def test_anything_else_is_no_integer(value: Any) -> None:
    """An array of one item is no scalar, in torch as in NumPy."""
    assert int_of(value) is None


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), np.float64(0.5), np.array(0.5), torch.tensor(0.5), Decimal("0.5"), Fraction(1, 2)]
)
def test_a_number_becomes_a_float(value: Any) -> None:
    """``queue.get`` and ``Event.wait`` take nothing else."""
    assert type(float_of(value)) is float
    assert float_of(value) == 0.5


@pytest.mark.parametrize(
    "value",
    [True, np.True_, torch.tensor(True), "0.5", None, torch.tensor([0.5, 1]), np.array([0.5]), 1j, Decimal("sNaN")],
)
def test_anything_else_is_no_number(value: Any) -> None:
    """``float`` raises several errors for them."""
    assert float_of(value) is None
