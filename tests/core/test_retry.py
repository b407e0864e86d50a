from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.options import RetryPolicy
from torchdata_remote.core.retry import LIKELY_PERMANENT_S, MAX_LIKELY_PERMANENT, Attempts, call_with_retries
from torchdata_remote.errors import ObjectNotFoundError, StorageError, TransientStorageError


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


@given(faults=st.integers(0, 20), spare=st.integers(1, 3))
def test_a_transient_fault_is_retried(faults: int, spare: int) -> None:
    """For each number of faults within the limits, the result is returned after one more attempt."""
    clock = Clock()
    operation = Faulty(clock, faults=faults)
    assert _call(operation, clock, RetryPolicy(max_attempts=faults + spare)) == "answer"
    assert len(operation.began) == faults + 1
    assert len(clock.waits) == faults


@given(
    faults=st.integers(1, 80),
    first=st.just(0.0) | st.floats(1e-6, 5),
    limit=st.floats(5, 50),
    uniform=st.floats(0, 1),
)
def test_waits_double_up_to_the_limit(faults: int, first: float, limit: float, uniform: float) -> None:
    """Wait n is at most ``first_wait_s * 2**n`` and ``max_wait_s``, times the random number."""
    clock = Clock()
    policy = RetryPolicy(deadline_s=1e9, first_wait_s=first, max_wait_s=limit)
    _call(Faulty(clock, faults=faults), clock, policy, uniform=uniform)
    assert clock.waits == pytest.approx([min(limit, first * 2**n) * uniform for n in range(faults)])


@given(max_attempts=st.integers(1, 10))
def test_max_attempts_is_the_number_of_attempts(max_attempts: int) -> None:
    """No attempt more, and no wait after the last."""
    clock = Clock()
    operation = Faulty(clock, faults=99)
    with pytest.raises(TransientStorageError, match=rf"after {max_attempts} attempts.*max_attempts={max_attempts}"):
        _call(operation, clock, RetryPolicy(max_attempts=max_attempts))
    assert len(operation.began) == max_attempts
    assert len(clock.waits) == max_attempts - 1


@given(deadline=st.floats(0.1, 100), takes=st.floats(0.01, 40), uniform=st.floats(0, 1))
def test_no_attempt_begins_after_the_deadline(deadline: float, takes: float, uniform: float) -> None:
    """Counted from the first attempt, the time that requests themselves take included."""
    clock = Clock()
    operation = Faulty(clock, faults=10**9, takes_s=takes)
    with pytest.raises(TransientStorageError):
        _call(operation, clock, RetryPolicy(deadline_s=deadline), uniform=uniform)
    assert operation.began[-1] - operation.began[0] <= deadline + 1e-6
    assert clock.now - operation.began[0] <= deadline + takes + 1e-6, "it does not wait for an attempt it will not make"


def test_giving_up_keeps_the_last_fault() -> None:
    """The error has the store's message, attempts, seconds and limits; the last fault is its cause."""
    clock = Clock()
    policy = RetryPolicy(deadline_s=60, max_attempts=3, first_wait_s=2)
    with pytest.raises(TransientStorageError) as caught:
        _call(Faulty(clock, faults=9, takes_s=1), clock, policy)
    assert str(caught.value) == (
        "s3://b/a: fault 3. Gave up after 3 attempts in 9.0 s (deadline_s=60, max_attempts=3)."
    )
    assert caught.value.url == "s3://b/a"
    assert isinstance(caught.value.__cause__, TransientStorageError)
    assert str(caught.value.__cause__) == "s3://b/a: fault 3."


@pytest.mark.parametrize("error", [ObjectNotFoundError("no"), ValueError("no"), KeyboardInterrupt("no")])
def test_other_errors_go_through_at_once(error: BaseException) -> None:
    """A permanent fault is not retried, and raised unchanged."""
    clock, calls = Clock(), []

    def operation() -> str:
        calls.append(1)
        raise error

    with pytest.raises(type(error)) as caught:
        _call(operation, clock, RetryPolicy())
    assert caught.value is error
    assert (len(calls), clock.waits) == (1, [])


