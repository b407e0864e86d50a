"""Permits, one a request."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.test_retry import Clock
from tests.support.waiting import DEADLINE_S, wait_for
from torchdata_remote.core.concurrency_limit import ConcurrencyLimit


class Permits(RuleBasedStateMachine):
    """Against a plain model: a limit, the permits that are held, and when it was last halved."""

    @initialize(most=st.integers(1, 20))
    def begin(self, most: int) -> None:
        self.clock = Clock()
        self.most = self.limit = most
        self.halved_at = float("-inf")
        self.in_flight = ConcurrencyLimit(most, check=self.would_wait, clock=self.clock)
        self.held: list[tuple[contextlib.ExitStack, bool]] = []  # and whether the limit holds for it

    def would_wait(self) -> None:
        raise InterruptedError

    def counted(self) -> int:
        return sum(counted for _, counted in self.held)

    @precondition(lambda self: len(self.held) < self.most)  # as many threads as permits
    @precondition(lambda self: self.limit == self.most or self.counted() < self.limit)
    @rule()
    def take(self) -> None:
        stack = contextlib.ExitStack()
        counted = self.limit < self.most
        stack.enter_context(self.in_flight.permit())
        self.held.append((stack, counted))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), well=st.booleans())
    def give_back(self, data: st.DataObject, well: bool) -> None:
        stack, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if well:
            stack.close()
            self.limit = min(self.most, self.limit + 1)
        else:
            with contextlib.suppress(ZeroDivisionError), stack:
                raise ZeroDivisionError

    @rule(seconds=st.sampled_from([0.0, 0.2, 0.3, 0.6, 5.0]))
    def slow_down(self, seconds: float) -> None:
        self.clock.now += seconds
        if self.clock.now - self.halved_at >= 0.5:
            self.halved_at, self.limit = self.clock.now, max(1, self.limit // 2)
        self.in_flight.slow_down()

    @invariant()
    def same(self) -> None:
        """As many permits as the model has, between one and the most."""
        if hasattr(self, "in_flight"):
            assert self.in_flight.limit == self.limit
            assert 1 <= self.limit <= self.most


TestPermits = Permits.TestCase
TestPermits.settings = settings(max_examples=60, deadline=None)


@given(most=st.integers(1, 40), waits_s=st.lists(st.floats(0, 2), max_size=12))
def test_the_limit_is_halved_once_per_interval(most: int, waits_s: list[float]) -> None:
    """However many requests are refused within half a second: that is one reason, and one halving; never below one."""
    clock = Clock()
    in_flight = ConcurrencyLimit(most, check=lambda: None, clock=clock)
    limits, windows = [most], [clock.now - 1]
    for wait_s in waits_s:
        clock.now += wait_s
        in_flight.slow_down()
        limits.append(in_flight.limit)
        if limits[-1] != limits[-2]:
            assert limits[-1] == limits[-2] // 2
            assert clock.now - windows[-1] >= 0.5
            windows.append(clock.now)
        assert limits[-1] >= 1


@given(most=st.integers(2, 20), halvings=st.integers(1, 6))
def test_the_concurrency_limit_grows_by_one_per_success(most: int, halvings: int) -> None:
    """After requests that went well the limit is back at the most, one by one; those that failed add nothing."""
    clock = Clock()
    in_flight = ConcurrencyLimit(most, check=lambda: None, clock=clock)
    for _ in range(halvings):
        clock.now += 1
        in_flight.slow_down()
    low = in_flight.limit
    for _ in range(5):
        with contextlib.suppress(ZeroDivisionError), in_flight.permit():
            raise ZeroDivisionError
    assert in_flight.limit == low
    for number in range(1, most + 3):
        with in_flight.permit():
            pass
        assert in_flight.limit == min(most, low + number)


def in_threads(number: int, work: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize(("most", "halvings"), [(2, 1), (8, 1), (8, 2), (8, 5)])
def test_never_more_requests_than_the_limit(most: int, halvings: int) -> None:
    """With as many threads as permits, so many hold one at once as the limit is, and the others wait for them."""
    clock = Clock()
    in_flight = ConcurrencyLimit(most, check=lambda: None, clock=clock)
    for _ in range(halvings):
        clock.now += 1
        in_flight.slow_down()
    limit = in_flight.limit
    lock, full, done = threading.Lock(), threading.Event(), []
    running = 0

    def work() -> None:
        nonlocal running
        with contextlib.suppress(ZeroDivisionError), in_flight.permit():
            with lock:
                running += 1
                assert running <= limit
                if running == limit:
                    full.set()
            assert full.wait(DEADLINE_S)
            with lock:
                running -= 1
                done.append(1)
            raise ZeroDivisionError  # so that the limit stays

    for thread in in_threads(most, work):
        thread.join(DEADLINE_S)
    assert len(done) == most


def test_waiting_ends_when_check_raises() -> None:
    """A thread that waits for a permit stops when ``check`` raises, and holds none."""
    stopped, ended = threading.Event(), []

    def check() -> None:
        if stopped.is_set():
            raise InterruptedError

    in_flight = ConcurrencyLimit(6, check=check)
    in_flight.slow_down()

    def work() -> None:
        try:
            with in_flight.permit():
                ended.append("got one")
        except InterruptedError:
            ended.append("stopped")

    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(in_flight.permit())
        threads = in_threads(3, work)
        wait_for(lambda: len(in_flight._changed._waiters) == 3)  # type: ignore[attr-defined]
        stopped.set()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert ended == ["stopped"] * 3
        assert in_flight._running == 3
    assert in_flight._running == 0
