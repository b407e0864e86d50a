"""The cache on disk, by itself: in one process, in several, and after one was killed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import random
import shutil
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cache_folder import (
    ALONE,
    ETAG,
    IN_MEMORY,
    LARGE,
    URL,
    answer_of,
    child_of,
    keep,
    kept,
    num_bytes_in,
    objects_in,
    packs_in,
    path_of,
    query,
    unfinished_in,
)
from tests.support.open_files import num_open
from tests.support.waiting import wait_for
from torchdata_remote.core import local_view as mapped
from torchdata_remote.fetch.cache import catalog, index_file
from torchdata_remote.fetch.cache.disk_cache import DiskCache
from torchdata_remote.fetch.cache.entry import CachedFile
from torchdata_remote.fetch.cache.index import CacheIndex
from torchdata_remote.fetch.cache.writer import CacheEntryWriter

NAMES = st.text(st.characters(exclude_categories=["C"]), max_size=8)  # neither URLs nor etags hold control characters


@given(
    versions=st.lists(st.tuples(NAMES, st.integers(1, 3), NAMES), unique=True, max_size=6),
    other=st.tuples(NAMES, st.integers(1, 3), NAMES),
)
def test_url_size_and_etag_identify_an_object(
    versions: list[tuple[str, int, str]], other: tuple[str, int, str]
) -> None:
    """URL, size and etag together name an object: of each URL the last version is found, and nothing else."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        disk = DiskCache(folder, LARGE)
        whole = dict[tuple[str, int, str], bytes]()
        for number, (url, size, etag) in enumerate(versions):
            assert kept(disk, size, url, etag) is None
            whole = {version: data for version, data in whole.items() if version[0] != url}
            whole[url, size, etag] = data = bytes([number + 1]) * size
            keep(disk, data, url, etag)
        for (url, size, etag), data in whole.items():
            assert kept(disk, size, url, etag) == data
        assert len(objects_in(folder)) == len({url for url, _, _ in versions})
        url, size, etag = other
        assert kept(disk, size, url, etag) == whole.get(other)