def test_sleep_can_end_the_retries() -> None:
    """What ``sleep`` raises ends the repetition."""

    def closed(seconds: float) -> None:
        raise InterruptedError

    operation = Faulty(Clock(), faults=9)
    with pytest.raises(InterruptedError):
        call_with_retries(operation, RetryPolicy(), sleep=closed, uniform=lambda: 1.0)
    assert len(operation.began) == 1


def test_the_global_random_state_is_left_alone() -> None:
    """Training that is seeded draws the same numbers whether or not a store had a bad day."""
    random.seed(0)
    before = random.getstate()
    clock = Clock()
    call_with_retries(Faulty(clock, faults=3), RetryPolicy(), sleep=clock.sleep, clock=clock)
    assert random.getstate() == before
    assert len(set(clock.waits)) == 3, "jitter is on by default"


def _attempts(clock: Clock, policy: RetryPolicy, uniform: float = 1.0) -> Attempts:
    return Attempts(policy, sleep=clock.sleep, clock=clock, uniform=lambda: uniform)


def _asking_to_wait(seconds: float) -> TransientStorageError:
    error = TransientStorageError("s3://b/a: slow down.", url="s3://b/a")
    error.retry_after_s = seconds
    return error


@given(failed=st.lists(st.integers(1, 3), min_size=1, max_size=10))
def test_progress_resets_the_limits(failed: list[int]) -> None:
    """``start_anew`` resets the count of attempts, waits and seconds; the error has the totals."""
    clock = Clock()
    attempts = _attempts(clock, RetryPolicy(deadline_s=8, max_attempts=4, first_wait_s=1, max_wait_s=4))
    for faults in failed:
        clock.waits.clear()
        for _ in range(faults):
            attempts.wait(TransientStorageError("reset"))
        assert clock.waits == [1, 2, 4][:faults]
        clock.now += 100
        attempts.start_anew()
    assert attempts.count == sum(failed) + 1
    assert attempts.elapsed_s == clock.now - 1000


def test_limits_end_retries_without_progress() -> None:
    """After ``start_anew`` the limits are the same, and the error has the total of attempts and seconds."""
    clock = Clock()
    attempts = _attempts(clock, RetryPolicy(max_attempts=2, first_wait_s=1))
    attempts.wait(TransientStorageError("reset"))
    attempts.start_anew()
    attempts.wait(TransientStorageError("reset"))
    last = TransientStorageError("reset", url="s3://b/a")
    with pytest.raises(TransientStorageError, match=r"after 3 attempts in 2\.0 s") as caught:
        attempts.wait(last)
    assert (caught.value.attempts, caught.value.elapsed_s, caught.value.url) == (3, 2.0, "s3://b/a")
    assert caught.value.__cause__ is last
    assert clock.waits == [1, 1]


@given(asked=st.floats(0, 200), uniform=st.floats(0, 1), first=st.floats(0, 10))
def test_retry_after_is_respected(asked: float, uniform: float, first: float) -> None:
    """It is never shorter than that, also above ``max_wait_s``; where jitter asks for more, that holds."""
    clock = Clock()
    attempts = _attempts(clock, RetryPolicy(first_wait_s=first, max_wait_s=10), uniform)
    attempts.wait(_asking_to_wait(asked))
    assert clock.waits == [max(asked, first * uniform)]


@pytest.mark.parametrize("asked", [20.5, 1e9, float("inf")])
def test_a_wait_beyond_the_deadline_is_not_started(asked: float) -> None:
    """When the store asks for more time than there is, it gives up at once, and says why."""
    clock = Clock()
    attempts = _attempts(clock, RetryPolicy(deadline_s=20))
    with pytest.raises(TransientStorageError, match=r"The store asked to wait for .* s\. Gave up after 1 attempts"):
        attempts.wait(_asking_to_wait(asked))
    assert clock.waits == []


@given(takes=st.floats(0.1, 12))
def test_faults_that_look_permanent_end_within_ten_seconds(takes: float) -> None:
    """Also where each attempt takes long, as with a name server that does not answer: the first may take longer."""
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
