"""Explanations of wrong calls leave correct calls, signatures and other errors alone."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import dataclass

import pytest

import torchdata_remote as tdr
from torchdata_remote.core.arguments import check
from torchdata_remote.core.arguments.calls import explained


@explained
def add(first: int, *, second: int = 1) -> int:
    """Add.

    Args:
        first: any number, such as 1. More text.
        second: another one.
    """
    if first < 0:
        raise marked()
    return first + second // 1


def marked() -> ValueError:
    return check.marked(ValueError("first must not be negative"))


@explained
def twice(first: int) -> int:
    """Call another explained function."""
    return add(first) + add(first)


@explained
@dataclass(frozen=True)
class Pair:
    """A pair.

    Args:
        left: side.
        right: side.
    """

    left: int
    right: int = 0


def test_a_correct_call_is_as_before() -> None:
    """Value, signature, documentation and pickling."""
    assert add(1, second=2) == 3
    assert str(inspect.signature(add)) == "(first: 'int', *, second: 'int' = 1) -> 'int'"
    assert (add.__name__, add.__module__) == ("add", __name__)
    assert pickle.loads(pickle.dumps(add)) is add
    assert Pair(1) == Pair(left=1, right=0)
    assert list(inspect.signature(Pair).parameters) == ["left", "right"]
    assert pickle.loads(pickle.dumps(Pair(1, 2))) == Pair(1, 2)


def test_what_is_missing_is_described_by_the_documentation() -> None:
    """By the first sentence about the argument."""
    with pytest.raises(TypeError) as caught:
        add()  # type: ignore[call-arg]
    assert str(caught.value) == "add() is missing 'first' (any number, such as 1). Write add(first)."
    with pytest.raises(TypeError, match=r"^Pair\(\) is missing 'left' \(side\)\. Write Pair\(left\)\.$"):
        Pair()  # type: ignore[call-arg]


def test_an_unknown_name_is_compared_with_the_known_ones() -> None:
    """If none is near, all are named."""
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'secnd'; did you mean 'second'\?$"):
        add(1, secnd=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'xyz'\. It takes first, second\.$"):
        add(1, xyz=2)  # type: ignore[call-arg]


def test_an_error_inside_of_a_function_is_not_changed() -> None:
    """A ``TypeError`` of its body has nothing to do with the call."""
    with pytest.raises(TypeError, match=r"^unsupported operand type\(s\) for //"):
        add(1, second=None)  # type: ignore[arg-type]


def test_an_argument_is_named_with_the_function_that_the_user_called() -> None:
    """Not with the one inside of it."""
    with pytest.raises(ValueError, match=r"^add: first must not be negative$"):
        add(-1)
    with pytest.raises(ValueError, match=r"^twice: first must not be negative$"):
        twice(-1)


def test_pipes_have_the_signatures_of_their_constructors() -> None:
    """Editors and ``help`` show them."""
    parameters = list(inspect.signature(tdr.ShuffleSamples).parameters)
    assert parameters == ["source_datapipe", "buffer_size", "max_buffer_bytes", "seed"]


def test_no_value_of_an_argument_by_position_is_shown() -> None:
    """It may be a secret."""
    with pytest.raises(TypeError) as caught:
        tdr.IterableWrapper([""]).list_remote({"secret": "hunter2"})  # type: ignore[call-arg, arg-type]
    assert "hunter2" not in str(caught.value)
    with pytest.raises(TypeError) as caught:
        tdr.RetryPolicy(deadline_s={"secret": "hunter2"})  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
