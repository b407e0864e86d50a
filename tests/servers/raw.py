"""A server that sends the bytes of a test, which need not be HTTP."""

from __future__ import annotations

import contextlib
import socketserver
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.servers.threaded import in_thread

_HEAD_BYTES = 1 << 16
_TLS = b"\x16"  # first byte of a TLS client


@dataclass
class Raw:
    """A running server."""

    url: str
    heads: list[str] = field(default_factory=list)  # of the requests, in order of arrival

    @property
    def num_requests(self) -> int:
        """Number of requests so far."""
        return len(self.heads)


@contextmanager
def raw(respond: Callable[[str], bytes | Iterator[bytes]], tls: ssl.SSLContext | None = None) -> Iterator[Raw]:
    """Send ``respond(head of the request)`` to each connection, then close it."""
    running = Raw("")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                if tls is not None:
                    self.request = tls.wrap_socket(self.request, server_side=True)
                head = b""
                while (
                    not head.startswith(_TLS) and b"\r\n\r\n" not in head and (more := self.request.recv(_HEAD_BYTES))
                ):
                    head += more
                if head:
                    text = head.decode("latin-1")
                    running.heads.append(text)
                    sent = respond(text)
                    for piece in [sent] if isinstance(sent, bytes) else sent:
                        self.request.sendall(piece)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    running.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    with in_thread(server):
        yield running


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    """Make an HTTP/1.1 response with these header lines, and ``Connection: close``."""
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "Connection: close", "", ""]).encode("latin-1") + body
