"""The cache on disk over a folder that others spoiled, and in processes that were forked."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.cache_folder import (
    ETAG,
    IN_MEMORY,
    LARGE,
    URL,
    keep,
    kept,
    num_bytes_in,
    objects_in,
    packs_in,
    path_of,
    query,
    said_of,
)
from tests.support.open_files import num_open
from tests.support.waiting import wait_for
from torchdata_remote.fetch.cache.disk_cache import DiskCache
from torchdata_remote.fetch.cache.index import CacheIndex
from torchdata_remote.fetch.cache.object_table import ENTRY


@pytest.mark.parametrize("length", [0, 1, 4, 6])
def test_a_file_of_the_wrong_length_is_not_used_and_is_replaced(tmp_path: Path, length: int) -> None:
    """Its bytes are never returned, and the object can be cached again."""
    disk = DiskCache(str(tmp_path), LARGE)
    path = path_of(disk, tmp_path, b"abcde")
    path.write_bytes(b"x" * length)
    assert kept(disk, 5) is None
    assert keep(disk, b"abcde")
    assert kept(disk, 5) == b"abcde"


@pytest.mark.parametrize("instead", ["link", "dangling link", "folder"])
def test_links_and_folders_in_place_of_objects_are_ignored(tmp_path: Path, instead: str) -> None:
    """A link is not followed, and neither it nor a folder in place of an object is an error or its bytes."""
    secret, path = tmp_path / "secret", path_of(DiskCache(str(tmp_path / "cache"), LARGE), tmp_path / "cache", b"abcde")
    disk = DiskCache(str(tmp_path / "cache"), LARGE)
    path.unlink()
    if instead == "folder":
        path.mkdir()
    else:
        path.symlink_to(secret)
    if instead == "link":
        secret.write_bytes(b"12345")
    assert kept(disk, 5) is None
    if instead == "link":
        assert keep(disk, b"abcde")
        assert secret.read_bytes() == b"12345"
        assert kept(disk, 5) == b"abcde"


def test_a_cache_that_became_read_only_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it contains is found, and nothing is added, with one warning."""
    disk = DiskCache(str(tmp_path), 1_000)
    keep(disk, b"abc")

    def refuse(*arguments: object) -> None:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(CacheIndex, "execute", refuse)
    for _ in range(1_000):
        assert kept(disk, 3) == b"abc"
    for number in range(9):
        assert not keep(disk, bytes(100), f"{number}")
    [said] = said_of(tmp_path, caplog)
    assert "is not cached: " in said
    assert "readonly" in said


@pytest.mark.parametrize("content", [b"", b"x" * 9, b"x" * 9_000, None])
def test_a_lost_index_starts_an_empty_cache_within_the_bound(tmp_path: Path, content: bytes | None) -> None:
    """Whatever the index contains; the files of the lost one are removed before anything is added."""
    disk = DiskCache(str(tmp_path), 1_000)
    for number in range(9):
        keep(disk, bytes(100), f"{number}")
    del disk
    index = tmp_path / "v2" / "index.sqlite"
    index.unlink() if content is None else index.write_bytes(content)
    disk = DiskCache(str(tmp_path), 1_000)
    for number in range(30):
        assert kept(disk, 100, f"{number}") in (None, bytes(100))
        keep(disk, bytes(100), f"{number}")
        assert num_bytes_in(tmp_path) <= 1_000
    assert len(objects_in(tmp_path)) == 10


