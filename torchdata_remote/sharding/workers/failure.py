"""What becomes of a task that fails: in its function, on its way to a worker, or with its worker."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Generic, NamedTuple, NoReturn, TypeVar

from ...errors import WorkerLostError

T = TypeVar("T")
U = TypeVar("U")

ATTEMPTS = 4  # at a task whose worker is lost


class Failure(NamedTuple):
    """What a task raised. It comes back as a result, so that it is not taken for the loss of a worker.

    Args:
        summary: type and message.
        traceback: as it would be printed.
        pickled: the error, empty where it does not pickle. Nobody opens it on the way, who may not know its class.
    """

    summary: str
    traceback: str
    pickled: bytes

    def raise_again(self) -> NoReturn:
        """Raise it here, with the traceback of there as its cause.

        Raises:
            Exception: of the same type, or ``RuntimeError`` where that one cannot be built from its pickle.
        """
        try:
            error = pickle.loads(self.pickled)  # noqa: S301  # of our own worker
        except Exception:  # noqa: BLE001  # whatever its class does
            error = None
        if not isinstance(error, Exception):
            error = RuntimeError(self.summary)
        raise error from RuntimeError(f"in a worker:\n\n{self.traceback}")


class Safely(Generic[T, U]):
    """A function that returns what it raises.

    Args:
        function: of one argument.
    """

    def __init__(self, function: Callable[[T], U]) -> None:
        self._function = function

    def __call__(self, task: T) -> U | Failure:
        try:
            return self._function(task)
        except Exception as error:  # noqa: BLE001  # raised again where the task came from
            try:
                pickled = pickle.dumps(error)
            except Exception:  # noqa: BLE001  # whatever it holds
                pickled = b""
            text = "".join(traceback.format_exception(error))
            return Failure(f"{type(error).__name__}: {error}", text, pickled)


def lost(attempt: int, reason: str) -> WorkerLostError:
    """The error of a task that did not come back.

    Args:
        attempt: how often it was given to a worker.
        reason: what is known.
    """
    return WorkerLostError(
        f"A shard's worker was lost {attempt} time(s), the last time because {reason}. Finished shards are kept: start "
        "the job again, and it goes on. Was there enough memory for three windows of 64 MiB, or samples, per worker?"
    )


def cannot_travel(error: BaseException) -> TypeError:
    """The error of a task that cannot be sent to another process."""
    return TypeError(
        f"A shard's task cannot be sent to a worker: {type(error).__name__}: {error}. Dataset and transform must "
        "pickle: take functions and classes from the top level of a module, no lambdas, and open files where they "
        "are read."
    )
