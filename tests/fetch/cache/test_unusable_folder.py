"""A ``cache_dir`` that cannot be used, and a disk that is full."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
from pathlib import Path
from typing import Any

import fsspec
import pytest

import torchdata_remote as tdr
from tests.support.cache_folder import said_of, settle
from torchdata_remote.errors import StorageError
from torchdata_remote.fetch.cache import disk_cache, index_file


def _read(folder: Path, cache_dir: str) -> int:
    return len(list(tdr.stream_files(str(folder), cache_dir=cache_dir, cache_bytes=1 << 30)))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with ten files."""
    (tmp_path / "files").mkdir()
    for number in range(10):
        (tmp_path / "files" / f"{number}.bin").write_bytes(b"x" * 100)
    return tmp_path / "files"


@pytest.mark.parametrize(
    ("below", "why"),
    [("file", "it is a file, or below one"), ("file/cache", "it is a file, or below one"), (None, "empty")],
)
def test_an_unusable_folder_is_an_error_that_names_the_argument(
    files: Path, tmp_path: Path, below: str | None, why: str
) -> None:
    """Before anything is read, with what to do."""
    (tmp_path / "file").touch()
    cache_dir = "" if below is None else str(tmp_path / below)
    with pytest.raises(StorageError) as caught:
        _read(files, cache_dir)
    assert f"cache_dir={cache_dir!r} cannot be used as a cache: " in str(caught.value)
    assert why in str(caught.value)
    assert "Pass a folder of a local disk that this user can create and write to." in str(caught.value)


@pytest.mark.parametrize("target", ["cache", "gone"])
@pytest.mark.parametrize("below", ["cache", "cache/below"])
def test_a_link_that_leads_nowhere_is_called_so(files: Path, tmp_path: Path, target: str, below: str) -> None:
    """As to a disk that is not mounted; it is neither a file nor missing."""
    (tmp_path / "cache").symlink_to(target)
    with pytest.raises(StorageError, match=f"{tmp_path}/cache is a broken link: it leads to '{target}'"):
        _read(files, str(tmp_path / below))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_is_an_error(
    files: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not writable, read-only or full."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(StorageError, match=f"cache_dir=.*{os.strerror(number)}.*Pass a folder"):
        _read(files, str(tmp_path / "cache"))


@pytest.mark.parametrize("problem", ["a file instead", "locked", "full", "read-only"])
def test_a_folder_that_cannot_be_used_any_more_is_one_warning(
    files: Path, tmp_path: Path, problem: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next passes read all objects. Objects that were cached are found if the folder can be read."""
    cache = tmp_path / "cache"
    monkeypatch.setattr(disk_cache, "_warned_folders", {})
    assert _read(files, str(cache)) == 10
    index = cache / "v2" / "index.sqlite"
    with contextlib.ExitStack() as stack:
        if problem == "a file instead":
            cache.rename(tmp_path / "before")
            cache.touch()
        elif problem == "locked":
            monkeypatch.setattr(index_file, "_BUSY_S", 0.01)
            fcntl.flock(stack.enter_context(index.open()), fcntl.LOCK_EX)
        else:
            _refuse_writes(monkeypatch, errno.ENOSPC if problem == "full" else errno.EROFS)
        assert [_read(files, str(cache)) for _ in range(3)] == [10] * 3
        (files / "more.bin").write_bytes(b"more")
        assert _read(files, str(cache)) == 11
        settle()
    [said] = said_of(cache, caplog)
    assert "are read without it" in said


def _refuse_writes(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Refuse as a disk that is full or read-only does."""
    real_open, connect = os.open, sqlite3.connect

    def open_read_only(path: Any, flags: int, *mode: Any, **more: Any) -> int:
        if (flags & os.O_CREAT and not os.path.exists(path)) or (number == errno.EROFS and flags & os.O_ACCMODE):
            raise OSError(number, os.strerror(number), path)
        return real_open(path, flags, *mode, **more)

    def connect_read_only(url: str, **options: Any) -> Any:
        return connect(url.replace("mode=rw", "mode=ro"), **options)

    monkeypatch.setattr(os, "open", open_read_only)
    monkeypatch.setattr(sqlite3, "connect", connect_read_only)


def test_a_missing_parent_is_created(files: Path, tmp_path: Path) -> None:
    assert _read(files, str(tmp_path / "a" / "b")) == 10


def test_a_full_disk_is_one_warning_and_everything_is_read(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the folder, and what follows."""

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(disk_cache, "_warned_folders", {})
    assert _read(files, str(tmp_path / "cache")) == 10
    settle()
    [said] = [message for message in said_of(tmp_path, caplog) if "is not cached" in message]
    assert "No space left on device" in said
    assert "are read without it" in said


def test_objects_without_an_etag_are_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """``memory://`` has none."""
    fsspec.filesystem("memory").pipe({f"/uncached-{tmp_path.name}/{number}.bin": b"x" for number in range(3)})
    pipe = tdr.stream_files(f"memory://uncached-{tmp_path.name}/", cache_dir=str(tmp_path), cache_bytes=1 << 20)
    assert len(list(pipe)) == 3
    assert len([record for record in caplog.records if "reports no etag or no size" in record.getMessage()]) == 1
