"""The service as a process: how it starts, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.servers.service import Service, running_service
from tests.support.service_clients import all_files, ask, below, client_of, new_dataset, poll_in_process
from torchdata_remote.errors import ServiceError, UrlError
from torchdata_remote.service.server.limits import ServiceLimits
from torchdata_remote.service.server.run import read_token, serve

OK = b"HTTP/1.1 200 "


def begin_put(address: str, path: str, length: int, sent: bytes) -> socket.socket:
    """Send a PUT request with the first bytes of its body; return the connection."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
    connection.sendall(head.encode())
    assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
    connection.sendall(sent)
    return connection


def all_of(connection: socket.socket) -> bytes:
    """Receive until the other side ends the connection."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def test_a_signal_ends_the_service(tmp_path: Path) -> None:
    """SIGTERM: status 0. Ctrl-C: 130, as shells report it."""
    for signal_number, status in [(signal.SIGTERM, 0), (signal.SIGINT, 130)]:
        service = Service(tmp_path)
        service.process.send_signal(signal_number)
        assert service.process.wait(60) == status


def test_a_running_request_is_finished_after_sigterm(tmp_path: Path) -> None:
    """An upload is stored and answered, and then the service ends."""
    service = Service(tmp_path, "--min-free-bytes", "0")
    name = new_dataset(service.address)
    with begin_put(service.address, f"/datasets/{name}/files/a", 10, b"12345") as connection:
        service.process.terminate()
        connection.sendall(b"67890")
        assert all_of(connection).startswith(OK)
    assert service.stop() == 0
    assert (tmp_path / name / "a").read_bytes() == b"1234567890"


def test_nothing_is_left_of_a_client_that_disconnects(served: str, served_root: Path) -> None:
    """Incomplete files are removed."""
    name = new_dataset(served)
    temporary = served_root / ".torchdata_remote"
    for target in (f"/{name}/files/a", f"/{name}", f"/{name}?unpack=1"):
        begin_put(served, f"/datasets{target}", 10_000_000, b"x" * 100).close()
    while any(below(folder) for folder in (served_root / name, temporary / "unnamed", temporary / "unpacking")):
        assert ask(served, "GET", "/healthz")[0] == 200  # until it has noticed, within the time limit of the test
    assert json.loads(ask(served, "GET", f"/datasets/{name}/files")[1])["files"] == []


def test_a_body_that_stalls_is_refused(tmp_path: Path) -> None:
    """408 after ``--idle-timeout``; the connection ends, and nothing is left."""
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


def test_a_connection_is_kept_after_an_error(served: str) -> None:
    """A body that was not read is not taken for the next request."""
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


def start(root: str | Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
    """Start a service in this process, which is expected to fail."""
    serve(str(root), host=host, port=port, token_file=None, limits=ServiceLimits())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
def test_an_address_that_others_reach_needs_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(ServiceError, match="--token-file"):
        start(tmp_path, host=host)


def test_a_root_is_served_by_one_process(tmp_path: Path) -> None:
    """A second service would remove what the first one is writing. It ends with an error and without a traceback."""
    command = [sys.executable, "-m", "torchdata_remote.cli", "serve", "--root", str(tmp_path), "--port", "0"]
    with running_service(tmp_path) as address:
        second = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ask(address, "GET", "/healthz")[0] == 200
    assert (second.returncode, second.stdout) == (1, "")
    assert "served by another process" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_port_in_use_is_an_error_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServiceError, match=f"{port}.*--port"):
            start(tmp_path, port=port)


@pytest.mark.parametrize(
    "text", ["", "short", " \n", "0123456789abcde", "0123456789ab\ncdef", "ä" * 16, "0" * 15 + "\0"]
)
def test_a_weak_token_is_refused(tmp_path: Path, text: str) -> None:
    """One that is short, or that no header can contain."""
    (tmp_path / "token").write_text(text)
    with pytest.raises(ServiceError, match="16 printable"):
        read_token(str(tmp_path / "token"))


def test_a_token_is_read_from_a_file(tmp_path: Path) -> None:
    """Without surrounding white space. A file that is missing, or no text, is an error that names it."""
    (tmp_path / "token").write_text(" 0123456789abcdef\n")
    assert read_token(str(tmp_path / "token")) == "0123456789abcdef"
    (tmp_path / "binary").write_bytes(os.urandom(20) + b"\xff")
    for name in ("binary", "missing"):
        with pytest.raises(ServiceError, match=name):
            read_token(str(tmp_path / name))


def test_a_root_that_is_not_writable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (str(tmp_path / "file"), "http://localhost/x"):
        with pytest.raises(UrlError, match=root):
            start(root)


def test_leftovers_of_a_killed_service_are_removed(tmp_path: Path) -> None:
    """SIGKILL during uploads: the next service starts with the complete files only."""
    service = Service(tmp_path, "--min-free-bytes", "0")
    name = new_dataset(service.address)
    assert ask(service.address, "PUT", f"/datasets/{name}/files/whole", b"1")[0] == 200
    targets = [f"/{name}/files/deep/a", f"/{name}", f"/{name}?unpack=1"]
    connections = [begin_put(service.address, f"/datasets{target}", 100, b"x") for target in targets]
    service.kill()
    for connection in connections:
        connection.close()
    assert len(below(tmp_path)) == 4
    with client_of(tmp_path) as client:
        poll_in_process(client, lambda: below(tmp_path) == {f"{name}/whole"})
        assert all_files(client, name) == ["whole"]


def test_threads_of_abandoned_downloads_are_freed(served: str, served_root: Path) -> None:
    """After many downloads whose clients disconnect, the next request is answered."""
    name = new_dataset(served)
    (served_root / name / "a").write_bytes(b"x" * 30_000_000)
    (served_root / name / "b").write_bytes(b"x")
    host, _, port = served.rpartition(":")

    def abandon(path: str) -> None:
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert connection.recv(1000).startswith(OK)

    paths = [f"/datasets/{name}", f"/datasets/{name}/files/a"] * 40
    threads = [threading.Thread(target=abandon, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ask(served, "GET", f"/datasets/{name}/files/a")[1] == b"x" * 30_000_000


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_that_come_again_change_nothing(tmp_path: Path, number: int, status: int) -> None:
    """Not while the service stops, and not while the interpreter ends."""
    service = Service(tmp_path)
    while True:
        service.process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.process.wait(0.02)
            break
    assert service.process.wait(60) == status


STARTING = """
import os, signal, sys
from torchdata_remote import cli
from torchdata_remote.service.server import maintenance, run
module, name = {"app": (run, "make_app"), "listing": (maintenance.Maintenance, "_look")}[sys.argv[1]]
original = getattr(module, name)

