"""Bytes that a process leaves for its workers, in a file without a name."""

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
def test_only_what_was_left_last_is_there(left: list[tuple[int, bytes]], number: int) -> None:
    """Under its own number; nothing before, and nothing after it was taken back."""
    handover = Handover()
    assert handover.take(number) is None
    for key, data in left:
        handover.leave(key, data)
        assert handover.take(key) == data
        assert handover.take(key + 1) is None
    expected = left[-1][1] if left and left[-1][0] == number else None
    assert handover.take(number) == expected
    handover.clear()
    assert handover.take(number) is None


def answer(handover: Handover, connection: object) -> None:
    """In a worker: tell what is there, for each number that is asked for."""
    for number in iter(connection.recv, None):  # type: ignore[attr-defined]
        connection.send(handover.take(number))  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_find_what_is_left_later(method: str) -> None:
    """Also what is left when they run already, and more of it than before."""
    handover, context = Handover(), get_context(method)
    handover.leave(0, b"first")
    here, there = context.Pipe()
    worker = context.Process(target=answer, args=(handover, there))  # type: ignore[attr-defined]
    worker.start()
    there.close()

    def found(number: int) -> object:
        here.send(number)
        return here.recv()

    assert found(0) == b"first"
    handover.leave(1, b"x" * 1_000_000)
    assert (found(0), found(1)) == (None, b"x" * 1_000_000)
    handover.leave(2, b"less")
    assert found(2) == b"less"
    handover.clear()
    assert found(2) is None
    here.send(None)
    worker.join()
    assert worker.exitcode == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_elsewhere_have_nothing(copied: Callable[[Handover], Handover]) -> None:
    """A pickle that starts no worker names no file, and its copy has one of its own."""
    handover = Handover()
    handover.leave(0, b"mine")
    other = copied(handover)
    assert other.take(0) is None
    other.leave(0, b"theirs")
    assert (handover.take(0), other.take(0)) == (b"mine", b"theirs")


def test_no_file_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind by a process that is killed at any moment."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    handover = Handover()
    handover.leave(0, b"data")
    assert list(tmp_path.iterdir()) == []
    assert handover.take(0) == b"data"


def test_without_room_workers_list_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder for temporary files that is full, or is not there, is told in the log and is no error."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    handover = Handover()
    handover.leave(0, b"data")
    handover.clear()
    assert handover.take(0) is None
    assert "workers, which list by themselves" in caplog.text


def test_the_file_is_closed_with_what_holds_it(recwarn: pytest.WarningsRecorder) -> None:
    """Without a ``ResourceWarning``."""
    handover = Handover()
    handover.leave(0, b"listing")
    fd = handover._fd
    assert fd is not None
    os.fstat(fd)
    del handover
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]
