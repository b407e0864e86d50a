"""What a folder of the disk cache holds, and processes that share one."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import sqlite3
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from torchdata_remote.fetch.cache import disk_cache
from torchdata_remote.fetch.cache.disk_cache import DiskCache
from torchdata_remote.fetch.cache.entry import DamagedError
from torchdata_remote.fetch.cache.object_table import ENTRY, ObjectTable, identify

DEADLINE_S = 60


URL, ETAG = "s3://photos/a", '"1"'


LARGE = 1 << 40


ALONE = 1_000  # bytes of a cache in which objects of more than 3 bytes have a file for themselves


# Where there is one, a file system in memory: SQLite waits for a disk when a cache is made and left
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


SPAWN = multiprocessing.get_context("spawn")


class Stored(NamedTuple):
    """An object in a folder: the file with it, and where it is there."""

    path: Path
    offset: int
    size: int


def settle() -> None:
    """Wait until what this process has downloaded is in its caches."""
    for disk in list(disk_cache._live.values()):
        disk.settle()


def said_of(folder: str | Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of a folder: threads of the caches of earlier tests may still record what was read."""
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    return [message for message in messages if str(folder) in message]


def query(folder: str | Path, statement: str, *values: Any) -> list[Any]:
    """Rows of a cache's index, read under the lock of its transactions: SQLite would roll back another's that runs."""
    [index] = Path(folder).glob("**/index.sqlite")
    with open(index, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.closing(sqlite3.connect(index)) as connection, connection:
            return connection.execute(statement, values).fetchall()


def packs_in(folder: str | Path) -> dict[int, Path]:
    """Each file with objects, by its number."""
    return {int(path.stem): path for path in Path(folder).glob("**/*.pack")}


def objects_in(folder: str | Path) -> dict[int, Stored]:
    """Each object that other processes can see, as soon as this one has stored it."""
    settle()
    if not list(Path(folder).glob("**/index.sqlite")):
        return {}
    table, keys, packs = ObjectTable(), set[int](), packs_in(folder)
    for (entries,) in query(folder, "SELECT entries FROM batches ORDER BY id"):
        table.add_stored(entries)
        keys |= set(np.frombuffer(entries, ENTRY)["key"].tolist())
    found = {key: table.get(key) for key in keys}
    return {
        key: Stored(packs[entry.pack], entry.offset, entry.size)
        for key, entry in found.items()
        if entry is not None and entry.pack in packs
    }


def bytes_in(stored: Stored) -> bytes:
    """The bytes of an object, as they are on disk."""
    return stored.path.read_bytes()[stored.offset : stored.offset + stored.size]


def num_bytes_in(folder: str | Path) -> int:
    """The length of all files with objects, whether they are complete or not."""
    total = 0
    for path in packs_in(folder).values():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def unfinished_in(folder: str | Path) -> list[Path]:
    """Files without a complete object."""
    settle()
    has_index = list(Path(folder).glob("**/index.sqlite"))  # not before an object is kept
    complete = {pack for (pack,) in query(folder, "SELECT pack FROM batches")} if has_index else set()
    return [path for number, path in packs_in(folder).items() if number not in complete]


def keep(disk: DiskCache, data: bytes, url: str = URL, etag: str = ETAG) -> bool:
    """Store an object, if there is room."""
    filling = disk.fill(url, len(data), etag)
    if filling is not None:
        filling.write(0, memoryview(data))
        disk.publish()
    return filling is not None


def kept(disk: DiskCache, size: int, url: str = URL, etag: str = ETAG) -> bytes | None:
    """The bytes of an object, if it is in the cache; one that is damaged is dropped."""
    found = disk.find(url, size, etag)
    try:
        return None if found is None else bytes(found.view(0, None))
    except (DamagedError, EOFError):
        assert found is not None
        disk.drop(found)
        return None


def path_of(disk: DiskCache, folder: str | Path, data: bytes, url: str = URL) -> Path:
    """Store an object, and return the file with it."""
    assert keep(disk, data, url)
    key, _ = identify(url, len(data), ETAG)
    return objects_in(folder)[key].path


@contextlib.contextmanager
def child_of(function: Any, *arguments: Any) -> Iterator[tuple[Any, Connection]]:
    """A real process that was spawned, and a pipe to it; it is killed at the block's end."""
    parent_end, child_end = SPAWN.Pipe()
    process = SPAWN.Process(target=function, args=(child_end, *arguments), daemon=True)
    process.start()
    child_end.close()
    try:
        yield process, parent_end
    finally:
        process.kill()
        process.join()


def answer_of(pipe: Connection) -> Any:
    assert pipe.poll(DEADLINE_S), "no answer"
    return pipe.recv()
