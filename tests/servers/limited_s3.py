"""A real S3 server that refuses some kinds of requests, as smaller servers do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import urllib3

from tests.servers.s3 import S3Server

Refuses = Callable[[str, str, dict[str, str]], tuple[int, str] | None]


@dataclass(frozen=True)
class LimitedS3(S3Server):
    """A server behind a proxy: the same keys, another address. Buckets are made behind it."""

    behind: S3Server

    def new_bucket(self) -> str:
        return self.behind.new_bucket()


@contextmanager
def limited(server: S3Server, refuses: Refuses) -> Iterator[LimitedS3]:
    """The server as its clients see it, but for what ``refuses(method, target, headers)`` answers itself.

    ``refuses`` returns a status and S3's error code, or ``None`` to pass the request on.
    """
    pool = urllib3.PoolManager(maxsize=16, retries=False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            refused = refuses(self.command, self.path, headers)
            if refused is None:
                made = pool.request(
                    self.command, server.endpoint_url + self.path, body=body, headers=headers, decode_content=False
                )
                status, data, told = made.status, made.data, dict(made.headers)
            else:
                status, told = refused[0], {}
                data = f"<?xml version='1.0'?><Error><Code>{refused[1]}</Code></Error>".encode()
            self.send_response_only(status)
            for name, value in told.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = told.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            if status != 204:
                self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815  # names of the base class

        def log_message(self, *arguments: object) -> None:
            pass

    front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    front.daemon_threads = True
    thread = threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{front.server_port}"
        yield LimitedS3(f"limited-{server.name}", url, server.key, server.secret, server)
    finally:
        front.shutdown()
        front.server_close()
        thread.join()
        pool.clear()
