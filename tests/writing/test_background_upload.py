"""An object on its way out."""

from __future__ import annotations

import contextlib
import gc
import gzip
import hashlib
import logging
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.checksums import BlockSummer
from torchdata_remote.formats.compression.compress import open_compressor
from torchdata_remote.writing.background_md5 import MAX_BEHIND_BYTES
from torchdata_remote.writing.background_upload import MAX_WAITING_BYTES, BackgroundUpload, Written


class Pending:
    """Keeps what is written to it; ``before`` is called before each call, with its name."""

    def __init__(self, before: Callable[[str], object] = lambda name: None) -> None:
        self.data = b""
        self.before = before
        self.committed = self.aborted = 0
        self.threads: set[int] = set()

    def _note(self, name: str) -> None:
        self.threads.add(threading.get_ident())
        self.before(name)

    def write(self, data: bytes) -> None:
        self._note("write")
        self.data += data

    def commit(self) -> None:
        self._note("commit")
        self.committed += 1

    def abort(self) -> None:
        self._note("abort")
        self.data = b""
        self.aborted += 1


class BrokenError(Exception):
    """What a store may raise."""


def _breaking(*names: str) -> Callable[[str], None]:
    def before(name: str) -> None:
        if name in names:
            raise BrokenError(name)

    return before


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "torchdata_remote"}


@pytest.fixture(autouse=True)
def _no_thread_stays() -> object:
    """Whatever becomes of an object, its threads are gone."""
    before = _threads()
    yield None
    while left := _threads() - before:
        for thread in left:
            with contextlib.suppress(RuntimeError):  # it is about to be started
                thread.join()


@given(chunks=st.lists(st.lists(st.binary(max_size=400), max_size=4), max_size=12), compressed=st.booleans())
def test_it_is_what_was_written(chunks: list[list[bytes]], compressed: bool) -> None:
    """Bytes in order; size, MD5 and sums are those of the object."""
    pending = Pending()
    outgoing = BackgroundUpload(pending, open_compressor("x.gz") if compressed else None)
    for pieces in chunks:
        outgoing.write(list(pieces))
    told: list[Written] = []
    outgoing.end(told.append)
    written = outgoing.result()
    plain = b"".join(piece for pieces in chunks for piece in pieces)
    assert (gzip.decompress(pending.data) if compressed else pending.data) == plain
    summer = BlockSummer()
    summer.update(pending.data)
    assert written == (len(pending.data), hashlib.md5(pending.data).hexdigest(), summer.checksums())
    assert told == [written]
    assert (pending.committed, pending.aborted) == (1, 0)
    assert outgoing.settled


def test_large_chunks_are_summed_beside_the_store() -> None:
    """By a thread of its own, and still in order."""
    pending = Pending()
    outgoing = BackgroundUpload(pending)
    chunks = [bytes([i]) * (1 << 20) for i in range(12)]
    for chunk in chunks:
        outgoing.write([chunk])
    outgoing.end()
    assert outgoing.result().md5 == hashlib.md5(b"".join(chunks)).hexdigest()
    assert pending.data == b"".join(chunks)
    assert pending.threads == {*pending.threads} - {threading.get_ident()}
    assert len(pending.threads) == 1


@pytest.mark.parametrize("broken", ["write", "commit"])
def test_an_error_of_the_store_is_raised_by_the_next_call(broken: str) -> None:
    """As it is, each time; what was written is removed."""
    pending = Pending(_breaking(broken))
    outgoing = BackgroundUpload(pending)

    def write_all() -> None:
        for _ in range(20):
            outgoing.write([b"x"])
        outgoing.end()
        outgoing.result()

    with pytest.raises(BrokenError, match=broken):
        write_all()
    with pytest.raises(BrokenError, match=broken):
        outgoing.result()
    assert outgoing.settled
    assert pending.data == b""
    assert pending.aborted == 1


def test_an_error_of_what_follows_leaves_the_object() -> None:
    """It is there; the error is still raised."""
    pending = Pending()
    outgoing = BackgroundUpload(pending)

    def then(written: Written) -> None:
        raise BrokenError(str(written.num_bytes))

    outgoing.write([b"abc"])
    outgoing.end(then)
    with pytest.raises(BrokenError, match="3"):
        outgoing.result()
    assert pending.data == b"abc"
    assert pending.aborted == 0


