"""Errors of DataLoader workers, as the training process raises them."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..._worker_report import NOTE_OF_PIPE, split_report

T = TypeVar("T")


def with_clear_errors(items: Iterable[T]) -> Iterator[T]:
    """Yield items of a loader. Errors of its workers are raised with their own message.

    torch raises an exception whose message is the worker's traceback. Here that is the ``__cause__``, so that a printed
    error ends with what happened. torch's note about the pipe is left out: the traceback shows it.
    """
    try:
        yield from items
    except Exception as error:
        message = error.args[0] if error.args else None
        found = split_report(message)
        if found is None:
            if isinstance(message, str) and (own := message.partition(NOTE_OF_PIPE)[0]):
                error.args = (own, *error.args[1:])
            raise
        line, traceback = found
        raise _rebuilt(error, line) from RuntimeError(f"in a worker:\n\n{traceback}")


def _rebuilt(error: Exception, line: str) -> Exception:
    """Build an error of the same type, with the worker's message."""
    kind, _, message = line.partition(": ")
    if isinstance(error, KeyError):
        with contextlib.suppress(ValueError, SyntaxError):  # its text is the repr of its message
            message = str(ast.literal_eval(message)).partition(NOTE_OF_PIPE)[0] or message
    try:
        # torch raises a RuntimeError where it cannot build the worker's error
        return type(error)(message) if kind.rpartition(".")[2] == type(error).__name__ else type(error)(line)
    except Exception:  # noqa: BLE001  # whatever its constructor does
        return RuntimeError(line)
