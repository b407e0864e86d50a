"""Run a server of ``socketserver`` in a thread of the test process."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_thread(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve until the block ends; then the server's socket is closed, and its thread has ended."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
