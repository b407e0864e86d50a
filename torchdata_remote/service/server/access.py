"""Around every request: its token and host, the path, what a refusal does with the body, and metrics."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import math
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache, lru_cache
from urllib.parse import unquote_to_bytes

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import RemoteDataError
from .context import Context, Root
from .folder import FolderRoot
from .problems import CLOSE, JSONResponse, Problem, error_response
from .requests import require_path
from .responses import FileResponse

MAX_HEADER_BYTES = 8 << 10  # of one header's value; nginx and Apache have the same limit
MAX_TARGET_BYTES = 16 << 10  # of path and query, which may be three paths in percent-encoding
_DATASETS, _FILES = "/datasets/", "/files/"
_FILE_ROUTE = f"{_DATASETS}{{name}}{_FILES}{{path}}"  # the label of its metrics
_WITHOUT_TOKEN = {"/healthz"}
_READING = {"GET", "HEAD", "OPTIONS"}
_METHODS = {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE"}
_BODY_STALLED = 408
_MAX_UNREAD_BYTES = 64 << 20  # of a body after an error: as much as clients send before they look for an answer
_MAX_REFUSED_BYTES = 1 << 20  # likewise, whose sender may be anyone
_UNREAD_S = 10.0
_CLIENT_CLOSED_REQUEST = 499  # nginx' status for it


class Metrics:
    """Prometheus metrics of one application.

    Args:
        root: the datasets, whose free space is reported.
    """

    def __init__(self, root: Root) -> None:
        self._registry = registry = CollectorRegistry()
        name = "torchdata_remote_service"
        labels = ("method", "route", "status")
        self._requests = Counter(f"{name}_requests", "Requests that were answered.", labels, registry=registry)
        self._seconds = Histogram(
            f"{name}_request_seconds",
            "From a request's head to the end of its response.",
            labels[:2],
            registry=registry,
        )
        self._received = Counter(f"{name}_received_bytes", "Received bytes of bodies.", registry=registry)
        self._sent = Counter(f"{name}_sent_bytes", "Sent bytes of bodies.", registry=registry)
        self.num_in_flight = 0  # changed in the event loop only
        in_flight = Gauge(f"{name}_requests_in_flight", "Requests that are not answered yet.", registry=registry)
        in_flight.set_function(lambda: float(self.num_in_flight))
        # of few labels, and looked up under a lock each time otherwise
        self._requests_of, self._seconds_of = cache(self._requests.labels), cache(self._seconds.labels)
        if isinstance(root, FolderRoot):
            free = Gauge(f"{name}_free_bytes", "Free bytes on the disk of the datasets.", registry=registry)
            free.set_function(lambda: _free_bytes(root))

    def count(self, method: str, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Count a request that has ended; status 499 if its client disconnected."""
        self._requests_of(method, route, str(status)).inc()
        self._seconds_of(method, route).observe(seconds)
        if received:
            self._received.inc(received)
        if sent:
            self._sent.inc(sent)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format, version 0.0.4."""
        return generate_latest(self._registry)


class AccessMiddleware:
    """Checks the token and the host of each request, and counts it.

    Args:
        app: handles accepted requests, but for GET and HEAD of a file: these are nearly all while models train.
        context: of the app.
        token: required of requests; ``None`` for a service that only this machine can reach.
        metrics: counts all requests.
        lifespan: in which the app runs.
    """

    def __init__(
        self,
        app: ASGIApp,
        context: Context,
        *,
        token: str | None,
        metrics: Metrics,
        lifespan: Callable[[object], AbstractAsyncContextManager[None]],
    ) -> None:
        if token == "":
            raise ValueError("token is empty; pass None for a service that only this machine can reach")
        self._app, self.context, self._metrics, self.lifespan = app, context, metrics, lifespan
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s, status, sent = time.perf_counter(), 0, 0
        headers: list[tuple[bytes, bytes]] = []
        body, refused, route = _UnreadBody(scope, receive), self._refuse(scope), "none"

        async def counted_send(message: Message) -> None:
            nonlocal status, sent, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], message["headers"]
                if status >= 400 and status != _BODY_STALLED:
                    await body.drop(_MAX_UNREAD_BYTES if refused is None else _MAX_REFUSED_BYTES)
            elif message["type"] == "http.response.pathsend":
                sent += _content_length(headers)
            else:
                sent += len(message.get("body", b""))
            await send(message)

        self._metrics.num_in_flight += 1
        method = scope["method"] if scope["method"] in _METHODS else "other"
        try:
            file = None if refused is not None else _file_of(scope)
            if file is not None:
                route = _FILE_ROUTE
                await FileResponse(self.context, file[0], require_path(file[1]))(scope, body.receive, counted_send)
            else:
                await (refused or self._app)(scope, body.receive, counted_send)
        except (Problem, RemoteDataError, OSError) as error:
            if status:  # the server ends the connection, and the client sees that bytes are missing
                raise
            response = error_response(error, f"{method} {scope['path']}", self.context.root.url)
            await response(scope, body.receive, counted_send)
        finally:
            self._metrics.num_in_flight -= 1
            if "endpoint" in scope and refused is None:
                route = scope["endpoint"].__name__
            seconds = time.perf_counter() - start_s
            self._metrics.count(method, route, status or _CLIENT_CLOSED_REQUEST, seconds, body.num_bytes, sent)

    def _refuse(self, scope: Scope) -> JSONResponse | None:
        """Return the response that refuses a request, without reading its body; ``None`` if it is accepted."""
        oversized = _oversized(scope)
        if oversized is not None:
            return oversized
        headers = dict(reversed(scope["headers"]))  # of several, the first counts
        try:
            path = unquote_to_bytes(scope["raw_path"]).decode()
        except UnicodeDecodeError:
            return _error_response(400, "The path is not UTF-8.")
        if "\n" in path:  # the pattern of a route matches before a last line break, which would be dropped
            return _error_response(
                400, f"The path {path!r:.200} contains a line break. Remove it: names cannot contain any."
            )
        if path == "/dataset" or path.startswith("/dataset/"):
            path = "/datasets" + path[len("/dataset") :]
        scope["path"] = path
        if self._token is None and not is_loopback(_host_name(headers.get(b"host", b"").decode("latin-1"))):
            return _error_response(
                421, "A service without a token responds to localhost only. Start it with --token-file."
            )
        if (
            self._token is not None
            and path not in _WITHOUT_TOKEN
            and not _has_token(headers.get(b"authorization"), self._token)
        ):
            return _error_response(
                401, "A token is required: Authorization: Bearer TOKEN.", {"WWW-Authenticate": 'Basic realm="datasets"'}
            )
        if scope["method"] not in _READING and headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return _error_response(403, "Pages of other sites cannot change anything here.")
        return None


class _UnreadBody:
    """The body of one request, received by :meth:`receive`."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        headers = dict(scope["headers"])
        has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        self._is_read = not has_body or b"expect" in headers  # whose sender waits for the answer
        self.num_bytes = 0

    async def receive(self) -> Message:
        """Receive the next message."""
        message = await self._receive()
        self.num_bytes += len(message.get("body", b""))
        self._is_read = not message.get("more_body", False)
        return message

    async def drop(self, max_bytes: int) -> None:
        """Receive what is left, at most ``max_bytes`` and for ten seconds.

        Otherwise the server ends the connection with bytes on their way, and the client sees a reset, not the answer.
        """
        limit = self.num_bytes + max_bytes
        with anyio.move_on_after(_UNREAD_S):
            while not self._is_read and self.num_bytes < limit:
                await self.receive()


