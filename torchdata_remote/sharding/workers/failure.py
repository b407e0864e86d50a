"""Errors of tasks: raised by their function, by pickling, or by the loss of their worker."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Generic, NamedTuple, NoReturn, TypeVar

from ...errors import WorkerLostError

T = TypeVar("T")
U = TypeVar("U")

ATTEMPTS = 4  # at a task whose worker was lost


class Failure(NamedTuple):
    """An exception that a task raised. It is returned as a result, to distinguish it from the loss of a worker.

    Args:
        summary: type and message.
        traceback: formatted.
        pickled: the exception, empty if it does not pickle. Bytes, so that no scheduler in between unpickles it without
            knowing its class.
    """

    summary: str
    traceback: str
    pickled: bytes

    def raise_again(self) -> NoReturn:
        """Raise the exception in this process, with the worker's traceback as its cause.

        Raises:
            Exception: of the same type, or ``RuntimeError`` if it cannot be unpickled.
        """
        try:
            error = pickle.loads(self.pickled)  # noqa: S301  # of our own worker
        except Exception:  # noqa: BLE001  # whatever its class does
            error = None
        if not isinstance(error, Exception):
            error = RuntimeError(self.summary)
        raise error from RuntimeError(f"in a worker:\n\n{self.traceback}")


class CatchErrors(Generic[T, U]):
    """Wraps a function: an exception is returned as a :class:`Failure`.

    Args:
        function: of one argument.
    """

    def __init__(self, function: Callable[[T], U]) -> None:
        self._function = function

    def __call__(self, task: T) -> U | Failure:
        try:
            return self._function(task)
        except Exception as error:  # noqa: BLE001  # raised again in the process that submitted the task
            try:
                pickled = pickle.dumps(error)
            except Exception:  # noqa: BLE001  # whatever it holds
                pickled = b""
            text = "".join(traceback.format_exception(error))
            return Failure(f"{type(error).__name__}: {error}", text, pickled)


def lost_error(attempt: int, reason: str) -> WorkerLostError:
    """Build the error for a task whose worker was lost.

    Args:
        attempt: number of workers that were lost with it.
        reason: of the last loss.
    """
    return WorkerLostError(
        f"A shard's worker was lost {attempt} time(s), the last time because {reason}. Finished shards are kept: start "
        "the job again to resume it. Was there enough memory for three windows of 64 MiB, or samples, per worker?"
    )


def pickle_error(error: BaseException) -> TypeError:
    """Build the error for a task that cannot be sent to another process."""
    return TypeError(
        f"A shard's task cannot be sent to a worker: {type(error).__name__}: {error}. Dataset and transform must "
        "pickle: open files and locks where they are used; with executor=, use functions of a module, no lambdas."
    )
