"""The rate of requests of each address."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.support.service_clients import client_of
from torchdata_remote.service.server.http import request_rates
from torchdata_remote.service.server.http.request_rates import RequestRates
from torchdata_remote.service.server.limits import ServiceLimits


@given(st.integers(1, 50), st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 0.5)), max_size=200))
def test_no_address_exceeds_its_rate_and_each_has_it(max_per_s: int, steps: list[tuple[str, float]]) -> None:
    """In any time t at most ``max_per_s * (t + 1)`` are accepted; one that sends less is never refused."""
    now_s = [0.0]
    rates = RequestRates(max_per_s, lambda: now_s[0])
    accepted: dict[str, list[float]] = {"a": [], "b": []}
    last_refused: dict[str, float] = {}
    for address, wait_s in steps:
        now_s[0] += wait_s
        if rates.accept(address):
            accepted[address].append(now_s[0])
        else:
            assert len([one for one in accepted[address] if one > now_s[0] - 1]) >= 1
            last_refused[address] = now_s[0]
    for times in accepted.values():
        for number, begin_s in enumerate(times):
            for count, end_s in enumerate(times[number:], 1):
                assert count <= max_per_s * (end_s - begin_s + 1) + 1e-6


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_rates, "_MAX_ADDRESSES", 100)
    rates = RequestRates(5, lambda: 0.0)
    for number in range(10_000):
        assert rates.accept(str(number))
    assert len(rates._left) == 100


def test_too_many_requests_are_answered_with_429(tmp_path: Path) -> None:
    with client_of(tmp_path, limits=ServiceLimits(min_free_bytes=0, max_requests_per_s=5)) as client:
        answers = [client.get("/healthz") for _ in range(50)]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert answers[0].status_code == 200
    assert refused
    assert all(answer.status_code == 429 and answer.headers["Retry-After"] == "1" for answer in refused)
