"""Stores with folders, and with listings that start after any path."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.s3 import S3Server
from tests.support.shard_places import Place, memory_place
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import AccessDeniedError, ObjectExistsError
from torchdata_remote.storage import FolderStore, open_store

PATHS = sorted(["a", "a.b", "b/c", "b/d/e", "b/d/f", "b.", "b0", "c/\u00e9", "c/\U0001f600", "c/z/z/z", "z"])


@pytest.fixture(params=["local", "memory", "moto", pytest.param("ceph", marks=pytest.mark.ceph)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty folder in each kind of store."""
    if request.param == "local":
        return Place(f"{tmp_path}/d/")
    if request.param == "memory":
        return memory_place()
    server: S3Server = request.getfixturevalue(request.param)
    return Place(f"s3://{server.new_bucket()}/d/", server)


def opened(place: Place) -> tuple[FolderStore, str]:
    store, path = open_store(place.url, StorageOptions(place.options))
    assert isinstance(store, FolderStore)
    return store, path


def listed(store: FolderStore, prefix: str, *, recursive: bool, limit: int, after: str = "") -> tuple[list[str], int]:
    """Files and folders in order, and the number of pages; no page exceeds the limit or is repeated."""
    found: list[str] = []
    num_pages = 0
    while True:
        page = store.list_after(prefix, recursive=recursive, after=after, limit=limit)
        paths = sorted([entry.path for entry in page.entries] + list(page.folders))
        assert len(paths) <= limit
        assert not recursive or not page.folders
        assert all(path > after for path in paths)
        found += paths
        num_pages += 1
        if page.next_token is None:
            return found, num_pages
        assert page.next_token > after
        after = page.next_token


def expected(paths: list[str], prefix: str, *, recursive: bool) -> list[str]:
    matching = [path for path in paths if path.startswith(prefix)]
    if recursive:
        return matching
    depth = prefix.count("/")
    return sorted({"/".join(path.split("/")[: depth + 1]) + "/" * (path.count("/") > depth) for path in matching})


def test_pages_make_up_the_sorted_listing(where: Place) -> None:
    """For any limit and prefix, with markers of folders: each path once, by code points."""
    store, above = opened(where)
    store.make_folder(above + "b/")
    store.make_folder(above + "c/z/")
    where.put({path: path.encode() for path in PATHS})
    limits = (1, 3) if where.url.startswith("s3://") else (1, 2, 3, 100)  # requests to a server are slow
    for prefix in ("", "b", "b/", "b/d", "b/d/", "c/", "nothing/", "b/c"):
        for recursive in (True, False):
            wanted = [above + path for path in expected(PATHS, prefix, recursive=recursive)]
            for limit in limits if prefix in ("", "b/") else limits[:1]:
                found, _ = listed(store, above + prefix, recursive=recursive, limit=limit)
                assert found == wanted, (prefix, recursive, limit)


names = st.text(st.sampled_from("ab.-0/\u00e9\U0001f600\uffff"), min_size=1, max_size=5).filter(
    lambda path: all(segment not in ("", ".", "..") for segment in path.split("/"))
)


@pytest.mark.parametrize("kind", ["local", "memory"])
@settings(max_examples=30)
@given(
    paths=st.sets(names, max_size=12), prefix=st.just("") | names, after=st.just("") | names, limit=st.integers(1, 5)
)
def test_any_files_are_listed_from_any_path(
    tmp_path: Path, kind: str, paths: set[str], prefix: str, after: str, limit: int
) -> None:
    """For any prefix and limit."""
    place = memory_place() if kind == "memory" else Place(f"{tmp_path}/{time.monotonic_ns()}/")
    files = sorted(path for path in paths if not any(other.startswith(path + "/") for other in paths))
    store, above = opened(place)
    place.put(dict.fromkeys(files, b"1"))
    for recursive in (True, False):
        wanted = [above + path for path in expected(files, prefix, recursive=recursive) if path > after]
        begin = above + after if after else ""
        assert listed(store, above + prefix, recursive=recursive, limit=limit, after=begin)[0] == wanted


def test_entries_of_a_listing_equal_stat(where: Place) -> None:
    """Size, etag and date."""
    store, above = opened(where)
    where.put({"a": b"1", "b/c": b"22"})
    page = store.list_after(above, recursive=True, after="", limit=10)
    assert page.entries == [store.stat(above + "a"), store.stat(above + "b/c")]


def test_a_folder_is_created_filled_and_removed(where: Place) -> None:
    """With all objects in it; its neighbours stay."""
    store, above = opened(where)
    where.put({"f0": b"1", "f.": b"1"})
    assert not store.has_folder(above + "f/")
    store.remove_folder(above + "f/")
    store.make_folder(above + "f/")
    assert store.has_folder(above + "f/")
    with pytest.raises(ObjectExistsError):
        store.make_folder(above + "f/")
    assert listed(store, above + "f/", recursive=True, limit=1)[0] == []
    assert listed(store, above, recursive=False, limit=1)[0] == [above + "f.", above + "f/", above + "f0"]
    where.put({f"f/g/{number}": b"1" for number in range(5)})
    with pytest.raises(ObjectExistsError):
        store.make_folder(above + "f/")
    store.remove_folder(above + "f/")
    assert not store.has_folder(above + "f/")
    assert where.files() == {"f0": b"1", "f.": b"1"}
    store.make_folder(above + "f/")


def test_a_folder_without_marker_exists_by_its_files(where: Place) -> None:
    """And cannot be created."""
    store, above = opened(where)
    where.put({"f/a": b"1"})
    assert store.has_folder(above + "f/")
    with pytest.raises(ObjectExistsError):
        store.make_folder(above + "f/")


def begin_upload(where: Place, store: FolderStore, path: str) -> None:
    """As a writer leaves it that is killed."""
    if where.url.startswith("s3://"):
        where._client.create_multipart_upload(Bucket=where._bucket[0], Key=path)
    else:
        store.create(path, overwrite=True).write(b"x" * 100)


def test_old_unfinished_writes_are_removed(where: Place) -> None:
    """In all folders; younger ones, and files, stay."""
    store, above = opened(where)
    where.put({"a": b"1", "f/a": b"1"})
    begin_upload(where, store, above + "f/b")
    before = where.files()
    store.remove_old_leftovers(above, time.time() - 3600)
    assert where.files() == before
    uploads = where.uploads()
    store.remove_old_leftovers(above, time.time() + 3600)
    assert where.files() == {"a": b"1", "f/a": b"1"}
    assert where.uploads() == []
    assert uploads in ([], [above + "f/b"])


def test_links_are_refused_in_folders_that_are_served(tmp_path: Path) -> None:
    """The error names the link."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"1")
    os.symlink("/", tmp_path / "d" / "link")
    store, above = opened(Place(f"{tmp_path}/d/"))
    with pytest.raises(AccessDeniedError, match="link"):
        store.list_after(above, recursive=True, after="", limit=10)
    assert [entry.path for entry in store.list_after(above + "a", recursive=True, after="", limit=10).entries] == [
        above + "a"
    ]


def test_removing_a_linked_folder_removes_the_link_only(tmp_path: Path) -> None:
    """Not its target."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a").write_bytes(b"1")
    os.symlink(tmp_path / "far", tmp_path / "near")
    store, above = opened(Place(f"{tmp_path}/"))
    store.remove_folder(above + "near/")
    assert not (tmp_path / "near").is_symlink()
    assert (tmp_path / "far" / "a").exists()
