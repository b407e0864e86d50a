"""Too many connections from one address, and the limit of open files."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import queue
import resource
import socket
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from torchdata_remote.errors import ServiceError
from torchdata_remote.service.server.http import connections
from torchdata_remote.service.server.http.connections import ConnectionGuard, listen, within_descriptors
from torchdata_remote.service.server.http.networks import network_of
from torchdata_remote.service.server.limits import ServiceLimits

LIMITS = ServiceLimits()
pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="Linux")


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True


def test_the_newest_connections_of_an_address_end() -> None:
    """Others stay, those of other addresses too, and there is room again when some have ended."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(listen("0.0.0.0", 0, LIMITS))
        port = listening.getsockname()[1]
        guard = ConnectionGuard(port, 5)
        accepted: deque[socket.socket] = deque()

        def connect(to: str) -> socket.socket:
            made = stack.enter_context(socket.create_connection((to, port), source_address=(to, 0)))
            accepted.append(stack.enter_context(listening.accept()[0]))
            return made

        first = [connect("127.0.0.1") for _ in range(5)]
        assert guard.look() == 0
        second = [connect("127.0.0.1") for _ in range(3)]
        other = [connect("127.0.0.2") for _ in range(5)]
        assert guard.look() == 3
        assert all(map(is_open, [*first, *other]))
        assert not any(map(is_open, second))
        first[0].close()
        for connection in [accepted[0], *list(accepted)[5:8]]:
            connection.close()
        third = connect("127.0.0.1")
        assert guard.look() == 0
        assert is_open(third)


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


def test_the_guard_goes_on_after_there_was_no_descriptor_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of descriptors needs one itself."""
    looks: queue.SimpleQueue[None] = queue.SimpleQueue()

    def look(guard: ConnectionGuard) -> int:
        looks.put(None)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(ConnectionGuard, "look", look)
    monkeypatch.setattr(connections, "_INTERVAL_S", 0.001)
    with ConnectionGuard(1, 1).watching():
        for _ in range(3):
            looks.get(timeout=60)


def test_a_descriptor_that_became_a_file_is_closed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the listing and the look at it."""
    with open(tmp_path / "a", "wb") as file:
        monkeypatch.setattr(connections, "_own_sockets", lambda: {"socket:[1]": file.fileno()})
        before = len(os.listdir("/proc/self/fd"))
        assert ConnectionGuard(1, 1).look() == 0
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [16, 64, 256, 1024, 4096, 8191, 8192, 1 << 20])
def test_a_small_limit_of_open_files_leaves_connections_for_others(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """One address gets fewer than all, and there are more than a handful."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (number, number))
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    limits = within_descriptors(LIMITS)
    assert number // 8 <= limits.max_connections or limits.max_connections == LIMITS.max_connections
    assert limits.max_connections_per_address <= LIMITS.max_connections_per_address
    assert 1 <= limits.max_connections_per_address < limits.max_connections


def test_a_very_long_idle_timeout_is_possible() -> None:
    listen("127.0.0.1", 0, replace(LIMITS, idle_timeout_s=1e12)).close()


@given(st.ip_addresses(v=6), st.integers(0, (1 << 64) - 1), st.booleans())
def test_the_addresses_of_an_ipv6_network_count_as_one(
    address: ipaddress.IPv6Address, host: int, has_scope: bool
) -> None:
    """And a network that differs in one bit is another one."""
    network = int(address) >> 64
    assume(network != 0)  # of addresses that are IPv4
    other = ipaddress.IPv6Address(network << 64 | host)
    assert network_of(str(address)) == network_of(f"{other}%eth0" if has_scope else str(other))
    different = ipaddress.IPv6Address((network ^ 1) << 64 | host)
    assert different.ipv4_mapped is not None or network_of(str(different)) != network_of(str(address))


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_the_same_however_it_is_written(address: ipaddress.IPv4Address) -> None:
    """A socket for both kinds shows it as IPv6."""
    assert network_of(str(address)) == network_of(f"::ffff:{address}") == str(address)
