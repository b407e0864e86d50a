"""Threads that do jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote import RetryPolicy
from torchdata_remote.core.threads.pool import PoolClosedError
from torchdata_remote.errors import TransientStorageError
from torchdata_remote.service.transfer.job_pool import Job, JobPool


@given(
    sizes=st.lists(st.integers(0, 30), max_size=30),
    max_in_flight=st.integers(1, 6),
    part_bytes=st.integers(1, 10),
)
def test_all_jobs_run_once_within_the_bounds(sizes: list[int], max_in_flight: int, part_bytes: int) -> None:
    """Of number and memory, including jobs that follow from others; a single job may exceed the memory."""
    lock = threading.Lock()
    running: list[int] = []
    done: list[int] = []
    reports: list[int] = []

    def job(size: int, num_following: int) -> Job:
        def run() -> Iterable[Job]:
            with lock:
                running.append(size)
                assert len(running) <= max_in_flight
                assert len(running) == 1 or sum(running) <= max_in_flight * part_bytes
            with lock:
                running.remove(size)
                done.append(size)
            return [job(size // 2, num_following - 1)] * num_following

        return Job(size, run)

    with JobPool(max_in_flight, RetryPolicy(), part_bytes=part_bytes) as pool:
        pool.run((job(size, 2) for size in sizes), lambda: reports.append(len(reports)))
    assert sorted(done) == sorted([*sizes, *[size // 2 for size in sizes] * 2, *[size // 4 for size in sizes] * 2])
    assert len(reports) == len(done)


def test_an_error_ends_the_pool() -> None:
    """It is raised to the caller; no further job starts, and running ones end before the block."""
    started = threading.Event()
    ended: list[str] = []

    def slow() -> Iterable[Job]:
        started.set()
        with pytest.raises(PoolClosedError):
            pool.sleep(60)
        ended.append("slow")
        return ()

    def wrong() -> Iterable[Job]:
        started.wait()
        raise ValueError("no")

    def never() -> Iterable[Job]:
        raise AssertionError

    with pytest.raises(ValueError, match="no"), JobPool(2, RetryPolicy(), part_bytes=1) as pool:
        pool.run([Job(0, slow), Job(0, wrong), *[Job(0, never)] * 50], lambda: None)
    assert ended == ["slow"]
    with pytest.raises(PoolClosedError):
        pool.check()


def test_requests_are_retried_with_less_concurrency() -> None:
    """By the policy; for a store that is overloaded."""
    answers = [TransientStorageError("busy"), TransientStorageError("busy")]
    answers[0].overloaded = True
    with JobPool(8, RetryPolicy(first_wait_s=0, max_attempts=3), part_bytes=1) as pool:

        def operation() -> str:
            if answers:
                raise answers.pop()
            return "well"

        assert pool.request(operation, "datasets://h/d") == "well"
        assert pool.in_flight.limit < 8