@given(data=st.data(), size=st.integers(1, 300), num_threads=st.integers(1, 4))
def test_an_object_is_visible_only_when_it_is_complete(data: st.DataObject, size: int, num_threads: int) -> None:
    """Pieces are written in any order by several threads."""
    whole = os.urandom(size)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, size), max_size=12)) | {size})]
    pieces = data.draw(st.permutations(list(itertools.pairwise(cuts))))
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        disk = DiskCache(folder, LARGE)
        filling = disk.fill(URL, size, ETAG)
        assert filling is not None

        def write(share: list[tuple[int, int]], filling: CacheEntryWriter = filling) -> None:
            for start, end in share:
                filling.write(start, memoryview(whole)[start:end])

        early = pieces[:-1]
        threads = [threading.Thread(target=write, args=(early[n::num_threads],)) for n in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert kept(disk, size) is None
        assert not objects_in(folder)
        write(pieces[-1:])
        assert kept(disk, size) == whole
        del filling, write
        assert kept(disk, size) == whole
        assert kept(DiskCache(folder, LARGE), size) == whole
        assert not unfinished_in(folder)


@given(size=st.integers(4, 50), written=st.integers(0, 49))
def test_an_incomplete_object_leaves_no_file_and_no_descriptor(size: int, written: int) -> None:
    """An object that was not completed leaves neither a file nor a descriptor, and its room is used again."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        disk = DiskCache(folder, ALONE)
        for _ in range(3):
            filling = disk.fill(URL, size, ETAG)
            assert filling is not None
            filling.write(0, memoryview(bytes(min(written, size - 1))))
            del filling
            assert kept(disk, size) is None
            assert not packs_in(folder)
        assert keep(disk, bytes(ALONE), "all of it")
        del disk
        wait_for(lambda: num_open(folder) == 0)  # a thread that publishes may hold it a little longer


def test_an_incomplete_small_object_is_overwritten_by_the_next_process(tmp_path: Path) -> None:
    """And complete ones before it stay."""
    for number in range(5):
        disk = DiskCache(str(tmp_path), LARGE)
        assert all(kept(disk, 100, f"{before}") == bytes([before]) * 100 for before in range(number))
        assert keep(disk, bytes([number]) * 100, f"{number}")
        filling = disk.fill("incomplete", 100_000, ETAG)
        assert filling is not None
        closed = weakref.finalize(disk, bool)
        del filling, disk
        # A thread that records what was read keeps it a little longer
        wait_for(lambda closed=closed: not closed.alive)  # type: ignore[misc]
    assert sorted(stored.offset for stored in objects_in(tmp_path).values()) == [0, 100, 200, 300, 400]
    assert len(packs_in(tmp_path)) == 1


def test_a_failed_write_is_raised_and_removes_the_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is left."""
    disk = DiskCache(str(tmp_path), ALONE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _no_space)
        with pytest.raises(OSError, match="No space"):
            keep(disk, b"abcd")
    assert not packs_in(tmp_path)
    keep(disk, b"abcd")
    assert kept(disk, 4) == b"abcd"


def test_a_full_disk_gives_back_the_room_that_was_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small and large objects are stored as soon as the disk has room again."""
    disk = DiskCache(str(tmp_path), 100_000)
    for _ in range(300):
        with monkeypatch.context() as patch, contextlib.suppress(OSError):
            patch.setattr(os, "posix_fallocate", _no_space)
            keep(disk, bytes(100), "small")
        with monkeypatch.context() as patch, contextlib.suppress(OSError):
            patch.setattr(os, "posix_fallocate", _no_space)
            keep(disk, bytes(10_000), "large")
    assert not objects_in(tmp_path)
    monkeypatch.setattr(catalog, "_MISS_S", -1)
    for number in range(9):
        assert kept(disk, 100, f"small {number}") is None
        assert keep(disk, bytes(100), f"small {number}")
        assert keep(disk, bytes(10_000), f"large {number}")
    assert len(objects_in(tmp_path)) == 18


def test_of_objects_that_do_not_fit_together_one_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that arrive at once do not fill the disk by halves; when there is room again, more are kept."""
    room, taken = 90, dict[int, int]()
    write = os.pwrite

    def take(file: int, start: int, num_bytes: int) -> None:
        wanted = max(taken.get(file, 0), start + num_bytes)
        if sum(taken.values()) - taken.get(file, 0) + wanted > room:
            _no_space()
        taken[file] = wanted

    def pwrite(file: int, data: memoryview, start: int) -> int:
        take(file, start, len(data))
        return write(file, data, start)

    monkeypatch.setattr(os, "posix_fallocate", take)
    monkeypatch.setattr(os, "pwrite", pwrite)
    disk, data = DiskCache(str(tmp_path), ALONE), memoryview(os.urandom(60))
    fillings: dict[str, CacheEntryWriter] = {}
    for step in range(3):  # a third of each object by turns
        for url in ("first", "second"):
            with contextlib.suppress(OSError):
                if step == 0:
                    filling = disk.fill(url, 60, ETAG)
                    assert filling is not None
                    fillings[url] = filling
                if url in fillings:
                    fillings[url].write(20 * step, data[20 * step : 20 * step + 20])
    assert [url for url in ("first", "second") if kept(disk, 60, url) == bytes(data)] == ["first"]
    room = 1_000
    monkeypatch.setattr(catalog, "_MISS_S", -1)
    assert kept(disk, 60, "second") is None
    keep(disk, bytes(data), "second")
    assert kept(disk, 60, "second") == bytes(data)


def _no_space(*arguments: object) -> int:
    raise OSError(28, "No space left on device")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may write fewer bytes than requested."""
    whole, write = os.urandom(100), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, start: write(file, data[:7], start))
    keep(disk := DiskCache(str(tmp_path), LARGE), whole)
    assert kept(disk, 100) == whole


def object_of(number: int) -> tuple[str, bytes]:
    """URL and bytes of an object that is the same in every process."""
    return f"s3://photos/{number}", hashlib.shake_128(b"%d" % number).digest(50 + 97 * number)


def fill_and_read(pipe: Connection, folder: str, max_bytes: int, seed: int) -> None:
    """In another process: read and fill at random; send the numbers of hits and of wrong bytes."""
    mapped.MAP_FROM_BYTES = 500
    disk, chance = DiskCache(folder, max_bytes), random.Random(seed)
    hits = wrong = 0
    pipe.send("ready")
    pipe.recv()
    for step in range(200):
        url, data = object_of(chance.randrange(20))
        etag = f"{step // 40}"
        data = etag.encode() + data
        found = disk.find(url, len(data), etag)
        if found is not None:
            hits += 1
            wrong += bytes(found.view(0, None)) != data
            continue
        filling = disk.fill(url, len(data), etag)
        if filling is None:
            continue
        middle = chance.randrange(1, len(data))
        filling.write(middle, memoryview(data)[middle:])
        if chance.random() < 0.9:
            filling.write(0, memoryview(data)[:middle])
    pipe.send((hits, wrong))


def test_concurrent_processes_never_read_wrong_bytes_and_keep_the_bound(tmp_path: Path) -> None:
    """Processes that fill, read and remove in one folder at once never see wrong bytes, and keep within the bound."""
    with contextlib.ExitStack() as stack:
        pipes = [stack.enter_context(child_of(fill_and_read, str(tmp_path), 6_000, seed))[1] for seed in range(4)]
        assert [answer_of(pipe) for pipe in pipes] == ["ready"] * 4
        for pipe in pipes:
            pipe.send("go")
        outcomes = []
        for pipe in pipes:
            while not pipe.poll(0.01):
                assert num_bytes_in(tmp_path) <= 6_000
            outcomes.append(answer_of(pipe))
    assert all(hits > 0 and wrong == 0 for hits, wrong in outcomes)
    assert_sound(str(tmp_path), 6_000)


def assert_sound(folder: str, max_bytes: int) -> None:
    """The index counts what is there, and the bound holds, also when another process uses the folder."""
    assert num_bytes_in(folder) <= max_bytes
    disk = DiskCache(folder, max_bytes)
    keep(disk, bytes(max_bytes // 300), "a small one")
    keep(disk, bytes(max_bytes // 3), "a large one")
    del disk
    [(used,)] = query(folder, "SELECT used FROM state")
    assert [(used,)] == query(folder, "SELECT sum(bytes) FROM packs")
    assert num_bytes_in(folder) <= used <= max_bytes
    known = {pack for (pack,) in query(folder, "SELECT id FROM packs")}
    assert {number for number, path in packs_in(folder).items() if path.stat().st_size} <= known


KILLED_AT = [(os, "open"), (os, "pwrite"), (os, "posix_fallocate"), (os, "unlink"), (os, "ftruncate"), (fcntl, "flock")]
VERSIONS = [(number, version) for version in range(3) for number in range(6)]


def data_of(number: int, version: int) -> bytes:
    return hashlib.shake_128(b"%d %d" % (number, version)).digest(1 + 150 * number)


def live_and_be_killed(folder: str, step: int) -> None:
    """In a forked child: store small and large objects, and replace them; SIGKILL before the call ``step``."""
    calls = itertools.count()

    def killing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if next(calls) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **more)

        return call

    for module, name in KILLED_AT:
        setattr(module, name, killing(getattr(module, name)))
    CacheIndex.execute = killing(CacheIndex.execute)  # type: ignore[method-assign]
    disk = DiskCache(folder, 2_000)
    for number, version in VERSIONS:
        data, url = data_of(number, version), f"{number}"
        if kept(disk, len(data), url, f"{version}") is None:
            keep(disk, data, url, f"{version}")


@pytest.fixture
def in_memory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield folder


def test_a_process_killed_at_any_step_leaves_a_sound_cache(in_memory: str) -> None:
    """Before one of the calls that change something: the bound holds, and no other bytes are returned."""
    for step in itertools.count(0, 16):
        folder = f"{in_memory}/{step}"
        keep(DiskCache(folder, 2_000), data_of(5, 0), "5", "0")
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                live_and_be_killed(folder, step)
                os._exit(0)
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, -signal.SIGKILL)
        assert num_bytes_in(folder) <= 2_000
        disk = DiskCache(folder, 2_000)
        for number, version in VERSIONS:
            data = data_of(number, version)
            assert kept(disk, len(data), f"{number}", f"{version}") in (None, data)
        del disk
        assert_sound(folder, 2_000)
        if status == 0:
            break
        shutil.rmtree(folder)


def fill_halfway(pipe: Connection, folder: str) -> None:
    """In another process: start an object, and complete it when a message is received."""
    disk = DiskCache(folder, ALONE)
    filling = disk.fill(URL, 6, ETAG)
    assert filling is not None
    filling.write(0, memoryview(b"abc"))
    pipe.send("halfway")
    pipe.recv()
    filling.write(3, memoryview(b"def"))
    pipe.send("complete")
    pipe.recv()


def test_files_of_killed_processes_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    """When room is needed, what a killed process left is removed; what a living one writes stays."""
    folder = str(tmp_path)
    with child_of(fill_halfway, folder) as (killed, first), child_of(fill_halfway, folder) as (_, second):
        assert answer_of(first) == answer_of(second) == "halfway"
        assert len(unfinished_in(folder)) == 2
        os.kill(killed.pid, signal.SIGKILL)
        killed.join()
        disk = DiskCache(folder, ALONE)
        assert not keep(disk, bytes(ALONE - 5), "too large")
        assert keep(disk, bytes(ALONE - 6), "as large as it can be")
        second.send("go")
        assert answer_of(second) == "complete"
        assert kept(DiskCache(folder, ALONE), 6) == b"abcdef"
        assert not unfinished_in(folder)


def hold(pipe: Connection, folder: str, size: int) -> None:
    """In another process: hold an object until a message is received."""
    found = DiskCache(folder, ALONE).find(URL, size, ETAG)
    assert found is not None
    pipe.send("holding")
    pipe.recv()
    pipe.send(bytes(found.view(0, None)))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_object_in_use_is_not_removed(tmp_path: Path, elsewhere: bool) -> None:
    """In this process or another one, also if it was replaced; afterwards it is removed like others."""
    data = os.urandom(ALONE)
    path = path_of(DiskCache(str(tmp_path), ALONE), tmp_path, data)
    disk = DiskCache(str(tmp_path), ALONE)
    with contextlib.ExitStack() as stack:
        held: CachedFile | None = None
        if elsewhere:
            _, pipe = stack.enter_context(child_of(hold, str(tmp_path), ALONE))
            assert answer_of(pipe) == "holding"
        else:
            held = disk.find(URL, ALONE, ETAG)
        assert kept(disk, ALONE, URL, "new") is None
        for number in range(4):
            assert not keep(disk, bytes(60), f"{number}")
            assert path.exists()
        if elsewhere:
            pipe.send("end")
            assert answer_of(pipe) == data
        else:
            assert held is not None
            assert held.view(0, None) == data
            del held
    assert kept(disk, 60, "one more") is None
    disk = DiskCache(str(tmp_path), ALONE)
    assert keep(disk, bytes(60), "one more")
    assert not path.exists()


def test_a_folder_removed_while_it_is_used_is_not_written_to(tmp_path: Path) -> None:
    """The objects are read without the cache; the next iteration makes a new one, which is sound."""
    folder = tmp_path / "cache"
    disk = DiskCache(str(folder), ALONE)
    keep(disk, bytes(100), "before")
    shutil.rmtree(folder)
    other = DiskCache(str(folder), ALONE)
    for number in range(5):
        with contextlib.suppress(OSError):
            keep(disk, bytes(100), f"{number}")
        assert kept(disk, 100, "before") is None
    assert num_bytes_in(folder) == 0
    assert keep(other, bytes(ALONE), "after")
    del other
    assert_sound(str(folder), ALONE)


def test_a_process_that_is_stopped_does_not_stop_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while it writes to the index: others read, and store nothing meanwhile."""
    disk = DiskCache(str(tmp_path), ALONE)
    keep(disk, bytes(100), "before")
    monkeypatch.setattr(index_file, "_BUSY_S", 0.01)
    with (tmp_path / "v2" / "index.sqlite").open() as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="locked"):
            keep(disk, bytes(100), "meanwhile")
        for _ in range(1_000):
            assert kept(disk, 100, "before") == bytes(100)
            assert not keep(disk, bytes(100), "not tried")
    later = time.monotonic() + 6
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert kept(disk, 100, "after") is None
    assert keep(disk, bytes(100), "after")


def test_the_growth_of_the_index_drives_no_object_out(tmp_path: Path) -> None:
    """A full cache records what is read, so its index grows; objects stay until others need their room."""
    disk, data = DiskCache(str(tmp_path), 3 << 20), bytes(10_000)
    names = [f"{number}" for number in range(600)]
    first = [name for name in names if keep(disk, data, name)]
    assert 200 < len(first) < 300
    for _ in range(3):
        found = [name for name in names if kept(disk, len(data), name) or (keep(disk, data, name) and False)]
        assert found == first
