"""Run a stage of a pipeline in a background thread, a little ahead of its consumer."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from .pool import next_item
from .worker import Mailbox, ReceiverGoneError, Worker

T = TypeVar("T")
U = TypeVar("U")
T_contra = TypeVar("T_contra", contravariant=True)
U_co = TypeVar("U_co", covariant=True)

_ITEMS_AHEAD = 2
_RESULTS_AHEAD = 4


class Stage(Protocol[T_contra, U_co]):
    """A function of a stream of items."""

    def feed(self, item: T_contra, /) -> Iterator[U_co]:
        """Yield the results of the next item."""

    def finish(self) -> None:
        """Called after the last item; raises if more items were expected."""


# A result; an error; or None, which asks for another item
_Results = Mailbox[tuple[U] | BaseException | None]


def run_in_background(items: Iterable[T], stage: Stage[T, U]) -> Generator[U, None, None]:
    """Yield the results of a stage. Items are pulled by the thread that iterates, the stage runs in another thread.

    The stage makes at most four results that were not asked for. Its thread ends when this is closed.
    """
    results: _Results[U] = Mailbox(_RESULTS_AHEAD - 1)
    source = iter(items)
    worker: Worker[T, None] = Worker(partial(_run, stage, results), max_backlog=_ITEMS_AHEAD)
    try:
        for _ in range(_ITEMS_AHEAD):
            _send_next(source, worker)
        for result in results.receive(next_item):
            if result is None:
                _send_next(source, worker)
            elif isinstance(result, BaseException):
                try:
                    raise result
                finally:
                    del result  # or error and frame would keep each other
            else:
                yield result[0]
            worker.check_process()
    finally:
        results.refuse()
        worker.give_up()


def _send_next(source: Iterator[T], worker: Worker[T, None]) -> None:
    for item in source:
        return worker.put(item, 0)
    return worker.end()


def _run(stage: Stage[T, U], results: _Results[U], items: Iterator[T]) -> None:
    with suppress(ReceiverGoneError):
        try:
            for item in items:
                for result in stage.feed(item):
                    results.put((result,))
                results.put(None, 0)
            stage.finish()
            results.end()
        except ReceiverGoneError:
            raise
        except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
            results.put(error, 0)
