"""Calls of a pipe's function in the threads of a pool, which never wait for each other forever."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ...core.processes.worker_errors import keep_arguments_of
from ...core.stats.counters import DECODE
from ...core.threads.pool import next_item

T = TypeVar("T")

# Until the consumer makes a call that no thread has begun: its work would compete with that of the threads
_PATIENCE_S = 0.1

_of_thread = threading.local()  # whether it is one of a pool, at work for a pipe


class Patience:
    """Whether the consumer of a pass still waits for threads to begin its calls: not while all are busy with others."""

    is_lost = False


class Call:
    """A call of a pipe's function that is made once: by a thread, or by the consumer if none is free for some time.

    So waiting for it never depends on a free thread, as where a function of the pool reads a chain with that pool: it
    then makes the calls itself, at once if it runs in that thread.

    Args:
        function: of the pass.
        item: for it.
    """

    def __init__(self, function: Callable[[Any], Any], item: Any) -> None:
        self._function = function
        # Taking the item out begins the call; it is one step, which one thread makes
        self._item = [item]
        self._answer: queue.SimpleQueue[tuple[Any] | BaseException] = queue.SimpleQueue()

    def run(self, closed: list[bool]) -> None:
        """Make the call in a thread of the pool, unless it was begun, or the pass was given up."""
        if closed[0]:
            return
        was_busy, _of_thread.is_busy = works_ahead(), True
        try:
            self.begin()
        finally:
            _of_thread.is_busy = was_busy

    def begin(self) -> bool:
        """Make the call in this thread, unless it was begun; return whether it was made."""
        try:
            item = self._item.pop()
        except IndexError:
            return False
        answer: tuple[Any] | BaseException
        try:
            answer = (called(self._function, item),)
        except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
            answer = error
        # The consumer finds out whether it is the only one that refers to the item
        del item
        self._answer.put(answer)
        del answer  # or error and frame would keep each other
        return True

    def fail(self, error: BaseException) -> None:
        """Raise an error in place of the call, unless it was begun."""
        with contextlib.suppress(IndexError):
            self._item.pop()
            self._answer.put(error)

    def result(self, patience: Patience) -> Any:
        """Return what the function returns, once a thread has called it.

        Args:
            patience: of the pass.

        Raises:
            BaseException: what it raised.
        """
        answer = self._answer.get() if not self._answer.empty() else self._waited_for(patience)
        if isinstance(answer, BaseException):
            try:
                raise answer
            finally:
                del answer  # or error and frame would keep each other
        return answer[0]

    def _waited_for(self, patience: Patience) -> tuple[Any] | BaseException:
        if (works_ahead() or patience.is_lost) and self.begin():
            return self._answer.get()
        patience.is_lost = False
        with DECODE.waiting(), contextlib.suppress(queue.Empty):
            return self._answer.get(timeout=_PATIENCE_S)
        patience.is_lost = self.begin()
        with DECODE.waiting():
            return next_item(self._answer)


def called(function: Callable[[Any], T], item: Any) -> T:
    """Return what the function returns. Its error keeps its arguments on its way through torch's pipes."""
    try:
        return function(item)
    except Exception as error:
        keep_arguments_of(error)
        raise


def works_ahead() -> bool:
    """Whether a thread of a pool calls this, whose time no consumer spends."""
    return getattr(_of_thread, "is_busy", False)
