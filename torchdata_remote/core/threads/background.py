"""Work on a stream in a thread of its own, a little ahead of whoever takes what comes of it."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from .pool import next_item

T = TypeVar("T")
U = TypeVar("U")
T_contra = TypeVar("T_contra", contravariant=True)
U_co = TypeVar("U_co", covariant=True)

_ITEMS_AHEAD = 2
_RESULTS_AHEAD = 4


class Stage(Protocol[T_contra, U_co]):
    """What is done with the items, in order."""

    def feed(self, item: T_contra, /) -> Iterator[U_co]:
        """What comes of the next item."""

    def finish(self) -> None:
        """After the last one; raises if more was expected."""


class _Channel(Generic[T, U]):
    """Queues between the two threads; ``SimpleQueue`` because the consumer may be closed by a finalizer."""

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[tuple[T] | bool] = queue.SimpleQueue()  # True: no more; False: stop
        self.results: queue.SimpleQueue[tuple[U] | BaseException | bool] = queue.SimpleQueue()  # True: an item, please
        self.room: queue.SimpleQueue[bool] = queue.SimpleQueue()  # one for each result that may be made; False: stop


def run_in_background(items: Iterable[T], stage: Stage[T, U]) -> Generator[U, None, None]:
    """What a stage makes of items. Items are pulled by the thread that iterates, the work is done in another one.

    The other thread makes at most four results that were not yet asked for, and ends when this is closed.
    """
    channel: _Channel[T, U] = _Channel()
    source, pid = iter(items), os.getpid()
    for _ in range(_RESULTS_AHEAD):
        channel.room.put(True)
    thread = threading.Thread(target=_work, args=(channel, stage), name="torchdata_remote", daemon=True)
    thread.start()
    try:
        for _ in range(_ITEMS_AHEAD):
            channel.items.put(_next(source))
        while True:
            if os.getpid() != pid:
                raise RuntimeError("This iterator was begun in another process, from which this one was forked.")
            result = next_item(channel.results)
            if result is True:
                channel.items.put(_next(source))
            elif result is False:
                return
            elif isinstance(result, BaseException):
                try:
                    raise result
                finally:
                    del result  # or error and frame would keep each other
            else:
                assert isinstance(result, tuple)
                yield result[0]
                channel.room.put(True)
    finally:
        channel.room.put(False)
        channel.items.put(False)


def _next(source: Iterator[T]) -> tuple[T] | bool:
    for item in source:
        return (item,)
    return True


def _work(channel: _Channel[T, U], stage: Stage[T, U]) -> None:
    try:
        while isinstance(item := channel.items.get(), tuple):
            for result in stage.feed(item[0]):
                if not channel.room.get():
                    return
                channel.results.put((result,))
            channel.results.put(True)
        if not item:
            return
        stage.finish()
        channel.results.put(False)
    except BaseException as error:  # noqa: BLE001  # it belongs to the consumer, whatever it is
        channel.results.put(error)
