"""Errors of DataLoader workers, as the training process raises them."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from ...errors import NOTE_OF_PIPE, WORKER_REPORT, RemoteDataError
from ..iter_datapipe import Filter, IterDataPipe, Mapper
from ..notices.progress_bar import first_awaited
from .job_signals import end_by_kill

T = TypeVar("T")

_FUNCTIONS: dict[type[Any], str] = {Mapper: "fn", Filter: "filter_fn"}  # Collator is a Mapper
_KEPT = "_arguments_before_torch"
# Lines of a printed ExceptionGroup that are not indented behind its frame of characters, and no heading
_OF_GROUP = re.compile(r"^ *\| (?!Traceback \(|Exception Group Traceback)(?P<line>\S.*)$", re.MULTILINE)


def with_clear_errors(items: Iterable[T]) -> Iterator[T]:
    """Yield items of a loader. Errors of its workers are raised with their own message.

    torch raises an exception whose message is the worker's traceback. Here that is the ``__cause__``, so that a printed
    error ends with what happened. torch's note about the pipe is left out: the traceback shows it.
    """
    try:
        yield from items
    except Exception as error:
        kind, message = _as_sent(error)
        if isinstance(error, RemoteDataError) or not message.startswith("Caught "):
            _remove_note(error)
            raise
        if (report := WORKER_REPORT.match(message)) is not None:
            raise _rebuilt(kind, report["line"]) from RuntimeError(f"in a worker:\n\n{report['traceback']}")
        traceback = message.partition("\nOriginal ")[2]
        group, *parts = [match["line"].partition(NOTE_OF_PIPE)[0] for match in _OF_GROUP.finditer(traceback)] or [""]
        if not parts:
            raise
        raise RuntimeError(f"{group}: {'; '.join(parts)}") from RuntimeError(f"in a worker:\n\n{traceback}")


def ended_on_error(items: Iterable[T], batches: Any, before: Callable[[], object] = lambda: None) -> Iterator[T]:
    """Yield items of a pass with clear errors; after an error or an interrupt, end its workers at once.

    The error's traceback refers to the iterator, so that it is collected later and together with its queues. torch can
    then no longer notify the workers, and waits 5 s for each.

    Args:
        items: of the iterator, or the iterator itself.
        batches: the iterator; one without workers has nothing to end.
        before: called before the workers are ended.
    """
    try:
        yield from first_awaited(with_clear_errors(items))
    except GeneratorExit:  # between two batches
        raise
    except BaseException:  # an interrupt may have come between the receipt of a batch and its count
        before()
        end_workers_of(batches)
        raise


def end_workers_of(batches: Any) -> None:
    """End the workers of an iterator of torch or torchdata, if it has any, after an error that is known."""
    if (shut_down := getattr(batches, "_shutdown_workers", None)) is not None:
        end_by_kill(batches)
        with contextlib.suppress(RuntimeError):  # of torch, about a worker that has ended
            shut_down()


def keep_arguments(pipe: IterDataPipe[Any]) -> None:
    """Let the errors of a function keep their arguments, if this is a pipe of torch that calls one.

    torch replaces the arguments of an error that leaves a pipe by a note, if the first one is no text: the key of a
    ``KeyError`` would be lost. :func:`with_own_arguments` puts them back.

    Args:
        pipe: changed; of a copy of the user's chain.
    """
    for kind, name in _FUNCTIONS.items():
        if isinstance(pipe, kind) and not isinstance(function := getattr(pipe, name), _KeepsArguments):
            setattr(pipe, name, _KeepsArguments(function))


class _KeepsArguments:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        try:
            return self._function(*args)
        except Exception as error:
            keep_arguments_of(error)
            raise


def keep_arguments_of(error: Exception) -> None:
    """Let an error of a function keep its arguments, as :func:`keep_arguments` does, in a pipe of this package."""
    if not (error.args and isinstance(error.args[0], str)):
        vars(error).setdefault(_KEPT, error.args)


@contextlib.contextmanager
def with_own_arguments() -> Iterator[None]:
    """Put back the arguments of an error that has left a pipe of :func:`keep_arguments` in this block."""
    try:
        yield
    except Exception as error:
        if (arguments := vars(error).pop(_KEPT, None)) is not None:
            error.args = arguments
        raise


def _as_sent(error: Exception) -> tuple[type[Exception], str]:
    """Return type and message of a worker's error as torch got them, which it may have failed to build."""
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_name == "reraise":
            sent: Any = frame.f_locals.get("self")
            if hasattr(sent, "exc_type") and hasattr(sent, "exc_msg"):
                return sent.exc_type, f"Caught {sent.exc_type.__name__} {sent.where}.\nOriginal {sent.exc_msg}"
        traceback = traceback.tb_next
    return type(error), str(error.args[0]) if error.args else ""


def _remove_note(error: Exception) -> None:
    if error.args and isinstance(error.args[0], str):
        own, note, _ = error.args[0].partition(NOTE_OF_PIPE)
        if note:
            error.args = (own, *error.args[1:]) if own else ()


def _rebuilt(kind: type[Exception], line: str) -> Exception:
    """Build an error of a type, with the worker's message."""
    name, _, message = line.partition(": ")
    if kind is KeyError:
        return KeyError(*_key(message))
    try:
        # torch raises a RuntimeError where it cannot build the worker's error
        return kind(message) if name.rpartition(".")[2] == kind.__name__ else kind(line)
    except Exception:  # noqa: BLE001  # whatever its constructor does
        return RuntimeError(line.removesuffix(": "))


def _key(printed: str) -> tuple[object, ...]:
    """Return the arguments of a KeyError, which prints the repr of its key."""
    try:
        key = ast.literal_eval(printed)
    except Exception:  # noqa: BLE001  # the repr of another object, or none
        return (_Printed(printed),) if printed else ()
    if not isinstance(key, str):
        return (key,)
    own, note, _ = key.partition(NOTE_OF_PIPE)
    return (own,) if own or not note else ()


class _Printed(str):
    """The repr of an object that is not here."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
