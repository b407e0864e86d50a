"""Ports for servers that cannot choose one themselves and report it."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

# Below the ports that Linux gives to connections and to servers that bind port 0 (net.ipv4.ip_local_port_range)
_PORTS = range(12_000, 32_000)
_LOCKS: list[int] = []


def free_port() -> int:
    """Return a port that no process of the tests gets until this one ends, and that no connection is given.

    A port that the kernel chose is free again when the socket is closed that asked for it: another server may be given
    it before the first has bound it.
    """
    folder = Path(tempfile.gettempdir()) / f"ports-of-tests-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for port in random.sample(_PORTS, len(_PORTS)):
        lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:  # another process has it
            os.close(lock)
            continue
        _LOCKS.append(lock)
        return port
    raise OSError(f"no port of {_PORTS} is free")
