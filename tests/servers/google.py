"""Google's servers of access tokens, and a storage that accepts them: each request is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.servers.threaded import in_thread

DATA = b"hello"
EMAIL = "reader@my-project.iam.gserviceaccount.com"
_LISTING = b"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"


class Received(NamedTuple):
    """A request; header names are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return {name: found[0] for name, found in parse_qs(self.body.decode()).items()}


@dataclass
class Google:
    """The servers, at one address.

    Args:
        url: of all of them.
        requests: so far.
        refused: tokens that the storage answers with 401.
        expires_in_s: of tokens that are issued.
        status: with which the servers of tokens answer.
        storage_status: with which the storage answers.
        code: of its error.
    """

    url: str
    requests: list[Received] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    expires_in_s: int = 3600
    status: int = 200
    storage_status: int = 200
    code: str = ""

    def of_tokens(self) -> list[Received]:
        return [one for one in self.requests if not one.path.startswith("/bucket")]

    def of_storage(self) -> list[Received]:
        return [one for one in self.requests if one.path.startswith("/bucket")]

    def tokens_sent(self) -> list[str | None]:
        return [one.headers.get("authorization") for one in self.of_storage()]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    google: Google

    def _serve(self) -> None:
        parts, google = urlsplit(self.path), self.google
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = {name: found[0] for name, found in parse_qs(parts.query, keep_blank_values=True).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        received = Received(self.command, parts.path, query, headers, body)
        google.requests.append(received)
        if parts.path.startswith("/bucket"):
            return self._store(received)
        if parts.path == "/" or parts.path.startswith("/computeMetadata/v1"):
            return self._metadata(parts.path)
        if google.status != 200:
            return self._send(google.status, json.dumps({"error": "invalid_grant", "error_description": "no"}).encode())
        return self._token(issued_token_type="urn:ietf:params:oauth:token-type:access_token")

    do_GET = do_HEAD = do_PUT = do_POST = _serve  # noqa: N815  # names of the base class

    def _token(self, **more: str) -> None:
        number = sum(one.path in ("/token", "/sts") or one.path.endswith("/token") for one in self.google.requests)
        about = {"access_token": f"token-{number}", "expires_in": self.google.expires_in_s, "token_type": "Bearer"}
        self._send(200, json.dumps({**about, **more}).encode(), {"Content-Type": "application/json"})

    def _metadata(self, path: str) -> None:
        flavor = {"Metadata-Flavor": "Google"}
        if path.endswith("/token"):
            return self._token()
        if path.endswith("/service-accounts/default/"):
            account = {"email": EMAIL, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
            return self._send(200, json.dumps(account).encode(), {**flavor, "Content-Type": "application/json"})
        if path.endswith("/project-id"):
            return self._send(200, b"my-project", {**flavor, "Content-Type": "text/plain"})
        return self._send(404 if "universe" in path else 200, b"", flavor)

    def _store(self, received: Received) -> None:
        status, code = self.google.storage_status, self.google.code
        if received.headers.get("authorization", "").removeprefix("Bearer ") in self.google.refused:
            status, code = 401, "AuthenticationRequired"
        if status != 200:
            return self._send(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())
        if received.method == "PUT":
            return self._send(200, b"", {"ETag": '"1"'})
        if "list-type" in received.query:
            return self._send(200, _LISTING, {"Content-Type": "application/xml"})
        headers = {"ETag": '"1"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
        if "range" not in received.headers:
            return self._send(200, DATA, headers)
        first, _, last = received.headers["range"].removeprefix("bytes=").partition("-")
        part = DATA[int(first) : int(last) + 1]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(DATA)}"
        return self._send(206, part, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def google_servers() -> Iterator[Google]:
    """Run the servers until the block ends."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    google = Google(f"http://127.0.0.1:{server.server_port}")
    handler.google = google  # type: ignore[attr-defined]
    with in_thread(server):
        yield google
