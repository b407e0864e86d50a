"""Folders of earlier releases: cleaned up step by step, within the bound, and nothing else is removed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from pathlib import Path

import pytest

from tests.support.cache_folder import ALONE, keep, kept
from torchdata_remote.fetch.cache import room
from torchdata_remote.fetch.cache.disk_cache import DiskCache


def earlier(folder: Path, num_objects: int) -> list[Path]:
    """A cache as earlier releases left it."""
    names = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(num_objects)]
    paths = [folder / name[:2] / name for name in names]
    for path in (*paths, folder / "partial" / "torchdata_remote-abc", folder / "usage"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
    for path in (*(folder / "partial").iterdir(), folder / "partial"):
        os.utime(path, (time.time() - 4_000,) * 2)
    return paths


def keep_at_last(disk: DiskCache) -> None:
    """Each attempt removes files for some time; a busy machine needs several."""
    deadline = time.monotonic() + 60
    while not keep(disk, bytes(100)):
        assert time.monotonic() < deadline


def test_objects_of_earlier_releases_are_removed(tmp_path: Path) -> None:
    """They are fetched once more; folders are removed with them."""
    earlier(tmp_path, 300)
    disk = DiskCache(str(tmp_path), ALONE)
    keep_at_last(disk)
    assert kept(disk, 100) == bytes(100)
    assert [path.name for path in tmp_path.iterdir()] == ["v2"]


def test_objects_stay_while_an_earlier_release_runs(tmp_path: Path) -> None:
    """One that stored something in the last hour; the new cache is used beside it."""
    paths = earlier(tmp_path, 10)
    os.utime(tmp_path / "partial")
    disk = DiskCache(str(tmp_path), ALONE)
    keep_at_last(disk)
    assert kept(disk, 100) == bytes(100)
    assert all(path.exists() for path in paths)


def test_nothing_is_stored_before_the_room_of_earlier_objects_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only some are removed in one go, so that reading goes on."""
    paths = earlier(tmp_path, 300)
    clock = iter(range(10**9))
    monkeypatch.setattr(room, "_MAX_CLEANING_S", 50)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    disk = DiskCache(str(tmp_path), ALONE)
    assert not keep(disk, bytes(100))
    num_left = sum(path.exists() for path in paths)
    assert 200 < num_left < 300
    while not keep(disk, bytes(100)):
        before, num_left = num_left, sum(path.exists() for path in paths)
        assert num_left < before
    assert not any(path.exists() for path in paths)


def test_files_in_use_and_files_of_others_stay(tmp_path: Path) -> None:
    """An earlier release may run at the same time, and the folder may hold other things."""
    in_use, *_ = earlier(tmp_path, 10)
    others = [tmp_path / "ab" / "notes.txt", tmp_path / "partial" / "notes.txt", tmp_path / "abc" / ("ab" * 32)]
    others += [in_use.parent / ("f" * 63), tmp_path / ("ab" * 32)]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (1, 1))
    os.utime(tmp_path / "partial", (1, 1))
    with in_use.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        disk = DiskCache(str(tmp_path), ALONE)
        keep_at_last(disk)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and "v2" not in path.parts]
    assert sorted(left) == sorted([in_use, *others])


def test_a_usage_file_without_a_cache_is_not_removed(tmp_path: Path) -> None:
    """It is not ours."""
    (tmp_path / "usage").touch()
    keep_at_last(DiskCache(str(tmp_path), ALONE))
    assert (tmp_path / "usage").exists()
