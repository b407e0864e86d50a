"""A proxy that breaks some responses of a store."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import struct
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from ..core import arguments as check
from ..core.arguments import explained
from ..core.threads import ForkSafeThread
from ._breaking import (
    BODILESS_FAULTS,
    RANGE_FAULTS,
    STATUS,
    WITHOUT_UPSTREAM,
    Response,
    break_response,
    error_response,
    is_listing,
)
from .faults import FAULT_NAMES, Faults

Address = tuple[str, int]

_BACKLOG = 1024
_CONNECT_S = 1.5  # less than _CLOSE_S: closing does not interrupt it
_CLOSE_S = 2.0
_ACCEPT_AGAIN_S = 0.01
_EARLIER = 32  # GETs that other_answer picks from
_RANGES = ("range", "x-ms-range")  # Azure's clients may send it by a header of Azure

_stores: weakref.WeakSet[FaultyStore] = weakref.WeakSet()


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


@explained
class FaultyStore:
    """A reverse proxy for an HTTP or S3 server that breaks some responses on purpose.

    Requests are forwarded with all their headers, ``Host`` included, so signatures stay valid. Connections of clients
    are kept open, and responses are held in memory whole. A redirect to another ``http://`` host leads through a
    further port of the proxy, so responses of that host are broken, too. The random choices follow ``seed`` in the
    order in which requests arrive.

    Args:
        endpoint_url: ``http://`` address of the upstream server.
        faults: what to break, and how often; may be replaced while the proxy runs.
        seed: of the random choices.

    Attributes:
        endpoint_url: address of this proxy, inside the ``with`` block.
        counts: number of responses by fault; ``well`` counts intact ones, and ``bad_gateway`` a 502 because the
            upstream server did not respond.
        requests: all requests, in order of arrival.

    Raises:
        ValueError: if ``endpoint_url`` is not an ``http://`` address.

    Example:
        >>> with FaultyStore("http://127.0.0.1:9000", Faults.storm(0.2), seed=1) as store:
        ...     storage_options = {"endpoint_url": store.endpoint_url, "key": "k", "secret": "s"}
        ...     store.script("cut_body", None, "stall")  # for the first three GETs
    """

    def __init__(self, endpoint_url: str, faults: Faults | None = None, *, seed: int = 0) -> None:
        upstream = urlsplit(endpoint_url)
        if upstream.scheme != "http" or not upstream.hostname:
            raise ValueError(f"FaultyStore: {endpoint_url!r} is not an address like 'http://127.0.0.1:9000'.")
        self.endpoint_url = ""
        check.instance_or_none("faults", faults, Faults, example="Faults.storm(0.2)")
        self.faults = faults or Faults()
        self.counts: Counter[str] = Counter()
        self.requests: list[SeenRequest] = []
        self._upstream, self._path = (upstream.hostname, upstream.port or 80), upstream.path
        self._ports: dict[Address, int] = {}
        self._random = random.Random(seed)
        self._script: deque[str | None] = deque()
        self._earlier: dict[tuple[Address, str, str, str | None], bytes] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()  # noqa: TID251  # set by `close`, which is no finalizer
        self._sockets: set[socket.socket] = set()
        self._threads: set[ForkSafeThread] = set()
        _stores.add(self)

    def script(self, *names: str | None) -> None:
        """Give the next responses exactly these faults (``None``: intact), in order of arrival; then choose randomly.

        Raises:
            ValueError: if a name is not a field of ``Faults``.
        """
        if unknown := {name for name in names if name and name not in FAULT_NAMES}:
            raise ValueError(f"FaultyStore.script: no faults {sorted(unknown)}; there are {', '.join(FAULT_NAMES)}.")
        with self._lock:
            self._script.extend(names)

    def close(self) -> None:
        """Close all connections and end all threads within 2 s, also those that stall."""
        with self._lock:
            self._closing.set()
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)  # wakes its thread
            threads = set(self._threads)
        deadline = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> FaultyStore:
        self.endpoint_url = f"http://127.0.0.1:{self._port_of(self._upstream)}{self._path}"
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def record_request(self, method: str, target: str, headers: Any) -> tuple[SeenRequest, float]:
        """Record a request, and choose its fault and a number from [0, 1) for the position of the fault."""
        path, _, query = target.partition("?")
        wanted_range = next((headers[name] for name in _RANGES if name in headers), None)
        with self._lock:
            fault, chance = None, 0.0
            if method in self.faults.methods and (self.faults.listings or not is_listing(path, query)):
                number, chance = self._random.random(), self._random.random()
                fault = self._script.popleft() if self._script else self.faults.pick(number)
            if (fault in RANGE_FAULTS and wanted_range is None) or (method == "HEAD" and fault not in BODILESS_FAULTS):
                fault = None
            conditions = headers.get("if-match"), headers.get("if-none-match")
            seen = SeenRequest(method, path, query, wanted_range, *conditions, fault)
            self.requests.append(seen)
        return seen, chance

    def count(self, what: str) -> None:
        """Count a response before its first byte is sent; not those that break because the proxy closes."""
        with self._lock:
            if not self._closing.is_set():
                self.counts[what] += 1

    def remember(self, address: Address, seen: SeenRequest, request: bytes) -> None:
        """Store a GET for ``other_answer``."""
        with self._lock:
            self._earlier[address, seen.path, seen.query, seen.range] = request
            if len(self._earlier) > _EARLIER:
                del self._earlier[next(iter(self._earlier))]

    def earlier(self, address: Address, seen: SeenRequest, chance: float) -> bytes | None:
        """Return an earlier GET of another path or range of a host."""
        with self._lock:
            own = (address, seen.path, seen.query, seen.range)
            others = [other for key, other in self._earlier.items() if key[0] == address and key != own]
        return others[int(chance * len(others))] if others else None

    def fetch(self, address: Address, method: str, request: bytes) -> Response:
        """Send a request to an upstream server; a redirect leads to this proxy, instead of its target.

        Raises:
            OSError, HTTPException: if the server cannot be reached, or does not respond.
        """
        with socket.create_connection(address, timeout=_CONNECT_S) as sock:
            sock.settimeout(None)
            self._watch(sock)
            try:
                with contextlib.suppress(ConnectionError):  # its response may contain the reason
                    sock.sendall(request)
                found = HTTPResponse(sock, method=method)
                found.begin()
                headers, body = found.getheaders(), found.read()
            finally:
                self._sockets.discard(sock)
        for index, (name, value) in enumerate(headers):
            target = urlsplit(value)
            if name.lower() == "location" and found.status // 100 == 3 and target.scheme == "http" and target.hostname:
                port = self._port_of((target.hostname, target.port or 80))
                headers[index] = name, target._replace(netloc=f"127.0.0.1:{port}").geturl()
        return Response(found.status, found.reason, headers, body)

    def _watch(self, sock: socket.socket) -> None:
        """Register a socket, so that ``close`` wakes the thread that waits for it."""
        with self._lock:
            if self._closing.is_set():
                sock.close()
                raise ConnectionAbortedError("the proxy is closed")
            self._sockets.add(sock)

    def _port_of(self, address: Address) -> int:
        """Return the port of this proxy that forwards to an upstream server."""
        with self._lock:
            if address not in self._ports:
                listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
                self._ports[address] = int(listener.getsockname()[1])
                self._start(listener, lambda sock: self._accept(sock, address))
            return self._ports[address]

    def _accept(self, listener: socket.socket, address: Address) -> None:
        store: Any = self  # in place of a server
        while not self._closing.is_set():
            with contextlib.suppress(OSError, RuntimeError):
                self._start(listener.accept()[0], lambda sock: _Handler(sock, address, store))
                continue
            self._closing.wait(_ACCEPT_AGAIN_S)  # closing, or out of descriptors or threads

    def _start(self, sock: socket.socket, serve: Callable[[socket.socket], object]) -> None:
        """Serve a socket in a thread of its own until either ends."""

        def run() -> None:
            with sock, contextlib.suppress(OSError, ValueError):  # the other side left, or does not use HTTP
                self._watch(sock)
                serve(sock)
            with self._lock:
                self._sockets.discard(sock)
                self._threads.discard(thread)

        thread = ForkSafeThread(target=run, name=f"faulty-store-{self._upstream[1]}", daemon=True)
        with self._lock:
            thread.start()  # before `close` can join it
            self._threads.add(thread)

    def close_copies(self) -> None:
        """Close a forked child's copies of the sockets: FIN and RST are sent when the last copy is closed."""
        for sock in self._sockets:  # without the lock: a thread that does not exist in the child may hold it
            with contextlib.suppress(OSError):
                os.close(sock.detach())  # files that were made of it keep a socket open


