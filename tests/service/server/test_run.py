"""The service as a process: how it starts, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.servers.service import Service, running_service
from tests.service.clients import ask, below, new_dataset
from torchdata_remote.errors import ServiceError
from torchdata_remote.service.server.run import read_token

OK = b"HTTP/1.1 200 "


def begin_put(address: str, path: str, length: int, sent: bytes) -> socket.socket:
    """A connection on which a body has begun."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
    connection.sendall(head.encode())
    assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")  # it takes the body now
    connection.sendall(sent)
    return connection


def all_of(connection: socket.socket) -> bytes:
    """What comes until the other side ends."""
    said = b""
    while piece := connection.recv(65536):
        said += piece
    return said


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """SIGTERM: status 0. Ctrl-C: as shells tell of it."""
    for told in (signal.SIGTERM, signal.SIGINT):
        service = Service(tmp_path)
        service.process.send_signal(told)
        assert service.process.wait(60) == (0 if told == signal.SIGTERM else 130)


def test_a_request_that_is_under_way_is_finished(tmp_path: Path) -> None:
    """SIGTERM in the middle of an upload: it is stored and answered, and then the service ends."""
    service = Service(tmp_path, "--min-free-bytes", "0")
    name = new_dataset(service.address)
    with begin_put(service.address, f"/datasets/{name}/files/a", 10, b"12345") as connection:
        service.process.terminate()
        connection.sendall(b"67890")
        assert all_of(connection).startswith(OK)
    assert service.stop() == 0
    assert (tmp_path / name / "a").read_bytes() == b"1234567890"


def test_a_client_that_goes_away_leaves_nothing(tmp_path: Path) -> None:
    """What was half sent is removed."""
    with running_service(tmp_path, "--min-free-bytes", "0") as address:
        name = new_dataset(address)
        for target in (f"/{name}/files/a", f"/{name}", f"/{name}?unpack=1"):
            begin_put(address, f"/datasets{target}", 10_000_000, b"x" * 100).close()
        status = 0
        while status != 200 or below(tmp_path) != set():  # it notices in its own time; the test's limit is pytest's
            status = ask(address, "GET", "/healthz")[0]
        assert json.loads(ask(address, "GET", f"/datasets/{name}/files")[1])["files"] == []


def test_a_body_that_stands_still(tmp_path: Path) -> None:
    """408 after the chosen time, the connection ends, and nothing is left."""
    with running_service(tmp_path, "--min-free-bytes", "0", "--idle-timeout", "0.3") as address:
        name = new_dataset(address)
        for target in (f"/datasets/{name}/files/a", f"/datasets/{name}", f"/datasets/{name}?unpack=1"):
            with begin_put(address, target, 100, b"x") as connection:
                assert all_of(connection).startswith(b"HTTP/1.1 408 ")
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(
                b"POST /datasets HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 9\r\n\r\n"
            )
            assert all_of(connection).startswith(b"HTTP/1.1 408 ")
        assert below(tmp_path) == set()


def test_a_connection_goes_on_after_an_error(served: str) -> None:
    """Also one with a body that nobody took: what follows it is the next request."""
    body = b"GET /evil HTTP/1.1\r\n\r\n" * 10_000
    with contextlib.closing(http.client.HTTPConnection(served, timeout=60)) as connection:
        connection.connect()
        first = connection.sock
        for path, status in [("/datasets/none/files/a", 404), ("/datasets/-/files/a", 400), ("/nothing", 404)]:
            connection.request("PUT", path, body)
            answer = connection.getresponse()
            assert answer.status == status
            assert set(json.loads(answer.read())) == {"error"}
        connection.request("GET", "/healthz")
        assert json.loads(connection.getresponse().read()) == {"status": "ok"}
        assert connection.sock is first


def refused(*arguments: str) -> str:
    """What a service that cannot be started says."""
    command = [sys.executable, "-m", "torchdata_remote.cli", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout == ""
    return done.stderr


def test_no_token_for_others(tmp_path: Path) -> None:
    """An address that others reach needs a token."""
    for host in ("0.0.0.0", "::", "10.1.2.3"):
        assert "--token-file" in refused("--root", str(tmp_path), "--host", host, "--port", "0")


def test_a_root_is_served_once(tmp_path: Path) -> None:
    """A second service on it is refused, since it would remove what the first one is writing."""
    with running_service(tmp_path) as address:
        assert "served by another process" in refused("--root", str(tmp_path), "--port", "0")
        assert ask(address, "GET", "/healthz")[0] == 200
    with running_service(tmp_path) as address:
        assert ask(address, "GET", "/healthz")[0] == 200


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """The error says which."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in refused("--root", str(tmp_path), "--port", port)


@pytest.mark.parametrize(
    "text", ["", "short", " \n", "0123456789abcde", "0123456789ab\ncdef", "ä" * 16, "0" * 15 + "\0"]
)
def test_tokens_that_are_none(tmp_path: Path, text: str) -> None:
    """Those that are short, or that no header can have."""
    (tmp_path / "token").write_text(text)
    with pytest.raises(ServiceError, match="16 printable"):
        read_token(str(tmp_path / "token"))


def test_the_token_in_a_file(tmp_path: Path) -> None:
    """Without the line's end; a file that is not there, or no text, is an error that names it."""
    (tmp_path / "token").write_text(" 0123456789abcdef\n")
    assert read_token(str(tmp_path / "token")) == "0123456789abcdef"
    (tmp_path / "binary").write_bytes(os.urandom(20) + b"\xff")
    for name in ("binary", "missing"):
        assert name in refused("--root", str(tmp_path), "--port", "0", "--token-file", str(tmp_path / name))


def test_roots_that_cannot_be(tmp_path: Path) -> None:
    """A file, and a place that cannot be written to."""
    (tmp_path / "file").write_bytes(b"")
    assert "file" in refused("--root", str(tmp_path / "file"), "--port", "0")
    assert "http" in refused("--root", "http://localhost/x", "--port", "0")


def test_what_a_killed_service_left_is_removed(tmp_path: Path) -> None:
    """SIGKILL in the middle of uploads: the next one starts with what was complete, and nothing else."""
    service = Service(tmp_path, "--min-free-bytes", "0")
    name = new_dataset(service.address)
    assert ask(service.address, "PUT", f"/datasets/{name}/files/whole", b"1")[0] == 200
    targets = [f"/{name}/files/deep/a", f"/{name}", f"/{name}?unpack=1"]
    connections = [begin_put(service.address, f"/datasets{target}", 100, b"x") for target in targets]
    service.kill()
    for connection in connections:
        connection.close()
    assert len(below(tmp_path)) == 4
    with running_service(tmp_path) as address:
        assert below(tmp_path) == {f"{name}/whole"}
        assert [file["path"] for file in json.loads(ask(address, "GET", f"/datasets/{name}/files")[1])["files"]] == [
            "whole"
        ]


def test_many_downloads_that_are_given_up(served: str, served_root: Path) -> None:
    """Threads and files are free afterwards: the next one is answered."""
    name = new_dataset(served)
    (served_root / name / "a").write_bytes(b"x" * 30_000_000)
    (served_root / name / "b").write_bytes(b"x")
    host, _, port = served.rpartition(":")

    def give_up(path: str) -> None:
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert connection.recv(1000).startswith(OK)

    paths = [f"/datasets/{name}", f"/datasets/{name}/files/a"] * 40
    threads = [threading.Thread(target=give_up, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ask(served, "GET", f"/datasets/{name}/files/a")[1] == b"x" * 30_000_000
