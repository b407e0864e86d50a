"""An HTTP proxy that records each request, may change a body, and calls hooks of a test."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.servers.threaded import in_thread

_DROPPED = {"connection", "transfer-encoding", "expect"}


@dataclass
class Exchange:
    """A request and its response, with their bodies as they came."""

    number: int  # from 1
    method: str
    target: str
    sent: bytes = b""
    status: int = 0
    received: bytes = b""


class Proxy(ThreadingHTTPServer):
    """A proxy. A hook that raises ``ConnectionError`` breaks both connections.

    Args:
        upstream: ``host:port`` that requests are forwarded to, each by a connection of its own.
    """

    daemon_threads, request_queue_size = True, 256

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.address = upstream, f"127.0.0.1:{self.server_port}"
        self.left = threading.Condition()
        self.num_clients = 0
        self.forget()

    def forget(self) -> None:
        """Start counting at 0, without hooks."""
        self.exchanges: list[Exchange] = []
        self.on_request: Callable[[Exchange], object] = lambda exchange: None
        # called when half of a body, of either direction, is sent
        self.midway: Callable[[Exchange], object] = lambda exchange: None
        self.change_request: Callable[[Exchange, bytes], bytes] = lambda exchange, body: body
        self.change_response: Callable[[Exchange, bytes], bytes] = lambda exchange, body: body

    def settle(self) -> None:
        """Wait until all connections have ended, once their clients have."""
        with self.left:
            assert self.left.wait_for(lambda: not self.num_clients, timeout=60)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is what tests want."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def handle(self) -> None:
        with self.server.left:
            self.server.num_clients += 1
        try:
            super().handle()
        finally:
            with self.server.left:
                self.server.num_clients -= 1
                self.server.left.notify_all()

    def forward(self) -> None:
        proxy = self.server
        with proxy.left:
            exchange = Exchange(len(proxy.exchanges) + 1, self.command, self.path)
            proxy.exchanges.append(exchange)
        proxy.on_request(exchange)
        num_bytes = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(num_bytes)
        if len(body) < num_bytes:
            raise ConnectionError("the client left")
        with contextlib.closing(http.client.HTTPConnection(proxy.upstream, timeout=120)) as upstream:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _DROPPED:
                    upstream.putheader(name, value)
            upstream.endheaders()
            self._send(upstream.send, proxy.change_request(exchange, body), exchange)
            answer = upstream.getresponse()
            received = answer.read()
        exchange.sent, exchange.status, exchange.received = body, answer.status, received
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _DROPPED:
                self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(received)))
        self.end_headers()
        self._send(self.wfile.write, proxy.change_response(exchange, received), exchange)

    def _send(self, send: Callable[[bytes], object], body: bytes, exchange: Exchange) -> None:
        if body:
            half = len(body) // 2
            send(body[:half])
            self.server.midway(exchange)
            send(body[half:])

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward  # noqa: N815  # names of the base class

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def running_proxy(upstream: str) -> Iterator[Proxy]:
    """A proxy, as long as the block lasts."""
    proxy = Proxy(upstream)
    with in_thread(proxy):
        yield proxy