class _Handler(BaseHTTPRequestHandler):
    """Serves the requests of one client of a store, which the address responds to."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    client_address: Address
    server: Any  # the store

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # of each method
            return self._serve
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
        """Say nothing."""

    def _serve(self) -> None:
        store: FaultyStore = self.server
        seen, chance = store.record_request(self.command, self.path, self.headers)
        body, fault = self._body(), seen.fault
        if fault in WITHOUT_UPSTREAM or (fault == "changed" and seen.if_match):
            store.count(fault)
            if fault in STATUS:
                self._respond(fault)
            else:
                self._end(fault)
            return
        if fault == "stall":
            store.count(fault)
            if self._is_closed_within(store.faults.stall_s):
                return
        try:
            self._answer(store, seen, chance, body)
        except (OSError, HTTPException):
            store.count("bad_gateway")
            self._respond("bad_gateway")
            self.close_connection = True

    def _answer(self, store: FaultyStore, seen: SeenRequest, chance: float, body: bytes) -> None:
        fault = None if seen.fault == "stall" else seen.fault
        request = self._request(body)
        other = store.earlier(self.client_address, seen, chance) if fault == "other_answer" else None
        if fault == "ignored_range":
            other = self._request(body, without=_RANGES)
        response = store.fetch(self.client_address, self.command, other or request)
        if fault == "ignored_range" and response.status != 200:  # refused, because its range was signed
            response = store.fetch(self.client_address, self.command, request)
        broken = None
        if fault is not None and (fault != "other_answer" or other is not None):
            broken = break_response(fault, response, chance)
        if broken is None:
            if seen.fault != "stall":
                seen.fault = None
                store.count("well")
            if self.command == "GET" and response.status in (200, 206):
                store.remember(self.client_address, seen, request)
            with contextlib.suppress(OSError):
                self.connection.sendall(response.sent())
            return
        store.count(str(fault))
        with contextlib.suppress(OSError):
            self.connection.sendall(broken.at_once)
            for byte in broken.by_the_byte:
                if self._is_closed_within(store.faults.trickle_s):
                    return
                self.connection.sendall(bytes([byte]))
        if broken.ends == "stall_in_body" and self._is_closed_within(store.faults.stall_s):
            return
        if broken.ends:
            self._end(broken.ends)

    def _request(self, body: bytes, without: tuple[str, ...] = ()) -> bytes:
        lines = [f"{name}: {value}" for name, value in self.headers.items() if name.lower() not in without]
        return "\r\n".join([self.requestline, *lines, "", ""]).encode("latin-1") + body

    def _body(self) -> bytes:
        """Read the body of a request, with the framing of its chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body, size = b"", 1
        while size:
            line = self.rfile.readline()
            size = int(line.partition(b";")[0], 16)
            body += line + self.rfile.read(size) + self.rfile.readline()
        return body

    def _respond(self, fault: str) -> None:
        retry_after_s, has_body = self.server.faults.retry_after_s, self.command != "HEAD"
        self.connection.sendall(error_response(fault, self.headers, retry_after_s, has_body=has_body))

    def _end(self, fault: str) -> None:
        """Close the connection, by RST for some faults."""
        self.close_connection = True
        if fault in ("reset", "reset_in_body", "stall_in_body"):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()  # it keeps the socket open
            self.connection.close()

    def _is_closed_within(self, seconds: float) -> bool:
        """Wait; return ``True`` as soon as either side closes the connection."""
        ready, _, _ = select.select([self.connection], [], [], seconds)
        is_closed = bool(ready) and not self.connection.recv(1, socket.MSG_PEEK)
        self.close_connection |= is_closed
        return is_closed


def _after_fork() -> None:
    for store in _stores:
        store.close_copies()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
