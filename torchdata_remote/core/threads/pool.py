"""Thread pool for blocking requests: started on demand up to a limit, ended when the pool is closed.

``concurrent.futures`` is not used because it joins its threads at exit without a timeout: a stalled read would keep a
finished program from ending.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import StorageError
from .at_exit import close_at_exit
from .finalizer_lock import FinalizerLock
from .forks import ForkSafeThread

_POLL_S = 0.5  # a signal that arrives just before a wait is seen at the end of it

T = TypeVar("T")


def next_item(items: queue.SimpleQueue[T]) -> T:
    """Return the next item of a queue; raise if the parent process has ended, which would leave this one waiting.

    Raises:
        SystemExit: if this process was started by another one, which has ended. torch would catch an ``Exception``, and
            under forkserver its workers do not notice the end of the training process themselves.
    """
    while True:
        try:
            return items.get(timeout=_POLL_S)
        except queue.Empty:  # noqa: PERF203  # twice a second
            parent = multiprocessing.parent_process()
            if parent is not None and not parent.is_alive():
                raise SystemExit("the process that started this worker has ended") from None


class PoolClosedError(StorageError):
    """The pool is closed: by its owner, or because the interpreter ends."""


CLOSED = (
    "Nothing is fetched once the interpreter shuts down. Read before that, or register the atexit handler that reads "
    "after torchdata_remote was imported."
)

_Task = tuple[Callable[..., None], tuple[Any, ...], Callable[[PoolClosedError], object] | None]


def _ignore(error: PoolClosedError) -> None:
    pass


class Pool:
    """Runs functions in up to ``max_threads`` daemon threads."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[ForkSafeThread] = []
        self._starting = FinalizerLock(self._start_thread)
        # One for each thread that waits, until all threads were started
        self._idle: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closed = [False]
        # A queue and not an Event, because close() may run in a finalizer, at any allocation of any thread
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        close_at_exit(self)

    @property
    def closed(self) -> bool:
        """Whether the pool refuses further functions."""
        return self._closed[0]

    def submit(
        self,
        function: Callable[..., None],
        *arguments: Any,
        on_dropped: Callable[[PoolClosedError], object] | None = _ignore,
    ) -> None:
        """Run ``function`` in a thread. It must not raise. Safe in a finalizer.

        Args:
            function: called with ``arguments``.
            arguments: for it.
            on_dropped: called instead, in any thread, if the pool is closed before the function starts; must not raise.
                Otherwise a consumer would wait for the function forever. ``None`` calls the function, with the error as
                its last argument.

        Raises:
            PoolClosedError: if the pool is closed, as all are when the interpreter ends, or no thread can be started.
        """
        if self._closed[0]:
            raise PoolClosedError(CLOSED)
        self._tasks.put((function, arguments, on_dropped))
        if len(self._threads) < self._max_threads and not self._take_idle():
            self._starting.settle(None)

    def _start_thread(self, _: None) -> None:
        # Called by one thread at a time
        if len(self._threads) < self._max_threads:
            thread = ForkSafeThread(
                target=_work,
                args=(self._tasks, self._idle, self._closed, self._threads, self._max_threads),
                name="torchdata_remote",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError as error:
                # No more threads can be started; those that run are enough
                if not self._threads:
                    why = (
                        CLOSED
                        if "shutdown" in str(error)
                        else "See `ulimit -u`, and the container's limit of processes."
                    )
                    raise PoolClosedError(f"No thread can be started: {error}. {why}") from error
            else:
                self._threads.append(thread)

    def _take_idle(self) -> bool:
        try:
            self._idle.get_nowait()
        except queue.Empty:
            return False
        return True

    def check(self) -> None:
        """Raise if the pool is closed.

        Raises:
            PoolClosedError: if it is.
        """
        if self._closed[0]:
            raise PoolClosedError(CLOSED)

    def sleep(self, seconds: float, *, is_closed: Callable[[], bool] = lambda: False) -> None:
        """Sleep, unless the pool or the caller's work is closed meanwhile (polled every 0.5 s).

        Args:
            seconds: to sleep.
            is_closed: returns whether the caller's work is closed.

        Raises:
            PoolClosedError: if the pool or the work is closed.
        """
        while seconds > 0 and not is_closed():
            try:
                self._wake.get(timeout=min(seconds, _POLL_S))
            except queue.Empty:  # noqa: PERF203  # twice a second
                seconds -= _POLL_S
            else:
                self._wake.put(None)  # for the next one that sleeps
                raise PoolClosedError(CLOSED)
        if is_closed():
            raise PoolClosedError(CLOSED)

    def close(self) -> None:
        """End the threads after their current functions. Does not wait."""
        self._closed[0] = True
        # One for all threads: each puts it back, so that closing costs the same whatever the limit
        self._wake.put(None)
        self._tasks.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the threads, until ``time.monotonic()`` is ``deadline``."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def drop_queued(self) -> None:
        """Drop the functions that no thread took, after ``close``. Not for finalizers."""
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    _drop(*task)
        self._tasks.put(None)  # for the threads that are still at work


def _work(
    tasks: queue.SimpleQueue[_Task | None],
    idle: queue.SimpleQueue[None],
    closed: list[bool],
    threads: list[ForkSafeThread],
    max_threads: int,
) -> None:
    # Holds no reference to the pool, so that a forgotten one can be collected
    while True:
        task = tasks.get()
        if task is None:
            tasks.put(None)  # for the next thread
            return
        function, arguments, on_dropped = task
        if closed[0]:
            _drop(function, arguments, on_dropped)
        else:
            try:
                function(*arguments)
            except Exception:  # noqa: BLE001  # such as of the program's own log handler; the thread goes on for the others
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        del task, function, arguments, on_dropped
        if len(threads) < max_threads:
            idle.put(None)


def _drop(
    function: Callable[..., None], arguments: tuple[Any, ...], on_dropped: Callable[[PoolClosedError], object] | None
) -> None:
    # No variable here refers to the error: its traceback may refer to this frame
    if on_dropped is None:
        function(*arguments, PoolClosedError(CLOSED))
    else:
        on_dropped(PoolClosedError(CLOSED))
