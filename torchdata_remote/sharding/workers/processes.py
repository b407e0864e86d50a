"""Pool of worker processes in which a crash loses only the task that the crashed process was running.

Other pools fail all pending tasks when a worker is killed: ``concurrent.futures`` (which before Python 3.11 may also
hang, cpython#94777) and loky 3.7 (``TerminatedWorkerError``) at once, Pebble 5.2 when the worker was killed while it
held the lock of the pipe that all of its workers share.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from multiprocessing import connection, forkserver
from typing import Any, Generic, NoReturn, TypeVar

from ...core.processes import ByValuePickler, wait_for_parent
from ...core.threads import ForkSafeThread
from ...errors import WorkerLostError
from .failure import ATTEMPTS, CatchErrors, Failure, lost_error, pickle_error

T = TypeVar("T")
U = TypeVar("U")

_END_S = 1.0  # for a worker to remove its partial objects
_DEFAULT_PRELOAD = ["__main__"]


@dataclass(frozen=True)
class _Assignment(Generic[T]):
    task: T
    data: bytes
    attempt: int = 1


class WorkerProcesses(Generic[T, U]):
    """Processes that run one task at a time each.

    Args:
        function: runs a task.
        num_workers: most processes; no more are started than there are tasks.
        initializer: called once in each, with ``initargs``.
        initargs: its arguments.
    """

    def __init__(
        self,
        function: Callable[[T], U],
        num_workers: int,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._function, self._num_workers = function, num_workers
        self._setup = _packed(initializer or _nothing, *initargs)
        self._workers: dict[Any, _Worker[T]] = {}
        self._retries: deque[_Assignment[T]] = deque()
        self._failed_starts = 0

    def results(self, tasks: Iterator[T]) -> Generator[tuple[T, U], None, None]:
        """Yield each task with its result, in the order of completion.

        Raises:
            Exception: of a task.
            TypeError: if a task does not pickle.
            WorkerLostError: if a task's worker is lost several times, or workers do not start.
        """
        while self._assign(tasks):
            for ready in connection.wait(list(self._workers)):
                worker = self._workers[ready]
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    self._remove_lost(worker)
                    continue
                if isinstance(message, Failure):
                    message.raise_again()
                if worker.assignment is None or not worker.has_started():
                    continue
                task, worker.assignment, self._failed_starts = worker.assignment.task, None, 0
                self._assign(tasks)  # first, as the caller may be busy with the result
                yield task, pickle.loads(message)  # noqa: S301  # of our own worker

    def _assign(self, tasks: Iterator[T]) -> bool:
        """Assign a task to each idle worker, and start missing workers; returns whether any has a task."""
        for worker in self._workers.values():
            if worker.assignment is None and (assignment := self._next(tasks)) is not None:
                worker.assign(assignment)
        while len(self._workers) < self._num_workers and (assignment := self._next(tasks)) is not None:
            worker = _Worker(self._setup, assignment)
            self._workers[worker.connection] = worker
        return any(worker.assignment is not None for worker in self._workers.values())

    def _next(self, tasks: Iterator[T]) -> _Assignment[T] | None:
        if self._retries:
            return self._retries.popleft()
        for task in tasks:
            return _Assignment(task, _packed(self._function, task))
        return None

    def _remove_lost(self, worker: _Worker[T]) -> None:
        """Remove a worker that ended unexpectedly, and schedule its task again."""
        del self._workers[worker.connection]
        code = worker.end(time.monotonic() + _END_S)
        assignment = worker.assignment
        if assignment is None:
            return
        if worker.is_starting:
            self._failed_starts += 1
            if code >= 0 or self._failed_starts == ATTEMPTS:
                raise WorkerLostError(
                    f"A worker process did not start, because {_reason(code)}; its output is on standard error. Is "
                    'the call below `if __name__ == "__main__":`? Worker processes import the script, and must not '
                    "start the job again. num_workers=0 needs no processes."
                )
            self._retries.append(assignment)
            return
        if assignment.attempt == ATTEMPTS:
            raise lost_error(assignment.attempt, _reason(code))
        self._retries.append(replace(assignment, attempt=assignment.attempt + 1))

    def close(self) -> None:
        """End all processes; busy ones get SIGTERM and time to remove their partial objects."""
        for worker in self._workers.values():
            if worker.assignment is not None:
                worker.process.terminate()
        deadline = time.monotonic() + _END_S
        for worker in self._workers.values():
            worker.end(deadline)
        self._workers.clear()


class _Worker(Generic[T]):
    """A process with its task. It sends a message when it has started, after its set-up, and after each task."""

    def __init__(self, setup: bytes, assignment: _Assignment[T]) -> None:
        can_fork = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
        context = multiprocessing.get_context("forkserver") if can_fork else multiprocessing.get_context("spawn")
        if can_fork and getattr(forkserver._forkserver, "_preload_modules", None) == _DEFAULT_PRELOAD:
            # Otherwise every worker takes seconds to import torch, if its tasks need it. This package is not preloaded:
            # the fork server does not know the import paths of this process, and might find another version.
            context.set_forkserver_preload(["torch" if "torch" in sys.modules else "numpy"])
        self.connection, worker_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(worker_end,), daemon=True)
        self.process.start()
        worker_end.close()
        self.assignment: _Assignment[T] | None = assignment
        self._unsent = deque([setup, assignment.data])

    @property
    def is_starting(self) -> bool:
        """Whether it has not received its first task."""
        return bool(self._unsent)

    def has_started(self) -> bool:
        """Handle a message: ``True`` if it is a task's result; else send the set-up, or the first task after it."""
        if not self._unsent:
            return True
        self._send(self._unsent.popleft())
        return False

    def assign(self, assignment: _Assignment[T]) -> None:
        """Send it a task."""
        self.assignment = assignment
        self._send(assignment.data)

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a lost worker is noticed when its message is awaited
            self.connection.send_bytes(data)

    def end(self, deadline: float) -> int:
        """Wait until ``deadline``, then kill it; returns its exit code, negative for a signal."""
        self.connection.close()
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode


def _packed(function: Callable[..., object], *arguments: object) -> bytes:
    try:
        pickler = ByValuePickler()
        pickler.dump((function, arguments))
        return pickler.file.getvalue()
    except Exception as error:
        raise pickle_error(error) from error


def _reason(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it was ended by signal {-code}"


def _nothing() -> None:
    pass


def _serve(parent: Any) -> None:
    """Run in the worker process: receive and run tasks until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    signal.signal(signal.SIGTERM, _stop)
    ForkSafeThread(target=_end_with_parent, daemon=True).start()
    run = CatchErrors(_call)
    with contextlib.suppress(EOFError, OSError):
        parent.send(None)
        while True:
            parent.send(run(parent.recv_bytes()))


def _call(data: bytes) -> bytes:
    function, arguments = pickle.loads(data)  # noqa: S301  # of our own parent
    return pickle.dumps(function(*arguments))


def _stop(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    raise SystemExit(128 + number)  # partial objects are removed while it propagates


def _end_with_parent() -> None:
    """Stop the worker when its parent was killed; runs in a thread."""
    wait_for_parent()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)
    os._exit(1)
