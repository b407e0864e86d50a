"""Several caches of one folder in one process, and in processes that were forked while one was open."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.cache_folder import answer_of, child_of, keep, kept, num_bytes_in
from torchdata_remote.fetch.cache.disk_cache import DiskCache

MAX_BYTES = 100_000


def keep_and_leave(pipe: object, folder: str, name: str, num_objects: int = 20) -> None:
    """In another process: store as much as there is room for, and end; send how many objects were stored."""
    disk = DiskCache(folder, MAX_BYTES)
    num_kept = sum([keep(disk, bytes(9_000), f"{name} {number}") for number in range(num_objects)])
    del disk
    pipe.send(num_kept)  # type: ignore[attr-defined]


def test_two_caches_of_a_process_keep_the_bound_and_all_objects(tmp_path: Path) -> None:
    """As for training and validation, while other processes come and go."""
    folder = str(tmp_path)
    caches = [DiskCache(folder, MAX_BYTES) for _ in range(2)]
    with child_of(keep_and_leave, folder, "nothing", 0) as (_, pipe):
        assert answer_of(pipe) == 0
    for number in range(3):
        assert keep(caches[number % 2], bytes(9_000), f"{number}")
    with child_of(keep_and_leave, folder, "other") as (_, pipe):
        assert answer_of(pipe) == 8
    assert not any(keep(cache, bytes(9_000), "too much") for cache in caches)
    assert num_bytes_in(folder) <= MAX_BYTES
    disk = DiskCache(folder, MAX_BYTES)
    assert all(kept(disk, 9_000, f"{number}") for number in range(3))
    assert all(kept(disk, 9_000, f"other {number}") for number in range(8))


def test_what_a_forked_child_stores_outlives_the_cache_of_its_parent(tmp_path: Path) -> None:
    """The parent closes its cache while the child has one of the same folder; others see what both stored."""
    folder = str(tmp_path)
    disk = DiskCache(folder, MAX_BYTES)
    keep(disk, bytes(9_000), "parent")
    (closed, to_close), (opened, to_open) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            other = DiskCache(folder, MAX_BYTES)
            keep(other, bytes(9_000), "before")
            os.write(to_open, b"x")
            os.read(closed, 1)
            if sum(keep(other, bytes(9_000), f"{number}") for number in range(3)) == 3:
                del other
                status = 0
        finally:
            os._exit(status)
    os.read(opened, 1)
    del disk
    os.write(to_close, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for descriptor in (closed, to_close, opened, to_open):
        os.close(descriptor)
    with child_of(keep_and_leave, folder, "third") as (_, pipe):
        assert answer_of(pipe) == 6
    disk = DiskCache(folder, MAX_BYTES)
    assert all(kept(disk, 9_000, name) for name in ("parent", "before", "0", "1", "2"))
    assert num_bytes_in(folder) <= MAX_BYTES
