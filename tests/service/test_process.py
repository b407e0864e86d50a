"""``torchdata-remote serve`` as a process: how it starts, ends, is killed, and what its limits do."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from tests.servers.s3 import temporary_folder
from tests.servers.service import Service, running_service
from tests.support.paths import ROOT
from tests.support.service_clients import Dataset, ask, begin, below, connect, in_tar, metric, rest, tar_bytes
from tests.support.waiting import wait_for
from torchdata_remote.cli import main

NO_RESERVE = ("--min-free-bytes", "0")
AS_NOBODY = ("setpriv", "--reuid=65534", "--clear-groups")
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv"
)


@pytest.fixture
def failing(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Runs the command in this process, which has to end with an error; its message."""
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends whatever is wrong with it
        port = taken.getsockname()[1]

        def run(*arguments: str) -> str:
            free = [] if "--port" in arguments else ["--port", str(port)]
            assert main(["serve", *free, *arguments]) == 1
            captured = capsys.readouterr()
            assert captured.out == ""
            assert captured.err.startswith("torchdata-remote: ")
            assert captured.err.count("\n") == 1
            return captured.err

        yield run


def test_an_address_that_others_reach_needs_a_token(tmp_path: Path, failing: Callable[..., str]) -> None:
    for host in ("0.0.0.0", "::", "10.1.2.3"):
        assert "--token-file" in failing("--root", str(tmp_path), "--host", host)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"short", b" \n", b"0123456789abcde", b"0123456789ab\ncdef", "ä".encode() * 16, b"0" * 15 + b"\0"),
        *(b"\xff" * 20, None),
    ],
)
def test_a_weak_token_or_none_in_its_file_is_refused(
    tmp_path: Path, failing: Callable[..., str], text: bytes | None
) -> None:
    if text is not None:
        (tmp_path / "token").write_bytes(text)
    message = failing("--root", str(tmp_path / "root"), "--token-file", str(tmp_path / "token"))
    assert f"{tmp_path}/token: " in message
    assert "16 printable" in message or "cannot be read" in message


def test_a_root_a_port_or_a_certificate_that_cannot_be_used_is_named(
    tmp_path: Path, failing: Callable[..., str]
) -> None:
    for name in ("file", "chain.pem", "key.pem"):
        (tmp_path / name).write_bytes(b"no PEM")
    root = str(tmp_path / "root")
    for root_url in (str(tmp_path / "file"), "http://localhost/x"):
        assert f"{root_url} cannot keep datasets" in failing("--root", root_url)
    assert "--port" in failing("--root", root)
    assert "belong together" in failing("--root", root, "--key", "x")
    for key in ("key.pem", "missing"):
        files = ("--certificate", str(tmp_path / "chain.pem"), "--key", str(tmp_path / key))
        message = failing("--root", root, *files)
        assert ("PEM" in message, str(tmp_path / key) in message) == (True, True)


