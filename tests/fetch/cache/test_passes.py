"""Passes of one process that use one folder: they share a cache, and leave nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cache_folder import LARGE, answer_of, child_of, keep, kept, objects_in, said_of
from tests.support.cached_store import cached, epoch, options
from tests.support.waiting import wait_for
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.fetch.cache import disk_cache, index_file
from torchdata_remote.fetch.cache.disk_cache import DiskCache, open_cache
from torchdata_remote.fetch.cache.index import CacheIndex
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects

OBJECTS = {f"s3://photos/{number}": bytes([number]) * 50 for number in range(30)}


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Whatever is freed is not part of a cycle."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("in_order", [False, True])
def test_each_pass_finds_what_the_last_one_has_left_to_store(in_order: bool) -> None:
    """By whichever path the folder is called."""
    with cached(OBJECTS, chunk_bytes=100) as (store, folder):
        link = f"{folder}-link"
        os.symlink(folder, link)
        try:
            for path in (folder, link, folder):
                assert epoch(store, options(path, in_order=in_order, part_bytes=100), listed=True) == OBJECTS
        finally:
            os.unlink(link)
        assert store.gets == len(OBJECTS)


@pytest.mark.parametrize("in_order", [False, True])
def test_a_cache_is_closed_a_moment_after_its_last_pass(in_order: bool) -> None:
    """Without a collection. Its file for small objects can be continued by another process then."""
    with cached(OBJECTS, chunk_bytes=100) as (store, folder), no_collections():
        epoch(store, options(folder, in_order=in_order), listed=True)
        for _ in stream_objects(OBJECTS, FetchSession(options(folder, in_order=in_order), StorageOptions())):
            break
        del _
        place = (os.path.realpath(folder), LARGE)
        assert place in disk_cache._live
        wait_for(lambda: place not in disk_cache._live)


def test_many_short_passes_keep_one_cache(tmp_path: Path) -> None:
    """As those of a program that reads a file now and then."""
    with cached(OBJECTS, chunk_bytes=100) as (store, folder), no_collections():
        for name in OBJECTS:
            for _, stream in stream_objects([name], FetchSession(options(folder, part_bytes=100), StorageOptions())):
                stream.read()
        epoch(store, options(folder, part_bytes=100), listed=False)
        assert store.gets == len(OBJECTS)
        assert len(list(Path(folder).glob("**/*.pack"))) == 1


def test_passes_with_different_bounds_have_their_own(tmp_path: Path) -> None:
    first, second = (open_cache(str(tmp_path), max_bytes) for max_bytes in (1 << 20, 2 << 20))
    assert first is not second
    assert open_cache(str(tmp_path), 1 << 20) is first


@pytest.mark.parametrize("what", ["folder", "index"])
def test_a_folder_that_was_removed_is_opened_anew(what: str, tmp_path: Path) -> None:
    first = open_cache(str(tmp_path / "cache"), LARGE)
    assert first is not None
    keep(first, b"abc")
    if what == "folder":
        (tmp_path / "cache").rename(tmp_path / "away")
    else:
        (tmp_path / "cache" / "v2" / "index.sqlite").unlink()
    second = open_cache(str(tmp_path / "cache"), LARGE)
    assert second is not None
    assert second is not first
    assert kept(second, 3) is None
    assert keep(second, b"abc")


def store_and_end(pipe: Any, folder: str) -> None:
    """In another process, whose threads are not waited for as in a worker: download, and end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchdata_remote.fetch.cache.cached_object.CachedObject.store_kept", lambda self: None)
        with cached(OBJECTS, chunk_bytes=100) as (store, _):
            pipe.send(epoch(store, options(folder, part_bytes=100), listed=True) == OBJECTS)


@pytest.mark.system
def test_what_threads_have_left_to_store_is_stored_when_a_process_ends(tmp_path: Path) -> None:
    """Here they store nothing at all."""
    with child_of(store_and_end, str(tmp_path)) as (process, pipe):
        assert answer_of(pipe)
        process.join(60)
    assert len(objects_in(tmp_path)) == len(OBJECTS)


def test_what_was_stored_while_the_index_was_locked_is_published_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other object is stored or read meanwhile, and no pass waits for the lock again."""
    monkeypatch.setattr(index_file, "_BUSY_S", 0.2)
    monkeypatch.setattr("torchdata_remote.fetch.cache.catalog.RETRY_S", 0.5)
    disk = open_cache(str(tmp_path), LARGE)
    assert disk is not None
    keep(disk, b"abc", "first")
    with (tmp_path / "v2" / "index.sqlite").open() as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        filling = disk.fill("second", 3, '"1"')
        assert filling is not None
        filling.write(0, memoryview(b"def"))
        wait_for(lambda: not disk._catalog.may_exchange())
        assert open_cache(str(tmp_path), LARGE) is disk
        start = time.monotonic()
        for _ in range(3):
            if not disk._catalog.may_exchange():
                assert open_cache(str(tmp_path), LARGE) is disk
        assert time.monotonic() - start < 1
    del filling
    wait_for(lambda: not disk._catalog._changes.entries)
    assert kept(DiskCache(str(tmp_path), LARGE), 3, "second") == b"def"


@pytest.mark.parametrize("num_bytes", [3, 100_000])
def test_after_a_transaction_that_failed_at_its_end_objects_are_stored_again(
    num_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers that it had given to files are given again."""
    monkeypatch.setattr("torchdata_remote.fetch.cache.catalog.RETRY_S", 0.0)
    disk, real, faults = DiskCache(str(tmp_path), 1 << 20), CacheIndex.transaction, [OSError("the disk is full")]

    @contextlib.contextmanager
    def transaction(self: CacheIndex) -> Iterator[None]:
        with real(self):
            yield
            if faults:
                raise faults.pop()

    monkeypatch.setattr(CacheIndex, "transaction", transaction)
    with pytest.raises(OSError, match="full"):
        disk.fill("first", num_bytes, '"1"')
    for name in ("second", "third"):
        assert keep(disk, bytes(num_bytes), name)
        assert kept(DiskCache(str(tmp_path), 1 << 20), num_bytes, name) == bytes(num_bytes)


