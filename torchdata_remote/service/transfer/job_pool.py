"""Threads that do jobs: at most so many at once, at most so many bytes in their hands."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TypeVar

from ...core.concurrency_limit import ConcurrencyLimit
from ...core.options import MIB, RetryPolicy
from ...core.retry import call_with_retries
from ...core.threads.pool import Pool, PoolClosedError, next_item
from ...errors import TransientStorageError

T = TypeVar("T")
_MAX_BUFFER_BYTES = 256 * MIB
_JOIN_S = 5.0


@dataclass(frozen=True)
class Job:
    """Something to do.

    Args:
        num_bytes: that it holds in memory while it is done.
        run: does it; returns what is to be done next because of it.
    """

    num_bytes: int
    run: Callable[[], Iterable[Job]]


class JobPool:
    """Does jobs in threads, as long as the block lasts. Behind the block none is at work, or soon will be.

    Args:
        max_in_flight: jobs, each with one request at a time.
        retry: what is done about requests that fail for a passing reason.
        part_bytes: so many for each job in flight are held in memory, and 256 MiB at the most.

    Raises:
        ValueError: if no job could run.
    """

    def __init__(self, max_in_flight: int, retry: RetryPolicy, *, part_bytes: int) -> None:
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1, got {max_in_flight}")
        self._max_in_flight = max_in_flight
        self._max_bytes = min(max_in_flight * part_bytes, _MAX_BUFFER_BYTES)
        self._retry = retry
        self._pool = Pool(max_in_flight)
        self.in_flight = ConcurrencyLimit(max_in_flight, check=self._pool.check)

    def __enter__(self) -> JobPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.close()
        self._pool.join(time.monotonic() + _JOIN_S)

    def check(self) -> None:
        """Raise if nobody wants the work any longer."""
        self._pool.check()

    def wait(self, seconds: float) -> None:
        """Wait for so many seconds; raises if nobody wants the work any longer."""
        self._pool.sleep(seconds)

    def do(self, jobs: Iterable[Job], after_each: Callable[[], object]) -> None:
        """Do jobs, and those that come of them, in any order.

        Args:
            jobs: taken as there is room for them.
            after_each: called in this thread when one is done.

        Raises:
            Exception: what a job raised first. No other is begun then.
        """
        source, following = iter(jobs), deque[Job]()
        done: queue.SimpleQueue[tuple[Job, list[Job] | BaseException]] = queue.SimpleQueue()
        num_running = num_bytes = 0
        while True:
            while num_running < self._max_in_flight:
                job = following.popleft() if following else next(source, None)
                if job is None:
                    break
                if num_running and num_bytes + job.num_bytes > self._max_bytes:
                    following.appendleft(job)
                    break
                self._pool.submit(_run, job, done, on_dropped=partial(_dropped, job, done))
                num_running, num_bytes = num_running + 1, num_bytes + job.num_bytes
            if not num_running:
                return
            job, result = next_item(done)
            num_running, num_bytes = num_running - 1, num_bytes - job.num_bytes
            if isinstance(result, BaseException):
                raise result
            following.extend(result)
            after_each()

    def request(self, operation: Callable[[], T]) -> T:
        """Send one request, again if it fails for a passing reason, and fewer at once where the store asks for it."""

        def attempt() -> T:
            self.check()
            with self.in_flight.permit():
                try:
                    return operation()
                except TransientStorageError as error:
                    if error.overloaded:
                        self.in_flight.slow_down()
                    raise

        return call_with_retries(attempt, self._retry, sleep=self.wait)


def _dropped(job: Job, done: queue.SimpleQueue[tuple[Job, list[Job] | BaseException]], error: PoolClosedError) -> None:
    done.put((job, error))


def _run(job: Job, done: queue.SimpleQueue[tuple[Job, list[Job] | BaseException]]) -> None:
    try:
        done.put((job, list(job.run())))
    except BaseException as error:  # noqa: BLE001  # it belongs to whoever waits for the jobs
        done.put((job, error))
