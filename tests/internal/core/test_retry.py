"""The schedule of repeated attempts: waits, limits, and what starts them anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.options import RetryPolicy
from torchdata_remote.core.retry import LIKELY_PERMANENT_S, MAX_LIKELY_PERMANENT, Attempts, call_with_retries
from torchdata_remote.errors import StorageError, TransientStorageError


class Clock:
    """A clock that advances only during waits and requests."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def __call__(self) -> float:
        return self.now


class Faulty:
    """Fails so many times, each after so many seconds, then answers."""

    def __init__(self, clock: Clock, *, faults: int, takes_s: float = 0.0) -> None:
        self.clock, self.faults, self.takes_s = clock, faults, takes_s
        self.began: list[float] = []

    def __call__(self) -> str:
        self.began.append(self.clock.now)
        self.clock.now += self.takes_s
        if len(self.began) <= self.faults:
            raise TransientStorageError(f"s3://b/a: fault {len(self.began)}.", url="s3://b/a")
        return "answer"


def _call(operation: Callable[[], str], clock: Clock, policy: RetryPolicy, *, uniform: float = 1.0) -> str:
    return call_with_retries(operation, policy, sleep=clock.sleep, clock=clock, uniform=lambda: uniform)


@given(
    faults=st.integers(1, 80),
    first=st.just(0.0) | st.floats(1e-6, 5),
    limit=st.floats(5, 50),
    uniform=st.floats(0, 1),
)
def test_waits_double_up_to_the_limit(faults: int, first: float, limit: float, uniform: float) -> None:
    clock = Clock()
    policy = RetryPolicy(deadline_s=1e9, first_wait_s=first, max_wait_s=limit)
    _call(Faulty(clock, faults=faults), clock, policy, uniform=uniform)
    assert clock.waits == pytest.approx([min(limit, first * 2**n) * uniform for n in range(faults)])


@given(deadline=st.floats(0.1, 100), takes=st.floats(0.01, 40), uniform=st.floats(0, 1))
def test_no_attempt_begins_after_the_deadline(deadline: float, takes: float, uniform: float) -> None:
    clock = Clock()
    operation = Faulty(clock, faults=10**9, takes_s=takes)
    with pytest.raises(TransientStorageError):
        _call(operation, clock, RetryPolicy(deadline_s=deadline), uniform=uniform)
    assert operation.began[-1] - operation.began[0] <= deadline + 1e-6
    assert clock.now - operation.began[0] <= deadline + takes + 1e-6, "it does not wait for an attempt it will not make"


def test_progress_starts_attempts_waits_and_seconds_anew() -> None:
    clock = Clock()
    attempts = Attempts(RetryPolicy(deadline_s=10, max_attempts=3), sleep=clock.sleep, clock=clock, uniform=lambda: 1.0)
    for _ in range(20):
        clock.now += 6
        attempts.start_anew()
        attempts.wait(TransientStorageError("s3://b/a: the body ended.", url="s3://b/a"))
    assert len(set(clock.waits)) == 1
    clock.now += 10
    with pytest.raises(TransientStorageError, match="deadline_s=10"):
        attempts.wait(TransientStorageError("s3://b/a: the body ended.", url="s3://b/a"))


@given(takes=st.floats(0.1, 12))
def test_faults_that_look_permanent_end_within_ten_seconds(takes: float) -> None:
    clock = Clock()
    operation = Faulty(clock, faults=10**9, takes_s=takes)

    def hopeless() -> str:
        try:
            return operation()
        except TransientStorageError as error:
            error.likely_permanent = True
            raise

    with pytest.raises(StorageError, match="repeating the request does not help") as caught:
        _call(hopeless, clock, RetryPolicy())
    assert not isinstance(caught.value, TransientStorageError)
    assert clock.now - operation.began[0] <= LIKELY_PERMANENT_S + takes
    assert len(operation.began) <= MAX_LIKELY_PERMANENT
