"""Writing: an object appears whole or not at all, and is never replaced by accident."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import threading
from multiprocessing.connection import Connection

import pytest

from tests.conformance.folder import Folder
from tests.conformance.rows import each
from torchdata_remote import ShardWriter
from torchdata_remote.errors import ObjectExistsError
from torchdata_remote.storage import Store, is_internal_name
from torchdata_remote.storage.multipart import UPLOAD_PART_BYTES

ROUNDS = 4


def write(store: Store, path: str, data: bytes, *, overwrite: bool = False) -> None:
    writer = store.create(path, overwrite=overwrite)
    try:
        writer.write(data)
        writer.commit()
    finally:
        writer.abort()


@each("writes", transports=True)
def test_an_object_has_the_bytes_that_were_written(folder: Folder) -> None:
    """In order; none makes an empty object."""
    for name, pieces in {"empty": [], "one": [b"1"], "d/several": [b"01234", b"", b"56789"]}.items():
        writer = folder.store.create(folder.prefix + name, overwrite=False)
        for piece in pieces:
            writer.write(piece)
        writer.commit()
        assert folder.get(name) == b"".join(pieces)
        assert folder.store.stat(folder.prefix + name).size == len(b"".join(pieces))
    assert folder.names() == ["d/several", "empty", "one"]


@each("writes", transports=True)
def test_an_object_is_invisible_before_commit(folder: Folder) -> None:
    """An aborted object leaves nothing."""
    path = folder.prefix + "a"
    writer = folder.store.create(path, overwrite=False)
    writer.write(b"12345")
    assert folder.store.find(path) is None
    assert [name for name in folder.names() if not is_internal_name(name)] == []
    writer.abort()
    writer.abort()
    assert folder.store.find(path) is None
    assert folder.names() == folder.unfinished() == []


@each("writes")
def test_an_object_of_several_parts_has_the_bytes_that_were_written(folder: Folder) -> None:
    """Its parts are uploaded meanwhile; an aborted one leaves none of them."""
    data = random.Random(3).randbytes(UPLOAD_PART_BYTES + 1_000_000)
    for name, ends in {"a": "commit", "b": "abort"}.items():
        writer = folder.store.create(folder.prefix + name, overwrite=False)
        for start in range(0, len(data), 3_000_000):
            writer.write(data[start : start + 3_000_000])
        getattr(writer, ends)()
    assert folder.names() == ["a"]
    assert hashlib.sha256(folder.get("a")).digest() == hashlib.sha256(data).digest()
    assert folder.unfinished() == ([] if folder.row.aborts else [folder.prefix + "b"])
    answer = folder.store.read(folder.prefix + "a", UPLOAD_PART_BYTES - 10, UPLOAD_PART_BYTES + 10, None)
    assert answer.whole() == data[UPLOAD_PART_BYTES - 10 : UPLOAD_PART_BYTES + 10]


@each("writes", transports=True)
def test_an_existing_object_is_kept_without_overwrite(folder: Folder) -> None:
    """The error says that it exists, and is a FileExistsError; what was written leaves nothing."""
    path = folder.prefix + "a"
    write(folder.store, path, b"first")
    with pytest.raises(ObjectExistsError, match="/a exists already") as caught:
        write(folder.store, path, b"second")
    assert isinstance(caught.value, FileExistsError)
    assert folder.get("a") == b"first"
    write(folder.store, path, b"third", overwrite=True)
    assert folder.get("a") == b"third"
    assert folder.names() == ["a"]
    assert folder.unfinished() == []


def race(store: Store, path: str, num_writers: int) -> dict[bytes, str]:
    """What became of the bytes of each of several writers that commit at once."""
    start = threading.Barrier(num_writers)
    outcomes: dict[bytes, str] = {}

    def create(data: bytes) -> None:
        writer = store.create(path, overwrite=False)
        writer.write(data)
        start.wait(60)
        try:
            writer.commit()
            outcomes[data] = "created"
        except ObjectExistsError:
            outcomes[data] = "refused"
        finally:
            writer.abort()

    threads = [threading.Thread(target=create, args=(b"%d" % number * 1000,)) for number in range(num_writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@each("writes", "one_winner")
def test_one_of_two_writers_at_once_creates_an_object(folder: Folder) -> None:
    """The other one gets an error, and the object has the bytes of the first."""
    for number in range(ROUNDS):
        outcomes = race(folder.store, f"{folder.prefix}{number}", num_writers=4)
        assert sorted(outcomes.values()) == ["created", "refused", "refused", "refused"]
        assert outcomes[folder.get(f"{number}")] == "created"


@each("writes", transports=True)
def test_a_deleted_object_is_gone(folder: Folder) -> None:
    """Deleting one that does not exist is no error, and neighbours stay."""
    for name in ("d/a", "d/ab", "d0"):
        folder.put(name, b"1")
    for _ in range(2):
        folder.store.delete(folder.prefix + "d/a")
        assert folder.names() == ["d/ab", "d0"]
    assert folder.store.find(folder.prefix + "d/a") is None


def write_and_wait(folder: Folder, reports: Connection) -> None:
    """Finish one shard, and keep the second one open after a part of it was uploaded."""
    writer = ShardWriter(f"{folder.url}{{shard}}.tar", max_shard_samples=2, storage_options=folder.options)
    for number in range(3):
        writer.write(
            {"__key__": f"{number}", "bin": random.Random(number).randbytes(UPLOAD_PART_BYTES * (number // 2))}
        )
        writer.write({"__key__": f"{number} again", "bin": b"1"}) if number < 1 else None
    reports.send("written")
    reports.recv()


@each("writes", "processes")
def test_a_killed_writer_leaves_no_part_of_a_shard(folder: Folder) -> None:
    """By SIGKILL, in a shard. Its claim and its invisible parts are removed by the next writer, or by the server."""
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    child = context.Process(target=write_and_wait, args=(folder, there))
    child.start()
    there.close()
    assert here.poll(120), "the writer wrote nothing"
    assert here.recv() == "written"
    child.kill()
    child.join()
    visible = [name for name in folder.names() if name.endswith(".tar")]
    assert visible in ([], ["0.tar"])
    with ShardWriter(f"{folder.url}{{shard}}.tar", overwrite=True, storage_options=folder.options) as writer:
        writer.write({"__key__": "a", "txt": b"1"})
    if folder.row.cleans != "later":
        assert folder.unfinished() == []
        assert not [name for name in folder.names() if is_internal_name(name.rpartition("/")[2])]
    assert "1.tar" not in folder.names()