def _file_of(scope: Scope) -> tuple[str, str] | None:
    """Return the names of dataset and file, if a request reads a file and nothing else."""
    if scope["method"] not in ("GET", "HEAD") or scope["query_string"] or not scope["path"].startswith(_DATASETS):
        return None
    name, separator, path = scope["path"][len(_DATASETS) :].partition(_FILES)
    return (name, path) if separator and path and "/" not in name else None


def _free_bytes(root: Root) -> float:
    """Return the free bytes; NaN if the disk or the folder is gone, when the other metrics are wanted most."""
    try:
        return float(root.free_bytes() or 0)
    except OSError:
        return math.nan


def _oversized(scope: Scope) -> JSONResponse | None:
    """Return the response to a request with a header or a target that is too long."""
    for name, value in scope["headers"]:
        if len(value) > MAX_HEADER_BYTES:
            shown = name[:100].decode("latin-1")
            return _error_response(
                431, f"The header {shown} has {len(value):,} bytes; at most {MAX_HEADER_BYTES:,} are allowed."
            )
    target_bytes = len(scope["raw_path"]) + len(scope["query_string"])
    if target_bytes > MAX_TARGET_BYTES:
        return _error_response(
            414, f"Path and query have {target_bytes:,} bytes; at most {MAX_TARGET_BYTES:,} are allowed."
        )
    return None


def _error_response(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, {**CLOSE, **(headers or {})})


def _content_length(headers: list[tuple[bytes, bytes]]) -> int:
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


@lru_cache(1000)
def _host_name(header: str) -> str:
    """Return the host without its port."""
    host, colon, port = header.rpartition(":")
    host = (host if colon and port.isdigit() else header).lower()
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


@lru_cache(1000)
def is_loopback(host: str) -> bool:
    """Whether a host always means this machine. A name that resolves to it does not count: anyone can register one."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _has_token(header: bytes | None, token: bytes) -> bool:
    """Whether an Authorization header has the token, as Bearer, or as the password of Basic for browsers."""
    kind, _, value = (header or b"").partition(b" ")
    shown = value.strip()
    if kind.lower() == b"basic":
        try:
            shown = base64.b64decode(shown, validate=True).partition(b":")[2]
        except binascii.Error:
            shown = b""
    elif kind.lower() != b"bearer":
        shown = b""
    return hmac.compare_digest(shown, token)
