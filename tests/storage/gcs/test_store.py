"""Google Cloud Storage as a store: what differs from S3, and that both transports keep each promise."""

from __future__ import annotations

import gzip
import multiprocessing
import warnings
from typing import Any

import pytest

from tests.servers.gcs import GcsServer
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.errors import (
    ContentEncodingError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RemoteDataError,
)
from torchdata_remote.storage import (
    FolderStore,
    KeyStore,
    RangeNotSatisfiableError,
    list_prefix,
    open_store,
)
from torchdata_remote.storage.gcs.settings import GcsSettings, gcs_settings
from torchdata_remote.storage.gcs.store import GcsStore

UNUSUAL_KEYS = [
    "a b/c d",
    "%20",
    "a%2Fb",
    "a#b?c=d",
    "a+b",
    "a&b=<c>'\"",
    "å/日本/😀",
    "e\u0301",
    "dir//x",
    "/a",
    "a/./b",
    "a/../b",
]


def store_of(server: GcsServer, place: str, *, read_by_obstore: bool = True) -> GcsStore:
    settings = gcs_settings(StorageOptions(server.storage_options), 30)
    assert settings is not None
    return GcsStore(place.removeprefix("gs://"), settings, read_by_obstore=read_by_obstore)


def write(store: GcsStore, path: str, data: bytes, *, overwrite: bool = False) -> None:
    writer = store.create(path, overwrite=overwrite)
    try:
        writer.write(data)
        writer.commit()
    finally:
        writer.abort()


@pytest.fixture(scope="module")
def many(gcs: GcsServer) -> str:
    """A bucket with 2,500 objects in 25 folders."""
    place = gcs.new_place()
    for number in range(2500):
        gcs.put(f"{place}/data/{number % 25:02d}/{number:05d}", b"x")
    return place


def test_it_is_a_store_of_keys_and_folders(gcs: GcsServer) -> None:
    """The dataset service and listings use it as they use S3."""
    store, path = open_store("gcs://bucket/a/b", StorageOptions(gcs.storage_options))
    assert (type(store), path) == (GcsStore, "a/b")
    assert isinstance(store, KeyStore)
    assert isinstance(store, FolderStore)


@pytest.mark.parametrize("read_by_obstore", [True, False])
def test_an_unusual_key_names_exactly_one_object(gcs: GcsServer, read_by_obstore: bool) -> None:
    """Written, listed, found and read by this package, and by another client."""
    place = gcs.new_place()
    store = store_of(gcs, place, read_by_obstore=read_by_obstore)
    for key in UNUSUAL_KEYS:
        write(store, key, key.encode())
    assert gcs.paths(place) == sorted(UNUSUAL_KEYS)
    assert [entry.path for entry in store.list_page("", recursive=True, token=None).entries] == sorted(UNUSUAL_KEYS)
    for key in UNUSUAL_KEYS:
        found, answer = store.find(key), store.read(key, 0, None, None)
        assert found == store.stat(key)
        assert found is not None
        assert (answer.whole(), answer.etag, answer.total_bytes) == (key.encode(), found.etag, found.size)
        assert gcs.get(f"{place}/{key}") == key.encode()
        store.delete(key)
        store.delete(key)
    assert gcs.paths(place) == []


@pytest.mark.parametrize("read_by_obstore", [True, False])
def test_ranges_and_versions_are_respected(gcs: GcsServer, read_by_obstore: bool) -> None:
    """A replaced object is noticed by its etag, also where the new one has the same size."""
    place = gcs.new_place()
    store = store_of(gcs, place, read_by_obstore=read_by_obstore)
    write(store, "a", b"0123456789")
    etag = store.stat("a").etag
    answer = store.read("a", 3, 7, etag)
    assert (answer.start, answer.end, answer.total_bytes, answer.whole()) == (3, 7, 10, b"3456")
    assert store.read("a", 4, None, etag).whole() == b"456789"
    with pytest.raises(RangeNotSatisfiableError):
        store.read("a", 10, 12, etag)
    gcs.put(f"{place}/a", b"9876543210")
    with pytest.raises(ObjectChangedError, match=f"{place}/a was replaced"):
        store.read("a", 3, 7, etag)


@pytest.mark.parametrize("read_by_obstore", [True, False])
def test_missing_objects_and_buckets_are_errors_that_name_them(gcs: GcsServer, read_by_obstore: bool) -> None:
    """By reads, HEAD and listings."""
    place = gcs.new_place()
    store, nowhere = (store_of(gcs, one, read_by_obstore=read_by_obstore) for one in (place, "gs://missing"))
    assert store.find("a") is None
    with pytest.raises(ObjectNotFoundError, match=f"{place}/a: no such object"):
        store.read("a", 0, None, None)
    for call in (lambda: nowhere.read("a", 0, None, None), lambda: nowhere.find("a")):
        with pytest.raises(ObjectNotFoundError, match=r"no such bucket: 'missing'.*STORAGE_EMULATOR_HOST"):
            call()


