"""SHA-256 of files, kept with them."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.support.shard_places import Place
from torchdata_remote.errors import ObjectChangedError
from torchdata_remote.service.server import digests as of_digests
from torchdata_remote.service.server.dataset_root import DatasetRoot
from torchdata_remote.service.server.digests import Digests


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(params=["kept with the file", "kept in memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A shelf with a dataset, on a file system with attributes and on one without; and the digests of its files."""
    if request.param == "kept in memory":
        monkeypatch.setattr(of_digests, "_set", lambda path, value: False)
    shelf = DatasetRoot(str(tmp_path))
    shelf.create("d")
    return shelf, Digests(shelf), tmp_path / "d"


def test_any_file_has_its_digest(place: Place) -> None:
    """Computed where nobody knew it, and remembered; equal to hashlib's."""
    shelf = DatasetRoot(place.url, place.options)
    shelf.create("d")
    digests = Digests(shelf)
    for size in (0, 1, 3_000_000):
        data = os.urandom(size)
        place.below("d").put({f"{size}": data})
        entry = shelf.stat(shelf.folder("d"), f"{size}")
        assert digests.known(entry) is None
        assert digests.of(entry) == sha256(data)
        assert digests.known(entry) == sha256(data)


def test_a_file_that_is_replaced_has_another(made: Any) -> None:
    """In place or by a rename, by whatever program."""
    shelf, digests, folder = made
    (folder / "a").write_bytes(b"1")
    assert digests.of(shelf.stat(shelf.folder("d"), "a")) == sha256(b"1")
    (folder / "a").write_bytes(b"22")
    assert digests.of(shelf.stat(shelf.folder("d"), "a")) == sha256(b"22")
    (folder / "b").write_bytes(b"333")
    os.replace(folder / "b", folder / "a")
    assert digests.of(shelf.stat(shelf.folder("d"), "a")) == sha256(b"333")


def test_a_copy_is_not_believed(made: Any) -> None:
    """An attribute that was copied along with other bytes, or is nonsense, is not taken for the digest."""
    shelf, digests, folder = made
    (folder / "a").write_bytes(b"1")
    entry = shelf.stat(shelf.folder("d"), "a")
    digests.of(entry)
    shutil.copy2(folder / "a", folder / "b")
    with open(folder / "b", "wb") as file:
        file.write(b"2")
    os.utime(folder / "b", ns=(0, (folder / "a").stat().st_mtime_ns))
    assert digests.of(shelf.stat(shelf.folder("d"), "b")) == sha256(b"2")
    os.rename(folder / "a", folder / "c")
    assert digests.of(shelf.stat(shelf.folder("d"), "c")) == sha256(b"1")
    if hasattr(os, "setxattr"):
        for nonsense in (b"", b"\xff", b"00 x", ("0" * 64).encode(), ("0" * 64 + " x").encode()):
            try:
                os.setxattr(folder / "c", "user.torchdata_remote.sha256", nonsense)
            except OSError:
                pytest.skip("the file system knows no attributes")
            assert Digests(shelf).of(shelf.stat(shelf.folder("d"), "c")) == sha256(b"1")


def test_a_file_that_changes_meanwhile(made: Any) -> None:
    """The digest is of the version that was asked for, or there is none."""
    shelf, digests, folder = made
    (folder / "a").write_bytes(b"1")
    entry = shelf.stat(shelf.folder("d"), "a")
    (folder / "b").write_bytes(b"2")
    os.replace(folder / "b", folder / "a")
    with pytest.raises(ObjectChangedError):
        digests.of(entry)


def test_memory_is_bounded(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where digests are kept in memory, the oldest ones go first."""
    shelf, digests, folder = made
    monkeypatch.setattr(of_digests, "_MAX_KEPT", 3)
    for number in range(6):
        (folder / f"{number}").write_bytes(b"%d" % number)
        digests.of(shelf.stat(shelf.folder("d"), f"{number}"))
    assert len(digests._kept) <= 3
    for number in range(6):
        assert digests.of(shelf.stat(shelf.folder("d"), f"{number}")) == sha256(b"%d" % number)
