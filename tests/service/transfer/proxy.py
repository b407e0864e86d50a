"""HTTP proxy between client and service: records each request, may damage a body, and calls hooks of the test."""

from __future__ import annotations

import contextlib
import io
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torchdata_remote.testing._wire import Head, Wire

_CLOSE_S = 30


@dataclass
class Exchange:
    """A request and its response; bytes are those of the bodies."""

    number: int  # from 1
    method: str
    target: str
    sent_bytes: int = 0
    status: int = 0
    received_bytes: int = 0

    @property
    def is_of_a_file(self) -> bool:
        return "/files/" in self.target

    @property
    def is_batch(self) -> bool:
        """Whether it is about many files, as a tar."""
        return self.target.endswith("/files") and self.method in ("POST", "PUT")


def unchanged(exchange: Exchange, body: bytes) -> bytes:
    return body


def flip_one_bit(body: bytes) -> bytes:
    """Invert one bit in the middle."""
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :] if body else body


class Proxy:
    """A running proxy.

    Each request gets a connection to the service of its own: a kept one is closed by the service when it is idle, which
    the client of the proxy would notice only by the failure of its next request.

    Args:
        service: its ``host:port``.
    """

    def __init__(self, service: str) -> None:
        host, _, port = service.rpartition(":")
        self.service = service
        self._service = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.exchanges: list[Exchange] = []
        self.on_request: Callable[[Exchange], object] = lambda exchange: None
        # called when half of a body, of either direction, is sent
        self.midway: Callable[[Exchange], object] = lambda exchange: None
        self.change_request: Callable[[Exchange, bytes], bytes] = unchanged
        self.change_response: Callable[[Exchange, bytes], bytes] = unchanged
        self._lock = threading.RLock()
        self._clients: set[socket.socket] = set()
        self._client_left = threading.Condition()
        self._is_closing = False
        self._failure: OSError | None = None

    def settle(self) -> None:
        """Wait until all connections have ended, once their clients have."""
        with self._client_left:
            assert self._client_left.wait_for(lambda: not self._clients, timeout=_CLOSE_S)

    def forget(self) -> None:
        """Start counting at 0, without hooks."""
        self.exchanges = []
        self.on_request = self.midway = lambda exchange: None
        self.change_request = self.change_response = unchanged

    def fetched_bytes(self) -> int:
        """Bytes of files that were sent to clients."""
        return sum(
            one.received_bytes
            for one in self.exchanges
            if (one.method == "GET" and one.is_of_a_file) or (one.method == "POST" and one.is_batch)
        )

    def sent_bytes(self) -> int:
        """Bytes of files that the service accepted."""
        return sum(one.sent_bytes for one in self.exchanges if one.method == "PUT" and one.status in (200, 202))

    def run(self) -> None:
        """Accept connections until the proxy is closed."""
        try:
            while True:
                client, _ = self._listener.accept()
                with self._client_left:
                    if self._is_closing:
                        client.close()
                        return
                    self._clients.add(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
        except OSError as error:
            if not self._is_closing:
                self._failure = error
                self._listener.close()  # clients are refused at once, and do not wait for an answer

    def close(self) -> None:
        """End all connections.

        Raises:
            OSError: if the proxy had stopped accepting connections.
        """
        with self._client_left:
            self._is_closing = True
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):  # not listening any more
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.settle()
        if self._failure is not None:
            raise self._failure

    def _serve(self, client_socket: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                client = Wire(client_socket)
                while (request := client.head()) is not None:
                    self._answer(request, client)
        finally:
            with contextlib.suppress(OSError):
                # closing alone sends no FIN while a child that was forked meanwhile holds the socket too
                client_socket.shutdown(socket.SHUT_RDWR)
            client_socket.close()
            with self._client_left:
                self._clients.remove(client_socket)
                self._client_left.notify_all()

    def _answer(self, request: Head, client: Wire) -> None:
        with self._lock:
            exchange = Exchange(len(self.exchanges) + 1, request.first[0], request.first[1])
            self.exchanges.append(exchange)
        self.on_request(exchange)
        body = b"".join(map(bytes, client.body(request))) if request.length else b""
        with socket.create_connection(self._service) as service_socket:
            service = Wire(service_socket)
            self._send(service, request.raw, self.change_request(exchange, body), exchange)
            response = service.head()
            if response is None:
                raise ConnectionError("no response")
            has_body = exchange.method != "HEAD" and response.status not in (204, 304)
            data = b"".join(map(bytes, service.body(response))) if has_body else b""
        exchange.sent_bytes, exchange.status, exchange.received_bytes = len(body), response.status, len(data)
        if exchange.is_batch and response.status == 200:
            exchange.sent_bytes, exchange.received_bytes = _bytes_of_members(body), _bytes_of_members(data)
        self._send(client, response.raw, self.change_response(exchange, data), exchange)

    def _send(self, wire: Wire, head: bytes, body: bytes, exchange: Exchange) -> None:
        half = len(body) // 2
        wire.sock.sendall(head + body[:half])
        if body:
            self.midway(exchange)
        wire.sock.sendall(body[half:])


def _bytes_of_members(tar: bytes) -> int:
    """Bytes of the files in a tar; 0 for other data."""
    try:
        with tarfile.open(fileobj=io.BytesIO(tar)) as members:
            return sum(member.size for member in members)
    except tarfile.ReadError:
        return 0


@contextmanager
def running_proxy(service: str) -> Iterator[Proxy]:
    """A proxy, as long as the block lasts."""
    proxy = Proxy(service)
    threading.Thread(target=proxy.run, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
