"""Errors of tasks, as they are raised in the process that submitted them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import pytest

from torchdata_remote.errors import DecodeError, RemoteDataError, StorageError, WorkerLostError
from torchdata_remote.sharding.workers.failure import ATTEMPTS, CatchErrors, Failure, lost_error, pickle_error


class TwoPartsError(Exception):
    """Pickles, and cannot be built from its pickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class HoldsALockError(Exception):
    """Does not pickle."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class UnreducibleError(ValueError):
    """Raises what is no ``PicklingError`` when it is pickled."""

    def __reduce__(self) -> str:
        raise ZeroDivisionError


def raising(error: BaseException) -> Callable[[int], int]:
    def function(task: int) -> int:
        raise error

    return function


def came_back(error: Exception) -> Exception:
    """What is raised here for an error of a task, once its failure has travelled."""
    failure = CatchErrors(raising(error))(0)
    assert isinstance(failure, Failure)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is what is asked
        pickle.loads(pickle.dumps(failure)).raise_again()
    return caught.value


def test_results_are_returned_unchanged() -> None:
    """What a function returns is returned."""
    assert CatchErrors(str)(3) == "3"


@pytest.mark.parametrize("error", [DecodeError("s3://b/0.tar: no jpg"), KeyError("cls"), MemoryError()])
def test_picklable_errors_are_raised_with_the_workers_traceback(error: Exception) -> None:
    """As the cause."""
    back = came_back(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert "in function\n    raise error" in str(back.__cause__)


def test_errors_keep_their_fields() -> None:
    """URL and attempts of a store's error are there."""
    back = came_back(StorageError("refused", url="s3://b/0.tar", attempts=3))
    assert isinstance(back, StorageError)
    assert (back.url, back.attempts) == ("s3://b/0.tar", 3)


@pytest.mark.parametrize("error", [TwoPartsError("a", "b"), HoldsALockError(), UnreducibleError("odd")])
def test_errors_that_do_not_pickle_keep_name_and_message(error: Exception) -> None:
    """The type is lost, name and message are not."""
    back = came_back(error)
    assert type(back) is RuntimeError
    assert str(back) == f"{type(error).__name__}: {error}"
    assert f"{type(error).__name__}: {error}" in str(back.__cause__)


def test_the_traceback_includes_the_cause() -> None:
    """In its text."""
    error = DecodeError("no jpg")
    error.__cause__ = ZeroDivisionError("below")
    assert "ZeroDivisionError: below" in str(came_back(error).__cause__)


def test_keyboard_interrupt_and_system_exit_are_not_caught() -> None:
    """They end the worker."""
    for error in (KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(error)):
            CatchErrors(raising(error))(0)


def test_errors_of_lost_workers_and_pickling_give_advice() -> None:
    """One class for workers that are lost, one for what cannot be sent."""
    error = lost_error(ATTEMPTS, "it was ended by SIGKILL")
    assert isinstance(error, WorkerLostError | RemoteDataError)
    assert "4 time(s)" in str(error)
    assert "it was ended by SIGKILL" in str(error)
    assert "no lambdas" in str(pickle_error(AttributeError("Can't pickle local object")))