def test_a_property_that_datasets_would_be_written_without_is_refused(failing: Callable[..., str]) -> None:
    options = {"key": "k", "secret": "s", "s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}
    message = failing("--root", "s3://a-bucket/d", "--storage-options", json.dumps(options))
    assert "'ServerSideEncryption'" in message


def test_a_root_is_served_by_one_process(served: str, served_root: Path, failing: Callable[..., str]) -> None:
    assert "served by another process" in failing("--root", str(served_root), "--port", "0")
    assert ask(served, "GET", "/healthz").status == 200


@needs_root
def test_what_the_services_user_may_not_read_is_an_error_that_names_it() -> None:
    with temporary_folder() as above:  # not below pytest's folder, which each pytest closes to others at its start
        for folder in (above, above / "root", above / "root" / "d"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
        os.chown(above / "root", 65534, 65534)
        (above / "root" / "d" / "a").write_bytes(b"1")
        (above / "root" / "d" / "a").chmod(0)
        service = Service(above / "root", *NO_RESERVE, prefix=AS_NOBODY)
        try:
            answer = ask(service.address, "GET", "/datasets/d/files/a")
            assert (answer.status, answer.error.startswith("d/a: ")) == (403, True)
        finally:
            assert service.stop() == 0


# Its end


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_service_when_requests_are_finished_and_its_status_stays_when_it_comes_again(
    tmp_path: Path, number: int, status: int
) -> None:
    service = Service(tmp_path, *NO_RESERVE)
    dataset = Dataset(service.address, root=tmp_path)
    target = f"/datasets/{dataset.name}/files/a"
    with begin(service.address, "PUT", target, "Content-Length: 10", "Expect: 100-continue") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"12345")
        for _ in range(3 if number == signal.SIGTERM else 1):  # Ctrl-C once more does not wait for requests
            service.process.send_signal(number)
        connection.sendall(b"67890")
        assert rest(connection).startswith(b"HTTP/1.1 200 ")
    while True:
        service.process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.process.wait(0.02)
            break
    assert service.process.wait(60) == status
    assert (dataset.folder / "a").read_bytes() == b"1234567890"


def test_digests_that_take_long_keep_neither_others_waiting_nor_the_service_from_ending(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log, contextlib.ExitStack() as stack:
        service = Service(tmp_path / "root", *NO_RESERVE, stderr=log)
        dataset = Dataset(service.address, root=tmp_path / "root")
        dataset.put("small", b"12345")
        for number in range(160):  # more than there are threads
            with open(dataset.folder / f"{number:03}", "wb") as file:
                file.truncate(1 << 40)
        below = f"/datasets/{dataset.name}/files?digests=1&prefix="
        digests = [stack.enter_context(begin(service.address, "GET", f"{below}{number:03}")) for number in range(160)]
        wait_for(lambda: metric(service.address, "requests_in_flight") > 160)
        for _ in range(5):
            assert ask(service.address, "GET", "/healthz").status == 200
            assert dataset.get("small").body == b"12345"
        assert service.stop() == 0
        assert {rest(connection)[:13] for connection in digests} == {b"HTTP/1.1 503 "}
    assert (tmp_path / "log").read_text() == ""


WATCHED = """
import os

def watched(name):
    call = getattr(os, name)

    def record(first, *more, **options):
        path = os.readlink(f"/proc/self/fd/{first}") if name == "fsync" else str(more[0])
        done = call(first, *more, **options)
        with open(LOG, "a") as log:
            log.write(f"{name} {path}\\n")
        return done

    setattr(os, name, record)

for name in ("fsync", "link", "replace", "rename"):
    watched(name)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="files are named by /proc")
def test_a_file_that_was_answered_with_200_is_on_disk_and_so_is_its_name(tmp_path: Path) -> None:
    """Before it has its name, its bytes are synchronized; before the answer, its folder."""
    log, root = tmp_path / "log", tmp_path / "root"
    root.mkdir()
    (tmp_path / "sitecustomize.py").write_text(WATCHED.replace("LOG", repr(str(log))))
    service = Service(root, *NO_RESERVE, environment={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"})
    try:
        dataset = Dataset(service.address, root=root)
        for data in (b"new", b"replaced"):
            log.write_text("")
            assert dataset.put("deep/a", data).status == 200
            calls = [tuple(line.split(" ", 1)) for line in log.read_text().splitlines()]
            named = next(at for at, (name, path) in enumerate(calls) if name != "fsync" and path.endswith("/deep/a"))
            assert any(name == "fsync" and not os.path.isdir(path) for name, path in calls[:named]), calls
            assert ("fsync", str(dataset.folder / "deep")) in calls[named:], calls
    finally:
        service.stop()


# After it was killed


def test_a_service_that_was_killed_starts_again_with_the_complete_files_alone(tmp_path: Path) -> None:
    service = Service(tmp_path, *NO_RESERVE)
    dataset, other = Dataset(service.address, root=tmp_path), Dataset(service.address, root=tmp_path)
    assert dataset.put("whole", b"1").status == 200
    assert dataset.unpack(tar_bytes({"batch/1": b"2"})).status == 200
    files = {f"{number:03}": b"%d" % number * 500 for number in range(3_000)}
    archive = tar_bytes(files)
    with contextlib.ExitStack() as stack:
        for target in ("/files/deep/a", "?unpack=1"):
            stack.enter_context(
                begin(service.address, "PUT", f"/datasets/{dataset.name}{target}", "Content-Length: 100", sent=b"x")
            )
        unpacking = begin(
            service.address, "PUT", f"/datasets/{other.name}?unpack=1", f"Content-Length: {len(archive)}", sent=archive
        )
        stack.enter_context(unpacking)
        wait_for(lambda: (other.folder / "020").exists() and len(below(dataset.folder)) == 3)
        service.kill()
    service = Service(tmp_path, *NO_RESERVE)
    try:
        again = Dataset(service.address, dataset.name, tmp_path)
        wait_for(lambda: below(tmp_path / dataset.name) == {"whole", "batch/1"})
        assert again.contents() == {"whole": b"1", "batch/1": b"2"}
        assert again.put("new", b"3").status == 200
        found = in_tar(ask(service.address, "GET", f"/datasets/{other.name}").body)
        assert files.items() >= found.items(), "each file is whole or not there"
        assert ask(service.address, "DELETE", f"/datasets/{other.name}").status == 204
        wait_for(lambda: below(tmp_path) == {f"{dataset.name}/{path}" for path in ("whole", "batch/1", "new")})
    finally:
        assert service.stop() == 0


# Limits


def test_a_file_has_at_most_max_file_bytes(small: Dataset) -> None:
    dataset = Dataset(small.address, root=small.root)
    for target in ("?unpack=1", "/files/a"):
        for body in (b"x" * 20_001, iter([b"x" * 12_000] * 2)):  # by Content-Length, or while it is received
            answer = dataset.ask("PUT", target, body)
            assert (answer.status, bool(answer.error)) == (413, True)
    wait_for(lambda: below(dataset.folder) == set())
    assert dataset.put("a", b"x" * 20_000).status == 200


def test_min_free_bytes_are_kept_free_on_the_disk_and_reading_goes_on_without_them(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"1")
    with running_service(tmp_path, "--min-free-bytes", str(1 << 60)) as address:
        dataset = Dataset(address, "d", tmp_path)
        for target in ("?unpack=1", "/files/a"):
            answer = dataset.ask("PUT", target, b"x")
            assert (answer.status, bool(answer.error)) == (507, True), target
        assert below(tmp_path) == {"d/a"}
        assert dataset.contents() == {"a": b"1"}
        assert dataset.delete("a").status == 204
        shutil.rmtree(tmp_path / ".torchdata_remote")
        tmp_path.rename(tmp_path.with_name("gone"))
        assert str(metric(address, "free_bytes")) == "nan", "metrics are wanted most when the root is gone"
        tmp_path.with_name("gone").rename(tmp_path)


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
def test_with_a_small_limit_of_open_files_connections_wait_and_are_answered(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        service = Service(
            tmp_path / "root", *NO_RESERVE, "--head-timeout", "1", prefix=("prlimit", "--nofile=128:128"), stderr=log
        )
    try:
        dataset = Dataset(service.address)
        dataset.put("a", b"1")
        with contextlib.ExitStack() as stack:
            for _ in range(150):
                stack.enter_context(connect(service.address))
            with ThreadPoolExecutor(20) as pool:
                assert {answer.body for answer in pool.map(lambda _: dataset.get("a"), range(20))} == {b"1"}
    finally:
        assert service.stop() == 0
    assert "connections at once" in (tmp_path / "log").read_text()


def test_writers_of_one_file_alone_and_in_archives_all_get_there(dataset: Dataset) -> None:
    num_requests = 160  # more than there are threads
    tar = tar_bytes({"a": b"2"})
    with ThreadPoolExecutor(num_requests) as pool:
        answers = pool.map(
            lambda number: dataset.put("a", b"3") if number % 2 else dataset.unpack(tar), range(num_requests)
        )
        assert {answer.status for answer in answers} == {200}
    assert dataset.get("a").body in (b"2", b"3")
