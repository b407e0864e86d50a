"""Folders, which may be empty, and listings that start after any path: what a dataset service asks of its root."""

from __future__ import annotations

import time

import pytest

from tests.conformance.folder import Folder, new_folder
from tests.conformance.rows import Row, each
from tests.servers.store_server import S3Place, StoreServer
from torchdata_remote.errors import ObjectExistsError
from torchdata_remote.storage import FolderStore

PATHS = sorted(["a", "a.b", "b/c", "b/d/e", "b/d/f", "b.", "b0", "c/\u00e9", "c/\U0001f600", "c/z/z/z", "z"])


def opened(folder: Folder) -> FolderStore:
    store = folder.store
    assert isinstance(store, FolderStore)
    return store


def listed(store: FolderStore, prefix: str, *, recursive: bool, limit: int, after: str = "") -> list[str]:
    """Files and folders in order; no page exceeds the limit or is repeated."""
    found: list[str] = []
    while True:
        page = store.list_after(prefix, recursive=recursive, after=after, limit=limit)
        paths = sorted([entry.path for entry in page.entries] + list(page.folders))
        assert len(paths) <= limit
        assert not recursive or not page.folders
        assert all(path > after for path in paths)
        found += paths
        if page.next_token is None:
            return found
        assert page.next_token > after
        after = page.next_token


def expected(paths: list[str], prefix: str, *, recursive: bool) -> list[str]:
    matching = [path for path in paths if path.startswith(prefix)]
    if recursive:
        return matching
    depth = prefix.count("/")
    return sorted({"/".join(path.split("/")[: depth + 1]) + "/" * (path.count("/") > depth) for path in matching})


@pytest.fixture(scope="session")
def tree(row: Row, server: StoreServer, place: str) -> Folder:
    """Objects in folders, some of which were made before."""
    folder = new_folder(row, server, place)
    for name in ("b/", "c/z/"):
        opened(folder).make_folder(folder.prefix + name)
    for path in PATHS:
        folder.put(path, path.encode())
    return folder


@each("folders")
@pytest.mark.parametrize("prefix", ["", "b", "b/", "b/d", "b/d/", "c/", "nothing/", "b/c"])
def test_pages_make_up_the_sorted_listing(tree: Folder, prefix: str) -> None:
    """For several limits, with markers of folders: each path once, by code points."""
    store, above = opened(tree), tree.prefix
    for recursive in (True, False):
        wanted = [above + path for path in expected(PATHS, prefix, recursive=recursive)]
        for limit in (1, 3) if prefix in ("", "b/") else (1,):
            assert listed(store, above + prefix, recursive=recursive, limit=limit) == wanted, (recursive, limit)
        after = above + "b/d/e"
        later = [path for path in wanted if path > after]
        assert listed(store, above + prefix, recursive=recursive, limit=4, after=after) == later


@each("folders")
def test_a_folder_is_created_filled_and_removed(folder: Folder) -> None:
    """With all objects in it; its neighbours stay."""
    store, path = opened(folder), folder.prefix + "f/"
    for name in ("f0", "f."):
        folder.put(name, b"1")
    assert not store.has_folder(path)
    store.remove_folder(path)
    store.make_folder(path)
    assert store.has_folder(path)
    with pytest.raises(ObjectExistsError):
        store.make_folder(path)
    assert listed(store, path, recursive=True, limit=1) == []
    names = [name.removeprefix(folder.prefix) for name in listed(store, folder.prefix, recursive=False, limit=1)]
    assert names == ["f.", "f/", "f0"]
    for number in range(5):
        folder.put(f"f/g/{number}", b"1")
    with pytest.raises(ObjectExistsError):
        store.make_folder(path)
    store.remove_folder(path)
    assert not store.has_folder(path)
    assert folder.names() == ["f.", "f0"]
    store.make_folder(path)


@each("folders")
def test_a_folder_without_marker_exists_by_its_files(folder: Folder) -> None:
    """And cannot be created."""
    store, path = opened(folder), folder.prefix + "f/"
    folder.put("f/a", b"1")
    assert store.has_folder(path)
    with pytest.raises(ObjectExistsError):
        store.make_folder(path)


def begin_upload(folder: Folder, name: str) -> None:
    """As a writer leaves it that is killed."""
    if isinstance(folder.server, S3Place):
        bucket = folder.place.removeprefix("s3://")
        folder.server.server.client().create_multipart_upload(Bucket=bucket, Key=f"{folder.name}{name}")
    else:
        folder.store.create(folder.prefix + name, overwrite=True).write(b"x" * 100)


@each("folders", "lists_uploads")
def test_old_unfinished_writes_are_removed(folder: Folder) -> None:
    """In all folders; younger ones, and files, stay."""
    store = opened(folder)
    for name in ("a", "f/a"):
        folder.put(name, b"1")
    begin_upload(folder, "f/b")
    before = folder.names(), folder.unfinished()
    store.remove_old_leftovers(folder.prefix, time.time() - 3600)
    assert folder.names() == before[0]
    assert folder.unfinished() == before[1] or folder.row.server == "moto"  # whose uploads all began in 2010
    store.remove_old_leftovers(folder.prefix, time.time() + 3600)
    assert (folder.names(), folder.unfinished()) == (["a", "f/a"], [])
