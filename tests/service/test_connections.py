"""Connections of the service: bodies that are cut, heads without end, clients that stall, TLS."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

import trustme
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.servers.service import Service
from tests.support.service_clients import Dataset, ask, begin, below, connect, rest
from tests.support.waiting import wait_for

GOOD = b"the good file"
HOST = b"Host: localhost\r\n"


@pytest.fixture(scope="module")
def hasty_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hasty")


@pytest.fixture(scope="module")
def hasty_service(hasty_root: Path) -> Iterator[Service]:
    """A service with short times for heads and for silence."""
    service = Service(hasty_root, "--min-free-bytes", "0", "--head-timeout", "1", "--idle-timeout", "1.5")
    try:
        yield service
    finally:
        assert service.stop() == 0


@pytest.fixture
def hasty(hasty_service: Service, hasty_root: Path) -> Dataset:
    return Dataset(hasty_service.address, root=hasty_root)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("Content-Length: 100", b"short"),
        ("Transfer-Encoding: chunked", b"5\r\nshort\r\n"),
        ("Transfer-Encoding: chunked", b"5\r\nsho"),
        ("Transfer-Encoding: chunked", b"5\r\nshort\r\nZZ\r\n"),
        ("Transfer-Encoding: chunked", b"5\r\nshort\r\n-1\r\n\r\n"),
        ("Content-Length: 5\r\nContent-Length: 6", b"short"),
        ("Content-Length: -5", b"short"),
        ("Transfer-Encoding: gzip, chunked, x", b"0\r\n\r\n"),
    ],
)
def test_a_body_that_is_cut_off_never_becomes_a_file(
    dataset: Dataset, served_root: Path, head: str, body: bytes
) -> None:
    dataset.put("a", GOOD)
    for target in ("/files/a", "/files/new", "?unpack=1"):
        with begin(dataset.address, "PUT", f"/datasets/{dataset.name}{target}", head, sent=body) as connection:
            connection.shutdown(socket.SHUT_WR)
            assert not rest(connection).startswith(b"HTTP/1.1 2")
    assert dataset.contents() == {"a": GOOD}
    work = served_root / ".torchdata_remote"
    wait_for(lambda: below(dataset.folder) == {"a"} and not [path for path in below(work) if dataset.name in path])


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_body_that_is_not_announced_never_becomes_a_file(dataset: Dataset, version: str) -> None:
    dataset.put("a", GOOD)
    for target in ("/files/a", "", "?unpack=1"):
        with connect(dataset.address) as connection:
            line = f"PUT /datasets/{dataset.name}{target} HTTP/{version}\r\n"
            connection.sendall(line.encode() + HOST + b"\r\n" + b"the new file")
            assert rest(connection).startswith(f"HTTP/{version} 411 ".encode())
    assert dataset.contents() == {"a": GOOD}


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_a_body_arrives_whole_where_the_client_proposes_another_protocol(dataset: Dataset, protocol: str) -> None:
    lines = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: AAMAAABkAAQ")
    body, target = b"x" * 100_000, f"/datasets/{dataset.name}/files/a"
    with begin(dataset.address, "PUT", target, *lines, f"Content-Length: {len(body)}", sent=body) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert dataset.get("a").body == body


def test_a_connection_is_kept_after_an_error(dataset: Dataset) -> None:
    body = b"GET /evil HTTP/1.1\r\n\r\n" * 10_000  # which is not taken for the next request
    with contextlib.closing(http.client.HTTPConnection(dataset.address, timeout=120)) as connection:
        connection.connect()
        first = connection.sock
        for path, status in [("/datasets/none/files/a", 404), ("/datasets/-/files/a", 400), ("/nothing", 404)]:
            connection.request("PUT", path, body)
            answer = connection.getresponse()
            assert (answer.status, answer.read()[:9]) == (status, b'{"error":')
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"status":"ok"}\n'
        assert connection.sock is first


def test_an_error_reaches_who_still_sends(dataset: Dataset) -> None:
    answer = ask(dataset.address, "PUT", "/datasets/none/files/a", b"x" * (32 << 20))
    assert (answer.status, "none" in answer.error) == (404, True)


# Time limits


def test_a_body_that_stalls_is_refused_and_leaves_nothing(hasty: Dataset) -> None:
    def refused(method: str, path: str, *lines: str) -> None:
        with begin(hasty.address, method, path, "Content-Length: 100", *lines, sent=b"x") as connection:
            assert rest(connection).startswith(b"HTTP/1.1 408 ")

    targets = [("PUT", f"/datasets/{hasty.name}{target}") for target in ("/files/a", "?unpack=1")]
    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(refused, *target) for target in targets]
        refused("POST", "/datasets", "Content-Type: application/json")
        for future in futures:
            future.result()
    assert below(hasty.folder) == set()


@pytest.mark.parametrize("sent", [b"", b"GE", b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\n" + HOST])
def test_a_head_that_does_not_end_ends_the_connection(hasty: Dataset, sent: bytes) -> None:
    with connect(hasty.address) as connection:
        connection.sendall(sent)
        assert rest(connection) == b""


def test_a_head_that_trickles_ends_the_connection(hasty: Dataset) -> None:
    with connect(hasty.address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.05)
        for number in range(2000):
            try:
                connection.sendall(f"X-{number % 50}: y\r\n".encode()[: 3 if number % 2 else 99])
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                return
    raise AssertionError("the head could trickle for 100 s")


def test_an_idle_connection_ends(hasty: Dataset) -> None:
    with begin(hasty.address, "GET", "/healthz") as connection:
        assert rest(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("line", [b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n" + HOST + b"Cookie: "])
def test_a_head_without_end_is_cut_off(served: str, line: bytes) -> None:
    sent = 0
    with connect(served) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(line)
        while sent < 64 << 20:
            sent += connection.send(b"a" * 65536)
    assert sent < 16 << 20


def test_a_request_has_at_most_100_headers(served: str) -> None:
    with begin(served, "GET", "/", *(f"X-{number}: y" for number in range(1000))) as connection:
        assert rest(connection).startswith(b"HTTP/1.1 431 ")
    with begin(
        served, "GET", "/healthz", *(f"X-{number}: y" for number in range(90)), "Connection: close"
    ) as connection:
        assert rest(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit, and /proc")
def test_a_reader_that_stalls_is_ended(hasty: Dataset, hasty_service: Service) -> None:
    for file in ("a", "b"):
        with open(hasty.folder / file, "wb") as opened:
            opened.truncate(256 << 20)
    whole, archive = f"/datasets/{hasty.name}/files/a", f"/datasets/{hasty.name}"
    requests = [(whole, "X: y"), (archive, "X: y"), (whole, "Range: bytes=1-")]
    connections = [begin(hasty.address, "GET", *request) for request in requests]
    for connection in connections:
        assert connection.recv(1, socket.MSG_PEEK)
    num_before = hasty_service.num_connections()
    wait_for(lambda: hasty_service.num_connections() <= num_before - len(connections))
    for connection in connections:
        with connection:
            assert len(rest(connection)) < 256 << 20


# TLS

FILES = {"a": b"a" * 10, "deep/b": b"b" * 100_000, "large": b"l" * 3_000_000}
SECURE = {"secure": True}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate, its key, that of the authority, and another key."""
    folder = tmp_path_factory.mktemp("certificate")
    made = authority.issue_cert("localhost", "127.0.0.1")
    for blob in made.cert_chain_pems:
        blob.write_to_path(folder / "chain.pem", append=True)
    made.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return folder


