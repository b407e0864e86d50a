"""What the options of requests put on the wire, compared with AWS's documentation."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers.recording_s3 import Recorded, RecordingS3
from tests.servers.s3 import KMS_KEY, S3Server
from tests.support.s3_stores import read, text_of, uploads_left, write
from torchdata_remote import Backend
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import AccessDeniedError, StorageError, UrlError
from torchdata_remote.storage import Connection, open_store
from torchdata_remote.storage.option_values import require_usable_values
from torchdata_remote.storage.s3.settings import s3_settings
from torchdata_remote.storage.s3.store import S3Store

KEY = bytes(range(32))
OF_KEY = {
    "x-amz-server-side-encryption-customer-algorithm": "AES256",
    "x-amz-server-side-encryption-customer-key": base64.b64encode(KEY).decode(),
    "x-amz-server-side-encryption-customer-key-md5": base64.b64encode(hashlib.md5(KEY).digest()).decode(),
}
SSE_C = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": KEY}
READING = {"GetObject by obstore", "GetObject by botocore", "HeadObject"}
CREATING = {"PutObject", "CreateMultipartUpload"}
OF_UPLOAD = {"UploadPart", "CompleteMultipartUpload"}
OTHERS = {"ListObjectsV2", "DeleteObject", "AbortMultipartUpload", "ListMultipartUploads"}
ALL = READING | CREATING | OF_UPLOAD | OTHERS


def store_with(options: dict[str, Any], bucket: str = "bucket") -> S3Store:
    require_usable_values(f"s3://{bucket}", StorageOptions(options))
    settings = s3_settings(StorageOptions(options))
    assert settings is not None, "an option selects s3fs"
    return S3Store(bucket, settings, read_by_obstore=True)


def use_everything(store: S3Store) -> None:
    """Send each kind of request."""
    write(store, "small", b"12")
    writer = store.create("large", overwrite=False)
    writer.write(b"0123456789")
    writer.commit()
    aborted = store.create("aborted", overwrite=False)
    aborted.write(b"0123456789")
    aborted.abort()
    assert store.read("small", 0, 1, None).whole() == b"1"
    assert store.read_without_obstore("large", 0, None, None).whole() == b"0123456789"
    store.stat("small")
    store.list_page("", recursive=True, token=None)
    store.remove_leftovers("large", lambda name: True)
    store.delete("small")


def by_operation(requests: list[Recorded]) -> dict[str, list[Recorded]]:
    found: dict[str, list[Recorded]] = {}
    for one in requests:
        reader = f" by {'obstore' if one.is_by_obstore else 'botocore'}" * (one.operation == "GetObject")
        found.setdefault(one.operation + reader, []).append(one)
    return found


@pytest.fixture
def sent(
    recorder: RecordingS3, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any]], dict[str, list[Recorded]]]:
    """Returns the requests of each operation with these options."""
    monkeypatch.setattr("torchdata_remote.storage.multipart.UPLOAD_PART_BYTES", 6)

    def send(options: dict[str, Any]) -> dict[str, list[Recorded]]:
        use_everything(store_with({**recorder.storage_options, **options}))
        return by_operation(recorder.taken())

    return send


@pytest.mark.parametrize(
    ("options", "headers", "operations"),
    [
        ({"requester_pays": True}, {"x-amz-request-payer": "requester"}, ALL),
        (
            {"s3_additional_kwargs": {"ExpectedBucketOwner": "123456789012"}},
            {"x-amz-expected-bucket-owner": "123456789012"},
            ALL,
        ),
        ({"s3_additional_kwargs": SSE_C}, OF_KEY, READING | CREATING | OF_UPLOAD),
        (
            {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}},
            {"x-amz-server-side-encryption": "AES256"},
            CREATING,
        ),
        (
            {
                "s3_additional_kwargs": {
                    "ServerSideEncryption": "aws:kms",
                    "SSEKMSKeyId": "my-key",
                    "SSEKMSEncryptionContext": "e30=",
                    "BucketKeyEnabled": True,
                }
            },
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "my-key",
                "x-amz-server-side-encryption-context": "e30=",
                "x-amz-server-side-encryption-bucket-key-enabled": "true",
            },
            CREATING,
        ),
        (
            {"s3_additional_kwargs": {"ServerSideEncryption": "aws:kms:dsse"}},
            {"x-amz-server-side-encryption": "aws:kms:dsse"},
            CREATING,
        ),
        (
            {
                "s3_additional_kwargs": {
                    "ACL": "bucket-owner-full-control",
                    "StorageClass": "STANDARD_IA",
                    "Tagging": "team=vision",
                    "Metadata": {"origin": "scan"},
                    "CacheControl": "no-cache",
                    "ContentType": "application/x-tar",
                }
            },
            {
                "x-amz-acl": "bucket-owner-full-control",
                "x-amz-storage-class": "STANDARD_IA",
                "x-amz-tagging": "team=vision",
                "x-amz-meta-origin": "scan",
                "cache-control": "no-cache",
                "content-type": "application/x-tar",
            },
            CREATING,
        ),
    ],
    ids=["payer", "owner", "sse-c", "sse-s3", "sse-kms", "dsse-kms", "properties"],
)
def test_a_request_has_the_headers_of_its_options_and_no_other_has(
    sent: Callable[[dict[str, Any]], dict[str, list[Recorded]]],
    options: dict[str, Any],
    headers: dict[str, str],
    operations: set[str],
) -> None:
    """All of them are signed.

    Requester pays: https://docs.aws.amazon.com/AmazonS3/latest/userguide/ObjectsinRequesterPaysBuckets.html. SSE-C:
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/ServerSideEncryptionCustomerKeys.html. SSE-KMS, which GET and
    HEAD must not name: https://docs.aws.amazon.com/AmazonS3/latest/userguide/specifying-kms-encryption.html. Owner:
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucket-owner-condition.html. Others:
    https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html and API_CreateMultipartUpload.html.
    """
    requests = sent(options)
    assert requests.keys() == ALL
    for operation, all_of_one in requests.items():
        for one in all_of_one:
            found = {name: one.headers[name] for name in headers if name in one.headers}
            if operation in operations:
                assert found == headers, operation
                assert {name for name in headers if name.startswith("x-amz-")} <= one.signed[2], operation
            else:
                found.pop("content-type", None)  # botocore sends one of its own
                assert found == {}, operation


def test_an_additional_checksum_is_sent_for_each_part_and_repeated_at_the_end(
    sent: Callable[[dict[str, Any]], dict[str, list[Recorded]]], recorder: RecordingS3
) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html."""
    recorder.answer = lambda one: (200, {"ETag": '"e"', "x-amz-checksum-sha256": "c3Vt"}, b"") if (
        one.operation == "UploadPart"
    ) else None  # fmt: skip
    store = store_with({**recorder.storage_options, "s3_additional_kwargs": {"ChecksumAlgorithm": "SHA256"}})
    recorder._parts.update({"1": b"0", "2": b"1"})
    writer = store.create("large", overwrite=True)
    writer.write(b"0123456789")
    writer.commit()
    write(store, "small", b"12")
    requests = by_operation(recorder.taken())
    assert requests["CreateMultipartUpload"][0].headers["x-amz-checksum-algorithm"] == "SHA256"
    digest = base64.b64encode(hashlib.sha256(b"12").digest()).decode()
    assert requests["PutObject"][0].headers["x-amz-checksum-sha256"] == digest
    assert all("x-amz-checksum-sha256" in one.headers for one in requests["UploadPart"])
    assert requests["CompleteMultipartUpload"][0].body.count(b"<ChecksumSHA256>c3Vt</ChecksumSHA256>") == 2


