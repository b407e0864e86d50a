"""A proxy between the package and a store, which answers some requests itself, or loses what the store answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import urllib3

from tests.servers.threaded import in_thread

Answer = tuple[int, dict[str, str], bytes]


class Seen(NamedTuple):
    """A request; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    num_bytes: int

    @property
    def changes(self) -> bool:
        return self.method in ("PUT", "POST", "DELETE")


Decide = Callable[[Seen], Answer | str | None]
LOST = "lost"


@contextmanager
def between(endpoint_url: str, decide: Decide) -> Iterator[str]:
    """Run a proxy until the block ends; yields its address.

    ``decide`` returns ``None`` to forward a request, ``LOST`` to forward it and to close the connection without the
    answer, or an answer: a status, headers and a body.
    """
    pool = urllib3.PoolManager(maxsize=16, retries=False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def respond(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            decided = decide(Seen(self.command, self.path, headers, len(body)))
            if decided is None or decided == LOST:
                found = pool.request(
                    *(self.command, endpoint_url + self.path),
                    body=body, headers=headers, decode_content=False, redirect=False,
                )  # fmt: skip
                status, more, data = found.status, dict(found.headers), found.data
            else:
                assert not isinstance(decided, str)
                status, more, data = decided
            if decided == LOST:
                self.close_connection = True
                return
            self.send_response_only(status)
            for name, value in more.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = more.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            if status != 204:
                self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = respond  # noqa: N815  # names of the base class

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with in_thread(server), pool:
        yield f"http://127.0.0.1:{server.server_port}"


def s3_error(status: int, code: str) -> Answer:
    return status, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode()
