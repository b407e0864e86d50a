"""S3 as a store: each transport keeps each promise against each server."""

from __future__ import annotations

import gc
import io
import os
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import urllib3
from botocore import exceptions as boto
from botocore.response import StreamingBody
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.s3 import S3Server, free_port
from tests.support.read_once import read_once
from tests.support.s3_stores import (
    BY_S3FS,
    TRANSPORTS,
    put,
    raises_of,
    read,
    s3_store,
    shared_bucket,
    shared_store,
    store_by,
    store_of,
    text_of,
    write,
)
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
from torchdata_remote.storage import RangeNotSatisfiableError, Store, open_store
from torchdata_remote.storage.fsspec_store import FsspecStore

UNUSUAL_KEYS = [
    "a b/c d.bin",
    "%20.bin",
    "a%2Fb.bin",
    "a#b.bin",
    "a?b=c.bin",
    "a+b.bin",
    "a&b=c;d,e.bin",
    "a*b[0-9]{1,2}.bin",
    "å/日本/😀.bin",
    "e\u0301 is not \u00e9.bin",
    "dir//x.bin",
    "a/../b.bin",
    "a/./b.bin",
    "../b.bin",
    "'quotes\" and \\ and |.bin",
    "~tilde(1)!.bin",
    "/begins/with/a/slash.bin",
    "ends/with/a/slash/",
    "x" * 900,
]


def test_bytes_size_and_etag_are_those_of_the_object_written(any_store: Store, folder: str) -> None:
    """A read, a stat, a search and a listing agree, whatever the transport."""
    path = f"{folder}b.bin"
    writer = any_store.create(path, overwrite=False)
    writer.write(b"01234")
    writer.write(b"56789")
    writer.commit()
    answer = any_store.read(path, 2, 5, None)
    assert answer.whole() == b"234"
    assert answer.total_bytes == 10
    entry = any_store.stat(path)
    assert entry == any_store.find(path)
    assert (entry.path, entry.size) == (path, 10)
    assert answer.etag
    assert answer.etag == entry.etag
    [listed] = any_store.list_page(folder, recursive=True, token=None).entries
    assert listed == entry


def test_a_range_is_a_slice(any_store: Store, folder: str) -> None:
    """Bytes beyond the end are left out; a range without a byte of the object is refused."""
    path = f"{folder}a.bin"
    write(any_store, path, b"0123456789")
    for start, end in [(0, 1), (0, 9), (0, 10), (0, 99), (3, 4), (3, 99), (9, 10), (9, 11)]:
        answer = any_store.read(path, start, end, None)
        assert (answer.whole(), answer.total_bytes) == (b"0123456789"[start:end], 10)
    for start in (10, 11):
        with pytest.raises(RangeNotSatisfiableError):
            any_store.read(path, start, start + 5, None)


def test_an_empty_object_is_written_found_and_read(any_store: Store, folder: str) -> None:
    """An object without bytes has the size 0."""
    write(any_store, f"{folder}empty", b"")
    answer = any_store.read(f"{folder}empty", 0, None, None)
    assert (answer.whole(), answer.total_bytes) == (b"", 0)
    assert any_store.stat(f"{folder}empty").size == 0


def test_an_unusual_key_names_exactly_one_object(moto: S3Server, transport: str) -> None:
    """The bytes are stored under that key, and no other object is read, written or deleted."""
    bucket = moto.new_bucket()
    store = store_by(transport, moto, bucket)
    keys = UNUSUAL_KEYS
    if transport == "s3fs":  # which strips slashes at the ends of a key
        keys = [key for key in keys if not key.startswith("/") and not key.endswith("/")]
    for key in keys:
        put(moto, bucket, key, b"before" + key.encode())
    for number, key in enumerate(keys):
        assert read(store, key) == b"before" + key.encode()
        write(store, key, bytes(number), overwrite=True)
        assert store.stat(key).size == number
    listed = moto.client().list_objects_v2(Bucket=bucket)["Contents"]
    assert {found["Key"]: found["Size"] for found in listed} == {key: number for number, key in enumerate(keys)}
    for key in keys:
        store.delete(key)
    assert "Contents" not in moto.client().list_objects_v2(Bucket=bucket)


