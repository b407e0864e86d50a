"""The socket that connections arrive at, and limits of them: stalled readers, and too many from one address."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ....core.threads.forks import ForkSafeThread
from ....errors import ServiceError
from ..limits import ServiceLimits
from .networks import network_of
from .sendable_files import own_descriptors

if sys.platform != "win32":
    import resource

BACKLOG = 2048
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_DESCRIPTORS = "/proc/self/fd"
_INTERVAL_S = 0.25
_OTHER_DESCRIPTORS = 256  # of files that are written, of the store, of the program; half of fewer
_MAX_TIMEOUT_MS = (1 << 31) - 1
_log = logging.getLogger("torchdata_remote")


def listen(host: str, port: int, limits: ServiceLimits) -> socket.socket:
    """Open the socket. Its connections end if the other side takes no byte for ``idle_timeout_s`` (Linux).

    Raises:
        ServiceError: for an address in use, or one of another machine.
    """
    timeout_ms = min(_MAX_TIMEOUT_MS, int(limits.idle_timeout_s * 1000))
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # all that are accepted inherit it; it ends those whose other side is gone, too
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ServiceError(
            f"{host}, port {port}: {error.strerror or error}. Choose another --port; 0 takes a free one."
        ) from error
    return listening


def within_descriptors(limits: ServiceLimits) -> ServiceLimits:
    """Return limits that fit this process' limit of open files, which is raised as far as its owner may.

    A connection needs one descriptor, and the file that it reads another. One address gets three quarters of the
    connections at most, so that it cannot lock others out.
    """
    if sys.platform == "win32":
        return limits
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS has another limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    descriptors = own_descriptors()
    num_connections = max(1, (descriptors - min(_OTHER_DESCRIPTORS, descriptors // 2)) // 2)
    num_connections = min(limits.max_connections, num_connections)
    of_an_address = max(1, num_connections - num_connections // 4)
    if of_an_address < limits.max_connections_per_address:
        _log.warning(
            "%d connections at once, %d of an address: the limit of open files allows no more (ulimit -n)",
            num_connections,
            of_an_address,
        )
        limits = replace(limits, max_connections_per_address=of_an_address)
    return replace(limits, max_connections=num_connections)


class ConnectionGuard:
    """Ends the newest connections of an address that has too many, on Linux; looks four times a second.

    Args:
        port: that the service listens on.
        max_connections: of an address.
    """

    def __init__(self, port: int, max_connections: int) -> None:
        self._port, self._max_connections = port, max_connections
        self._known: dict[str, str] = {}  # address of a socket's other side by its name, in the order of arrival
        self._ends: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_noted: set[str] = set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs."""
        if not os.path.isdir(_DESCRIPTORS):
            yield
            return
        thread = ForkSafeThread(target=self._watch, name="connection-guard", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ends.put(None)
            thread.join()

    def _watch(self) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._ends.get(timeout=_INTERVAL_S)
            with contextlib.suppress(OSError):  # no descriptor is left: look again when requests have ended
                self.look()

    def look(self) -> int:
        """End the connections that are too many; return their number."""
        sockets = _own_sockets()
        self._known = {name: address for name, address in self._known.items() if name in sockets}
        counts = Counter(self._known.values())
        num_ended = 0
        for name, descriptor in sockets.items():
            if name in self._known:
                continue
            with contextlib.suppress(OSError), _duplicate(descriptor) as connection:
                if connection.family not in _INTERNET or connection.getsockname()[1] != self._port:
                    continue
                address = network_of(connection.getpeername()[0])  # fails for the socket that listens
                if counts[address] < self._max_connections:
                    counts[address] += 1
                    self._known[name] = address
                    continue
                connection.shutdown(socket.SHUT_RDWR)  # through the copy, which cannot have become another socket
                num_ended += 1
                self._note(address)
        return num_ended

    def _note(self, address: str) -> None:
        if address not in self._is_noted and len(self._is_noted) < self._max_connections:
            self._is_noted.add(address)
            _log.warning(
                "%s has more than %d connections: the newest were ended (--max-connections-per-address)",
                address,
                self._max_connections,
            )


def _duplicate(descriptor: int) -> socket.socket:
    duplicate = os.dup(descriptor)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:  # it was closed, and has become a file
        os.close(duplicate)
        raise


def _own_sockets() -> dict[str, int]:
    """Return descriptors of this process' sockets by name."""
    found = {}
    for descriptor in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # closed since
            name = os.readlink(f"{_DESCRIPTORS}/{descriptor}")
            if name.startswith("socket:"):
                found[name] = int(descriptor)
    return found
