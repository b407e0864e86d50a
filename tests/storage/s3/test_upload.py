"""Writing to S3, in one request or several, where responses are lost or refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from botocore import exceptions as boto

from tests.servers.recording_s3 import Recorded, RecordingS3, Response
from tests.servers.s3 import S3Server
from tests.support.s3_stores import read, s3_store, store_of, uploads_left, write
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.errors import AccessDeniedError, ObjectExistsError, StorageError
from torchdata_remote.storage import open_store
from torchdata_remote.storage.s3.upload import S3Writer

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _parts_of_5_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest that S3 accepts."""
    monkeypatch.setattr("torchdata_remote.storage.multipart.UPLOAD_PART_BYTES", 5 * MIB)


def test_a_large_object_becomes_visible_whole(s3: S3Server, bucket: str) -> None:
    """An object of several parts appears at once, with its bytes in order."""
    store, data = store_of(s3, bucket), os.urandom(17 * MIB + 123)
    writer = store.create("big", overwrite=False)
    for start in range(0, len(data), 3 * MIB):
        writer.write(data[start : start + 3 * MIB])
        assert store.find("big") is None
    assert len(uploads_left(s3, bucket)) == 1
    writer.commit()
    writer.abort()  # harmless after a commit
    assert read(store, "big") == data
    assert uploads_left(s3, bucket) == []


def test_an_aborted_upload_leaves_neither_object_nor_parts(s3: S3Server, bucket: str) -> None:
    """``abort`` may be called twice."""
    store = store_of(s3, bucket)
    writer = store.create("big", overwrite=False)
    writer.write(bytes(12 * MIB))
    assert len(uploads_left(s3, bucket)) == 1
    writer.abort()
    assert uploads_left(s3, bucket) == []
    assert store.find("big") is None
    writer.abort()


def test_a_large_object_replaces_an_existing_one_with_overwrite_only(s3: S3Server, bucket: str) -> None:
    """An object that appears while the parts are uploaded is kept, and the upload can be aborted."""
    store = store_of(s3, bucket)
    writer = store.create("big", overwrite=False)
    writer.write(bytes(6 * MIB))
    write(store, "big", b"first")
    with pytest.raises(ObjectExistsError, match=f"s3://{bucket}/big exists already"):
        writer.commit()
    writer.abort()
    assert read(store, "big") == b"first"
    assert uploads_left(s3, bucket) == []
    write(store, "big", bytes(6 * MIB), overwrite=True)
    assert read(store, "big") == bytes(6 * MIB)


def test_a_refused_part_is_raised_and_leaves_nothing(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``write`` or ``commit``, with the object's URL."""
    bucket = moto.new_bucket()
    store = s3_store(moto, bucket, read_by_obstore=True)

    def refuse(**request: Any) -> Any:
        raise boto.ClientError({"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "Put")

    monkeypatch.setattr(store.client, "upload_part", refuse)
    writer = store.create("big", overwrite=False)

    def write_all() -> None:
        writer.write(bytes(20 * MIB))
        writer.commit()

    with pytest.raises(AccessDeniedError, match=f"s3://{bucket}/big"):
        write_all()
    writer.abort()
    assert uploads_left(moto, bucket) == []
    assert store.find("big") is None


def _loses_first_response(call: Callable[..., Any]) -> Callable[..., Any]:
    """The request arrives and works, but the connection breaks before the first response does."""
    requests = []

    def lossy(**request: Any) -> Any:
        response = call(**request)
        requests.append(request)
        if len(requests) == 1:
            raise boto.ConnectionClosedError(endpoint_url="http://store")
        return response

    return lossy


@pytest.mark.parametrize(
    ("operation", "size"), [("put_object", 5), ("complete_multipart_upload", 6 * MIB)], ids=["put", "multipart"]
)
def test_a_lost_response_does_not_make_the_own_object_an_error(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, operation: str, size: int
) -> None:
    """The retry finds the object that the first request wrote, and recognises it."""
    store, data = s3_store(s3, bucket, read_by_obstore=True), os.urandom(size)
    monkeypatch.setattr(store.client, operation, _loses_first_response(getattr(store.client, operation)))
    write(store, "a", data)
    assert read(store, "a") == data
    assert uploads_left(s3, bucket) == []


def test_writes_retry_transient_errors(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 503 and a 500 to a PUT are retried within ``commit``."""
    store = s3_store(moto, moto.new_bucket(), read_by_obstore=True)
    put_object, statuses = store.client.put_object, [503, 500]

    def fail_twice(**request: Any) -> Any:
        if statuses:
            status = statuses.pop()
            raise boto.ClientError({"Error": {"Code": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Put")
        return put_object(**request)

    monkeypatch.setattr(store.client, "put_object", fail_twice)
    writer = store.create("a", overwrite=False)
    assert isinstance(writer, S3Writer)
    writer._retry = RetryPolicy(first_wait_s=0, max_wait_s=0)
    writer.write(b"12")
    writer.commit()
    assert statuses == []
    assert read(store, "a") == b"12"


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("operation", ["PutObject", "UploadPart", "CompleteMultipartUpload"])
def test_the_page_of_a_proxy_is_no_success(recorder: RecordingS3, operation: str, overwrite: bool) -> None:
    """S3 answers with an etag to what it has stored: an object would be lost without an error."""

    def proxy(request: Recorded) -> Response | None:
        return (200, {}, b"<html/>") if request.operation == operation else None

    recorder.answer = proxy
    store, _ = open_store("s3://bucket/", StorageOptions(recorder.storage_options))
    writer = store.create("a", overwrite=overwrite)
    writer.write(bytes(5) if operation == "PutObject" else bytes(17 << 20))
    with pytest.raises(StorageError, match=r"s3://bucket/a: \w+ was answered without ETag.*after 8 attempts"):
        writer.commit()
    writer.abort()
    assert "a" not in recorder.objects
