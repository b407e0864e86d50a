"""The socket of the service, and the limit of open files."""

from __future__ import annotations

import os
import resource
from dataclasses import replace

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from torchdata_remote.errors import ServiceError
from torchdata_remote.service.server.http.connections import listen, within_descriptors
from torchdata_remote.service.server.limits import ServiceLimits

LIMITS = ServiceLimits()
pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="Linux")


def test_an_address_in_use_is_an_error() -> None:
    with listen("127.0.0.1", 0, LIMITS) as listening, pytest.raises(ServiceError, match="--port"):
        listen("127.0.0.1", listening.getsockname()[1], LIMITS)


def test_connections_leave_descriptors_for_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        limits = within_descriptors(ServiceLimits(max_connections=10**9))
        now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert now == hard
        if hard != resource.RLIM_INFINITY:
            assert 2 * limits.max_connections < now
        assert within_descriptors(ServiceLimits(max_connections=10)).max_connections == 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("number", [16, 64, 256, 1024, 4096, 8191, 8192, 1 << 20])
def test_a_small_limit_of_open_files_leaves_some_connections(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """There are more than a handful."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (number, number))
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    limits = within_descriptors(LIMITS)
    assert number // 8 <= limits.max_connections or limits.max_connections == LIMITS.max_connections
    assert limits.max_connections >= 1


def test_a_very_long_idle_timeout_is_possible() -> None:
    listen("127.0.0.1", 0, replace(LIMITS, idle_timeout_s=1e12)).close()
