"""Between client and service: notes each request, may damage a body, and tells a test when to kill somebody."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torchdata_remote.testing._wire import Head, Wire


@dataclass
class Seen:
    """A request and its answer: bytes are those of the bodies."""

    number: int  # from 1
    method: str
    target: str
    sent_bytes: int = 0
    status: int = 0
    answered_bytes: int = 0

    @property
    def is_of_a_file(self) -> bool:
        return "/files/" in self.target


def leave_alone(seen: Seen, body: bytes) -> bytes:
    return body


def flipped(body: bytes) -> bytes:
    """With one bit of its middle inverted."""
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :] if body else body


class Proxy:
    """A running proxy.

    Args:
        behind: ``host:port`` of the service.
    """

    def __init__(self, behind: str) -> None:
        self._behind = behind
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.seen: list[Seen] = []
        self.on_request: Callable[[Seen], object] = lambda seen: None
        self.midway: Callable[[Seen], object] = lambda seen: None  # when half of a body, either way, has gone on
        self.change_request: Callable[[Seen, bytes], bytes] = leave_alone
        self.change_answer: Callable[[Seen, bytes], bytes] = leave_alone
        self._lock = threading.Lock()
        self._num_open = 0
        self._closed_one = threading.Condition()

    def settle(self) -> None:
        """Wait until all connections have ended, once their clients have."""
        with self._closed_one:
            assert self._closed_one.wait_for(lambda: not self._num_open, timeout=30)

    def forget(self) -> None:
        """Begin to count anew, without hooks."""
        self.seen = []
        self.on_request = self.midway = lambda seen: None
        self.change_request = self.change_answer = leave_alone

    def fetched_bytes(self) -> int:
        """Bytes of files that went to clients."""
        return sum(seen.answered_bytes for seen in self.seen if seen.method == "GET" and seen.is_of_a_file)

    def sent_bytes(self) -> int:
        """Bytes of files that went to the service and were taken."""
        return sum(seen.sent_bytes for seen in self.seen if seen.method == "PUT" and seen.status in (200, 202))

    def run(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                with self._closed_one:
                    self._num_open += 1
                threading.Thread(target=self._serve_and_count, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve_and_count(self, client: socket.socket) -> None:
        try:
            self._serve(client)
        finally:
            with self._closed_one:
                self._num_open -= 1
                self._closed_one.notify_all()

    def _serve(self, client_socket: socket.socket) -> None:
        host, _, port = self._behind.rpartition(":")
        with contextlib.suppress(OSError), client_socket, socket.create_connection((host, int(port))) as behind:
            client, server = Wire(client_socket), Wire(behind)
            while (request := client.head()) is not None:
                self._answer(request, client, server)

    def _answer(self, request: Head, client: Wire, server: Wire) -> None:
        with self._lock:
            seen = Seen(len(self.seen) + 1, request.first[0], request.first[1])
            self.seen.append(seen)
        self.on_request(seen)
        body = b"".join(map(bytes, client.body(request))) if request.length else b""
        self._send(server, request.raw, self.change_request(seen, body), seen)
        answer = server.head()
        if answer is None:
            raise ConnectionError("no answer")
        has_body = seen.method != "HEAD" and answer.status not in (204, 304)
        data = b"".join(map(bytes, server.body(answer))) if has_body else b""
        seen.sent_bytes, seen.status, seen.answered_bytes = len(body), answer.status, len(data)
        self._send(client, answer.raw, self.change_answer(seen, data), seen)

    def _send(self, wire: Wire, head: bytes, body: bytes, seen: Seen) -> None:
        half = len(body) // 2
        wire.sock.sendall(head + body[:half])
        if body:
            self.midway(seen)
        wire.sock.sendall(body[half:])


@contextmanager
def running_proxy(behind: str) -> Iterator[Proxy]:
    """A proxy, as long as the block lasts."""
    proxy = Proxy(behind)
    threading.Thread(target=proxy.run, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
