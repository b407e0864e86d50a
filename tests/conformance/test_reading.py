"""Reading: each store and transport returns the bytes that were asked for, of the version that was asked for."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.folder import Folder, new_folder
from tests.conformance.rows import Row, each
from tests.servers.store_server import StoreServer
from tests.support.read_once import read_once
from torchdata_remote import IterableWrapper, RemoteUrl
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.errors import ObjectChangedError, ObjectNotFoundError
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage import RangeNotSatisfiableError

SIZES = (0, 1, 2, 10, 300)
DATA = random.Random(5).randbytes(max(SIZES))


@pytest.fixture(scope="session")
def objects(row: Row, server: StoreServer, place: str) -> Folder:
    """An object of each size, whose name is its size."""
    folder = new_folder(row, server, place)
    for size in SIZES:
        folder.put(str(size), DATA[:size])
    return folder


@each(transports=True)
@settings(max_examples=25)
@given(
    size=st.sampled_from(SIZES),
    start=st.integers(0, 302),
    length=st.integers(1, 302) | st.none(),
    by_version=st.booleans(),
)
def test_any_range_is_a_slice(objects: Folder, size: int, start: int, length: int | None, by_version: bool) -> None:
    """Bytes beyond the end are left out, and a range without a byte of the object is refused."""
    store, path = objects.store, objects.prefix + str(size)
    etag = store.stat(path).etag if by_version else None
    end = None if length is None else start + length
    if start >= size and start:
        with pytest.raises(RangeNotSatisfiableError):
            store.read(path, start, end, etag).whole()
        return
    if size == 0 and end is not None:
        return  # some stores refuse a range of an empty object, others return nothing
    answer = store.read(path, start, end, etag)
    found = answer.whole()
    assert answer.total_bytes == size
    assert found[start - answer.start :][: len(found) if end is None else end - start] == DATA[:size][start:end]


@each(transports=True)
def test_an_empty_object_has_no_bytes(objects: Folder) -> None:
    """Its size is 0."""
    path = objects.prefix + "0"
    answer = objects.store.read(path, 0, None, None)
    assert (answer.whole(), answer.total_bytes) == (b"", 0)
    assert objects.store.stat(path).size == 0
    if objects.row.empty_ranges:
        assert read_once(objects.store, path, 0, 10) == b""


@each(transports=True)
def test_a_read_and_a_stat_tell_of_the_same_version(objects: Folder) -> None:
    """Their etags are equal, and so are their sizes."""
    path = objects.prefix + "10"
    entry, answer = objects.store.stat(path), objects.store.read(path, 2, 5, None)
    assert answer.whole() == DATA[2:5]
    assert (entry.path, entry.size, entry.etag) == (path, 10, answer.etag)
    assert (entry.etag is not None) == (objects.row.versions == "etag")
    assert objects.store.find(path) == entry


@each("versions=etag", "mutable", transports=True)
def test_a_replaced_object_is_noticed(folder: Folder) -> None:
    """Reading by the etag of the version before is an error and not a mixture."""
    path = folder.prefix + "a"
    folder.put("a", b"first version")
    etag = folder.store.stat(path).etag
    assert folder.store.read(path, 0, None, etag).whole() == b"first version"
    folder.put("a", b"other version")
    with pytest.raises(ObjectChangedError, match="/a"):
        read_once(folder.store, path, 0, 5, etag)
    assert read_once(folder.store, path, 0, 5, folder.store.stat(path).etag) == b"other"


@each("versions=etag", "mutable", "lists", transports=True)
def test_a_replaced_object_is_noticed_by_the_etag_of_a_listing(folder: Folder) -> None:
    """As by that of a stat."""
    folder.put("a", b"first version")
    [entry] = folder.store.list_page(folder.prefix, recursive=True, token=None).entries
    assert read_once(folder.store, entry.path, 0, 5, entry.etag, entry.size) == b"first"
    folder.put("a", b"other version")
    with pytest.raises(ObjectChangedError):
        read_once(folder.store, entry.path, 0, 5, entry.etag, entry.size)


@each("mutable", transports=True)
def test_an_object_of_another_size_is_noticed(folder: Folder) -> None:
    """Also by stores without etags."""
    folder.put("a", b"0123456789")
    entry = folder.store.stat(folder.prefix + "a")
    folder.put("a", b"0123456789 and more")
    with pytest.raises(ObjectChangedError):
        read_once(folder.store, entry.path, 0, 5, entry.etag, entry.size)


@each("mutable", transports=True)
def test_a_stat_is_not_cached(folder: Folder) -> None:
    """Each call sees what the store has now."""
    path = folder.prefix + "a"
    assert folder.store.find(path) is None
    for data in (b"1", b"22"):
        folder.put("a", data)
        assert folder.store.stat(path).size == len(data)
        assert folder.store.read(path, 0, None, None).whole() == data
    folder.server.delete(folder.url + "a")
    assert folder.store.find(path) is None


@each(transports=True)
def test_a_missing_object_is_an_error_that_names_it(folder: Folder) -> None:
    """It is a FileNotFoundError with the URL. Neither a folder nor the beginning of a name is an object."""
    folder.put("d/object.tar", b"1")
    for name in ("no/such.tar", "d", "d/object", "d/object.tar.gz"):
        path = folder.prefix + name
        for attempt in (folder.store.stat, lambda path: folder.store.read(path, 0, 9, None)):
            with pytest.raises(ObjectNotFoundError) as caught:
                attempt(path)
            assert isinstance(caught.value, FileNotFoundError)
            assert name in str(caught.value)
        assert folder.store.find(path) is None


@each("proxied", transports=True)
def test_a_missing_bucket_is_an_error_that_names_it(folder: Folder) -> None:
    """Whatever the request."""
    missing = folder.place[:-4] + "none"
    other = Folder(folder.row, folder.server, missing, "")
    attempts: list[Callable[[], object]] = [
        lambda: other.store.stat(other.prefix + "a"),
        lambda: other.store.read(other.prefix + "a", 0, 9, None),
    ]
    if folder.row.lists:
        attempts.append(lambda: list(IterableWrapper([f"{missing}/"]).list_remote(storage_options=other.options)))
    for attempt in attempts:
        with pytest.raises(FileNotFoundError, match=missing.rpartition("/")[2]):
            attempt()


@each(transports=True)
def test_a_large_object_is_read_in_parts(folder: Folder) -> None:
    """By several threads, in order, wherever a part ends."""
    data = random.Random(1).randbytes(1_000_003)
    folder.put("large", data)
    fetch = FetchOptions(part_bytes=77_777, max_in_flight=8, backend=folder.row.backend)
    for size in (None, len(data)):
        url = RemoteUrl(folder.url + "large", size)
        [(_, stream)] = stream_objects([url], FetchSession(fetch, StorageOptions(folder.options)))
        with stream:
            assert stream.read() == data
