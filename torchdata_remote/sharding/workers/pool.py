"""Run tasks in worker processes or by any executor; the task of a lost worker is run again."""

from __future__ import annotations

import pickle
import queue
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import closing
from typing import Any, Generic, NamedTuple, TypeVar

from .failure import ATTEMPTS, CatchErrors, Failure, lost_error, pickle_error
from .processes import WorkerProcesses

T = TypeVar("T")
U = TypeVar("U")

_MAX_PENDING = 256  # submitted tasks: enough for the workers of a cluster
_PICKLE_ERRORS = (pickle.PickleError, TypeError, AttributeError, ImportError)  # functions return what they raise


class Workers(NamedTuple):
    """Where tasks run.

    Args:
        executor: of the user; ``None`` for worker processes of this package.
        num_workers: worker processes; 0 without an executor runs tasks in this process.
        initializer: called once in each worker process, with ``initargs``.
        initargs: its arguments.
    """

    executor: Executor | None = None
    num_workers: int = 0
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()


def run_tasks(tasks: Iterator[T], function: Callable[[T], U], workers: Workers) -> Generator[tuple[T, U], None, None]:
    """Yield each task with its result, in the order of completion.

    If the iteration ends early, no further task is started, and worker processes of this package are terminated.

    Raises:
        Exception: of the first failing task. If it ran in another process, the traceback there is the cause, and the
            exception is a ``RuntimeError`` if it does not pickle.
        TypeError: if a task cannot be sent to another process.
        WorkerLostError: if a task's worker is lost several times, or the executor takes no more tasks.
    """
    pool = (
        WorkerProcesses(function, workers.num_workers, workers.initializer, workers.initargs)
        if workers.executor is None
        else _ExecutorTasks(function, workers.executor)
    )
    with closing(pool):
        yield from pool.results(tasks)


class _ExecutorTasks(Generic[T, U]):
    """Tasks that were submitted to an executor of the user."""

    def __init__(self, function: Callable[[T], U], executor: Executor) -> None:
        self._function, self._executor = CatchErrors(function), executor
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
            elif attempt == ATTEMPTS or isinstance(error, _PICKLE_ERRORS):
                raise _submit_error(attempt, error) from error
            else:
                self._submit(task, attempt + 1)

    def _fill(self, tasks: Iterator[T]) -> bool:
        """Submit tasks up to the limit; returns whether any is pending."""
        while len(self._pending) < _MAX_PENDING:
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
            raise _submit_error(attempt, error) from error
        self._pending[future] = task, attempt
        future.add_done_callback(self._done.put)

    def close(self) -> None:
        """Cancel tasks that have not started; running ones cannot be stopped."""
        for future in self._pending:
            future.cancel()


def _submit_error(attempt: int, error: BaseException) -> Exception:
    """Build the error for a task that an executor refused or lost."""
    if isinstance(error, _PICKLE_ERRORS):
        return pickle_error(error)
    return lost_error(attempt, f"the executor raised {type(error).__name__}: {error}")