@pytest.mark.parametrize("read_by_obstore", [True, False])
def test_what_is_stored_compressed_is_not_decompressed_on_the_way(gcs: GcsServer, read_by_obstore: bool) -> None:
    """Google would decompress it for a client that does not accept gzip, and ignore the range."""
    place, data = gcs.new_place(), gzip.compress(bytes(1000), mtime=0)
    store = store_of(gcs, place, read_by_obstore=read_by_obstore)
    for key in ("a.gz", "a.txt"):
        store.client.put_object(Bucket=place[5:], Key=key, Body=data, ContentEncoding="gzip")
    assert (store.stat("a.gz").size, store.read("a.gz", 0, None, None).whole()) == (len(data), data)
    assert store.read("a.gz", 1, 5, None).whole() == data[1:5]
    with pytest.raises(ContentEncodingError, match=f"{place}/a.txt has Content-Encoding: gzip"):
        store.read("a.txt", 0, None, None)


def test_a_listing_of_several_pages_is_complete_and_sorted(gcs: GcsServer, many: str) -> None:
    """With pages requested ahead, by keys and by folders."""
    found = list(list_prefix(f"{many}/data/", "data/", True, StorageOptions(gcs.storage_options), RetryPolicy()))
    assert [entry.path for entry in found] == gcs.paths(many)
    assert {entry.size for entry in found} == {1}


@pytest.mark.parametrize("recursive", [True, False])
def test_pages_follow_each_other_from_any_key(gcs: GcsServer, many: str, recursive: bool) -> None:
    """By tokens, and after a key, with and without folders."""
    store = store_of(gcs, many)
    paths, folders, token = list[str](), list[str](), None
    while True:
        page = store.list_page("data/", recursive=recursive, token=token, after="data/07/")
        paths += [entry.path for entry in page.entries]
        folders += page.folders
        token = page.next_token
        if token is None:
            break
    every = gcs.paths(many)
    assert paths == ([path for path in every if path > "data/07/"] if recursive else [])
    assert set(folders) >= (set() if recursive else {f"data/{number:02d}/" for number in range(8, 25)})
    page = store.list_after("data/", recursive=recursive, after="data/07/", limit=5)
    assert [entry.path for entry in page.entries] == (paths[:5] if recursive else [])
    assert list(page.folders) == ([] if recursive else [f"data/{number:02d}/" for number in range(8, 13)])


def test_folders_are_listed_without_their_contents(gcs: GcsServer, many: str) -> None:
    """One request, whatever is below them."""
    page = store_of(gcs, many).list_page("data/", recursive=False, token=None)
    assert list(page.folders) == [f"data/{number:02d}/" for number in range(25)]
    assert list(page.entries) == []


def test_an_empty_folder_exists_until_it_is_removed(gcs: GcsServer) -> None:
    """With all objects in it."""
    place = gcs.new_place()
    store = store_of(gcs, place)
    store.make_folder("f/")
    with pytest.raises(ObjectExistsError):
        store.make_folder("f/")
    write(store, "f/a", b"a")
    write(store, "f/b/c", b"c")
    write(store, "g", b"g")
    assert (store.has_folder("f/"), store.has_folder("f/b/"), store.has_folder("h/")) == (True, True, False)
    store.remove_folder("f/")
    assert gcs.paths(place) == ["g"]


def _read_in_child(options: dict[str, Any], place: str, results: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store, path = open_store(f"{place}/a", StorageOptions(options))
        results.put((store.read(path, 0, None, None).whole(), [str(one.message) for one in caught]))


def test_a_forked_child_reads_without_obstore_and_says_so(gcs: GcsServer) -> None:
    """obstore hangs in a child whose parent has used it."""
    place = gcs.new_place()
    gcs.put(f"{place}/a", b"data")
    store, path = open_store(f"{place}/a", StorageOptions(gcs.storage_options))
    assert store.read(path, 0, None, None).whole() == b"data"
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(gcs.storage_options, place, results))
    child.start()
    data, messages = results.get()
    child.join()
    assert data == b"data"
    assert any("gs is read by botocore, more slowly" in message for message in messages)


@pytest.mark.parametrize("address", ["http://127.0.0.1:99999", "http://[::1"])
def test_an_address_that_no_library_can_use_is_an_error_of_this_package(address: str) -> None:
    """obstore would abort."""
    store = GcsStore("bucket", GcsSettings(address, "anon"), read_by_obstore=True)
    with pytest.raises(RemoteDataError):
        store.read("a", 0, None, None)


class PanicException(BaseException):  # its name in obstore, which does not export it
    """What Rust raises when it aborts."""


def test_a_panic_of_obstore_selects_the_other_transport(
    gcs: GcsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning; a panic is no ``Exception``, which a program catches."""

    def panic(*_: Any, **__: Any) -> None:
        raise PanicException("called `Result::unwrap()` on an `Err` value\nmore")

    place = gcs.new_place()
    gcs.put(f"{place}/a", b"data")
    monkeypatch.setattr("obstore.get", panic)
    store = store_of(gcs, place)
    assert store.read("a", 0, None, None).whole() == b"data"
    assert any("cannot be read by obstore" in line and "PanicException: called" in line for line in caplog.messages)
