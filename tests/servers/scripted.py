"""An HTTP server whose responses are written by a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.servers.threaded import in_thread

Respond = Callable[["Request"], "Response"]
DROPPED = 0  # a status: the connection is closed without an answer


@dataclass(frozen=True)
class Request:
    """A request as received; header names are in lower case."""

    number: int  # from 1
    method: str
    target: str
    headers: dict[str, str]
    time_s: float  # monotonic
    body: bytes = b""


@dataclass(frozen=True)
class Response:
    """A response; Content-Length is added."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_object(cls, request: Request, data: bytes, etag: str = '"1"') -> Response:
        """Make the response of a store to a GET of an object or a range of it."""
        headers = {"ETag": etag, "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
        span = request.headers.get("range")
        if span is None:
            return cls(200, data, headers)
        first, _, last = span.removeprefix("bytes=").partition("-")
        body = data[int(first) : int(last) + 1 if last else None]
        return cls(206, body, {**headers, "Content-Range": f"bytes {first}-{int(first) + len(body) - 1}/{len(data)}"})

    @classmethod
    def of_error(cls, status: int, code: str, headers: dict[str, str] | None = None) -> Response:
        """Make an error response of S3."""
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        return cls(status, body, headers or {})


@dataclass
class Scripted:
    """A running server."""

    url: str
    requests: list[Request]


@contextmanager
def scripted(respond: Respond, port: int = 0, *, keeps: bool = True) -> Iterator[Scripted]:
    """Run a server that responds to each request by ``respond``, and ``keeps`` all requests."""
    requests: list[Request] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet
        disable_nagle_algorithm = True

        def handle_expect_100(self) -> bool:
            answered = super().handle_expect_100()
            self.wfile.flush()  # a client waits a second for it
            return answered

        def send_scripted(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            with lock:
                request = Request(len(requests) + 1, self.command, self.path, headers, time.monotonic(), body)
                requests.extend([request] * keeps)
            response = respond(request)
            if response.status == DROPPED:
                self.close_connection = True
                return
            self.send_response_only(response.status)
            length = {} if response.status == 204 else {"Content-Length": str(len(response.body))}
            for name, value in {**length, **response.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(response.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = send_scripted  # noqa: N815  # names of the base class

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    with in_thread(server):
        yield Scripted(f"http://127.0.0.1:{server.server_port}", requests)
