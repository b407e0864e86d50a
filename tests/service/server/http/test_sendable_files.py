"""Files that the HTTP server opens once more."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.servers.service import Service
from tests.support.service_clients import ask
from torchdata_remote.service.server.http import sendable_files
from torchdata_remote.service.server.http.sendable_files import SendableFiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux")


def test_a_file_is_the_same_after_it_was_closed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its number is not used for another one that is opened meanwhile."""
    monkeypatch.setattr(sendable_files, "own_descriptors", lambda: 200)
    monkeypatch.setattr(sendable_files, "_MIN_NUMBERS", 100)
    monkeypatch.setattr(sendable_files, "_MAX_OPEN", 20)

    async def hand_over() -> None:
        sendable, paths = SendableFiles(), {}
        for number in range(30):
            (tmp_path / "a").unlink(missing_ok=True)
            (tmp_path / "a").write_bytes(b"%d" % number)
            descriptor = os.open(tmp_path / "a", os.O_RDONLY)
            path = sendable.path_of(descriptor)
            os.close(descriptor)
            if path is not None:
                paths[number] = path
        assert len(paths) == 20
        for number, path in paths.items():
            assert Path(path).read_bytes() == b"%d" % number
            sendable._close(int(path.rpartition("/")[2]))
        descriptor = os.open(tmp_path / "a", os.O_RDONLY)
        for _ in range(500):  # through all numbers
            path = sendable.path_of(descriptor)
            assert path is not None or sendable._num_open == 0
            if path is not None:
                assert Path(path).read_bytes() == b"29"
                sendable._close(int(path.rpartition("/")[2]))
        os.close(descriptor)

    asyncio.run(hand_over())


def test_there_is_no_path_below_a_small_limit_of_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    (tmp_path / "a").write_bytes(b"1")

    async def hand_over() -> None:
        with open(tmp_path / "a") as file:
            assert SendableFiles().path_of(file.fileno()) is None

    asyncio.run(hand_over())


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_large_file_is_sent_where_proc_is_missing(tmp_path: Path) -> None:
    """It was answered with 404."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"x" * (3 << 20))
    hide = 'mount -t tmpfs none /proc && exec "$@"'
    if subprocess.run(["unshare", "-m", "sh", "-c", hide, "-", "true"], check=False, capture_output=True).returncode:
        pytest.skip("cannot mount")
    service = Service(tmp_path, prefix=("unshare", "-m", "sh", "-c", hide, "-"))
    try:
        status, body, _ = ask(service.address, "GET", "/datasets/d/files/a")
        assert (status, len(body)) == (200, 3 << 20)
    finally:
        assert service.stop() == 0
