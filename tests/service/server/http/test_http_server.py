"""What reaches the application of a connection, and which connections end: a real service, plain sockets."""

from __future__ import annotations

import json
import random
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

import trustme

from tests.servers.service import Service, running_service
from tests.support.service_clients import ask, new_dataset
from torchdata_remote.errors import ServiceError
from torchdata_remote.service.server.http.http_server import Certificate
from torchdata_remote.service.server.http.preconditions import content_range
from torchdata_remote.service.server.run import require_certificate

HEAD_TIMEOUT_S = 0.5
HOST = b"Host: localhost\r\n"
GOOD = b"the good file"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    """A service with a short time for heads."""
    options = ("--min-free-bytes", "0", "--head-timeout", str(HEAD_TIMEOUT_S), "--idle-timeout", "1")
    with running_service(root, *options) as found:
        yield found


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def rest(connection: socket.socket) -> bytes:
    """All bytes until the service ends the connection."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


@pytest.fixture
def stored(address: str) -> str:
    """The path of a good file."""
    path = f"/datasets/{new_dataset(address)}/files/a"
    assert ask(address, "PUT", path, GOOD)[0] == 200
    return path


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Length: 100\r\n", b"short"),
        (b"Transfer-Encoding: chunked\r\n", b"5\r\nshort\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"5\r\nsho"),
        (b"Transfer-Encoding: chunked\r\n", b"5\r\nshort\r\nZZ\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"5\r\nshort\r\n-1\r\n\r\n"),
        (b"Content-Length: 5\r\nContent-Length: 6\r\n", b"short"),
        (b"Content-Length: -5\r\n", b"short"),
        (b"Transfer-Encoding: gzip, chunked, x\r\n", b"0\r\n\r\n"),
    ],
)
def test_a_body_that_is_cut_off_never_becomes_a_file(address: str, stored: str, head: bytes, body: bytes) -> None:
    """Neither a new one, nor in the place of a good one."""
    for path in (stored, f"{stored}-new"):
        with connect(address) as connection:
            connection.sendall(f"PUT {path} HTTP/1.1\r\n".encode() + HOST + head + b"\r\n" + body)
            connection.shutdown(socket.SHUT_WR)
            assert not rest(connection).startswith(b"HTTP/1.1 2")
    assert ask(address, "GET", stored)[1] == GOOD
    assert ask(address, "GET", f"{stored}-new")[0] == 404


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"TLS/1.3", b"x"])
def test_a_body_arrives_whole_where_the_client_proposes_another_protocol(
    address: str, stored: str, protocol: bytes
) -> None:
    """As curl --http2 and Java do, whose empty files once replaced good ones."""
    body = b"x" * 100_000
    head = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + b"\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"
    with connect(address) as connection:
        connection.sendall(
            f"PUT {stored} HTTP/1.1\r\nContent-Length: {len(body)}\r\n".encode() + HOST + head + b"\r\n" + body
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert ask(address, "GET", stored)[1] == body


@pytest.mark.parametrize("sent", [b"", b"GE", b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\n" + HOST])
def test_a_head_that_does_not_end_ends_the_connection(address: str, sent: bytes) -> None:
    began_s = time.monotonic()
    with connect(address) as connection:
        connection.sendall(sent)
        assert rest(connection) == b""
    assert HEAD_TIMEOUT_S * 0.9 < time.monotonic() - began_s < 30


def test_a_head_that_trickles_ends_the_connection(address: str) -> None:
    """The time counts for all of the head."""
    with connect(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.05)
        for number in range(1000):
            try:
                connection.sendall(f"X-{number}: y\r\n".encode())
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                return
    raise AssertionError("the head could trickle for 50 s")


def test_an_idle_connection_ends(address: str) -> None:
    with connect(address) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("line", [b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n" + HOST + b"Cookie: "])
def test_a_head_without_end_is_cut_off(address: str, line: bytes) -> None:
    """Long before 64 MiB."""
    sent = 0
    with connect(address) as connection:
        try:
            connection.sendall(line)
            while sent < 64 << 20:
                sent += connection.send(b"a" * 65536)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 16 << 20
    assert ask(address, "GET", "/healthz")[0] == 200


def test_many_headers_are_refused(address: str) -> None:
    with connect(address) as connection:
        lines = b"".join(b"X-%d: y\r\n" % number for number in range(1000))
        connection.sendall(b"GET / HTTP/1.1\r\n" + HOST + lines + b"\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 431 ")


def test_a_reader_that_stalls_is_ended(address: str, root: Path) -> None:
    """Of a file, a range and an archive; the service closes the file that it was sending."""
    name = new_dataset(address)
    for file in ("a", "b"):
        with open(root / name / file, "wb") as opened:
            opened.truncate(256 << 20)
    requests = [f"/datasets/{name}/files/a", f"/datasets/{name}"]
    connections = []
    for path in requests:
        connection = connect(address)
        connection.sendall(f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        connections.append(connection)
    connection = connect(address)
    connection.sendall(f"GET {requests[0]} HTTP/1.1\r\nRange: bytes=1-\r\n".encode() + HOST + b"\r\n")
    connections.append(connection)
    deadline_s = time.monotonic() + 30
    while number_in_flight(address) > 1:  # this request
        assert time.monotonic() < deadline_s
    for connection in connections:
        with connection:
            assert len(rest(connection)) < 256 << 20


@pytest.mark.parametrize("wanted", [None, "bytes=0-", "bytes=0-2999999", "bytes=0-2999998", "bytes=1-", "bytes=-1"])
def test_all_of_a_large_file_and_ranges_of_it(address: str, root: Path, wanted: str | None) -> None:
    """Whether the HTTP server sends the file by itself or not."""
    name, data = new_dataset(address), random.Random(0).randbytes(3_000_000)
    (root / name / "a").write_bytes(data)
    headers = {} if wanted is None else {"Range": wanted}
    status, body, found = ask(address, "GET", f"/datasets/{name}/files/a", headers=headers)
    assert (status, len(body)) == (200 if wanted is None else 206, int(found["Content-Length"]))
    start, end = (0, 3_000_000) if wanted is None else content_range(found["Content-Range"])[:2]
    assert body == data[start:end]


def number_in_flight(address: str) -> int:
    lines = ask(address, "GET", "/metrics")[1].decode().splitlines()
    return int(float(next(line for line in lines if "in_flight " in line and not line.startswith("#")).split()[1]))


def test_an_error_reaches_who_still_sends(address: str) -> None:
    """The rest of the body is read before the answer: otherwise the connection would be reset."""
    body = b"x" * (32 << 20)
    status, text, _ = ask(address, "PUT", "/datasets/none/files/a", body)
    assert status == 404
    assert "none" in json.loads(text)["error"]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    folder = tmp_path_factory.mktemp("certificate")
    made = authority.issue_cert("localhost", "127.0.0.1")
    chain, key = folder / "chain.pem", folder / "key.pem"
    for blob in made.cert_chain_pems:
        blob.write_to_path(chain, append=True)
    made.private_key_pem.write_to_path(key)
    return Certificate(str(chain), str(key))


def test_https(authority: trustme.CA, certificate: Certificate, tmp_path: Path) -> None:
    """A client that trusts the authority reads; one that speaks http gets nothing."""
    arguments = ("--certificate", certificate.certificate, "--key", certificate.key, "--min-free-bytes", "0")
    service = Service(tmp_path, *arguments)
    try:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "a").write_bytes(GOOD)
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with connect(service.address) as plain, context.wrap_socket(plain, server_hostname="localhost") as secured:
            secured.sendall(b"GET /datasets/d/files/a HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
            assert rest(secured).endswith(b"\r\n\r\n" + GOOD)
        with connect(service.address) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
            assert b"200" not in rest(plain)
    finally:
        assert service.stop() == 0


def test_a_certificate_that_cannot_be_used_is_an_error_at_the_start(certificate: Certificate, tmp_path: Path) -> None:
    """It names the files: missing ones, no PEM, the key of another certificate."""
    other = tmp_path / "other.pem"
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(other)
    (tmp_path / "text").write_text("no PEM")
    require_certificate(certificate)
    for wrong in [
        Certificate(certificate.certificate, str(other)),
        Certificate(str(tmp_path / "text"), certificate.key),
        Certificate(certificate.certificate, str(tmp_path / "missing")),
    ]:
        with pytest.raises(ServiceError, match="PEM") as raised:
            require_certificate(wrong)
        assert wrong.key in str(raised.value)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_body_that_is_not_announced_never_becomes_a_file(address: str, stored: str, version: str) -> None:
    """A client of HTTP/1.0 that ends its body by closing had the file replaced by an empty one."""
    for path in (stored, stored.rpartition("/files/")[0]):
        with connect(address) as connection:
            connection.sendall(f"PUT {path} HTTP/{version}\r\n".encode() + HOST + b"\r\n" + b"the new file")
            assert rest(connection).startswith(f"HTTP/{version} 411 ".encode())
    assert ask(address, "GET", stored)[1] == GOOD
