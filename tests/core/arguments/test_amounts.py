"""Numbers are taken from NumPy, and the number that was meant is in the error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torchdata_remote.core.arguments.amounts import real, seed_of, whole, whole_or_none


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), torch.tensor(3)])
def test_integers_of_other_libraries_become_ints(value: Any) -> None:
    """State and JSON then hold plain numbers."""
    assert type(whole("size", value)) is int
    assert whole_or_none("size", value) == seed_of(value) == 3


@pytest.mark.parametrize("value", [True, np.True_, torch.tensor(True), None, "x", 2.5, [], [1, 2], float("nan"), int])
def test_anything_else_is_refused(value: Any) -> None:
    """With its name and value, and without advice that would be wrong."""
    with pytest.raises(TypeError, match=r"^size must be an int of at least 1, got ") as caught:
        whole("size", value)
    assert "Write" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "meant"),
    [("16", "16"), ("100MB", "100_000_000"), ("8 MiB", "8_388_608"), ("1.5k", "1_500"), (1e6, "1_000_000"), ([7], "7")],
)
def test_the_number_that_was_meant_is_given(value: Any, meant: str) -> None:
    """It can be copied into the program."""
    with pytest.raises(TypeError, match=f"Write {meant}\\.$"):
        whole("size", value)
    assert whole("size", int(meant)) == int(meant)


@pytest.mark.parametrize("value", [-1, float("nan"), 0])
def test_a_number_that_is_not_positive_is_refused(value: float) -> None:
    """NaN compares as false with every limit."""
    with pytest.raises(ValueError, match=r"^weight must be positive"):
        real("weight", value)