def test_payer_and_key_of_the_user_are_read_by_obstore_without_a_warning(
    recorder: RecordingS3, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither selects a slower transport."""
    recorder.objects["a"] = b"123"
    options = StorageOptions({**recorder.storage_options, "requester_pays": True, "s3_additional_kwargs": SSE_C})
    store, path = open_store("s3://a-bucket/a", options, Connection(Backend.AUTOMATIC))
    assert read(store, path) == b"123"
    assert [one.is_by_obstore for one in recorder.taken()] == [True]
    assert caplog.records == []


def test_an_argument_without_a_translation_selects_s3fs_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """The others of the same dict are not."""
    arguments = {"StorageClass": "STANDARD", "ObjectLockMode": "GOVERNANCE"}
    options = StorageOptions({"key": "k", "secret": "s", "s3_additional_kwargs": arguments})
    store, _ = open_store("s3://locked-bucket/a", options)
    assert type(store).__name__ == "FsspecStore"
    assert caplog.messages == [
        "s3://locked-bucket is read by s3fs, more slowly: no translation for s3_additional_kwargs['ObjectLockMode']"
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"SSEKmsKeyId": "k"}, "unknown option 'SSEKmsKeyId' .*; did you mean 'SSEKMSKeyId'"),
        ({"ServerSideEncryption": "kms"}, "is 'kms'; expected one of 'AES256', 'aws:kms', 'aws:kms:dsse'"),
        ({"ServerSideEncryption": True}, "must be a str, got "),
        ({"SSEKMSKeyId": "k"}, "'SSEKMSKeyId'.* needs 'ServerSideEncryption': 'aws:kms'"),
        ({"ServerSideEncryption": "AES256", "BucketKeyEnabled": True}, "'BucketKeyEnabled'.* needs "),
        ({"ServerSideEncryption": "aws:kms", "BucketKeyEnabled": "yes"}, "must be a bool"),
        ({"SSECustomerKey": KEY}, "'SSECustomerAlgorithm': 'AES256' belong together"),
        ({"SSECustomerAlgorithm": "AES256"}, "belong together"),
        ({"SSECustomerAlgorithm": "AES128", "SSECustomerKey": KEY}, "S3 knows 'AES256' only"),
        ({"SSECustomerAlgorithm": "AES256", "SSECustomerKey": b"PASSWORD"}, "must have 32 bytes"),
        ({"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "PASSWORD!"}, "must have 32 bytes"),
        ({"SSECustomerAlgorithm": "AES256", "SSECustomerKey": 5}, "must be bytes, or a str with their base64"),
        ({**SSE_C, "ServerSideEncryption": "aws:kms"}, "exclude each other"),
        ({"Metadata": {"a": 1}}, "must be a dict of str"),
        ({"Metadata": "a"}, "must be a dict of str"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused_before_any_request(
    arguments: dict[str, Any], problem: str
) -> None:
    """And no key is shown."""
    with pytest.raises(UrlError, match=problem) as caught:
        open_store("s3://any-bucket/a", StorageOptions({"s3_additional_kwargs": arguments}))
    assert "PASSWORD" not in text_of(caught.value)


def test_a_key_of_the_user_is_refused_for_plain_http_on_aws() -> None:
    """AWS answers such requests with an error; the key would have been sent in the clear."""
    options = StorageOptions({"endpoint_url": "http://s3.us-west-2.amazonaws.com", "s3_additional_kwargs": SSE_C})
    with pytest.raises(UrlError, match="AWS accepts it by https only"):
        open_store("s3://any-bucket/a", options)


def test_a_key_may_be_base64_as_in_a_file_of_options(recorder: RecordingS3) -> None:
    """The same headers are sent."""
    recorder.objects["a"] = b"123"
    text = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": base64.b64encode(KEY).decode()}
    store = store_with({**recorder.storage_options, "s3_additional_kwargs": text})
    assert read(store, "a") == b"123"
    store.stat("a")
    assert all(OF_KEY.items() <= one.headers.items() for one in recorder.taken())


def test_equal_keys_are_one_store_and_others_another(recorder: RecordingS3) -> None:
    """Also keys that are equal without being the same object, as in a worker."""
    stores = []
    for key in (bytes(range(32)), bytes(bytearray(range(32))), bytes(32)):
        arguments = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
        stores.append(
            open_store("s3://b/a", StorageOptions({**recorder.storage_options, "s3_additional_kwargs": arguments}))[0]
        )
    assert stores[0] is stores[1]
    assert stores[0] is not stores[2]


def test_a_refused_request_names_the_key_as_a_cause_but_does_not_show_it(recorder: RecordingS3) -> None:
    """By each transport."""
    recorder.answer = lambda _: (403, {}, b"<Error><Code>AccessDenied</Code></Error>")
    store = store_with({**recorder.storage_options, "s3_additional_kwargs": SSE_C})
    for attempt in (store.read, store.read_without_obstore):
        with pytest.raises(AccessDeniedError, match=r"Or SSECustomerKey .* is not that of the object") as caught:
            attempt("a", 0, None, None)
        assert OF_KEY["x-amz-server-side-encryption-customer-key"] not in text_of(caught.value)


def _loses_first_response(recorder: RecordingS3, operation: str, encryption: dict[str, str]) -> None:
    """The request arrives and works; then 500, and 412 for the retry. Objects are encrypted, their etags random."""
    requests: list[Recorded] = []
    recorder.is_md5 = False

    def answer(one: Recorded) -> tuple[int, dict[str, str], bytes] | None:
        if one.operation == operation:
            requests.append(one)
            if len(requests) > 1:
                return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
            getattr(recorder, f"_{operation}")(one, one.body)
            return 500, {}, b"<Error><Code>InternalError</Code></Error>"
        if one.operation == "HeadObject":
            status, headers, data = recorder._HeadObject(one, b"")
            return status, {**headers, **encryption}, data
        return None

    recorder.answer = answer


@pytest.mark.parametrize(
    ("options", "encryption"),
    [
        ({"s3_additional_kwargs": SSE_C}, {"x-amz-server-side-encryption-customer-algorithm": "AES256"}),
        ({"s3_additional_kwargs": {"ServerSideEncryption": "aws:kms"}}, {"x-amz-server-side-encryption": "aws:kms"}),
        ({}, {"x-amz-server-side-encryption": "aws:kms"}),
    ],
    ids=["sse-c", "sse-kms", "default of the bucket"],
)
@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
def test_the_own_object_is_recognised_where_its_etag_is_not_its_md5(
    recorder: RecordingS3,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    encryption: dict[str, str],
    operation: str,
) -> None:
    """A lost response does not make it an error that the object exists: it is read and compared.

    The etag of objects encrypted by SSE-C or SSE-KMS is not an MD5 digest:
    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
    """
    monkeypatch.setattr("torchdata_remote.storage.multipart.UPLOAD_PART_BYTES", 6)
    _loses_first_response(recorder, operation, encryption)
    store = store_with({**recorder.storage_options, **options})
    write(store, "a", b"12" if operation == "PutObject" else b"0123456789")
    assert by_operation(recorder.taken())["GetObject by botocore"]


@pytest.mark.parametrize("other", [b"34", b"345"], ids=["another content", "another size"])
def test_an_object_of_another_writer_is_not_taken_for_the_own_one(recorder: RecordingS3, other: bytes) -> None:
    """Although its etag says nothing about its content."""
    _loses_first_response(recorder, "PutObject", {"x-amz-server-side-encryption": "aws:kms"})
    store = store_with(recorder.storage_options)
    made = recorder.answer

    def replace(one: Recorded) -> Any:
        response = made(one)
        recorder.objects["a"] = other
        return response

    recorder.answer = replace
    with pytest.raises(StorageError, match="exists already"):
        write(store, "a", b"12")


def test_objects_encrypted_by_a_key_of_the_user_are_written_and_read(s3: S3Server, bucket: str) -> None:
    """Small and in parts, by each transport; without the key they are refused."""
    options = {**s3.storage_options, "s3_additional_kwargs": SSE_C}
    store, plain = store_with(options, bucket), store_with(s3.storage_options, bucket)
    data = bytes(range(256)) * (6 << 12)  # 6 MiB
    write(store, "small", b"123")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchdata_remote.storage.multipart.UPLOAD_PART_BYTES", 5 << 20)
        write(store, "large", data)
    for path, content in (("small", b"123"), ("large", data)):
        assert read(store, path) == content
        assert store.read_without_obstore(path, 1, 3, None).whole() == content[1:3]
        assert store.read(path, 1, 3, store.stat(path).etag).whole() == content[1:3]
        if s3.name == "ceph":  # moto stores the key's header, and does not ask for it
            for attempt in (plain.read, plain.read_without_obstore):
                with pytest.raises(StorageError):
                    attempt(path, 0, None, None)
    assert uploads_left(s3, bucket) == []


def test_objects_encrypted_by_a_key_of_the_store_are_written_and_read(s3: S3Server, bucket: str) -> None:
    """By SSE-KMS. The store confirms the encryption."""
    arguments = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": KMS_KEY}
    store = store_with({**s3.storage_options, "s3_additional_kwargs": arguments}, bucket)
    write(store, "a", b"123")
    assert s3.client().head_object(Bucket=bucket, Key="a")["ServerSideEncryption"] == "aws:kms"
    assert read(store, "a") == b"123"
    write(store, "a", b"1234", overwrite=True)
    with contextlib.suppress(KeyError):
        assert s3.client().head_object(Bucket=bucket, Key="a")["SSEKMSKeyId"].endswith(KMS_KEY)
    assert read(store, "a") == b"1234"


def test_a_bucket_whose_requester_pays_is_written_and_read(moto: S3Server) -> None:
    """Properties of objects arrive."""
    bucket = moto.new_bucket()
    arguments = {"StorageClass": "STANDARD_IA", "Metadata": {"origin": "scan"}, "ContentType": "application/x-tar"}
    store = store_with({**moto.storage_options, "requester_pays": True, "s3_additional_kwargs": arguments}, bucket)
    write(store, "a", b"123")
    assert read(store, "a") == b"123"
    found = moto.client().head_object(Bucket=bucket, Key="a")
    assert (found["StorageClass"], found["Metadata"], found["ContentType"]) == (
        "STANDARD_IA",
        {"origin": "scan"},
        "application/x-tar",
    )


@pytest.mark.parametrize("by", ["use_ssl", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_key_of_the_user_is_refused_for_plain_http_wherever_that_is_chosen(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each transport, before it is sent."""
    options: dict[str, Any] = {"key": "k", "secret": "s", "region": "us-west-2", "s3_additional_kwargs": SSE_C}
    if by == "use_ssl":
        options["use_ssl"] = False
    else:
        monkeypatch.setenv(by, "http://s3.us-west-2.amazonaws.com")
    store = store_with(options)
    for attempt in (store.read, store.read_without_obstore):
        with pytest.raises(UrlError, match="AWS accepts it by https only"):
            attempt("a", 0, None, None)
