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
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from multiprocessing import connection, forkserver
from typing import Any, Generic, NoReturn, TypeVar

from ...core.parent_watch import wait_for_parent
from ...errors import WorkerLostError
from .failure import ATTEMPTS, Failure, Safely, cannot_travel, lost

T = TypeVar("T")
U = TypeVar("U")

_END_S = 1.0  # for a worker to take back what it has half written
_DEFAULT_PRELOAD = ["__main__"]


@dataclass(frozen=True)
class _Given(Generic[T]):
    task: T
    data: bytes
    attempt: int = 1


class WorkerProcesses(Generic[T, U]):
    """Processes that do tasks, one at a time each.

    Args:
        function: that does one.
        num_workers: how many processes; as many are started as there are tasks for.
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
        self._again: deque[_Given[T]] = deque()
        self._failed_starts = 0

    def results(self, tasks: Iterator[T]) -> Generator[tuple[T, U], None, None]:
        """Each task with its result, as they are done.

        Raises:
            Exception: what a task raised.
            TypeError: if a task does not pickle.
            WorkerLostError: if a task's worker is lost several times, or workers do not start.
        """
        while self._engage(tasks):
            for ready in connection.wait(list(self._workers)):
                worker = self._workers[ready]
                try:
                    answer = worker.connection.recv()
                except (EOFError, OSError):
                    self._lose(worker)
                    continue
                if isinstance(answer, Failure):
                    answer.raise_again()
                if worker.given is None or not worker.begun():
                    continue
                task, worker.given, self._failed_starts = worker.given.task, None, 0
                self._engage(tasks)  # first, as the result may keep its taker busy
                yield task, pickle.loads(answer)  # noqa: S301  # of our own worker

    def _engage(self, tasks: Iterator[T]) -> bool:
        """Give each worker a task, and start those that are missing; returns whether any has one."""
        for worker in self._workers.values():
            if worker.given is None and (given := self._next(tasks)) is not None:
                worker.give(given)
        while len(self._workers) < self._num_workers and (given := self._next(tasks)) is not None:
            worker = _Worker(self._setup, given)
            self._workers[worker.connection] = worker
        return any(worker.given is not None for worker in self._workers.values())

    def _next(self, tasks: Iterator[T]) -> _Given[T] | None:
        if self._again:
            return self._again.popleft()
        for task in tasks:
            return _Given(task, _packed(self._function, task))
        return None

    def _lose(self, worker: _Worker[T]) -> None:
        """A worker has ended by itself."""
        del self._workers[worker.connection]
        code = worker.end(time.monotonic() + _END_S)
        given = worker.given
        if given is None:
            return
        if worker.is_starting:
            self._failed_starts += 1
            if code >= 0 or self._failed_starts == ATTEMPTS:
                raise WorkerLostError(
                    f"A worker process did not start, because {_reason(code)}; what it said is on standard error. Is "
                    'the call below `if __name__ == "__main__":`? Worker processes import the script, and must not '
                    "begin the job again. num_workers=0 needs none."
                )
            self._again.append(given)
            return
        if given.attempt == ATTEMPTS:
            raise lost(given.attempt, _reason(code))
        self._again.append(replace(given, attempt=given.attempt + 1))

    def close(self) -> None:
        """End all processes: those that are at work are told to take back what they have half written."""
        for worker in self._workers.values():
            if worker.given is not None:
                worker.process.terminate()
        deadline = time.monotonic() + _END_S
        for worker in self._workers.values():
            worker.end(deadline)
        self._workers.clear()


class _Worker(Generic[T]):
    """A process, with what it is doing. It says when it is up, is set up then, and answers each task."""

    def __init__(self, setup: bytes, given: _Given[T]) -> None:
        can_fork = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
        context = multiprocessing.get_context("forkserver") if can_fork else multiprocessing.get_context("spawn")
        if can_fork and getattr(forkserver._forkserver, "_preload_modules", None) == _DEFAULT_PRELOAD:
            # Without this every worker takes seconds to import torch. Not this package: the server of forks does not
            # know the paths of this process, and might find another version.
            context.set_forkserver_preload(["torch"])
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.given: _Given[T] | None = given
        self._first = deque([setup, given.data])

    @property
    def is_starting(self) -> bool:
        """Whether it has not got to its first task."""
        return bool(self._first)

    def begun(self) -> bool:
        """Answers have come: whether it was one to a task, and not to what comes first, which goes on here."""
        if not self._first:
            return True
        self._send(self._first.popleft())
        return False

    def give(self, given: _Given[T]) -> None:
        """Let it do a task."""
        self.given = given
        self._send(given.data)

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # its end is seen where its answer is awaited
            self.connection.send_bytes(data)

    def end(self, deadline: float) -> int:
        """Wait for its end until then, and no longer; returns its exit code, negative for a signal."""
        self.connection.close()
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode


def _packed(function: Callable[..., object], *arguments: object) -> bytes:
    try:
        return pickle.dumps((function, arguments))
    except Exception as error:
        raise cannot_travel(error) from error


def _reason(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it was ended by signal {-code}"


def _nothing() -> None:
    pass


def _serve(ours: Any) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the tasks
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = Safely(_call)
    with contextlib.suppress(EOFError, OSError):
        ours.send(None)
        while True:
            ours.send(answer(ours.recv_bytes()))


def _call(data: bytes) -> bytes:
    function, arguments = pickle.loads(data)  # noqa: S301  # of the process that we belong to
    return pickle.dumps(function(*arguments))


def _stop(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    raise SystemExit(128 + number)  # what is half written is taken back on the way


def _end_with_parent() -> None:
    """In a thread: nobody waits any longer for what a worker does whose parent was killed."""
    wait_for_parent()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)
    os._exit(1)