@settings(max_examples=40)
@given(bits=st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
def test_a_damaged_index_never_returns_other_bytes(bits: list[int]) -> None:
    """Bits that flipped anywhere: an object is read as it was stored, or not found, or the index is refused."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        disk = DiskCache(folder, 10_000)
        objects = {f"{number}": os.urandom(30) for number in range(20)}
        for url, data in objects.items():
            keep(disk, data, url)
        del disk
        index = Path(folder, "v2", "index.sqlite")
        damaged = bytearray(index.read_bytes())
        for bit in bits:
            damaged[bit // 8 % len(damaged)] ^= 1 << bit % 8
        index.write_bytes(damaged)
        with contextlib.suppress(OSError):
            disk = DiskCache(folder, 10_000)
            for url, data in objects.items():
                assert kept(disk, 30, url) in (None, data)
                keep(disk, data, url)


@pytest.mark.parametrize("name", ["en/notes.txt", "partial/notes.txt", "ab/notes.txt", "v2/notes.txt"])
def test_foreign_files_in_the_folder_are_not_removed(tmp_path: Path, name: str) -> None:
    """Their names are not those of cached objects."""
    path = tmp_path / name
    path.parent.mkdir(0o700)
    path.write_bytes(bytes(50))
    disk = DiskCache(str(tmp_path), 100)
    for number in range(5):
        keep(disk, bytes(60), f"{number}")
    assert path.exists()


def test_a_forked_child_that_drops_its_copy_does_not_disturb_the_parent(tmp_path: Path) -> None:
    """A child that is forked while an object is filled, and drops its copy, takes nothing from the parent."""
    disk = DiskCache(str(tmp_path), LARGE)
    filling = disk.fill(URL, 6, ETAG)
    assert filling is not None
    filling.write(0, memoryview(b"abc"))
    child = os.fork()
    if child == 0:
        del filling
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    filling.write(3, memoryview(b"def"))
    assert kept(disk, 6) == b"abcdef"


def test_empty_pieces_change_nothing(tmp_path: Path) -> None:
    """Empty pieces change nothing, also after the last byte."""
    disk = DiskCache(str(tmp_path), LARGE)
    filling = disk.fill(URL, 3, ETAG)
    assert filling is not None
    for piece in (b"", b"abc", b""):
        filling.write(0, memoryview(piece))
    assert kept(disk, 3) == b"abc"


def test_hits_misses_and_writers_close_their_descriptors(tmp_path: Path) -> None:
    """A thousand hits, misses and fillings leave no descriptor open."""
    disk = DiskCache(str(tmp_path), LARGE)
    keep(disk, b"abc")
    for number in range(1_000):
        assert kept(disk, 3) == b"abc"
        assert kept(disk, 3, f"{number}") is None
        disk.fill(f"{number}", 3, ETAG)
    del disk
    wait_for(lambda: num_open(tmp_path) == 0)  # a thread may still be publishing
    assert len(packs_in(tmp_path)) == 1


def _edit(field: str, change: Callable[[int], int]) -> Callable[[str], None]:
    """Change a field of all entries in an index."""

    def edit(folder: str) -> None:
        for batch, stored in query(folder, "SELECT id, entries FROM batches"):
            entries = np.frombuffer(stored, ENTRY).copy()
            entries[field] = [change(int(value)) for value in entries[field]]
            query(folder, "UPDATE batches SET entries = ? WHERE id = ?", entries.tobytes(), batch)

    return edit


def _run(statement: str) -> Callable[[str], None]:
    def run(folder: str) -> None:
        query(folder, statement)

    return run


DAMAGES = {
    "no checksums": _run("UPDATE batches SET crc32s = x''"),
    "no entries": _run("UPDATE batches SET entries = NULL"),
    "half an entry": _run("UPDATE batches SET entries = x'00'"),
    "another pack": _run("UPDATE batches SET pack = pack + 1"),
    "pack of another type": _run("UPDATE batches SET pack = 'abc'"),
    "a huge size": _edit("size", lambda size: size | 1 << 60),
    "a larger size": _edit("size", lambda size: size | 1 << 63),
    "no size": _edit("size", lambda size: 0),
    "a huge offset": _edit("offset", lambda offset: offset | 1 << 63),
    "an unknown pack": _edit("pack", lambda pack: pack + 9),
    "clock of another type": _run("UPDATE state SET clock = 'abc'"),
    "a huge clock": _run("UPDATE state SET clock = 9223372036854775807"),
    "no sample": _run("UPDATE state SET sampled = NULL"),
    "no state": _run("DELETE FROM state"),
    "token that is a path": _run("UPDATE state SET token = '../../../x/y'"),
    "token of another type": _run("UPDATE state SET token = x'00ff'"),
    "no table": _run("DROP TABLE reads"),
    "huge numbers": _run("UPDATE sqlite_sequence SET seq = 9223372036854775807"),
    "filled of another type": _run("UPDATE packs SET open = 1, filled = 'abc'"),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
@pytest.mark.parametrize("is_open", [False, True])
def test_a_damaged_value_in_the_index_does_not_stop_reading(tmp_path: Path, damage: str, is_open: bool) -> None:
    """All bytes are right, whether the index was damaged before or after it was opened."""
    objects = {f"{number}.bin": os.urandom(size) for number, size in enumerate([0, 1, 300, 9 << 20])}
    (tmp_path / "files").mkdir()
    for name, data in objects.items():
        (tmp_path / "files" / name).write_bytes(data)
    cache = str(tmp_path / "cache")

    def read() -> dict[str, bytes]:
        pipe = (
            tdr.IterableWrapper([f"{tmp_path}/files/"])
            .list_remote()
            .async_prefetch(cache_dir=cache, cache_bytes=100 << 20)
        )
        return {url.rpartition("/")[2]: stream.read() for url, stream in pipe}

    assert read() == objects
    disk = DiskCache(cache, 100 << 20) if is_open else None
    DAMAGES[damage](cache)
    if disk is not None:
        for number in range(3):
            with contextlib.suppress(OSError):
                keep(disk, bytes(100), f"{number}")
            assert kept(disk, 100, f"{number}") in (None, bytes(100))
    assert read() == objects
    del disk
    assert read() == objects
