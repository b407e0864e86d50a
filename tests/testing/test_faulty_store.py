"""``tdr.testing.FaultyStore``: a store that fails on purpose, and the bytes of each of its faults."""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import wait_for
from torchdata_remote.testing import Faults, FaultyStore

BODY = random.Random(7).randbytes(50_000)
OTHER = b"another object"
RANGE = {"Range": "bytes=1000-1999"}
NAMES = [field.name for field in fields(Faults) if field.type == "float" and not field.name.endswith("_s")]


class Store(BaseHTTPRequestHandler):
    """A sound server that keeps its connections open."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:  # http.server's name
        self.server.seen.append((self.command, self.path, self.headers.as_string()))
        body = self.server.objects.get(self.path)
        if self.path.startswith("/chunked"):
            self.answer(
                200, {"Transfer-Encoding": "chunked"}, b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: t\r\n\r\n"
            )
        elif body is None:
            self.answer(404, {"Content-Length": "7"}, b"missing")
        elif "Range" in self.headers:
            start, end = (int(number) for number in self.headers["Range"].removeprefix("bytes=").split("-"))
            part = body[start : end + 1]
            named = f"bytes {start}-{start + len(part) - 1}/{len(body)}"
            self.answer(206, {"Content-Length": str(len(part)), "Content-Range": named, "ETag": '"real"'}, part)
        else:
            self.answer(200, {"Content-Length": str(len(body)), "ETag": '"real"'}, body)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        self.server.seen.append((self.command, self.path, self.headers.as_string()))
        self.server.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, {"Content-Length": "0"}, b"")

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
        """Say nothing."""


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Store)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.objects = {"/b/k": BODY, "/b/other": OTHER, "/b/empty": b"", "/b/byte": b"x"}
        self.seen: list[tuple[str, str, str]] = []
        self.connections = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def upstream() -> Iterator[Server]:
    """The upstream server of this module."""
    with running_server() as server:
        yield server


@pytest.fixture
def store(upstream: Server) -> Iterator[FaultyStore]:
    """A faulty store without faults, until a test scripts some."""
    with FaultyStore(upstream.url, Faults(stall_s=0.1, trickle_s=0.001)) as store:
        yield store


def connect(store: FaultyStore, *, timeout_s: float | None = 20) -> socket.socket:
    parts = urlsplit(store.endpoint_url)
    return socket.create_connection((parts.hostname, parts.port), timeout=timeout_s)


def ask(path: str = "/b/k", *, method: str = "GET", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: signed.example", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).replace("If_Match", "If-Match").encode()


def on_the_wire(store: FaultyStore, path: str = "/b/k", *, method: str = "GET", **headers: str) -> tuple[bytes, str]:
    """Every byte of the answer on a connection that the client wants closed, and how it ended."""
    received = b""
    with connect(store) as sock:
        sock.sendall(ask(path, method=method, Connection="close", **headers))
        try:
            while piece := sock.recv(1 << 16):
                received += piece
        except ConnectionResetError:
            return received, "RST"
    return received, "FIN"


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by names in lower case, and the bytes after the head."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    named = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert len(named) == len(lines), "a header is repeated"
    return int(first.split()[1]), named, body


def broken(
    store: FaultyStore, fault: str, path: str = "/b/k", **headers: str
) -> tuple[int, dict[str, str], bytes, str]:
    """Status, headers, body and end of the answer to one GET with a scripted fault, which is counted and recorded."""
    store.script(fault)
    answer, end = on_the_wire(store, path, **headers)
    assert store.counts == {fault: 1}
    assert [request.fault for request in store.requests] == [fault]
    return *split(answer), end


@pytest.mark.parametrize(
    ("fault", "status", "code"), [("slow_down", 503, b"SlowDown"), ("internal_error", 500, b"InternalError")]
)
def test_503_and_500_have_s3s_xml_and_do_not_reach_the_server(
    store: FaultyStore, upstream: Server, fault: str, status: int, code: bytes
) -> None:
    upstream.seen.clear()
    found, headers, body, _ = broken(store, fault)
    assert (found, int(headers["content-length"]), upstream.seen) == (status, len(body), [])
    assert b"<Code>%b</Code>" % code in body


@pytest.mark.parametrize(
    ("fault", "end"),
    [("reset", "RST"), ("early_end", "FIN"), ("reset_in_body", "RST"), ("cut_body", "FIN"), ("stall_in_body", "RST")],
)
def test_a_cut_answer_ends_by_fin_or_rst_before_the_first_byte_or_in_the_body(
    store: FaultyStore, fault: str, end: str
) -> None:
    if fault in ("reset", "early_end"):
        store.script(fault)
        assert on_the_wire(store) == (b"", end)
        assert store.counts == {fault: 1}
        return
    status, headers, body, ended = broken(store, fault)
    assert (status, int(headers["content-length"]), ended) == (200, len(BODY), end)
    assert len(body) < len(BODY)
    assert BODY.startswith(body)


def test_cut_without_length_looks_complete(store: FaultyStore) -> None:
    """No length, no chunks, FIN: the client cannot detect that half is missing."""
    status, headers, body, end = broken(store, "cut_without_length", **RANGE)
    assert (status, end, headers["connection"]) == (206, "FIN", "close")
    assert not {"content-length", "transfer-encoding"} & set(headers)
    assert BODY[1000:2000].startswith(body)
    assert len(body) < 1000


def test_ignored_range_sends_the_whole_object(store: FaultyStore) -> None:
    """A 200 with all bytes."""
    status, headers, body, _ = broken(store, "ignored_range", **RANGE)
    assert (status, body) == (200, BODY)
    assert "content-range" not in headers


@given(seed=st.integers(0, 2**32), start=st.integers(0, 49_999), length=st.integers(1, 50_000))
def test_shifted_range_has_another_start(upstream: Server, seed: int, start: int, length: int) -> None:
    """As many bytes as requested; the start is never the right one, whatever the range."""
    with FaultyStore(upstream.url, Faults(shifted_range=1), seed=seed) as store:
        status, headers, body = split(on_the_wire(store, Range=f"bytes={start}-{start + length - 1}")[0])
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers["content-range"])
    assert found is not None
    there, last, total = map(int, found.groups())
    assert (status, body) == (206, BODY[start : start + length])
    assert there != start
    assert there + len(body) == last + 1 <= total


def test_other_answer_is_the_response_to_an_earlier_get(store: FaultyStore) -> None:
    """Of another path, or of another range of the object; intact if there was no such request."""
    store.script("other_answer", "other_answer", "other_answer")
    assert split(on_the_wire(store)[0])[2] == BODY
    assert split(on_the_wire(store, "/b/other")[0])[2] == BODY
    assert split(on_the_wire(store, **RANGE)[0])[2] == BODY
    assert [request.fault for request in store.requests] == [None, "other_answer", "other_answer"]
    assert store.counts == {"well": 1, "other_answer": 2}


def test_doubled_sends_a_response_twice_and_keeps_the_connection(store: FaultyStore) -> None:
    """A client takes the second copy for the response to its next request."""
    store.script("doubled")
    with connect(store) as sock, sock.makefile("rb") as stream:
        sock.sendall(ask("/b/other"))
        copies = []
        for _ in range(2):
            head = b"".join(iter(stream.readline, b"\r\n"))
            copies.append((head, stream.read(len(OTHER))))
        assert copies[0] == copies[1]
        assert copies[0][1] == OTHER
        sock.sendall(ask("/b/k", Connection="close"))
        assert split(stream.read())[2] == BODY


@pytest.mark.parametrize("fault", ["stall", "trickle"])
def test_a_slow_answer_is_complete_in_the_end(store: FaultyStore, fault: str) -> None:
    status, headers, body, end = broken(store, fault, "/b/other")
    assert (status, int(headers["content-length"]), body, end) == (200, len(OTHER), OTHER, "FIN")


def test_changed_has_another_etag(store: FaultyStore) -> None:
    """The body is intact."""
    status, headers, body, _ = broken(store, "changed")
    assert (status, body) == (200, BODY)
    assert re.fullmatch('"[0-9a-f]{32}"', headers["etag"])


def test_flipped_bit_inverts_one_bit_of_the_body(store: FaultyStore) -> None:
    """Nothing else differs."""
    _, _, body, _ = broken(store, "flipped_bit", **RANGE)
    assert (int.from_bytes(body, "big") ^ int.from_bytes(BODY[1000:2000], "big")).bit_count() == 1


@pytest.mark.parametrize(
    ("fault", "path", "headers"),
    [
        ("short_range", "/b/k", {}),
        ("ignored_range", "/b/k", {}),
        ("shifted_range", "/b/k", {}),
        ("short_range", "/b/byte", {"Range": "bytes=0-0"}),
        ("cut_body", "/b/empty", {}),
        ("flipped_bit", "/missing", {}),
        ("trickle", "/missing", {}),
    ],
)
def test_an_impossible_fault_leaves_the_response_intact(
    store: FaultyStore, fault: str, path: str, headers: dict[str, str]
) -> None:
    """The response is counted as intact."""
    sound = split(on_the_wire(store, path, **headers)[0])
    store.script(fault)
    again = split(on_the_wire(store, path, **headers)[0])
    assert (again[0], again[2]) == (sound[0], sound[2])
    assert store.counts == {"well": 2}
    assert [request.fault for request in store.requests] == [None, None]


@pytest.mark.parametrize("fault", NAMES)
def test_probability_1_breaks_every_response(upstream: Server, fault: str) -> None:
    """Every GET that can have the fault has it."""
    certain: dict[str, Any] = {fault: 1.0}
    with FaultyStore(upstream.url, Faults(**certain, stall_s=0.01, trickle_s=0.0001)) as store:
        store.script(None)  # an earlier answer
        for path in ("/b/other", "/b/k", "/b/k"):
            on_the_wire(store, path, Range="bytes=0-9")
        assert store.counts == {"well": 1, fault: 2}


def run(upstream: Server, seed: int) -> list[tuple[bytes, str]]:
    faults = Faults(reset=0.2, cut_body=0.2, flipped_bit=0.2, slow_down=0.1, changed=0.1)
    with FaultyStore(upstream.url, faults, seed=seed) as store:
        answers = [on_the_wire(store, **RANGE) for _ in range(20)]
        assert sum(store.counts.values()) == len(store.requests) == 20
    return [(re.sub(rb"Date: [^\r]*", b"", answer), end) for answer, end in answers]


def test_a_seed_determines_all_faults(upstream: Server) -> None:
    """Also the bit that is inverted."""
    assert run(upstream, 3) == run(upstream, 3) != run(upstream, 4)


def test_a_script_applies_in_order_of_arrival_and_then_faults_are_random(store: FaultyStore) -> None:
    """``None`` is an intact response; requests of other methods do not use up the script."""
    store.faults = Faults(internal_error=1)
    store.script("slow_down", None, "changed")
    kinds = [("GET", "/b/k"), ("HEAD", "/b/k"), ("GET", "/?list-type=2"), ("GET", "/b/k"), ("GET", "/b/k")]
    for method, path in [*kinds, ("GET", "/b/k")]:
        on_the_wire(store, path, method=method)
    assert [request.fault for request in store.requests] == ["slow_down", None, None, None, "changed", "internal_error"]
    assert store.counts == {"slow_down": 1, "well": 3, "changed": 1, "internal_error": 1}


def test_requests_are_forwarded_with_all_their_headers(store: FaultyStore, upstream: Server) -> None:
    """Order and case of the headers, and Host, are the client's, so signatures stay valid."""
    on_the_wire(store, "/b/k?a=%2F&b", **{"X-Amz-b": "2", "x-AMZ-a": "  1"})
    lines = upstream.seen[-1][2]
    assert upstream.seen[-1][1] == "/b/k?a=%2F&b"
    assert lines.split() == ["Host:", "signed.example", "Connection:", "close", "X-Amz-b:", "2", "x-AMZ-a:", "1"]