def interrupted(*arguments, **options):
    os.kill(os.getpid(), int(sys.argv[2]))
    return original(*arguments, **options)

setattr(module, name, interrupted)
sys.exit(cli.main(["serve", "--root", sys.argv[3], "--port", "0"]))
"""


@pytest.mark.parametrize("moment", ["app", "listing"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_at_the_start_ends_the_service(tmp_path: Path, moment: str, number: int, status: int) -> None:
    """Before its event loop runs, and while it looks for what a killed service left."""
    command = [sys.executable, "-c", STARTING, moment, str(int(number)), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (status, "")


ENDING = """
import _thread, atexit, sys
from torchdata_remote import cli
from torchdata_remote.service.server.http import http_server
original = http_server.HttpServer.end

def end(server):
    if sys.argv[1] == "running":
        lock = _thread.allocate_lock()
        lock.acquire()
        _thread.start_new_thread(lock.acquire, ())  # which is not known to the threading module, as those of Rust
    original(server)

http_server.HttpServer.end = end
if sys.argv[1] == "unknown":
    http_server._THREADS = "/missing"
atexit.register(print, "the interpreter ended", file=sys.stderr)
sys.exit(cli.main(["serve", "--root", sys.argv[2], "--port", "0"]))
"""


@pytest.mark.parametrize("threads", ["running", "unknown"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_interpreter_does_not_end_before_the_threads_of_the_server(
    tmp_path: Path, threads: str, number: int, status: int
) -> None:
    """In a container without /proc, some services were aborted at their end: status -6, not 0."""
    command = [sys.executable, "-c", ENDING, threads, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://")
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == status


def test_a_digest_is_not_waited_for(tmp_path: Path) -> None:
    """That of 4 TiB: the request is answered with 503, and the service ends at once."""
    (tmp_path / "d").mkdir()
    with open(tmp_path / "d" / "a", "wb") as file:
        file.truncate(4 << 40)
    with open(tmp_path / "log", "w") as log:
        service = Service(tmp_path, stderr=log)
    host, _, port = service.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = "GET /datasets/d/files/a HTTP/1.1\r\nHost: localhost\r\nWant-Repr-Digest: sha-256=1\r\n\r\n"
        connection.sendall(head.encode())
        while b"in_flight 2" not in ask(service.address, "GET", "/metrics")[1]:
            pass
        service.process.terminate()
        assert all_of(connection).startswith(b"HTTP/1.1 503 ")
    assert service.stop() == 0
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize("command", [["setpriv", "--reuid=65534", "--clear-groups"], []])
def test_a_root_that_cannot_be_written_to_is_an_error_that_names_it(tmp_path: Path, command: list[str]) -> None:
    """Without a traceback: to another user, and where the place of the lock is taken."""
    if command and (os.geteuid() != 0 or shutil.which(command[0]) is None):
        pytest.skip("needs root")
    if not command:
        (tmp_path / ".torchdata_remote").write_bytes(b"")
    for above in [tmp_path, *(folder for folder in tmp_path.parents if "pytest-of-" in str(folder))]:
        above.chmod(0o755)
    arguments = [sys.executable, "-m", "torchdata_remote.cli", "serve", "--root", str(tmp_path), "--port", "0"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"torchdata-remote: {tmp_path}/ cannot be written to")
    assert "Traceback" not in done.stderr


def test_a_file_that_may_not_be_read_is_403(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no defect of the program, and its place on the disk is not shown."""

    def refuse(path: str, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with client_of(tmp_path) as client:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "a").write_bytes(b"1")
        monkeypatch.setattr("torchdata_remote.service.server.routes.file_response.open_file_if_cached", lambda *_: None)
        monkeypatch.setattr("torchdata_remote.service.server.datasets.opened_files.os.open", refuse)
        answer = client.get("/datasets/d/files/a")
    assert answer.status_code == 403
    assert answer.json()["error"].startswith("d/a: ")
