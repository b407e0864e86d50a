"""One client of the faulty store, and the connection to the server behind that belongs to it."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ._breaking import INSTEAD, Broken, Then, broken_answer, error_answer, joined, status_line
from ._wire import Head, Wire
from .faults import Faults

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass
class SeenRequest:
    """A request as it arrived: path and query percent-encoded; ``fault`` is ``None`` if its answer was sound."""

    method: str
    path: str
    query: str
    range: str | None
    if_match: str | None
    fault: str | None


class Host(Protocol):
    """What a connection needs of the store that it belongs to."""

    faults: Faults

    def arrived(self, request: Head) -> tuple[SeenRequest, float]:
        """Note a request; what becomes of its answer, and a number from [0, 1)."""

    def count(self, what: str) -> None:
        """Count an answer."""

    def remember(self, request: Head) -> None:
        """Keep the head of a GET."""

    def earlier(self, request: Head, chance: float) -> Head | None:
        """A GET that was remembered."""

    def connect(self) -> Wire:
        """A connection to the server behind."""

    def hang_up(self, wire: Wire) -> None:
        """Close one."""


class _BehindError(Exception):
    """The server behind cannot be reached, or broke off before its answer."""


@contextlib.contextmanager
def _behind() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise _BehindError from error


class Connection:
    """Answers the requests of one client, one after the other."""

    def __init__(self, store: Host, client: Wire) -> None:
        self._store = store
        self._client = client
        self._server: Wire | None = None
        self._has_unread = False  # the server behind answered before it had the whole request

    def serve(self) -> None:
        """Answer until one side leaves or a fault ends the connection."""
        try:
            while (request := self._client.head()) is not None and self._answer(request):
                pass
        except _BehindError:
            self._store.count("bad_gateway")
            self._client.sock.sendall(
                error_answer("bad_gateway", with_body=request is not None and _may_have_body(request))
            )
            self._client.end_gently()
        finally:
            self._hang_up()

    def _answer(self, request: Head) -> bool:
        """Answer one request; whether the connection goes on."""
        seen, chance = self._store.arrived(request)
        fault = seen.fault
        if fault in ("slow_down", "internal_error", "reset", "early_end") or (fault == "changed" and seen.if_match):
            return self._answer_instead(fault, request)
        if fault == "stall":
            self._store.count(fault)
            return not self._client.left_within(self._store.faults.stall_s) and self._pass_on(request)
        if fault is None:
            return self._pass_on(request, "well")
        return self._break(fault, request, seen, chance)

    def _answer_instead(self, fault: str, request: Head) -> bool:
        """Answer without asking the server behind, once the request is read."""
        if "100-continue" in request.fields.get("expect", "") and not self._client.held:
            self._client.sock.sendall(_CONTINUE)
        for _ in self._request_body(request):
            pass
        self._store.count(fault)
        if fault in INSTEAD:
            self._client.sock.sendall(error_answer(fault, with_body=_may_have_body(request)))
            return request.goes_on
        if fault == "reset":
            self._client.reset()
        return False

    def _pass_on(self, request: Head, what: str | None = None) -> bool:
        """Send the answer on by the piece, and count it as ``what``."""
        answer = self._ask(request)
        if what is not None:
            self._store.count(what)
        body = self._answer_body(request, answer)
        has_end = body is None or answer.is_chunked or answer.length is not None
        connection = None if has_end else "close"
        head = answer.edited({"Connection": connection, "Keep-Alive": None}, first=status_line(answer))
        self._client.send(head, body or iter(()))
        if request.first[0] == "GET" and answer.status in (200, 206):
            self._store.remember(request)
        return self._goes_on(request, answer, has_end=has_end)

    def _break(self, fault: str, request: Head, seen: SeenRequest, chance: float) -> bool:
        """Read the whole answer and send it broken."""
        asked = self._store.earlier(request, chance) if fault == "other_answer" else request
        if asked is None:  # there was none before
            seen.fault = None
            return self._pass_on(request, "well")
        if fault == "ignored_range":
            answer, body = self._whole(Head(request.edited({"Range": None})))
            if answer.status != 200:
                answer, body = self._whole(request)
        else:
            answer, body = self._whole(asked)
        broken = broken_answer(fault, answer, body, chance)
        if broken is None:
            seen.fault = None
            broken = Broken(joined(answer, body))
        self._store.count(seen.fault or "well")
        return self._send_broken(broken) and self._goes_on(request, answer, has_end=True)

    def _send_broken(self, broken: Broken) -> bool:
        """Send an answer and what follows it; whether the connection may go on."""
        faults = self._store.faults
        self._client.sock.sendall(broken.at_once)
        for byte in broken.by_the_byte:
            if self._client.left_within(faults.trickle_s):
                return False
            self._client.sock.sendall(bytes([byte]))
        if broken.then is Then.STALL_AND_RESET and self._client.left_within(faults.stall_s):
            return False
        if broken.then in (Then.RESET, Then.STALL_AND_RESET):
            self._client.reset()
        return broken.then is Then.GO_ON

    def _whole(self, request: Head) -> tuple[Head, bytes]:
        answer = self._ask(request)
        with _behind():
            body = b"".join(bytes(piece) for piece in self._answer_body(request, answer, framed=False) or ())
        if not answer.goes_on or (answer.length is None and not answer.is_chunked):
            self._hang_up()
        return answer, body

    def _ask(self, request: Head) -> Head:
        """Send a request on and read the head of the answer."""
        has_body = request.is_chunked or request.length
        if self._server is not None and request.first[0] in ("GET", "HEAD") and not has_body:
            with contextlib.suppress(_BehindError):  # a connection that was kept may have ended by now
                return self._ask_once(request)
            self._hang_up()
        return self._ask_once(request)

    def _ask_once(self, request: Head) -> Head:
        if self._server is not None and self._server.is_stale():
            self._hang_up()
        with _behind():
            server = self._server = self._server or self._store.connect()
            server.sock.sendall(request.raw)
        if "100-continue" in request.fields.get("expect", "") and self._server_is_first(server):
            answer = self._server_head(server)
            if answer.status != 100:
                self._has_unread = True
                return answer
            self._client.sock.sendall(answer.raw)
        for piece in self._request_body(request):
            if not server.takes(piece):  # perhaps its answer says why
                self._has_unread = True
                break
        while (answer := self._server_head(server)).status < 200:
            self._client.sock.sendall(answer.raw)
        return answer

    def _server_is_first(self, server: Wire) -> bool:
        """Wait for either side: some servers never send 100, and clients then send their body unasked."""
        with selectors.DefaultSelector() as selector:
            for wire in (server, self._client):
                selector.register(wire.sock, selectors.EVENT_READ)
            ready = [] if self._client.held else selector.select()
        return any(key.fileobj is server.sock for key, _ in ready)

    def _server_head(self, server: Wire) -> Head:
        with _behind():
            answer = server.head()
            if answer is None:
                raise ConnectionError("the server behind ended the connection without an answer")
            return answer

    def _request_body(self, request: Head) -> Iterator[memoryview]:
        return self._client.body(request) if request.is_chunked or request.length else iter(())

    def _answer_body(self, request: Head, answer: Head, *, framed: bool = True) -> Iterator[memoryview] | None:
        assert self._server is not None
        has_body = _may_have_body(request) and answer.status not in (204, 304)
        return self._server.body(answer, framed=framed) if has_body else None

    def _goes_on(self, request: Head, answer: Head, *, has_end: bool) -> bool:
        """After an answer: whether the client's connection goes on; the server's ends where it said so."""
        if not (answer.goes_on and has_end):
            self._hang_up()
        if self._has_unread:
            self._client.end_gently()
        return request.goes_on and has_end and not self._has_unread

    def _hang_up(self) -> None:
        if self._server is not None:
            self._store.hang_up(self._server)
            self._server = None


def _may_have_body(request: Head) -> bool:
    return request.first[0] != "HEAD"