@pytest.mark.parametrize("fault", [None, "changed"])
def test_chunked_responses_are_sent_with_a_length(store: FaultyStore, fault: str | None) -> None:
    store.script(fault)
    _, headers, body = split(on_the_wire(store, "/chunked")[0])
    assert (headers["content-length"], body) == ("11", b"hello world")
    assert "transfer-encoding" not in headers


def test_uploads_are_forwarded(store: FaultyStore, upstream: Server) -> None:
    """Bodies end where the next request starts."""
    upload = random.Random(1).randbytes(3_000_000)
    client = http.client.HTTPConnection(store.endpoint_url.removeprefix("http://"), timeout=20)
    for _ in range(2):
        client.request("PUT", "/b/new", body=upload)
        assert client.getresponse().read() == b""
    client.request("GET", "/b/new")
    assert client.getresponse().read() == upload == upstream.objects.pop("/b/new")
    client.close()
    assert store.counts == {"well": 3}


def test_an_unreachable_upstream_server_is_a_502_that_is_counted_apart_from_faults() -> None:
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        with FaultyStore(f"http://127.0.0.1:{refusing.getsockname()[1]}") as store:
            assert split(on_the_wire(store)[0])[0] == 502
            assert store.counts == {"bad_gateway": 1}


@pytest.mark.parametrize("fault", [None, "stall", "stall_in_body", "trickle"])
def test_close_ends_all_threads_and_connections(upstream: Server, fault: str | None) -> None:
    """Also those that stall, trickle or wait for the next request."""
    before = set(threading.enumerate())
    with FaultyStore(upstream.url, Faults(stall_s=1000, trickle_s=1000)) as store:
        store.script(*[fault] * 5)
        clients = [connect(store, timeout_s=60) for _ in range(5)]
        for client in clients:
            client.sendall(ask())
        wait_for(lambda: sum(store.counts.values()) == 5)
    proxied = {thread for thread in threading.enumerate() if thread.name.startswith("faulty-store")}
    assert not proxied - before
    for client in clients:
        with client, contextlib.suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass
