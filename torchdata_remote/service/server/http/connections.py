"""The socket that connections arrive at, and limits of them."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from dataclasses import replace

from ....errors import ServiceError
from ..limits import ServiceLimits
from .sendable_files import own_descriptors

if sys.platform != "win32":
    import resource

BACKLOG = 2048
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

    A connection needs one descriptor, and the file that it reads another.
    """
    if sys.platform == "win32":
        return limits
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS has another limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    descriptors = own_descriptors()
    num_connections = max(1, (descriptors - min(_OTHER_DESCRIPTORS, descriptors // 2)) // 2)
    if num_connections < min(limits.max_connections, BACKLOG):
        _log.warning("%d connections at once: the limit of open files allows no more (ulimit -n)", num_connections)
    return replace(limits, max_connections=min(limits.max_connections, num_connections))
