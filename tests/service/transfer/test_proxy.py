"""The proxy that stands between client and service in these tests loses no response."""

from __future__ import annotations

import os
import signal
import socket

from tests.service.transfer.proxy import Exchange, running_proxy
from torchdata_remote.testing._wire import Wire


def test_a_failed_request_ends_the_connection_although_a_forked_child_holds_it() -> None:
    """Closing a socket sends no FIN while another process holds it too, and the client would wait for a response."""
    children: list[int] = []

    def fork(exchange: Exchange) -> None:
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        children.append(child)

    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead_service = f"127.0.0.1:{unused.getsockname()[1]}"
    with running_proxy(dead_service) as proxy:
        proxy.on_request = fork
        host, _, port = proxy.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            try:
                assert Wire(client).head() is None
            finally:
                for child in children:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
