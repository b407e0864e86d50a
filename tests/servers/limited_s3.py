"""An S3 server that refuses some kinds of requests, like small implementations of S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import urllib3

from tests.servers.s3 import S3Server
from tests.servers.threaded import in_thread

Refuses = Callable[[str, str, dict[str, str]], tuple[int, str] | None]


@dataclass(frozen=True)
class LimitedS3(S3Server):
    """The proxy of an S3 server: the same keys, another address. Buckets are created on the upstream server."""

    upstream: S3Server

    def new_bucket(self) -> str:
        return self.upstream.new_bucket()


@contextmanager
def limited(server: S3Server, refuses: Refuses) -> Iterator[LimitedS3]:
    """Run a proxy that refuses the requests for which ``refuses(method, target, headers)`` returns an error.

    ``refuses`` returns a status and S3's error code, or ``None`` to forward the request.
    """
    pool = urllib3.PoolManager(maxsize=16, retries=False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            refused = refuses(self.command, self.path, headers)
            if refused is None:
                response = pool.request(
                    self.command, server.endpoint_url + self.path, body=body, headers=headers, decode_content=False
                )
                status, data, response_headers = response.status, response.data, dict(response.headers)
            else:
                status, response_headers = refused[0], {}
                data = f"<?xml version='1.0'?><Error><Code>{refused[1]}</Code></Error>".encode()
            self.send_response_only(status)
            for name, value in response_headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = response_headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            if status != 204:
                self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = respond  # noqa: N815  # names of the base class

        def log_message(self, *arguments: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    with in_thread(proxy), pool:
        url = f"http://127.0.0.1:{proxy.server_port}"
        yield LimitedS3(f"limited-{server.name}", url, server.key, server.secret, server)
