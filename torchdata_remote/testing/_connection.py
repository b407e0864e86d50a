"""One client of the faulty store, with its connection to the upstream server."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ._breaking import AfterResponse, BrokenResponse, break_response, status_line, with_length
from ._dialects import STATUS_FAULTS, error_response, without_range
from ._wire import Head, Wire
from .faults import Faults

_WITHOUT_UPSTREAM = frozenset({"slow_down", "internal_error", "too_many_requests", "reset", "early_end"})
Address = tuple[str, int]
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass
class SeenRequest:
    """A request as received: path and query percent-encoded; ``fault`` is ``None`` if the response was intact."""

    method: str
    path: str
    query: str
    range: str | None
    if_match: str | None
    if_none_match: str | None
    fault: str | None


class Host(Protocol):
    """What a connection needs of its store."""

    faults: Faults

    def record_request(self, request: Head) -> tuple[SeenRequest, float]:
        """Record a request; return it with its fault, and a number from [0, 1)."""

    def count(self, what: str) -> None:
        """Count a response."""

    def remember(self, request: Head, address: Address) -> None:
        """Store the head of a GET."""

    def earlier(self, request: Head, address: Address, chance: float) -> Head | None:
        """Return a GET that was stored."""

    def redirected(self, response: Head) -> Head:
        """Return a redirect with an address of the proxy instead of that of its target."""

    def connect(self, address: Address) -> Wire:
        """Open a connection to an upstream server."""

    def disconnect(self, wire: Wire) -> None:
        """Close a connection to the upstream server."""


class _UpstreamError(Exception):
    """The upstream server is unreachable, or closed the connection before its response."""


@contextlib.contextmanager
def _upstream_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise _UpstreamError from error


class Connection:
    """Serves the requests of one client, one after the other, which ``address`` responds to."""

    def __init__(self, store: Host, client: Wire, address: Address) -> None:
        self._store = store
        self._client = client
        self._address = address
        self._server: Wire | None = None
        self._has_unread = False  # the upstream server responded before it had read the whole request

    def serve(self) -> None:
        """Serve requests until one side closes the connection, or a fault does."""
        try:
            while (request := self._client.head()) is not None and self._serve_request(request):
                pass
        except _UpstreamError:
            self._store.count("bad_gateway")
            assert request is not None
            self._client.sock.sendall(error_response("bad_gateway", request, 0))
            self._client.close_gracefully()
        finally:
            self._disconnect()

    def _serve_request(self, request: Head) -> bool:
        """Serve one request; return whether the connection stays open."""
        seen, chance = self._store.record_request(request)
        fault = seen.fault
        if fault in _WITHOUT_UPSTREAM or (fault == "changed" and seen.if_match):
            return self._respond_instead(fault, request)
        if fault == "stall":
            self._store.count(fault)
            return not self._client.is_closed_within(self._store.faults.stall_s) and self._forward(request)
        if fault is None:
            return self._forward(request, "well")
        return self._break(fault, request, seen, chance)

    def _respond_instead(self, fault: str, request: Head) -> bool:
        """Read the request, and respond without the upstream server."""
        if "100-continue" in request.fields.get("expect", "") and not self._client.held:
            self._client.sock.sendall(_CONTINUE)
        for _ in self._request_body(request):
            pass
        self._store.count(fault)
        if fault in STATUS_FAULTS:
            self._client.sock.sendall(error_response(fault, request, self._store.faults.retry_after_s))
            return request.keeps_alive
        if fault == "reset":
            self._client.reset()
        return False

    def _forward(self, request: Head, what: str | None = None) -> bool:
        """Stream the upstream response to the client, and count it as ``what``."""
        response = self._request(request)
        if what is not None:
            self._store.count(what)
        body = self._response_body(request, response)
        has_end = body is None or response.is_chunked or response.length is not None
        connection = None if has_end else "close"
        head = response.edited({"Connection": connection, "Keep-Alive": None}, first=status_line(response))
        self._client.send(head, body or iter(()))
        if request.first[0] == "GET" and response.status in (200, 206):
            self._store.remember(request, self._address)
        return self._keeps_connection(request, response, has_end=has_end)

    def _break(self, fault: str, request: Head, seen: SeenRequest, chance: float) -> bool:
        """Read the whole upstream response, and send it broken."""
        upstream_request = self._store.earlier(request, self._address, chance) if fault == "other_answer" else request
        if upstream_request is None:  # there is no earlier one
            seen.fault = None
            return self._forward(request, "well")
        if fault == "ignored_range":
            response, body = self._read_response(without_range(request))
            if response.status != 200:
                response, body = self._read_response(request)
        else:
            response, body = self._read_response(upstream_request)
        broken = break_response(fault, response, body, chance)
        if broken is None:
            seen.fault = None
            broken = BrokenResponse(with_length(response, body))
        self._store.count(seen.fault or "well")
        return self._send_broken(broken) and self._keeps_connection(request, response, has_end=True)

    def _send_broken(self, broken: BrokenResponse) -> bool:
        """Send a broken response; return whether the connection may stay open."""
        faults = self._store.faults
        self._client.sock.sendall(broken.at_once)
        for byte in broken.by_the_byte:
            if self._client.is_closed_within(faults.trickle_s):
                return False
            self._client.sock.sendall(bytes([byte]))
        if broken.then is AfterResponse.STALL_AND_RESET and self._client.is_closed_within(faults.stall_s):
            return False
        if broken.then in (AfterResponse.RESET, AfterResponse.STALL_AND_RESET):
            self._client.reset()
        return broken.then is AfterResponse.KEEP_OPEN

    def _read_response(self, request: Head) -> tuple[Head, bytes]:
        response = self._request(request)
        with _upstream_errors():
            body = b"".join(bytes(piece) for piece in self._response_body(request, response, framed=False) or ())
        if not response.keeps_alive or (response.length is None and not response.is_chunked):
            self._disconnect()
        return response, body

    def _request(self, request: Head) -> Head:
        """Forward a request, and read the head of the response."""
        has_body = request.is_chunked or request.length
        if self._server is not None and request.first[0] in ("GET", "HEAD") and not has_body:
            with contextlib.suppress(_UpstreamError):  # a reused connection may be closed by now
                return self._request_once(request)
            self._disconnect()
        return self._request_once(request)

    def _request_once(self, request: Head) -> Head:
        if self._server is not None and self._server.is_stale():
            self._disconnect()
        with _upstream_errors():
            server = self._server = self._server or self._store.connect(self._address)
            server.sock.sendall(request.raw)
        if "100-continue" in request.fields.get("expect", "") and self._server_responds_first(server):
            response = self._server_head(server)
            if response.status != 100:
                self._has_unread = True
                return response
            self._client.sock.sendall(response.raw)
        for piece in self._request_body(request):
            if not server.try_send(piece):  # its response may contain the reason
                self._has_unread = True
                break
        while (response := self._server_head(server)).status < 200:
            self._client.sock.sendall(response.raw)
        return response

    def _server_responds_first(self, server: Wire) -> bool:
        """Wait for either side: if a server sends no 100, the client sends its body anyway."""
        with selectors.DefaultSelector() as selector:
            for wire in (server, self._client):
                selector.register(wire.sock, selectors.EVENT_READ)
            ready = [] if self._client.held else selector.select()
        return any(key.fileobj is server.sock for key, _ in ready)

    def _server_head(self, server: Wire) -> Head:
        with _upstream_errors():
            response = server.head()
            if response is None:
                raise ConnectionError("the upstream server closed the connection without a response")
            return self._store.redirected(response)

    def _request_body(self, request: Head) -> Iterator[memoryview]:
        return self._client.body(request) if request.is_chunked or request.length else iter(())

    def _response_body(self, request: Head, response: Head, *, framed: bool = True) -> Iterator[memoryview] | None:
        assert self._server is not None
        has_body = _may_have_body(request) and response.status not in (204, 304)
        return self._server.body(response, framed=framed) if has_body else None

    def _keeps_connection(self, request: Head, response: Head, *, has_end: bool) -> bool:
        """Return whether the client's connection stays open after a response; close the upstream one if need be."""
        if not (response.keeps_alive and has_end):
            self._disconnect()
        if self._has_unread:
            self._client.close_gracefully()
        return request.keeps_alive and has_end and not self._has_unread

    def _disconnect(self) -> None:
        if self._server is not None:
            self._store.disconnect(self._server)
            self._server = None


def _may_have_body(request: Head) -> bool:
    return request.first[0] != "HEAD"
