"""The cache on disk, by itself: in one process, in several, and after one was killed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import signal
import tempfile
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cache_folder import (
    ETAG,
    LARGE,
    URL,
    answer_of,
    child_of,
    keep,
    kept,
    objects_in,
    partials_in,
    path_of,
)
from tests.support.open_files import num_open
from torchdata_remote.core import local_view as mapped
from torchdata_remote.fetch.cache.disk_cache import CacheEntryWriter, DiskCache
from torchdata_remote.fetch.cache.entry import CachedFile

NAMES = st.text(st.characters(exclude_categories=["C"]), max_size=8)  # neither URLs nor etags hold control characters


def used_at(path: Path, second: int) -> None:
    """Set the time of last use: clocks of file systems are too coarse to order two uses."""
    os.utime(path, (second, second))


@given(
    versions=st.lists(st.tuples(NAMES, st.integers(1, 3), NAMES), unique=True, max_size=6),
    other=st.tuples(NAMES, st.integers(1, 3), NAMES),
)
def test_url_size_and_etag_identify_an_object(
    versions: list[tuple[str, int, str]], other: tuple[str, int, str]
) -> None:
    """URL, size and etag together name an object: no two versions meet, and what was not kept is not found."""
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskCache(folder, LARGE)
        whole = {version: bytes([number + 1]) * version[1] for number, version in enumerate(versions)}
        for (url, size, etag), data in whole.items():
            assert kept(disk, size, url, etag) is None
            keep(disk, data, url, etag)
        for (url, size, etag), data in whole.items():
            assert kept(disk, size, url, etag) == data
        url, size, etag = other
        assert kept(disk, size, url, etag) == whole.get(other)
        assert len({os.path.basename(path) for path in objects_in(folder)}) == len(whole)


@given(data=st.data(), size=st.integers(1, 300), num_threads=st.integers(1, 4))
def test_an_object_is_visible_only_when_it_is_complete(data: st.DataObject, size: int, num_threads: int) -> None:
    """Pieces are written in any order by several threads."""
    whole = os.urandom(size)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, size), max_size=12)) | {size})]
    pieces = data.draw(st.permutations(list(itertools.pairwise(cuts))))
    with tempfile.TemporaryDirectory() as folder:
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
        assert not partials_in(folder)


@given(size=st.integers(1, 50), written=st.integers(0, 49))
def test_an_incomplete_object_leaves_no_file_and_no_descriptor(size: int, written: int) -> None:
    """An object that was not completed leaves neither a file nor a descriptor."""
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskCache(folder, LARGE)
        filling = disk.fill(URL, size, ETAG)
        assert filling is not None
        filling.write(0, memoryview(bytes(min(written, size - 1))))
        del filling
        assert kept(disk, size) is None
        assert not objects_in(folder)
        assert not partials_in(folder)
        assert num_open(folder) == 0


def test_a_failed_write_is_raised_and_removes_the_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is left."""
    disk = DiskCache(str(tmp_path), LARGE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _no_space)
        with pytest.raises(OSError, match="No space"):
            keep(disk, b"abc")
    assert not objects_in(tmp_path)
    assert not partials_in(tmp_path)
    keep(disk, b"abc")
    assert kept(disk, 3) == b"abc"


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
    disk, data = DiskCache(str(tmp_path), LARGE), memoryview(os.urandom(60))
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


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(0, 130), max_size=25), use=st.randoms())
def test_the_sum_of_sizes_stays_within_the_bound(sizes: list[int], use: random.Random) -> None:
    """After each addition all objects together are within the bound; larger ones are not kept."""
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskCache(folder, 100)
        for number, size in enumerate(sizes):
            filling = disk.fill(f"{number}", size, ETAG)
            assert (filling is not None) == (size <= 100)
            if filling is not None:
                filling.write(0, memoryview(bytes([number]) * size))
            assert sum(objects_in(folder).values()) <= 100
            again = use.randrange(number + 1)
            assert kept(disk, sizes[again], f"{again}") in (None, bytes([again]) * sizes[again])