@settings(max_examples=25)
@given(key=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cn"]), min_size=1, max_size=40))
def test_any_text_is_a_key_for_obstore_and_botocore(ceph: S3Server, key: str) -> None:
    """Whatever text the key is, both read the object under exactly that key."""
    put(ceph, shared_bucket(ceph), key, key.encode())
    for transport in ("obstore", "botocore"):
        assert read(shared_store(ceph, transport), key) == key.encode()


@pytest.mark.parametrize("key", ["a\tb", "a\x01b", "a\x7fb", "a\x80b"])
def test_keys_with_control_characters_are_read_by_botocore(moto: S3Server, key: str) -> None:
    """obstore refuses such keys with a ValueError."""
    put(moto, shared_bucket(moto), key, b"123")
    assert shared_store(moto, "obstore").read(key, 0, 2, None).whole() == b"12"


def test_a_deleted_object_is_gone(any_store: Store, folder: str) -> None:
    """Deleting an object that does not exist is no error."""
    write(any_store, f"{folder}a", b"1")
    any_store.delete(f"{folder}a")
    assert any_store.find(f"{folder}a") is None
    any_store.delete(f"{folder}a")


def test_find_matches_the_whole_key_only(any_store: Store, folder: str) -> None:
    """Neither longer keys nor folders count."""
    for path in ("dir/a.bin", "dir2", "b", "bb"):
        write(any_store, folder + path, b"1")
    assert any_store.find(f"{folder}dir") is None
    assert any_store.find(f"{folder}dir/a") is None
    assert any_store.find(f"{folder}b") == any_store.stat(f"{folder}b")


def test_an_existing_object_is_kept_without_overwrite(any_store: Store, folder: str) -> None:
    """The error says that the object exists, and is a FileExistsError."""
    path = f"{folder}a"
    write(any_store, path, b"first")
    with pytest.raises(ObjectExistsError, match="/a exists already") as caught:
        write(any_store, path, b"second")
    assert isinstance(caught.value, FileExistsError)
    assert read(any_store, path) == b"first"
    write(any_store, path, b"third", overwrite=True)
    assert read(any_store, path) == b"third"


def test_an_object_is_invisible_before_commit(any_store: Store, folder: str) -> None:
    """An aborted object never becomes visible."""
    writer = any_store.create(f"{folder}a", overwrite=False)
    writer.write(b"12345")
    assert any_store.find(f"{folder}a") is None
    writer.abort()
    assert any_store.find(f"{folder}a") is None
    writer.abort()


def test_a_replaced_version_is_refused(any_store: Store, s3: S3Server, any_bucket: str, folder: str) -> None:
    """Reading by the etag of a stat or a listing, after the object was replaced, is an error and not a mixture."""
    for path, find in (
        (f"{folder}stat/a", any_store.stat),
        (f"{folder}list/a", lambda path: any_store.list_page(path, recursive=True, token=None).entries[0]),
    ):
        put(s3, any_bucket, path, b"first version")
        etag = find(path).etag
        assert read(any_store, path, etag) == b"first version"
        put(s3, any_bucket, path, b"other version")
        with pytest.raises(ObjectChangedError, match=path):
            read_once(any_store, path, 0, 5, etag)


def test_a_version_written_between_stat_and_get_is_refused(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """s3fs needs two requests for a read: a version written in between is not mistaken for the earlier one."""
    bucket = moto.new_bucket()
    store = store_of(moto, bucket, **BY_S3FS)
    write(store, "a", b"first version")
    etag = store.stat("a").etag
    assert isinstance(store, FsspecStore)
    cat_file = store._filesystem.cat_file

    def replaced_before(*arguments: Any, **keywords: Any) -> Any:
        put(moto, bucket, "a", b"other version")
        return cat_file(*arguments, **keywords)

    monkeypatch.setattr(store._filesystem, "cat_file", replaced_before)
    with pytest.raises(ObjectChangedError):
        read_once(store, "a", 0, 5, etag)


@pytest.mark.parametrize("more", [{}, BY_S3FS])
def test_a_forked_child_does_not_close_its_parents_stores(moto: S3Server, more: dict[str, Any]) -> None:
    """Closing a connection there may hang."""
    bucket = moto.new_bucket()
    gc.collect()
    gc.freeze()  # or the child's collection would copy the pages of all objects of this process
    store = store_of(moto, bucket, **more)
    write(store, "a", b"1")
    assert read(store, "a") == b"1"
    inherited = weakref.ref(store)
    del store
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(7 if inherited() is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert store_of(moto, bucket, **more) is inherited()


def test_stat_is_not_cached(any_store: Store, s3: S3Server, any_bucket: str, folder: str) -> None:
    """Each call sends a request, also after a listing."""
    path = f"{folder}b"
    put(s3, any_bucket, path, b"1")
    any_store.list_page(folder, recursive=True, token=None)
    assert any_store.stat(path).size == 1
    put(s3, any_bucket, path, b"22")
    assert any_store.stat(path).size == 2
    s3.client().delete_object(Bucket=any_bucket, Key=path)
    assert any_store.find(path) is None


def test_a_missing_object_is_an_error_that_names_it(any_store: Store, any_bucket: str) -> None:
    """It is a FileNotFoundError with the URL."""
    for attempt in (lambda: any_store.stat("no/such.tar"), lambda: any_store.read("no/such.tar", 0, 10, None)):
        with pytest.raises(ObjectNotFoundError, match=f"s3://{any_bucket}/no/such.tar") as caught:
            attempt()
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.url == f"s3://{any_bucket}/no/such.tar"
    assert any_store.find("no/such.tar") is None


def test_a_missing_bucket_is_an_error_that_names_it(s3: S3Server, transport: str) -> None:
    """Whatever the request; a listing distinguishes a missing bucket from an empty one."""
    bucket = f"none-{uuid.uuid4().hex}"
    store = store_by(transport, s3, bucket)
    attempts: list[Callable[[], object]] = [
        lambda: store.stat("a"),
        lambda: store.read("a", 0, 10, None),
        lambda: write(store, "a", b"1"),
    ]
    if transport != "s3fs":  # its listing of nothing is empty
        attempts.append(lambda: store.list_page("x", recursive=True, token=None))
    errors = raises_of(attempts, ObjectNotFoundError)
    assert all(f"s3://{bucket}" in str(error) for error in errors)
    if transport != "s3fs":
        assert f"s3://{bucket}/x: no such bucket" in str(errors[-1])


def test_a_wrong_secret_is_refused_and_not_shown(ceph: S3Server, transport: str) -> None:
    """Each request raises an AccessDeniedError that names the URL; nothing is written or deleted."""
    bucket = ceph.new_bucket()
    put(ceph, bucket, "a", b"1")
    wrong = S3Server("ceph", ceph.endpoint_url, ceph.key, "Sup3rS3cretCanary")
    store = store_by(transport, wrong, bucket)
    attempts: list[Callable[[], object]] = [
        lambda: store.list_page("", recursive=True, token=None),
        lambda: store.stat("a"),
        lambda: store.read("a", 0, 10, None),
        lambda: write(store, "b", b"1"),
        lambda: store.delete("a"),
    ]
    for error in raises_of(attempts, AccessDeniedError):
        assert isinstance(error, PermissionError)
        assert f"s3://{bucket}/" in str(error)
        assert "Sup3rS3cretCanary" not in text_of(error)
    assert [found["Key"] for found in ceph.client().list_objects_v2(Bucket=bucket)["Contents"]] == ["a"]


@settings(max_examples=15)
@given(size=st.integers(0, 300), start=st.integers(0, 300), length=st.integers(1, 300))
def test_all_transports_return_the_same_bytes(moto: S3Server, size: int, start: int, length: int) -> None:
    """Whatever the size of the object and the range."""
    data, key = os.urandom(size), uuid.uuid4().hex
    put(moto, shared_bucket(moto), key, data)
    for transport in TRANSPORTS:
        store = shared_store(moto, transport)
        if start >= size and size:
            with pytest.raises(RangeNotSatisfiableError):
                store.read(key, start, start + length, None)
        elif start < size:
            answer = store.read(key, start, start + length, store.stat(key).etag)
            assert answer.whole() == data[start : start + length]
            assert answer.total_bytes == size


def test_a_refused_connection_is_a_transient_error_that_names_the_url() -> None:
    """It is worth a retry, by either transport, and does not show the secret."""
    unreachable = S3Server("none", f"http://127.0.0.1:{free_port()}", "k", "Sup3rS3cretCanary")
    for read_by_obstore in (True, False):
        store = s3_store(unreachable, "bucket", read_by_obstore=read_by_obstore)
        with pytest.raises(TransientStorageError, match="s3://bucket/a") as caught:
            store.read("a", 0, 10, None)
        assert "Sup3rS3cretCanary" not in text_of(caught.value)


@pytest.mark.parametrize("url", ["s3://", "s3:///a", "s3://me:pw@bucket/a"])
def test_a_url_without_bucket_or_with_a_password_is_refused(url: str) -> None:
    """Before any request; the password is not shown."""
    with pytest.raises(UrlError) as caught:
        open_store(url, StorageOptions({"key": "k", "secret": "s"}))
    assert "pw" not in text_of(caught.value)


def test_a_bucket_is_not_an_object(moto: S3Server) -> None:
    """A read of the empty key is refused."""
    for transport in ("obstore", "botocore"):
        with pytest.raises(UrlError, match=f"s3://{shared_bucket(moto)}/"):
            shared_store(moto, transport).read("", 0, 10, None)


def _body(data: bytes) -> StreamingBody:
    """A body as botocore returns it."""
    return StreamingBody(urllib3.HTTPResponse(io.BytesIO(data), preload_content=False), len(data))


def test_a_response_with_another_range_is_refused(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body of a wrong range is never returned."""
    store = s3_store(moto, "bucket", read_by_obstore=False)
    wrong: list[tuple[int, dict[str, str], bytes]] = [
        (206, {"content-length": "4", "content-range": "bytes 0-3/10"}, b"234"),
        (206, {"content-length": "3", "content-range": "bytes 2-4/10"}, b"234"),
        (206, {"content-length": "4", "content-range": "bytes 3-6/10"}, b"3456"),
        (206, {"content-length": "10"}, b"0123456789"),
        (200, {"content-length": "10"}, b"01234567"),
    ]
    for status, headers, body in wrong:
        response = {
            "ETag": '"e"',
            "Body": _body(body),
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
        }
        monkeypatch.setattr(store.client, "get_object", lambda response=response, **request: response)
        with pytest.raises(TransientStorageError):
            read_once(store, "a", 2, 6)


def test_an_unknown_error_keeps_the_stores_status_and_code(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are in the message, and the transport's error is the cause."""
    store = s3_store(moto, "bucket", read_by_obstore=False)

    def refuse(**request: Any) -> Any:
        response = {"Error": {"Code": "InvalidRange"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
        raise boto.ClientError(response, "GetObject")

    monkeypatch.setattr(store.client, "get_object", refuse)
    with pytest.raises(StorageError, match="s3://bucket/a: the store answered 400 InvalidRange") as caught:
        store.read("a", 0, 1, None)
    assert isinstance(caught.value.__cause__, boto.ClientError)
