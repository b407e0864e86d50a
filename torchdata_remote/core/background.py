"""A background thread that handles items in order, with a bounded backlog.

Queues are ``SimpleQueue`` because a finalizer, which runs at any allocation of any thread, may give a worker up.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from .threads import ForkSafeThread, next_item

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
U_co = TypeVar("U_co", covariant=True)

_ITEMS_AHEAD, _RESULTS_AHEAD = 2, 4


class ReceiverGoneError(Exception):
    """The other thread takes no more items."""


class Mailbox(Generic[T]):
    """A queue from one thread to another, bounded by the weight of the items that were not handled yet.

    Args:
        max_backlog: ``put`` waits while the items before weigh more than this.
    """

    def __init__(self, max_backlog: int) -> None:
        self._max_backlog = max_backlog
        # True: no more items; False: given up
        self._items: queue.SimpleQueue[tuple[T, int] | bool] = queue.SimpleQueue()
        # Weight of each item that was handled; None: the receiver has gone
        self._handled: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.backlog = 0

    def put(self, item: T, weight: int = 1) -> None:
        """Send an item. One that weighs nothing never waits.

        Raises:
            ReceiverGoneError: if the receiver has called ``refuse``.
        """
        while not self._handled.empty() or (weight and self.backlog > self._max_backlog):
            handled = next_item(self._handled)
            if handled is None:
                self._handled.put(None)
                raise ReceiverGoneError
            self.backlog -= handled
        self.backlog += weight
        self._items.put((item, weight))

    def end(self) -> None:
        """Say that there are no more items."""
        self._items.put(True)

    def give_up(self) -> None:
        """Stop the receiver after the items that were sent, unless they were ended. Safe in a finalizer."""
        self._items.put(False)

    def refuse(self) -> None:
        """Called by the receiver: take no more items. Safe in a finalizer."""
        self._handled.put(None)

    def receive(self, wait: Callable[[queue.SimpleQueue[Any]], Any] = next_item) -> Iterator[T]:
        """Yield the items. Each counts as handled when the next one is asked for.

        Args:
            wait: returns the next entry of a queue.

        Raises:
            InterruptedError: if they are given up before their end.
        """
        while isinstance(entry := wait(self._items), tuple):
            item, weight = entry
            del entry
            yield item
            # It may be large, and the next one may be far
            del item
            self._handled.put(weight)
        if not entry:
            raise InterruptedError("given up before its end")


class Worker(Generic[T, R]):
    """A background thread. One that is collected is given up: its function is interrupted at the next item.

    Args:
        function: called in the thread with the items, and returns the result. It must not refer to the worker.
        max_backlog: ``put`` waits while the items before weigh more than this.

    Raises:
        RuntimeError: if no thread can be started.

    Example:
        >>> worker = Worker(sum, max_backlog=8)
        >>> worker.put(20)
        >>> worker.put(22)
        >>> worker.end()
        >>> worker.result()
        42
    """

    def __init__(self, function: Callable[[Iterator[T]], R], *, max_backlog: int) -> None:
        self._mailbox: Mailbox[T] = Mailbox(max_backlog)
        self._outcome: Future[R] = Future()  # set by the thread, which never waits for it
        self._then: list[Callable[[R], object]] = []
        self._pid = os.getpid()
        self._thread = ForkSafeThread(
            target=_work,
            args=(function, self._mailbox, self._outcome, self._then),
            name="torchdata_remote",
            daemon=True,
        )
        self._thread.start()
        # Not at exit: what was ended may still be under way there
        weakref.finalize(self, self._mailbox.give_up).atexit = False

    @property
    def backlog(self) -> int:
        """Weight of the items that were put and not handled, as ``put`` last saw it."""
        return self._mailbox.backlog

    def put(self, item: T, weight: int = 1) -> None:
        """Send an item; wait while the items before weigh more than ``max_backlog``.

        Raises:
            BaseException: what the function raised, if it has.
        """
        self.check_process()
        try:
            self._mailbox.put(item, weight)
        except ReceiverGoneError:
            self.result()
            raise

    def end(self, then: Callable[[R], object] = lambda result: None) -> None:
        """Say that there are no more items. Returns at once.

        Args:
            then: called by the thread with the function's result; what it raises, ``result`` raises.
        """
        self.check_process()
        self._then.append(then)
        self._mailbox.end()

    def give_up(self) -> None:
        """Interrupt the function after the items that were put; one that was ended is left alone. Does not wait."""
        if os.getpid() == self._pid:
            self._mailbox.give_up()

    @property
    def settled(self) -> bool:
        """Whether ``result`` would not wait."""
        return self._outcome.done()

    def result(self) -> R:
        """Wait for the end of the thread, and return what the function returned.

        Raises:
            BaseException: what the function raised.
        """
        self.check_process()
        found = self._outcome.result()
        self._thread.join()
        return found

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the thread, unless this is the thread, or another process."""
        if os.getpid() == self._pid and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def check_process(self) -> None:
        """Refuse a forked child, which does not have the thread.

        Raises:
            RuntimeError: if this is one.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("This was begun in another process, from which this one was forked.")


def _work(
    function: Callable[[Iterator[T]], R], mailbox: Mailbox[T], outcome: Future[R], then: list[Callable[[R], object]]
) -> None:
    # Holds no reference to the worker, so that a forgotten one can be collected
    try:
        result = function(mailbox.receive(queue.SimpleQueue.get))
        for call in then:
            call(result)
        outcome.set_result(result)
    except BaseException as error:  # noqa: BLE001  # it is raised by ``result``, whatever it is
        outcome.set_exception(error)
        mailbox.refuse()


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