def test_an_object_that_cannot_be_published_is_not_called_uncached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """This process reads it; others know of it when the index can be written again."""
    disk = DiskCache(str(tmp_path), LARGE)
    keep(disk, b"abc", "first")
    filling = disk.fill("second", 3, '"1"')
    assert filling is not None

    def refuse(self: CacheIndex) -> Any:
        raise OSError("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(CacheIndex, "transaction", refuse)
        full.setattr(disk._catalog, "_published_at", 0.0)
        filling.write(0, memoryview(b"def"))
    assert kept(disk, 3, "second") == b"def"
    [said] = said_of(tmp_path, caplog)
    assert said.startswith("The index of the cache cannot be written, which is tried again: the disk is full")


def test_a_log_handler_that_raises_does_not_stop_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor its only thread: the error is reported as one of a thread."""

    class Strict(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record.getMessage())

    def full(*arguments: Any) -> int:
        raise OSError("the disk is full")

    reported = list[BaseException | None]()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: reported.append(arguments.exc_value))
    monkeypatch.setattr(disk_cache, "_warned_folders", {})
    monkeypatch.setattr(os, "pwrite", full)
    handler = Strict()
    logging.getLogger("torchdata_remote").addHandler(handler)
    try:
        with cached(OBJECTS, chunk_bytes=100) as (store, folder):
            assert epoch(store, options(folder, max_in_flight=1, part_bytes=100), listed=True) == OBJECTS
    finally:
        logging.getLogger("torchdata_remote").removeHandler(handler)
    assert "the disk is full" in str(reported[0])


@pytest.mark.system
def test_a_thread_that_outlives_the_main_one_reads_as_any_other() -> None:
    """Its objects are published together, and what it has stored last is when it ends."""
    code = f"""
import threading
from tests.fetch.cache.test_passes import OBJECTS
from tests.support.cached_store import cached, epoch, options
from torchdata_remote.fetch.cache.index import CacheIndex
def run():
    threading.main_thread().join()
    transactions, real = [], CacheIndex.transaction
    CacheIndex.transaction = lambda self: transactions.append(self) or real(self)
    with cached(OBJECTS, chunk_bytes=100) as (store, folder):
        for _ in range(2):
            assert epoch(store, options(folder, part_bytes=100), listed=True) == OBJECTS
        assert store.gets == {len(OBJECTS)}
    print(len(transactions), flush=True)
threading.Thread(target=run).start()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(ended.stdout) < len(OBJECTS), ended.stdout
    assert not ended.stderr


def test_ctrl_c_while_a_pass_begins_is_no_fault_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pass stores at once."""
    first = open_cache(str(tmp_path), LARGE)
    assert first is not None
    with monkeypatch.context() as interrupted:

        def interrupt(self: CacheIndex, last: int) -> Any:
            raise KeyboardInterrupt

        interrupted.setattr(CacheIndex, "batches_after", interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_cache(str(tmp_path), LARGE)
    second = open_cache(str(tmp_path), LARGE)
    assert second is first
    assert keep(second, b"abc")
    assert kept(DiskCache(str(tmp_path), LARGE), 3) == b"abc"


def test_short_passes_do_not_wait_for_an_index_that_stays_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one does."""
    monkeypatch.setattr(disk_cache, "_locked_until", {})
    monkeypatch.setattr(disk_cache, "_warned_folders", {})
    DiskCache(str(tmp_path), LARGE)
    tries, real = list[int](), index_file._lock

    def lock(descriptor: int) -> bool:
        tries.append(descriptor)
        return real(descriptor)

    monkeypatch.setattr(index_file, "_BUSY_S", 0.05)
    monkeypatch.setattr(index_file, "_lock", lock)
    with (tmp_path / "v2" / "index.sqlite").open() as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        assert open_cache(str(tmp_path), LARGE) is None
        num_tries = len(tries)
        assert num_tries > 1
        for _ in range(20):
            assert open_cache(str(tmp_path), LARGE) is None
        assert len(tries) == num_tries
    monkeypatch.setattr(disk_cache, "_locked_until", {})
    assert open_cache(str(tmp_path), LARGE) is not None


@pytest.mark.parametrize("what", ["removed", "locked"])
def test_a_cache_that_can_publish_nothing_ends_nevertheless(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread does not try for ever."""
    monkeypatch.setattr(index_file, "_BUSY_S", 0.01)
    monkeypatch.setattr("torchdata_remote.fetch.cache.catalog.RETRY_S", 0.01)
    monkeypatch.setattr(disk_cache, "_warned_folders", {})
    folder = tmp_path / "cache"
    disk = open_cache(str(folder), LARGE)
    assert disk is not None
    keep(disk, b"abc", "first")
    place = (os.path.realpath(folder), LARGE)
    with (folder / "v2" / "index.sqlite").open() as locked:
        if what == "locked":
            fcntl.flock(locked, fcntl.LOCK_EX)
        else:
            folder.rename(tmp_path / "away")
        filling = disk.fill("second", 3, '"1"')
        assert filling is not None
        filling.write(0, memoryview(b"def"))
        del disk, filling
        wait_for(lambda: place not in disk_cache._live)
