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
from torchdata_remote.service.server.datasets import digests as digests_module
from torchdata_remote.service.server.datasets.dataset_root import DatasetRoot
from torchdata_remote.service.server.datasets.digests import Digests


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(params=["kept with the file", "kept in memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A root with a dataset, on a file system with attributes and on one without; and the digests of its files."""
    if request.param == "kept in memory":
        monkeypatch.setattr(digests_module, "_set_attribute", lambda path, value: False)
    root = DatasetRoot(str(tmp_path))
    root.create_dataset("d")
    return root, Digests(root), tmp_path / "d"


def test_a_digest_is_computed_once(place: Place) -> None:
    """It equals hashlib's."""
    root = DatasetRoot(place.url, place.options)
    root.create_dataset("d")
    digests = Digests(root)
    for size in (0, 1, 3_000_000):
        data = os.urandom(size)
        place.below("d").put({f"{size}": data})
        entry = root.stat(root.folder("d"), f"{size}")
        assert digests.cached(entry) is None
        assert digests.sha256(entry) == sha256(data)
        assert digests.cached(entry) == sha256(data)


def test_a_changed_file_gets_a_new_digest(made: Any) -> None:
    """Changed in place or by a rename, by any program."""
    root, digests, folder = made
    (folder / "a").write_bytes(b"1")
    assert digests.sha256(root.stat(root.folder("d"), "a")) == sha256(b"1")
    (folder / "a").write_bytes(b"22")
    assert digests.sha256(root.stat(root.folder("d"), "a")) == sha256(b"22")
    (folder / "b").write_bytes(b"333")
    os.replace(folder / "b", folder / "a")
    assert digests.sha256(root.stat(root.folder("d"), "a")) == sha256(b"333")


def test_a_stored_digest_of_another_file_is_ignored(made: Any) -> None:
    """One that was copied along with other bytes, or is invalid."""
    root, digests, folder = made
    (folder / "a").write_bytes(b"1")
    entry = root.stat(root.folder("d"), "a")
    digests.sha256(entry)
    shutil.copy2(folder / "a", folder / "b")
    with open(folder / "b", "wb") as file:
        file.write(b"2")
    os.utime(folder / "b", ns=(0, (folder / "a").stat().st_mtime_ns))
    assert digests.sha256(root.stat(root.folder("d"), "b")) == sha256(b"2")
    os.rename(folder / "a", folder / "c")
    assert digests.sha256(root.stat(root.folder("d"), "c")) == sha256(b"1")
    if hasattr(os, "setxattr"):
        for nonsense in (b"", b"\xff", b"00 x", ("0" * 64).encode(), ("0" * 64 + " x").encode()):
            try:
                os.setxattr(folder / "c", "user.torchdata_remote.sha256", nonsense)
            except OSError:
                pytest.skip("the file system knows no attributes")
            assert Digests(root).sha256(root.stat(root.folder("d"), "c")) == sha256(b"1")


def test_a_digest_is_of_the_requested_version(made: Any) -> None:
    """Or an error."""
    root, digests, folder = made
    (folder / "a").write_bytes(b"1")
    entry = root.stat(root.folder("d"), "a")
    (folder / "b").write_bytes(b"2")
    os.replace(folder / "b", folder / "a")
    with pytest.raises(ObjectChangedError):
        digests.sha256(entry)


def test_cached_digests_are_bounded(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest ones are dropped first."""
    root, digests, folder = made
    monkeypatch.setattr(digests_module, "_MAX_ENTRIES", 3)
    for number in range(6):
        (folder / f"{number}").write_bytes(b"%d" % number)
        digests.sha256(root.stat(root.folder("d"), f"{number}"))
    assert len(digests._entries) <= 3
    for number in range(6):
        assert digests.sha256(root.stat(root.folder("d"), f"{number}")) == sha256(b"%d" % number)
