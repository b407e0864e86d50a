"""Too many connections from one address, and the limit of open files."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections import deque

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from torchdata_remote.errors import ServiceError
from torchdata_remote.service.server.http.connections import ConnectionGuard, listen, within_descriptors
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