@pytest.mark.parametrize("num_chunks", [0, 1, 5])
def test_an_aborted_one_is_gone(num_chunks: int) -> None:
    """Its thread too, before ``abort`` returns; a second time does nothing."""
    pending, before = Pending(), _threads()
    outgoing = BackgroundUpload(pending)
    for _ in range(num_chunks):
        outgoing.write([bytes(1 << 20)])
    outgoing.abort()
    outgoing.abort()
    assert _threads() <= before
    assert (pending.data, pending.aborted, pending.committed) == (b"", 1, 0)


def test_one_that_was_ended_is_waited_for() -> None:
    """It is complete, so that there is nothing to drop."""
    arrived, go_on = threading.Event(), threading.Event()

    def before(name: str) -> None:
        if name == "commit":
            arrived.set()
            assert go_on.wait(60)

    pending = Pending(before)
    outgoing = BackgroundUpload(pending)
    outgoing.write([b"abc"])
    outgoing.end()
    assert arrived.wait(60)
    assert not outgoing.settled
    aborting = threading.Thread(target=outgoing.abort)
    aborting.start()
    go_on.set()
    aborting.join(60)
    assert outgoing.result().num_bytes == 3
    assert (pending.committed, pending.aborted) == (1, 0)


@pytest.mark.parametrize("num_chunks", [0, 1, 5])
def test_a_forgotten_one_is_given_up(num_chunks: int) -> None:
    """When it is collected, nobody waits; its thread removes what there is and ends."""
    done = threading.Event()
    pending = Pending(lambda name: done.set() if name == "abort" else None)
    outgoing = BackgroundUpload(pending)
    for _ in range(num_chunks):
        outgoing.write([bytes(1 << 20)])
    del outgoing
    gc.collect()
    assert done.wait(60)
    assert pending.committed == 0


def test_a_forgotten_one_that_was_ended_appears() -> None:
    """Nothing more is needed for that."""
    done = threading.Event()
    pending = Pending()
    outgoing = BackgroundUpload(pending)
    outgoing.write([b"abc"])
    outgoing.end(lambda written: done.set())
    del outgoing
    gc.collect()
    assert done.wait(60)
    assert (pending.data, pending.committed) == (b"abc", 1)


def test_what_cannot_be_removed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """In the log, because the error that led there has to be told."""
    outgoing = BackgroundUpload(Pending(_breaking("abort")))
    with caplog.at_level(logging.WARNING, logger="torchdata_remote"):
        outgoing.abort()
    assert "could not be removed: abort" in caplog.text


@pytest.mark.parametrize("chunk_bytes", [100_000, 1 << 20, 10 << 20])
def test_no_more_than_some_chunks_are_held(chunk_bytes: int) -> None:
    """However slow the store is: what it takes is at most 4 MiB and two chunks behind, and memory is bounded."""
    written, stored, behind = [0], [0], [0]

    class Slow(Pending):
        def write(self, data: bytes) -> None:
            behind.append(written[0] - stored[0])
            for _ in range(10):
                hashlib.md5(data)  # slower than whoever writes
            stored[0] += len(data)

    outgoing = BackgroundUpload(Slow())
    tracemalloc.start()
    try:
        for _ in range((80 << 20) // chunk_bytes):
            outgoing.write([bytes(chunk_bytes)])
            written[0] += chunk_bytes
        outgoing.end()
        outgoing.result()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(behind) <= MAX_WAITING_BYTES + 2 * chunk_bytes
    assert peak_bytes < MAX_WAITING_BYTES + MAX_BEHIND_BYTES + 4 * chunk_bytes


def test_a_forked_child_is_refused() -> None:
    """Its threads stayed with the parent: it would wait for ever."""
    outgoing = BackgroundUpload(Pending())
    child = os.fork()
    if child == 0:
        try:
            outgoing.abort()  # does nothing here
            outgoing.write([b"x"])
        except RuntimeError as error:
            os._exit(7 if "another process" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    outgoing.write([b"x"])
    outgoing.abort()


PROGRAM = """
import sys
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.storage import open_store
from torchdata_remote.writing.background_upload import BackgroundUpload

store, path = open_store(sys.argv[1], StorageOptions())
outgoing = BackgroundUpload(store.create(path, overwrite=False))
for _ in range(8):
    outgoing.write([bytes(1 << 20)])
if sys.argv[2] == "ended":
    outgoing.end()
"""


@pytest.mark.parametrize("how", ["open", "ended"])
def test_the_end_of_the_interpreter_leaves_nothing_half(tmp_path_factory: pytest.TempPathFactory, how: str) -> None:
    """What was ended is there, what was not leaves no temporary file; the process ends well."""
    folder = tmp_path_factory.mktemp("out")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"{folder}/a.bin", how], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(folder) == (["a.bin"] if how == "ended" else [])
