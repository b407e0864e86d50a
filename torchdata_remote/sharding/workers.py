"""Run tasks by worker processes or by any executor; a task whose worker was lost is run again."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from functools import cache
from itertools import islice
from multiprocessing import forkserver
from typing import Any, NamedTuple, NoReturn, TypeVar

from ..core.processes import ByValuePickler, wait_for_parent
from ..core.threads import ForkSafeThread
from ..errors import WorkerLostError

T = TypeVar("T")
U = TypeVar("U")

_ATTEMPTS = 4  # at a task whose worker was lost
_MAX_PENDING = 256  # submitted tasks: enough for the workers of a cluster
_END_S = 1.0  # for a worker to remove its partial objects
_PICKLE_ERRORS = (pickle.PickleError, TypeError, AttributeError, ImportError)  # functions return what they raise
_DEFAULT_PRELOAD = ["__main__"]
_shared = b""  # in a worker: what it shares with others, pickled


class Workers(NamedTuple):
    """Where tasks run.

    Args:
        executor: of the user; ``None`` for worker processes of this package.
        num_workers: worker processes; 0 without an executor for none.
        shared: sent to each of these processes once (:func:`shared_with_workers`).
    """

    executor: Executor | None = None
    num_workers: int = 0
    shared: Any = None


def run_tasks(tasks: Iterator[T], function: Callable[[T], U], workers: Workers) -> Generator[U, None, None]:
    """Yield the results of tasks, in the order of completion.

    If the iteration ends early, no further task is started, and worker processes of this package are terminated. They
    are started anew if one of them was lost.

    Raises:
        Exception: of the first failing task. If it ran in another process, the traceback there is the cause, and the
            exception is a ``RuntimeError`` if it does not pickle.
        TypeError: if a task cannot be sent to another process.
        WorkerLostError: if a task's worker is lost several times, or the executor takes no more tasks.
    """
    pool = _Pool(workers) if workers.executor is None else workers.executor
    most = 2 * workers.num_workers if workers.executor is None else _MAX_PENDING
    done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    pending: dict[Future[Any], tuple[T, int]] = {}

    def submit(task: T, attempt: int) -> None:
        try:
            future = pool.submit(_caught, function, task)
        except Exception as error:
            raise _lost(attempt, error) from error
        pending[future] = task, attempt
        future.add_done_callback(done.put)

    try:
        while True:
            for task in islice(tasks, most - len(pending)):
                submit(task, 1)
            if not pending:
                return
            future = done.get()
            task, attempt = pending.pop(future)
            error = CancelledError("the executor cancelled it") if future.cancelled() else future.exception()
            if error is not None:
                if attempt == _ATTEMPTS or isinstance(error, _PICKLE_ERRORS):
                    raise _lost(attempt, error) from error
                submit(task, attempt + 1)
                continue
            result = future.result()
            if isinstance(result, _Failure):
                result.raise_again()
            yield result
    finally:
        for future in pending:
            future.cancel()  # running ones of an executor cannot be stopped
        if isinstance(pool, _Pool):
            pool.end(is_busy=bool(pending))


def _lost(attempt: int, error: BaseException) -> Exception:
    """Build the error for a task that could not be sent to a worker, or was lost with it."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, _PICKLE_ERRORS):
        return TypeError(
            f"A shard's task cannot be sent to a worker: {what}. Dataset and transform must pickle: open files and "
            "locks where they are used; with executor=, use functions of a module, no lambdas."
        )
    return WorkerLostError(
        f"A shard's worker was lost {attempt} time(s), the last time because of {what}. Finished shards are kept: "
        "start the job again to resume it. Was there enough memory for three windows of 64 MiB, or samples, per worker?"
    )


class _Failure(NamedTuple):
    """An exception that a task raised. It is returned as a result, to distinguish it from the loss of a worker.

    Args:
        summary: type and message.
        traceback: formatted.
        pickled: the exception, empty if it does not pickle. Bytes, so that no scheduler in between unpickles it without
            knowing its class.
    """

    summary: str
    traceback: str
    pickled: bytes

    def raise_again(self) -> NoReturn:
        """Raise the exception in this process, or a ``RuntimeError`` if it cannot be unpickled."""
        error: Exception = RuntimeError(self.summary)
        with contextlib.suppress(Exception):  # whatever its class does
            error = pickle.loads(self.pickled)  # noqa: S301  # of our own worker
        raise error from RuntimeError(f"in a worker:\n\n{self.traceback}")


def _caught(function: Callable[[T], U], task: T) -> U | _Failure:
    """Run a task; an exception is returned."""
    try:
        return function(task)
    except Exception as error:  # noqa: BLE001  # raised again in the process that submitted the task
        pickled = b""
        with contextlib.suppress(Exception):  # whatever it holds
            pickled = pickle.dumps(error)
        return _Failure(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)), pickled)


class _Pool:
    """Worker processes, which are started anew if one of them was lost. Functions and tasks are pickled by value."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def _started(self) -> ProcessPoolExecutor:
        can_fork = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
        context = multiprocessing.get_context("forkserver" if can_fork else "spawn")
        if can_fork and getattr(forkserver._forkserver, "_preload_modules", None) == _DEFAULT_PRELOAD:
            # Otherwise every worker takes seconds to import torch, if its tasks need it. This package is not preloaded:
            # the fork server does not know the import paths of this process, and might find another version.
            context.set_forkserver_preload(["torch" if "torch" in sys.modules else "numpy"])
        return ProcessPoolExecutor(self._workers.num_workers, context, _begin, (_packed(self._workers.shared),))

    def submit(self, *call: Any) -> Future[Any]:
        """Call a function with arguments."""
        data = _packed(call)
        try:
            self._pool = self._pool or self._started()
            return self._pool.submit(_run, data)
        except BrokenExecutor:
            self._pool = self._started()
            return self._pool.submit(_run, data)

    def end(self, *, is_busy: bool) -> None:
        """End all processes; busy ones get SIGTERM and time to remove their partial objects."""
        if self._pool is None:
            return
        processes = list((self._pool._processes or {}).values()) if is_busy else []
        for process in processes:
            process.terminate()
        self._pool.shutdown(wait=not is_busy, cancel_futures=True)
        deadline = time.monotonic() + _END_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()


def _packed(value: Any) -> bytes:
    pickler = ByValuePickler()
    pickler.dump(value)
    return pickler.file.getvalue()


# In a worker process


@cache
def shared_with_workers() -> Any:
    """Return what the job shares with its worker processes."""
    return pickle.loads(_shared)  # noqa: S301  # of our own parent


def _begin(shared: bytes) -> None:
    global _shared
    _shared = shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    signal.signal(signal.SIGTERM, _stop)
    ForkSafeThread(target=_end_with_parent, daemon=True).start()


def _run(data: bytes) -> Any:
    try:
        return _caught(_call, data)
    except SystemExit:  # the pool would go on with the next task
        os._exit(1)


def _call(data: bytes) -> Any:
    function, *arguments = pickle.loads(data)  # noqa: S301  # of our own parent
    return function(*arguments)


def _stop(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    raise SystemExit(128 + number)  # partial objects are removed while it propagates


def _end_with_parent() -> None:
    """Stop the worker when its parent was killed; runs in a thread."""
    wait_for_parent()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)
    os._exit(1)
