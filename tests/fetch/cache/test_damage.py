"""The cache on disk over a folder that others spoiled, and in processes that were forked."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tests.support.cache_folder import ETAG, LARGE, URL, keep, kept, objects_in, partials_in, path_of
from tests.support.open_files import num_open
from torchdata_remote.fetch.cache.disk_cache import DiskCache


@pytest.mark.parametrize("length", [0, 1, 4, 6])
def test_a_file_of_the_wrong_length_is_not_used_and_is_replaced(tmp_path: Path, length: int) -> None:
    """Its bytes are never returned, and the object can be cached again."""
    disk = DiskCache(str(tmp_path), LARGE)
    path = path_of(disk, tmp_path, b"abcde")
    path.write_bytes(b"x" * length)
    assert kept(disk, 5) is None
    keep(disk, b"abcde")
    assert kept(disk, 5) == b"abcde"


@pytest.mark.parametrize("instead", ["link", "dangling link", "folder"])
def test_links_and_folders_in_place_of_objects_are_ignored(tmp_path: Path, instead: str) -> None:
    """A link is not followed, and neither it nor a folder in place of an object is an error or its bytes."""
    disk, secret = DiskCache(str(tmp_path / "cache"), LARGE), tmp_path / "secret"
    path = path_of(disk, tmp_path / "cache", b"abcde")
    path.unlink()
    if instead == "folder":
        path.mkdir()
    else:
        path.symlink_to(secret)
    if instead == "link":
        secret.write_bytes(b"12345")
    assert kept(disk, 5) is None
    if instead == "link":
        keep(disk, b"abcde")
        assert secret.read_bytes() == b"12345"
        assert kept(disk, 5) == b"abcde"


def test_a_read_only_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of use cannot be updated there."""
    disk = DiskCache(str(tmp_path), LARGE)
    keep(disk, b"abc")

    def refuse(*arguments: object, **more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refuse)
    assert kept(disk, 3) == b"abc"


@pytest.mark.parametrize("content", [b"", b"x", b"-99999999999", b"\xff\0", b"1e3", b"9" * 5_000, b"12 13"])
def test_a_damaged_usage_file_is_counted_again(tmp_path: Path, content: bytes) -> None:
    """Whatever the file ``usage`` holds, objects are kept, and after the next addition they are within the bound."""
    disk = DiskCache(str(tmp_path), 100)
    for number in range(9):
        keep(disk, bytes(10), f"{number}")
    (tmp_path / "usage").write_bytes(content)
    for number in range(9, 30):
        keep(disk, bytes(10), f"{number}")
        assert sum(objects_in(tmp_path).values()) <= 100
    assert int((tmp_path / "usage").read_bytes()) >= sum(objects_in(tmp_path).values())


def test_a_missing_usage_file_is_counted_again(tmp_path: Path) -> None:
    """From the objects in the folder."""
    disk = DiskCache(str(tmp_path), 100)
    for number in range(9):
        keep(disk, bytes(10), f"{number}")
    (tmp_path / "usage").unlink()
    for number in range(9, 30):
        keep(disk, bytes(10), f"{number}")
        assert sum(objects_in(tmp_path).values()) <= 100


@pytest.mark.parametrize("name", ["en/notes.txt", "partial/notes.txt"])
def test_foreign_files_in_the_folder_are_not_removed(tmp_path: Path, name: str) -> None:
    """Their names are not those of cached objects."""
    path = tmp_path / name
    path.parent.mkdir()
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


def test_a_temporary_file_survives_the_start_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filling that begins in the moment in which another process starts is completed."""
    disk, lock = DiskCache(str(tmp_path), LARGE), fcntl.flock
    started: list[bool] = []

    def start_another_first(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not started:
            started.append(True)
            DiskCache(str(tmp_path), LARGE)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", start_another_first)
    keep(disk, b"abc")
    assert started
    assert kept(disk, 3) == b"abc"


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
    assert num_open(tmp_path) == 0
    assert not partials_in(tmp_path)
