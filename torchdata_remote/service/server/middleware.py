"""Around every request: authorisation, normalisation of the path, and metrics of the response."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import time
from urllib.parse import unquote_to_bytes

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .dataset_root import DatasetRoot

_OPEN = {"/healthz"}
_READING = {"GET", "HEAD", "OPTIONS"}
_METHODS = {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE"}
_CLIENT_WENT = 499  # as nginx tells it


class Metrics:
    """Counts of one application.

    Args:
        shelf: whose free space is told.
    """

    def __init__(self, shelf: DatasetRoot) -> None:
        self._registry = registry = CollectorRegistry()
        name = "torchdata_remote_service"
        labels = ("method", "route", "status")
        self._requests = Counter(f"{name}_requests", "Requests that were answered.", labels, registry=registry)
        self._seconds = Histogram(
            f"{name}_request_seconds", "From a request's head to the end of its answer.", labels[:2], registry=registry
        )
        self._received = Counter(f"{name}_received_bytes", "Bytes of bodies that came.", registry=registry)
        self._sent = Counter(f"{name}_sent_bytes", "Bytes of bodies that were sent.", registry=registry)
        self.in_flight = Gauge(f"{name}_requests_in_flight", "Requests that are not answered yet.", registry=registry)
        if shelf.is_local:
            free = Gauge(f"{name}_free_bytes", "Left on the disk of the datasets.", registry=registry)
            free.set_function(lambda: float(shelf.free_bytes() or 0))

    def count(self, method: str, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Count a request that has ended; status 499 is one whose client went away."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)
        self._received.inc(received)
        self._sent.inc(sent)

    def text(self) -> bytes:
        """In Prometheus' format, version 0.0.4."""
        return generate_latest(self._registry)


class AccessMiddleware:
    """Stands before an application.

    Args:
        app: answers what is let through.
        token: that requests have to show; ``None`` for a service that only this machine can reach.
        metrics: counts all requests.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, metrics: Metrics) -> None:
        if token == "":
            raise ValueError("token is empty, which everybody shows; pass None for a service of this machine alone")
        self._app, self._metrics = app, metrics
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, status, received, sent = time.perf_counter(), _CLIENT_WENT, 0, 0

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            sent += len(message.get("body", b""))
            await send(message)

        refused = self._refusal(scope)
        answer = self._app if refused is None else refused
        method = scope["method"] if scope["method"] in _METHODS else "other"
        with self._metrics.in_flight.track_inprogress():
            try:
                await answer(scope, counted_receive, counted_send)
            finally:
                route = scope["endpoint"].__name__ if "endpoint" in scope and refused is None else "none"
                self._metrics.count(method, route, status, time.perf_counter() - began_s, received, sent)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        """What is answered instead; ``None`` if the request may pass. Its body was not looked at."""
        headers = Headers(scope=scope)
        try:
            path = unquote_to_bytes(scope["raw_path"]).decode()
        except UnicodeDecodeError:
            return _no(400, "The address is not UTF-8.")
        if path == "/dataset" or path.startswith("/dataset/"):
            path = "/datasets" + path[len("/dataset") :]
        scope["path"] = path
        if self._token is None and not is_loopback(_host(headers.get("host", ""))):
            return _no(421, "A service without a token answers to localhost only. Start it with --token-file.")
        if self._token is not None and path not in _OPEN and not _shows(headers.get("authorization"), self._token):
            return _no(
                401, "A token is needed: Authorization: Bearer TOKEN.", {"WWW-Authenticate": 'Basic realm="datasets"'}
            )
        if scope["method"] not in _READING and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _no(403, "Another site's page may not change anything here.")
        return None


def _no(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, {"Connection": "close", **(headers or {})})


def _host(header: str) -> str:
    """Without its port."""
    host, colon, port = header.rpartition(":")
    host = (host if colon and port.isdigit() else header).lower()
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_loopback(host: str) -> bool:
    """Whether only this machine can be reached by it, as a name that somebody made to point here cannot be."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shows(header: str | None, token: bytes) -> bool:
    """Whether an Authorization header has the token: as Bearer, or as Basic's password, which browsers ask for."""
    kind, _, value = (header or "").partition(" ")
    shown = value.strip().encode("latin-1", "replace")
    if kind.lower() == "basic":
        try:
            shown = base64.b64decode(shown, validate=True).partition(b":")[2]
        except binascii.Error:
            shown = b""
    elif kind.lower() != "bearer":
        shown = b""
    return hmac.compare_digest(shown, token)
