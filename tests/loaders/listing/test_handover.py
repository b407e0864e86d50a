"""Bytes that a process passes to its workers, in an unnamed file."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.loaders.listing.handover import Handover

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pread"), reason="Windows cannot share a file without a name"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@given(left=st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=300)), max_size=6), number=st.integers(0, 5))
def test_only_the_latest_bytes_are_stored(left: list[tuple[int, bytes]], number: int) -> None:
    """Under their own number; none before, and none after ``clear``."""
    handover = Handover()
    assert handover.load(number) is None
    for key, data in left:
        handover.store(key, data)
        assert handover.load(key) == data
        assert handover.load(key + 1) is None
    expected = left[-1][1] if left and left[-1][0] == number else None
    assert handover.load(number) == expected
    handover.clear()
    assert handover.load(number) is None


def serve(handover: Handover, connection: object) -> None:
    """In a worker: send the bytes under each received number."""
    for number in iter(connection.recv, None):  # type: ignore[attr-defined]
        connection.send(handover.load(number))  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_read_bytes_that_are_stored_after_their_start(method: str) -> None:
    """Also larger ones than before."""
    handover, context = Handover(), get_context(method)
    handover.store(0, b"first")
    connection, other_end = context.Pipe()
    worker = context.Process(target=serve, args=(handover, other_end))  # type: ignore[attr-defined]
    worker.start()
    other_end.close()

    def found(number: int) -> object:
        connection.send(number)
        return connection.recv()

    assert found(0) == b"first"
    handover.store(1, b"x" * 1_000_000)
    assert (found(0), found(1)) == (None, b"x" * 1_000_000)
    handover.store(2, b"less")
    assert found(2) == b"less"
    handover.clear()
    assert found(2) is None
    connection.send(None)
    worker.join()
    assert worker.exitcode == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_outside_of_workers_have_no_bytes(copied: Callable[[Handover], Handover]) -> None:
    """A copy by a pickle that starts no worker has a file of its own."""
    handover = Handover()
    handover.store(0, b"own")
    other = copied(handover)
    assert other.load(0) is None
    other.store(0, b"other")
    assert (handover.load(0), other.load(0)) == (b"own", b"other")


def test_the_file_is_unnamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed at any moment leaves no file."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    handover = Handover()
    handover.store(0, b"data")
    assert list(tmp_path.iterdir()) == []
    assert handover.load(0) == b"data"


def test_without_disk_space_workers_list_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full or missing folder for temporary files is logged, and is no error."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    handover = Handover()
    handover.store(0, b"data")
    handover.clear()
    assert handover.load(0) is None
    assert "could not be passed to the workers, which list again" in caplog.text


def test_the_file_is_closed_with_its_owner(recwarn: pytest.WarningsRecorder) -> None:
    """Without a ``ResourceWarning``."""
    handover = Handover()
    handover.store(0, b"listing")
    fd = handover._fd
    assert fd is not None
    os.fstat(fd)
    del handover
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]
