"""Permits, one a request."""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.internal.core.test_retry import Clock
from torchdata_remote.core.retry import ConcurrencyLimit


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
