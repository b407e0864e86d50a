"""A proxy that breaks some responses of a store."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from urllib.parse import urlsplit

from ..core import arguments as check
from ..core.arguments import explained
from ..core.threads import ForkSafeThread
from ._breaking import BODILESS_FAULTS, RANGE_FAULTS
from ._connection import Address, Connection, SeenRequest
from ._dialects import is_listing, range_of
from ._wire import Head, Wire
from .faults import Faults, fault_names

_BACKLOG = 1024
_CONNECT_S = 1.5  # less than _CLOSE_S: closing does not interrupt it
_CLOSE_S = 2.0
_ACCEPT_AGAIN_S = 0.01
_EARLIER = 32  # GETs that other_answer picks from


_stores: weakref.WeakSet[FaultyStore] = weakref.WeakSet()


@explained
class FaultyStore:
    """A reverse proxy for an HTTP or S3 server that breaks some responses on purpose.

    Requests are forwarded byte for byte, with their ``Host``, so signatures stay valid. Connections on both sides are
    kept open. A redirect to another ``http://`` host leads through a further port of the proxy, so responses of that
    host are broken, too. The random choices follow ``seed`` in the order in which requests arrive.

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
        self._earlier: dict[tuple[Address, str, str | None], Head] = {}
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
        unknown = {name for name in names if name is not None} - set(fault_names())
        if unknown:
            raise ValueError(f"FaultyStore.script: no faults {sorted(unknown)}; there are {', '.join(fault_names())}.")
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def record_request(self, request: Head) -> tuple[SeenRequest, float]:
        """Record a request, and choose its fault and a number from [0, 1) for the position of the fault."""
        method, (path, _, query) = request.first[0], request.first[1].partition("?")
        wanted_range = range_of(request)
        conditions = request.fields.get("if-match"), request.fields.get("if-none-match")
        with self._lock:
            fault, chance = None, 0.0
            if method in self.faults.methods and (self.faults.listings or not is_listing(path, query)):
                number, chance = self._random.random(), self._random.random()
                fault = self._script.popleft() if self._script else self.faults.pick(number)
            if (fault in RANGE_FAULTS and wanted_range is None) or (method == "HEAD" and fault not in BODILESS_FAULTS):
                fault = None
            seen = SeenRequest(method, path, query, wanted_range, *conditions, fault)
            self.requests.append(seen)
        return seen, chance

    def count(self, what: str) -> None:
        """Count a response before its first byte is sent; not those that break because the proxy closes."""
        with self._lock:
            if not self._closing.is_set():
                self.counts[what] += 1

    def remember(self, request: Head, address: Address) -> None:
        """Store the head of a GET for ``other_answer``."""
        with self._lock:
            self._earlier[address, request.first[1], range_of(request)] = request
            if len(self._earlier) > _EARLIER:
                del self._earlier[next(iter(self._earlier))]

    def earlier(self, request: Head, address: Address, chance: float) -> Head | None:
        """Return an earlier GET of another path or range of a host."""
        with self._lock:
            own = (address, request.first[1], range_of(request))
            others = [other for key, other in self._earlier.items() if key[0] == address and key != own]
        return others[int(chance * len(others))] if others else None

    def redirected(self, response: Head) -> Head:
        """Return a redirect with an address of the proxy instead of that of its target."""
        target = urlsplit(response.fields.get("location", ""))
        if response.first[1][:1] != "3" or target.scheme != "http" or not target.hostname:
            return response
        port = self._port_of((target.hostname, target.port or 80))
        return Head(response.edited({"Location": target._replace(netloc=f"127.0.0.1:{port}").geturl()}))

    def connect(self, address: Address) -> Wire:
        """Open a connection to an upstream server."""
        sock = socket.create_connection(address, timeout=_CONNECT_S)
        sock.settimeout(None)
        self._watch(sock)
        return Wire(sock)

    def disconnect(self, wire: Wire) -> None:
        """Close a connection to the upstream server."""
        wire.sock.close()
        with self._lock:
            self._sockets.discard(wire.sock)

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
        while not self._closing.is_set():
            with contextlib.suppress(OSError, RuntimeError):
                self._start(listener.accept()[0], lambda sock: Connection(self, Wire(sock), address).serve())
                continue
            self._closing.wait(_ACCEPT_AGAIN_S)  # closing, or out of descriptors or threads

    def _start(self, sock: socket.socket, serve: Callable[[socket.socket], None]) -> None:
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
            sock.close()


def _after_fork() -> None:
    for store in _stores:
        store.close_copies()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
