"""Local files as a store."""

from __future__ import annotations

import os
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.storage import PARTIAL_SUFFIX, RangeNotSatisfiableError, Store, open_store
from torchdata_remote.storage.local.store import LocalStore

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)


@pytest.fixture
def store() -> Store:
    return open_store("/", StorageOptions())[0]


def write(store: Store, path: str, data: bytes, *, overwrite: bool = False) -> None:
    writer = store.create(path, overwrite=overwrite)
    writer.write(data)
    writer.commit()


@pytest.mark.parametrize("form", ["{}", "file://{}", "local://{}", "FILE://{}"])
def test_paths_and_file_urls_name_the_same_file(tmp_path: pathlib.Path, form: str) -> None:
    """Both are read without fsspec."""
    (tmp_path / "a b%20#?.txt").write_bytes(b"12")
    store, path = open_store(form.format(tmp_path / "a b%20#?.txt"), StorageOptions())
    assert isinstance(store, LocalStore)
    assert store.read(path, 0, None, None).whole() == b"12"


def test_relative_paths_and_home_are_resolved(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the working directory, and ``~`` to the home directory."""
    (tmp_path / "a").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in ("a", "./a", "~/a"):
        store, path = open_store(url, StorageOptions())
        assert (path, store.stat(path).size) == (str(tmp_path / "a"), 1)


@settings(max_examples=50)
@given(name=NAMES, data=st.binary(max_size=300), start=st.integers(0, 300), length=st.integers(0, 310))
def test_a_range_is_a_slice(tmp_path: pathlib.Path, name: str, data: bytes, start: int, length: int) -> None:
    """Whatever the name; a range behind the end is an error."""
    store, path = open_store(f"file://{tmp_path}/{name}", StorageOptions())
    write(store, path, data, overwrite=True)
    entry = store.stat(path)
    assert entry.size == len(data)
    if start and start >= len(data):
        with pytest.raises(RangeNotSatisfiableError):
            store.read(path, start, start + length, None)
    else:
        answer = store.read(path, start, start + length, entry.etag)
        assert answer.whole() == data[start : start + length]
        assert (answer.total_bytes, answer.etag) == (len(data), entry.etag)
    assert store.find(path) == entry
    store.delete(path)
    assert os.listdir(tmp_path) == []


def test_missing_files_and_folders_are_errors_that_name_the_url(store: Store, tmp_path: pathlib.Path) -> None:
    """They are FileNotFoundErrors."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"1")
    for name in ("none", "folder", "none/none", "file/below"):
        path = str(tmp_path / name)
        for attempt in (store.stat, lambda path: store.read(path, 0, 1, None)):
            with pytest.raises(ObjectNotFoundError, match=f"file://{path}") as caught:
                attempt(path)
            assert isinstance(caught.value, FileNotFoundError)
        assert store.find(path) is None
        if name != "folder":
            store.delete(str(tmp_path / "none"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_permission_error(store: Store, tmp_path: pathlib.Path) -> None:
    """Also in a listing, which never omits it."""
    (tmp_path / "folder").mkdir(mode=0)
    (tmp_path / "file").touch(mode=0)
    with pytest.raises(AccessDeniedError, match="file"):
        store.read(str(tmp_path / "file"), 0, 1, None)
    with pytest.raises(AccessDeniedError):
        store.list_page(f"{tmp_path}/", recursive=True, token=None)


def test_an_existing_file_is_kept_without_overwrite(store: Store, tmp_path: pathlib.Path) -> None:
    """``abort`` removes the file that was being written."""
    path = str(tmp_path / "a")
    write(store, path, b"first")
    writer = store.create(path, overwrite=False)
    writer.write(b"second")
    with pytest.raises(ObjectExistsError, match=f"file://{path} exists already"):
        writer.commit()
    writer.abort()
    assert (tmp_path / "a").read_bytes() == b"first"
    write(store, path, b"third", overwrite=True)
    assert (tmp_path / "a").read_bytes() == b"third"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_is_invisible_before_commit(store: Store, tmp_path: pathlib.Path) -> None:
    """``abort`` leaves nothing."""
    path = str(tmp_path / "new/folder/a.tar")
    writer = store.create(path, overwrite=False)
    writer.write(bytes(3 << 20))
    assert store.find(path) is None
    assert store.list_page(f"{tmp_path}/", recursive=True, token=None).entries == []
    [partial] = os.listdir(tmp_path / "new/folder")
    assert partial.endswith(PARTIAL_SUFFIX)
    writer.abort()
    writer.abort()
    assert os.listdir(tmp_path / "new/folder") == []
    writer = store.create(path, overwrite=False)
    writer.write(b"12")
    writer.commit()
    writer.abort()  # safe after a commit
    assert os.listdir(tmp_path / "new/folder") == ["a.tar"]


def test_permissions_follow_the_umask(store: Store, tmp_path: pathlib.Path) -> None:
    """Of a finished file."""
    before = os.umask(0o027)
    try:
        write(store, str(tmp_path / "a"), b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    write(store, str(tmp_path / ("n" * 250)), b"1")


def test_a_replaced_version_is_refused(store: Store, tmp_path: pathlib.Path) -> None:
    """Also a file that has grown."""
    path = str(tmp_path / "a")
    write(store, path, b"first")
    etag = store.stat(path).etag
    assert store.read(path, 0, None, etag).whole() == b"first"
    write(store, path, b"other", overwrite=True)
    with pytest.raises(ObjectChangedError, match=path):
        store.read(path, 0, None, etag)
    etag = store.stat(path).etag
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(ObjectChangedError, match=path):
        store.read(path, 0, None, etag)


def test_links_are_followed_and_cycles_once(store: Store, tmp_path: pathlib.Path) -> None:
    """To files and folders."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a").write_bytes(b"123")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "real/self").symlink_to(tmp_path)
    entries = store.list_page(f"{tmp_path}/", recursive=True, token=None).entries
    listed = sorted(os.path.relpath(entry.path, tmp_path) for entry in entries)
    assert listed == ["linked/a", "real/a"]
    assert {entry.size for entry in entries} == {3}


@pytest.mark.parametrize("target", ["gone", "a", "b/below"])
def test_a_link_that_leads_nowhere_is_listed_without_a_size(store: Store, tmp_path: pathlib.Path, target: str) -> None:
    """The listing would be incomplete without notice; whoever wants it reports it. Other files stay readable."""
    (tmp_path / "a").symlink_to(tmp_path / target)
    (tmp_path / "b").write_bytes(b"")
    entries = store.list_page(f"{tmp_path}/", recursive=True, token=None).entries
    assert {os.path.basename(entry.path): entry.size for entry in entries} == {"a": None, "b": 0}
    with pytest.raises(ObjectNotFoundError if target != "a" else StorageError, match="/a"):
        store.read(f"{tmp_path}/a", 0, None, None)


def test_a_path_of_a_folder_or_below_a_file_cannot_be_written(store: Store, tmp_path: pathlib.Path) -> None:
    with pytest.raises(UrlError, match="names a folder"):
        store.create(f"{tmp_path}/a/", overwrite=False)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        store.create(f"{tmp_path}/file/below", overwrite=False)


def test_a_full_disk_is_not_transient(store: Store) -> None:
    """It is a StorageError with the reason."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    writer = store.create("/tmp/torchdata-remote-full", overwrite=True)
    try:
        writer._file.close()  # type: ignore[attr-defined]
        writer._file = open("/dev/full", "wb")  # type: ignore[attr-defined]  # noqa: SIM115
        writer.write(b"1")
        with pytest.raises(StorageError, match="No space left") as caught:
            writer.commit()
        assert not isinstance(caught.value, TransientStorageError)
    finally:
        writer.abort()
    assert not os.path.exists("/tmp/torchdata-remote-full")


@pytest.mark.parametrize("directory", ["/", "."])
def test_local_files_with_options_are_read_by_fsspec(
    tmp_path: pathlib.Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options are passed on, and paths are absolute in any working directory."""
    monkeypatch.chdir(directory)
    monkeypatch.setattr("torchdata_remote.storage.registry._stores", {})
    store, path = open_store(f"file://{tmp_path}/new/a", StorageOptions({"auto_mkdir": True}))
    assert not isinstance(store, LocalStore)
    write(store, path, b"12")
    assert (tmp_path / "new/a").read_bytes() == b"12"
    assert store.read(path, 1, 2, None).whole() == b"2"
    [entry] = store.list_page(f"{tmp_path}/new/", recursive=True, token=None).entries
    assert (entry.path, entry.size) == (f"{tmp_path}/new/a", 2)


def test_partial_files_of_the_folder_are_removed(tmp_path: pathlib.Path, store: Store) -> None:
    """Other hidden files, finished ones and folders below stay; a missing folder is no error."""
    store.remove_leftovers(f"{tmp_path}/none/t-", lambda name: True)
    kept = ["t-0.tar", f"not-hidden{PARTIAL_SUFFIX}", ".hidden", f"deep/.x{PARTIAL_SUFFIX}", f".x{PARTIAL_SUFFIX}.bak"]
    (tmp_path / "deep").mkdir()
    for name in [*kept, f".a{PARTIAL_SUFFIX}", f".b{PARTIAL_SUFFIX}"]:
        (tmp_path / name).write_bytes(b"1")
    left = store.create(f"{tmp_path}/t-1.tar", overwrite=False)
    left.write(b"half")
    store.remove_leftovers(f"{tmp_path}/t-", lambda name: name.startswith("t-"))
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == sorted(kept)
    left.abort()


def test_files_of_this_package_are_never_listed(tmp_path: pathlib.Path, store: Store) -> None:
    """In a folder that was pulled, and in one that is served."""
    kept = ["a/1.jpg", ".hidden", "torchdata_remote.txt"]
    ours = [".torchdata_remote-pull.json", ".torchdata_remote/uploads/x/part", f"a/.1{PARTIAL_SUFFIX}"]
    for name in [*kept, *ours]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    assert isinstance(store, LocalStore)
    pages = [
        store.list_page(f"{tmp_path}/", recursive=True, token=None),
        store.list_after(f"{tmp_path}/", recursive=True, after="", limit=99),
    ]
    for page in pages:
        assert sorted(entry.path for entry in page.entries) == sorted(f"{tmp_path}/{name}" for name in kept)
    assert store.list_after(f"{tmp_path}/", recursive=False, after="", limit=99).folders == [f"{tmp_path}/a/"]


@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_what_is_not_a_file_is_refused(tmp_path: pathlib.Path, kind: str) -> None:
    """A FIFO without a writer is not waited for, and a device without an end is not read."""
    path = str(tmp_path / "fifo") if kind == "FIFO" else "/dev/zero"
    if kind == "FIFO":
        os.mkfifo(path)
    with pytest.raises(UrlError, match=f"is a {kind}. Pass the path of a file"):
        _contents(path)


def _contents(path: str) -> list[bytes]:
    return [stream.read() for _, stream in tdr.IterableWrapper([path]).async_prefetch()]