@pytest.fixture(scope="module")
def secured(certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    arguments = ("--certificate", str(certificate / "chain.pem"), "--key", str(certificate / "key.pem"))
    service = Service(tmp_path_factory.mktemp("secured"), *arguments, "--min-free-bytes", "0")
    try:
        yield service.address
    finally:
        assert service.stop() == 0


def test_https_answers_who_trusts_the_authority_and_nobody_without_tls(secured: str, authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with connect(secured) as plain, context.wrap_socket(plain, server_hostname="localhost") as socket_:
        socket_.sendall(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
        assert rest(socket_).endswith(b'\r\n\r\n{"status":"ok"}\n')
    with begin(secured, "GET", "/healthz") as plain:
        assert b"200" not in rest(plain)


def test_push_pull_pipes_and_fsspec_speak_https(
    secured: str, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)  # which precedes
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "authority.pem"))
    url = f"datasets://{secured}/d"
    for path, data in FILES.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_bytes(data)
    assert tdr.push(tmp_path / "source", url, storage_options=SECURE).num_files == len(FILES)
    assert tdr.pull(url, tmp_path / "pulled", storage_options=SECURE).num_files == len(FILES)
    assert {path: (tmp_path / "pulled" / path).read_bytes() for path in FILES} == FILES
    pipe = IterableWrapper([url + "/"]).list_remote(storage_options=SECURE).async_prefetch(storage_options=SECURE)
    assert {found.removeprefix(url + "/"): b"".join(stream.parts()) for found, stream in pipe} == FILES
    with fsspec.open(f"{url}/a", secure=True) as file:
        assert file.read() == FILES["a"]
