"""A pool of threads with bounds on the running jobs and on the memory that they hold."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TypeVar

from ...core.options import MIB, RetryPolicy
from ...core.retry import ConcurrencyLimit, call_with_retries
from ...core.threads import Pool, PoolClosedError, next_item
from ...errors import TransientStorageError

T = TypeVar("T")
_MAX_BUFFER_BYTES = 256 * MIB
_JOIN_S = 5.0
_SLOW_BYTES_PER_S = 1 << 20  # an upload that is faster is not reported as slow


@dataclass(frozen=True)
class Job:
    """A unit of work.

    Args:
        num_bytes: that it holds in memory while it runs.
        run: does the work; returns the jobs that follow from it.
    """

    num_bytes: int
    run: Callable[[], Iterable[Job]]


class JobPool:
    """Runs jobs in threads inside a ``with`` block. After the block no job runs or starts.

    Args:
        max_in_flight: concurrent jobs, each with one request at a time.
        retry: of requests that fail temporarily.
        part_bytes: memory for each concurrent job; 256 MiB at most in total.

    Raises:
        ValueError: for less than one job.
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
        """Raise an error if the pool is closed."""
        self._pool.check()

    def sleep(self, seconds: float) -> None:
        """Sleep; raise an error if the pool is closed meanwhile."""
        self._pool.sleep(seconds)

    def run(self, jobs: Iterable[Job], after_each: Callable[[], object]) -> None:
        """Run jobs, and the jobs that follow from them, in any order.

        Args:
            jobs: read when there is room for another one.
            after_each: called in this thread when a job is done.

        Raises:
            Exception: the first error of a job. No further job is started then.
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

    def request(self, operation: Callable[[], T], url: str | None = None, num_bytes: int = 0) -> T:
        """Send a request, with retries, and reduce the concurrency if the store is overloaded.

        Args:
            operation: sends it.
            url: to report a request that takes long; ``None`` reports none.
            num_bytes: that it sends.
        """
        return call_with_retries(
            lambda: self.attempt(operation),
            self._retry,
            url=url,
            expected_s=num_bytes / _SLOW_BYTES_PER_S,
            sleep=self.sleep,
        )

    def attempt(self, operation: Callable[[], T]) -> T:
        """Send a request once, and reduce the concurrency if the store is overloaded.

        Args:
            operation: sends it.
        """
        self.check()
        with self.in_flight.permit():
            try:
                return operation()
            except TransientStorageError as error:
                if error.overloaded:
                    self.in_flight.slow_down()
                raise


def _dropped(job: Job, done: queue.SimpleQueue[tuple[Job, list[Job] | BaseException]], error: PoolClosedError) -> None:
    done.put((job, error))


def _run(job: Job, done: queue.SimpleQueue[tuple[Job, list[Job] | BaseException]]) -> None:
    try:
        done.put((job, list(job.run())))
    except BaseException as error:  # noqa: BLE001  # raised by `run`
        done.put((job, error))
