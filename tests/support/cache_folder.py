"""What a folder of the disk cache holds, and processes that share one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torchdata_remote.fetch.cache.block_checksums import object_bytes
from torchdata_remote.fetch.cache.disk_cache import DiskCache

DEADLINE_S = 60


URL, ETAG = "s3://photos/a", '"1"'


LARGE = 1 << 40


SPAWN = multiprocessing.get_context("spawn")


def objects_in(folder: str | Path) -> dict[str, int]:
    """Path and size of each complete object, without its checksums."""
    whole = [path for path in Path(folder).glob("??/*") if not path.is_symlink()]
    return {str(path): object_bytes(path.stat().st_size) for path in whole}


def bytes_in(path: str | Path) -> bytes:
    """The object in a file, without its checksums."""
    return Path(path).read_bytes()[: object_bytes(os.stat(path).st_size)]


def partials_in(folder: str | Path) -> list[Path]:
    return list(Path(folder, "partial").iterdir())


def keep(disk: DiskCache, data: bytes, url: str = URL, etag: str = ETAG) -> None:
    filling = disk.fill(url, len(data), etag)
    assert filling is not None
    filling.write(0, memoryview(data))


def kept(disk: DiskCache, size: int, url: str = URL, etag: str = ETAG) -> bytes | None:
    found = disk.find(url, size, etag)
    return None if found is None else bytes(found.view(0, None))


def path_of(disk: DiskCache, folder: str | Path, data: bytes, url: str = URL) -> Path:
    """Cache an object, and return its path."""
    before = set(objects_in(folder))
    keep(disk, data, url)
    [path] = set(objects_in(folder)) - before
    return Path(path)


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
