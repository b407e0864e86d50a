"""Around every request: its token and host, the path, what a refusal does with the body, and metrics."""

from __future__ import annotations

import base64
import binascii
import hmac
import math
import time
from functools import cache, lru_cache
from urllib.parse import unquote_to_bytes

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...storage.dataset_service.token import is_loopback
from .context import Context, Root
from .folder import FolderRoot
from .problems import CLOSE, Problem, error_response
from .requests import require_path
from .responses import FileResponse

_DATASETS, _FILES = "/datasets/", "/files/"
_FILE_ROUTE = f"{_DATASETS}{{name}}{_FILES}{{path}}"  # the label of its metrics
_WITHOUT_TOKEN = {"/healthz"}
_READING = {"GET", "HEAD", "OPTIONS"}
_METHODS = {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE"}
_BODY_STALLED = 408
_MAX_UNREAD_BYTES = 64 << 20  # of a body after an error: as much as clients send before they look for an answer
_MAX_REFUSED_BYTES = 1 << 20  # likewise, whose sender may be anyone
_UNREAD_S = 10.0
_MAX_HOST = 300  # bytes of a Host header; a longer one is none of this machine
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
    """Checks the token and the host of each request, counts it, and answers its errors.

    Args:
        app: handles accepted requests, but for GET and HEAD of a file: these are nearly all while models train.
        context: of the app.
        token: required of requests; ``None`` for a service that only this machine can reach.
    """

    def __init__(self, app: ASGIApp, context: Context, *, token: str | None) -> None:
        if token == "":
            raise ValueError("token is empty; pass None for a service that only this machine can reach")
        self._app, self.context, self.metrics = app, context, Metrics(context.root)
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        scope["app"] = self
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s, status, sent, most_unread = time.perf_counter(), 0, 0, _MAX_REFUSED_BYTES
        headers: list[tuple[bytes, bytes]] = []
        body, route, method = _UnreadBody(scope, receive), "none", scope["method"]
        method = method if method in _METHODS else "other"

        async def counted_send(message: Message) -> None:
            nonlocal status, sent, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], message["headers"]
                if status >= 400 and status != _BODY_STALLED:
                    await body.drop(most_unread)
            elif message["type"] == "http.response.pathsend":
                sent += next((int(value) for name, value in headers if name == b"content-length"), 0)
            else:
                sent += len(message.get("body", b""))
            await send(message)

        self.metrics.num_in_flight += 1
        try:
            self._require_access(scope)
            most_unread, file = _MAX_UNREAD_BYTES, _file_of(scope)
            if file is not None:
                route = _FILE_ROUTE
                await FileResponse(self.context, file[0], require_path(file[1]))(scope, body.receive, counted_send)
            else:
                await self._app(scope, body.receive, counted_send)
        except ClientDisconnect:
            pass
        except Exception as error:
            if status:  # the server ends the connection, and the client sees that bytes are missing
                raise
            response = error_response(error, f"{method} {scope['path']}", self.context.root.url)
            await response(scope, body.receive, counted_send)
        finally:
            self.metrics.num_in_flight -= 1
            if "endpoint" in scope:
                route = scope["endpoint"].__name__
            seconds = time.perf_counter() - start_s
            self.metrics.count(method, route, status or _CLIENT_CLOSED_REQUEST, seconds, body.num_bytes, sent)

    def _require_access(self, scope: Scope) -> None:
        """Require that a request is accepted, before its body is read; decode its path.

        Raises:
            Problem: 400, 401, 403 or 421.
        """
        headers = dict(reversed(scope["headers"]))  # of several, the first counts
        try:
            path = unquote_to_bytes(scope["raw_path"]).decode()
        except UnicodeDecodeError:
            raise Problem(400, "The path is not UTF-8.", CLOSE) from None
        if "\n" in path:  # the pattern of a route matches before a last line break, which would be dropped
            raise Problem(400, f"The path {path!r:.200} contains a line break. Names cannot contain any.", CLOSE)
        if path == "/dataset" or path.startswith("/dataset/"):
            path = "/datasets" + path[len("/dataset") :]
        scope["path"] = path
        if self._token is None and not _is_here(headers.get(b"host", b"")[:_MAX_HOST]):
            raise Problem(
                421, "A service without a token responds to localhost only. Start it with --token-file.", CLOSE
            )
        if (
            self._token is not None
            and path not in _WITHOUT_TOKEN
            and not _has_token(headers.get(b"authorization"), self._token)
        ):
            advice = {"WWW-Authenticate": 'Basic realm="datasets"', **CLOSE}
            raise Problem(401, "A token is required: Authorization: Bearer TOKEN.", advice)
        if scope["method"] not in _READING and headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            raise Problem(403, "Pages of other sites cannot change anything here.", CLOSE)


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


@lru_cache(1000)
def _is_here(header: bytes) -> bool:
    """Whether a Host header names this machine, with a port or without."""
    host, colon, port = header.decode("latin-1").rpartition(":")
    host = host if colon and port.isdigit() else header.decode("latin-1")
    return is_loopback(host[1:-1] if host.startswith("[") and host.endswith("]") else host)


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
