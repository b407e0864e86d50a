"""Tasks run in worker processes, or by any executor; a lost worker's task is run again."""

from __future__ import annotations

import pickle
import queue
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import closing
from typing import Any, Generic, NamedTuple, TypeVar

from .failure import ATTEMPTS, Failure, Safely, cannot_travel, lost
from .processes import WorkerProcesses

T = TypeVar("T")
U = TypeVar("U")

_PENDING = 256  # tasks that were handed over and have not ended: enough for the workers of a cluster
_NOT_TO_SEND = (pickle.PickleError, TypeError, AttributeError, ImportError)  # functions return what they raise


class Workers(NamedTuple):
    """Who runs tasks.

    Args:
        executor: of the user; ``None`` for processes of our own.
        num_workers: processes of our own; 0 without an executor means that there are none.
        initializer: called once in each process of our own, with ``initargs``.
        initargs: its arguments.
    """

    executor: Executor | None = None
    num_workers: int = 0
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()


def run_tasks(tasks: Iterator[T], function: Callable[[T], U], workers: Workers) -> Generator[tuple[T, U], None, None]:
    """Each task with its result, as they are done.

    Where the iteration ends early, no further task is begun, and processes of our own have ended.

    Raises:
        Exception: what the first failing task raised. If it did so in another process, its traceback is the cause, and
            it is a ``RuntimeError`` if it does not pickle.
        TypeError: if a task cannot be sent to another process.
        WorkerLostError: if a task's worker is lost several times, or the executor takes no more tasks.
    """
    pool = (
        WorkerProcesses(function, workers.num_workers, workers.initializer, workers.initargs)
        if workers.executor is None
        else _Submitted(function, workers.executor)
    )
    with closing(pool):
        yield from pool.results(tasks)


class _Submitted(Generic[T, U]):
    """Tasks that an executor of the user has."""

    def __init__(self, function: Callable[[T], U], executor: Executor) -> None:
        self._function, self._executor = Safely(function), executor
        self._done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._pending: dict[Future[Any], tuple[T, int]] = {}

    def results(self, tasks: Iterator[T]) -> Generator[tuple[T, U], None, None]:
        while self._fill(tasks):
            future = self._done.get()
            task, attempt = self._pending.pop(future)
            error = CancelledError("the executor cancelled it") if future.cancelled() else future.exception()
            if error is None:
                result = future.result()
                if isinstance(result, Failure):
                    result.raise_again()
                yield task, result
            elif attempt == ATTEMPTS or isinstance(error, _NOT_TO_SEND):
                raise _failed(attempt, error) from error
            else:
                self._submit(task, attempt + 1)

    def _fill(self, tasks: Iterator[T]) -> bool:
        """Hand over as many as may be under way; returns whether any is."""
        while len(self._pending) < _PENDING:
            for task in tasks:
                self._submit(task, 1)
                break
            else:
                break
        return bool(self._pending)

    def _submit(self, task: T, attempt: int) -> None:
        try:
            future = self._executor.submit(self._function, task)
        except Exception as error:
            raise _failed(attempt, error) from error
        self._pending[future] = task, attempt
        future.add_done_callback(self._done.put)

    def close(self) -> None:
        """No further task is begun. Those that are under way cannot be stopped, and end some time."""
        for future in self._pending:
            future.cancel()


def _failed(attempt: int, error: BaseException) -> Exception:
    """What is raised for a task that an executor does not take, or does not bring back."""
    if isinstance(error, _NOT_TO_SEND):
        return cannot_travel(error)
    return lost(attempt, f"the executor said {type(error).__name__}: {error}")
