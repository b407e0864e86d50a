"""Files that the HTTP server opens once more."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

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