@given(order=st.permutations(range(5)))
def test_the_least_recently_used_object_is_removed_first(order: list[int]) -> None:
    """In any order of writing; a hit counts as use."""
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskCache(folder, 50)
        paths = [path_of(disk, folder, bytes(10), f"{number}") for number in range(5)]
        for second, number in enumerate(order):
            used_at(paths[number], 1_000 + second)
        assert kept(disk, 10, f"{order[0]}") is not None  # used now: after all others
        keep(disk, bytes(10), "one more")
        assert [number for number in range(5) if paths[number].exists()] == sorted([order[0], *order[3:]])
        assert kept(disk, 10, "one more") is not None


@given(others=st.lists(st.integers(1, 100), min_size=1, max_size=6), size=st.integers(1, 100))
def test_the_newest_object_is_not_removed(others: list[int], size: int) -> None:
    """Others are removed for it, unless a process reads them."""
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskCache(folder, 100)
        for number, other in enumerate(others):
            keep(disk, bytes(other), f"{number}")
            for path in objects_in(folder):
                used_at(Path(path), 1_000 + number)
        keep(disk, bytes(size), "newest")
        assert kept(disk, size, "newest") == bytes(size)


def hold(pipe: Connection, folder: str, size: int) -> None:
    """In another process: hold an object until a message is received."""
    found = DiskCache(folder, 100).find(URL, size, ETAG)
    assert found is not None
    pipe.send("holding")
    pipe.recv()
    pipe.send(bytes(found.view(0, None)))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_object_in_use_is_not_removed(tmp_path: Path, elsewhere: bool) -> None:
    """In this process or another one, also above the bound; afterwards it is removed like others."""
    disk, data = DiskCache(str(tmp_path), 100), os.urandom(60)
    path = path_of(disk, tmp_path, data)
    used_at(path, 1)
    with contextlib.ExitStack() as stack:
        held: CachedFile | None = None
        if elsewhere:
            _, pipe = stack.enter_context(child_of(hold, str(tmp_path), 60))
            assert answer_of(pipe) == "holding"
        else:
            held = disk.find(URL, 60, ETAG)
        used_at(path, 1)
        for number in range(4):
            keep(disk, bytes(60), f"{number}")
            assert path.exists()
        if elsewhere:
            pipe.send("end")
            assert answer_of(pipe) == data
        else:
            assert held is not None
            assert held.view(0, None) == data
            del held
    keep(disk, bytes(60), "one more")
    assert not path.exists()
    assert sum(objects_in(tmp_path).values()) <= 100


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
    for _ in range(400):
        url, data = object_of(chance.randrange(20))
        found = disk.find(url, len(data), ETAG)
        if found is not None:
            hits += 1
            wrong += bytes(found.view(0, None)) != data
            continue
        filling = disk.fill(url, len(data), ETAG)
        assert filling is not None
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
        outcomes = [answer_of(pipe) for pipe in pipes]
    assert all(hits > 0 and wrong == 0 for hits, wrong in outcomes)
    keep(DiskCache(str(tmp_path), 6_000), b"abc", "one more")
    assert sum(objects_in(tmp_path).values()) <= 6_000
    assert not partials_in(tmp_path)


def fill_halfway(pipe: Connection, folder: str) -> None:
    """In another process: start an object, and complete it when a message is received."""
    filling = DiskCache(folder, LARGE).fill(URL, 6, ETAG)
    assert filling is not None
    filling.write(0, memoryview(b"abc"))
    pipe.send("halfway")
    pipe.recv()
    filling.write(3, memoryview(b"def"))
    pipe.send("complete")


def test_partial_files_of_killed_processes_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    """What a killed process left is removed by the next one that starts; what a living one writes stays."""
    folder = str(tmp_path)
    with child_of(fill_halfway, folder) as (killed, first), child_of(fill_halfway, folder) as (_, second):
        assert answer_of(first) == answer_of(second) == "halfway"
        assert len(partials_in(folder)) == 2
        os.kill(killed.pid, signal.SIGKILL)
        killed.join()
        disk = DiskCache(folder, LARGE)
        assert len(partials_in(folder)) == 1
        second.send("go")
        assert answer_of(second) == "complete"
        assert kept(disk, 6) == b"abcdef"
        assert not partials_in(folder)
