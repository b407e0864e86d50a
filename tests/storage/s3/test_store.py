"""S3 as a store, beyond what ``tests/conformance`` shows of each store and transport."""

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

from tests.servers.s3 import S3Server
from tests.support.ports import free_port
from tests.support.read_once import read_once
from tests.support.s3_stores import (
    BY_S3FS,
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
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.storage import open_store
from torchdata_remote.storage.fsspec_store import FsspecStore


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
