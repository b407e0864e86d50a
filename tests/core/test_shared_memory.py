"""Memory without a name, shared with new processes."""

from __future__ import annotations

import logging
import os
import pickle
import tempfile
from multiprocessing import context, popen_spawn_posix, reduction
from pathlib import Path
from typing import Any

import pytest

from torchdata_remote.core import shared_memory
from torchdata_remote.core.shared_memory import SharedMemory

pytestmark = pytest.mark.skipif(not hasattr(os, "pwrite"), reason="Windows has no unnamed files")


class Starting(popen_spawn_posix.Popen):
    """A process that is never started, as multiprocessing announces it."""

    def __init__(self) -> None:
        self._fds: list[int] = []


@pytest.fixture
def starting() -> Any:
    process = Starting()
    context.set_spawning_popen(process)
    yield process
    context.set_spawning_popen(None)


def created(num_bytes: int) -> SharedMemory:
    memory = SharedMemory.create(num_bytes)
    assert memory is not None
    return memory


def test_bytes_are_read_and_viewed_where_they_were_written() -> None:
    """Zero before; a view shows what is written later."""
    memory = created(10)
    view = memory.view()
    assert bytes(view) == bytes(10)
    assert memory.write(b"abc", 4)
    assert (bytes(view[4:7]), memory.read(2, 5), view.readonly) == (b"abc", b"bc", True)


def test_no_bytes_need_no_memory() -> None:
    """An empty table has nothing to share."""
    assert SharedMemory.create(0) is None


def test_without_files_in_memory_a_file_of_the_temporary_folder_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has no name there, so that nothing is left after a kill."""

    def refused(name: str) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    memory = created(3)
    assert memory.write(b"abc", 0)
    assert bytes(memory.view()) == b"abc"
    assert list(tmp_path.iterdir()) == []
    status = os.fstat(memory._descriptor)
    assert (status.st_dev, status.st_nlink) == (tmp_path.stat().st_dev, 0)


@pytest.mark.parametrize("call", ["ftruncate", "pwrite"])
def test_a_full_host_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str) -> None:
    """What is to be shared then stays private."""

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with caplog.at_level(logging.WARNING, "torchdata_remote"):
        memory = SharedMemory.create(8)
        assert memory is None if call == "ftruncate" else not created(8).write(b"abc", 0)
    assert "No memory can be shared with workers, which get copies: [Errno 28]" in caplog.text


def test_a_pickle_that_is_not_for_a_new_process_is_an_error() -> None:
    """A descriptor means nothing in a file or on another host."""
    assert not SharedMemory.can_be_sent()
    with pytest.raises(TypeError, match="new processes of this host"):
        pickle.dumps(created(1))


def test_a_new_process_gets_a_limited_number_of_descriptors(starting: Starting) -> None:
    """A fork server passes 256, of which others need some; each new process gets its own."""
    memory = created(1)
    for _ in range(shared_memory._MAX_SENT):
        assert SharedMemory.can_be_sent()
        reduction.ForkingPickler.dumps(memory)
    assert not SharedMemory.can_be_sent()
    assert len(starting._fds) == shared_memory._MAX_SENT
    context.set_spawning_popen(Starting())
    assert SharedMemory.can_be_sent()


def test_the_descriptor_is_closed_with_the_object() -> None:
    """Not before, and what was mapped stays mapped."""
    memory = created(4)
    descriptor, view = memory._descriptor, memory.view()
    memory.write(b"abcd", 0)
    del memory
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert bytes(view) == b"abcd"
