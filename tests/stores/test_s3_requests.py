"""What is sent to S3 with each option, and where, compared with AWS's documentation."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable
from html import escape
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.servers.between import between
from tests.servers.recording_s3 import Recorded, RecordingS3, Response
from tests.servers.s3 import KMS_KEY, S3Server
from tests.servers.scripted import Request, scripted
from tests.servers.scripted import Response as Answer
from tests.support import objects
from tests.support.objects import warnings_of
from torchdata_remote import Backend
from torchdata_remote.errors import AccessDeniedError, ObjectNotFoundError, StorageError, UrlError

KEY = bytes(range(32))
OF_KEY = {
    "x-amz-server-side-encryption-customer-algorithm": "AES256",
    "x-amz-server-side-encryption-customer-key": base64.b64encode(KEY).decode(),
    "x-amz-server-side-encryption-customer-key-md5": base64.b64encode(hashlib.md5(KEY).digest()).decode(),
}
SSE_C = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": KEY}
READING = {"GetObject", "HeadObject"}
CREATING = {"PutObject", "CreateMultipartUpload"}
OF_UPLOAD = {"UploadPart", "CompleteMultipartUpload"}
ALL = READING | CREATING | OF_UPLOAD | {"ListObjectsV2", "DeleteObject"}
LARGE = 16 << 20  # and more are sent in parts


def use_everything(bucket: str, options: dict[str, Any]) -> None:
    """Send each kind of request."""
    objects.write(f"s3://{bucket}/d/", options, num_bytes=LARGE)
    url = f"s3://{bucket}/a"
    assert objects.found(url, options).size == 5
    assert objects.read(url, options) == b"bytes"
    assert len(objects.listed(f"s3://{bucket}/d/", options)) == 4


def by_operation(requests: list[Recorded]) -> dict[str, list[Recorded]]:
    found: dict[str, list[Recorded]] = {}
    for one in requests:
        found.setdefault(one.operation, []).append(one)
    return found


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
            {
                "s3_additional_kwargs": {
                    "ServerSideEncryption": "aws:kms",
                    "SSEKMSKeyId": "my-key",
                    "BucketKeyEnabled": True,
                }
            },
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "my-key",
                "x-amz-server-side-encryption-bucket-key-enabled": "true",
            },
            CREATING,
        ),
        (
            {
                "s3_additional_kwargs": {
                    "ServerSideEncryption": "AES256",
                    "ACL": "bucket-owner-full-control",
                    "StorageClass": "STANDARD_IA",
                    "Metadata": {"origin": "scan"},
                    "ContentType": "application/x-tar",
                }
            },
            {
                "x-amz-server-side-encryption": "AES256",
                "x-amz-acl": "bucket-owner-full-control",
                "x-amz-storage-class": "STANDARD_IA",
                "x-amz-meta-origin": "scan",
                "content-type": "application/x-tar",
            },
            CREATING,
        ),
    ],
    ids=["payer", "owner", "sse-c", "sse-kms", "properties"],
)
def test_a_request_has_the_headers_of_its_options_and_no_other_has(
    recorder: RecordingS3, options: dict[str, Any], headers: dict[str, str], operations: set[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """All of them are signed, and none selects a slower transport.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/ServerSideEncryptionCustomerKeys.html,
    specifying-kms-encryption.html, ObjectsinRequesterPaysBuckets.html and bucket-owner-condition.html;
    https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html and API_CreateMultipartUpload.html.
    """
    recorder.objects["a"] = b"bytes"
    use_everything("bucket", {**recorder.storage_options, **options})
    requests = by_operation(recorder.taken())
    assert requests.keys() >= ALL - {"HeadObject"}
    for operation, all_of_one in requests.items():
        for one in all_of_one:
            found = {name: one.headers[name] for name in headers if name in one.headers}
            if operation in operations:
                assert found == headers, operation
                assert {name for name in headers if name.startswith("x-amz-")} <= one.signed[2], operation
            elif operation in ALL:
                found.pop("content-type", None)  # botocore sends one of its own
                assert found == {}, operation
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
def test_the_own_object_is_recognised_after_a_lost_response(recorder: RecordingS3, operation: str) -> None:
    """By the id of its writer, whatever its etag: it is no error that it exists."""
    requests: list[Recorded] = []

    def answer(one: Recorded) -> Response | None:
        if one.operation == operation and one.key.endswith("0.tar"):
            requests.append(one)
            if len(requests) > 1:
                return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
            getattr(recorder, f"_{operation}")(one, one.body)
            return 500, {}, b"<Error><Code>InternalError</Code></Error>"
        return None

    recorder.answer, recorder.is_md5 = answer, False
    options, num_bytes = recorder.storage_options, 10 if operation == "PutObject" else LARGE
    objects.write("s3://bucket/d/", options, num_bytes=num_bytes)
    assert len(requests) == 2


def test_objects_encrypted_by_keys_of_the_user_or_the_store_are_written_and_read(s3: S3Server, bucket: str) -> None:
    """Small and in parts, by each library; without the user's key they are refused."""
    kms = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": KMS_KEY}
    as_text = {**SSE_C, "SSECustomerKey": base64.b64encode(KEY).decode()}
    for name, arguments in (("c", as_text), ("kms", kms)):
        options = {**s3.storage_options, "s3_additional_kwargs": arguments}
        for num_bytes in (10, LARGE):
            folder = f"s3://{bucket}/{name}-{num_bytes}/"
            objects.write(folder, options, num_bytes=num_bytes)
            data = objects.read(f"{folder}0.tar", options)
            assert data[512 : 512 + num_bytes] == bytes(num_bytes)
            if s3.name == "ceph" and name == "c":  # moto stores the key's header, and does not ask for it
                with pytest.raises(StorageError):
                    objects.read(f"{folder}0.tar", s3.storage_options)
    head = s3.client().head_object(Bucket=bucket, Key="kms-10/0.tar")
    assert head["ServerSideEncryption"] == "aws:kms"


@pytest.mark.parametrize("by", ["use_ssl", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.FSSPEC])
def test_a_key_of_the_user_is_never_sent_to_aws_by_plain_http(
    by: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"key": "k", "secret": "s", "region": "us-west-2", "s3_additional_kwargs": SSE_C}
    if by == "use_ssl":
        options["use_ssl"] = False
    else:
        monkeypatch.setenv(by, "http://s3.us-west-2.amazonaws.com")
    with pytest.raises(UrlError, match="AWS accepts it by https only"):
        objects.read(f"s3://plain-{by.lower().replace('_', '-')}/a", options, backend=backend)


# Where requests go

OPTIONS = {"key": "k", "secret": "s", "region": "us-west-2"}


def config(**more: Any) -> dict[str, Any]:
    return {"config_kwargs": more}


IN_CLIENT = {"client_kwargs": {"region_name": "eu-west-3"}}
HOSTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "plain": ("mine", {}, "mine.s3.us-west-2.amazonaws.com"),
    "china": ("mine", {"region": "cn-north-1"}, "mine.s3.cn-north-1.amazonaws.com.cn"),
    "name": ("mine", {"region": None, **IN_CLIENT}, "mine.s3.eu-west-3.amazonaws.com"),
    "dualstack": ("mine", config(use_dualstack_endpoint=True), "mine.s3.dualstack.us-west-2.amazonaws.com"),
    "path": ("mine", config(s3={"addressing_style": "path"}), "s3.us-west-2.amazonaws.com"),
    "dots": ("with.dots", {}, "s3.us-west-2.amazonaws.com"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTS)
def test_all_requests_go_to_the_host_of_the_bucket(aws: RecordingS3, name: str) -> None:
    """https://docs.aws.amazon.com/general/latest/gr/s3.html"""
    bucket, more, host = HOSTS[name]
    options: dict[str, Any] = {**OPTIONS, **more}
    options = {key: value for key, value in options.items() if value is not None}
    aws.objects["a"] = b"bytes"
    url = f"s3://{bucket}/a"
    assert objects.read(url, options) == b"bytes"
    assert objects.found(url, options).size == 5
    assert objects.listed(f"s3://{bucket}/", options) == [url]
    sent = aws.taken()
    assert {one.host for one in sent} == {host}
    assert all(one.is_by_obstore for one in sent)


def elsewhere(status: int, code: bytes, region: str | None) -> Callable[[Recorded], Response | None]:
    """Answer like AWS to a request that is signed for, or sent to, another region than eu-west-1."""

    def answer(one: Recorded) -> Response | None:
        if one.signed[0] == "eu-west-1" or "eu-west-1" in one.host:
            return None
        body = b"<Error><Code>" + code + b"</Code>" + b"<Region>eu-west-1</Region>" * (status == 400) + b"</Error>"
        return status, {"x-amz-bucket-region": region} if region else {}, b"" if one.method == "HEAD" else body

    return answer


@pytest.mark.parametrize("address", [None, "s3.amazonaws.com", "s3-us-west-2.amazonaws.com"])
@pytest.mark.parametrize(("status", "code"), [(301, b"PermanentRedirect"), (400, b"AuthorizationHeaderMalformed")])
def test_the_region_of_a_bucket_is_found_once_and_it_is_read_there(
    aws: RecordingS3, address: str | None, status: int, code: bytes
) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html"""
    aws.objects["a"], aws.answer = b"bytes", elsewhere(status, code, "eu-west-1")
    options = OPTIONS if address is None else {**OPTIONS, "endpoint_url": f"https://{address}"}
    bucket = f"found-{status}-{(address or '').replace('.', '-')}"
    for _ in range(3):
        assert objects.read(f"s3://{bucket}/a", options, retry=objects.QUICK) == b"bytes"
    sent = aws.taken()
    right = [one for one in sent if one.operation == "GetObject" and one.signed[0] == "eu-west-1"]
    assert [one.is_by_obstore for one in right] == [True] * 3
    assert len(sent) - len(right) <= 4


def test_the_path_of_an_endpoint_and_the_user_agent_are_those_of_the_options(recorder: RecordingS3) -> None:
    options = {**recorder.storage_options, "endpoint_url": f"{recorder.url}/prefix", **config(user_agent="company/1")}
    about = {"ETag": '"1"', "Last-Modified": "Tue, 24 Nov 2020 04:49:20 GMT", "Content-Range": "bytes 0-4/5"}
    recorder.answer = lambda one: (206, about, b"bytes")
    assert objects.read("s3://bucket/a", options) == b"bytes"
    assert {(one.path.partition("?")[0], one.headers["user-agent"]) for one in recorder.taken()} == {
        ("/prefix/bucket/a", "company/1")
    }


# Directory buckets and versions


def test_a_directory_bucket_is_read_and_listed_in_its_zone_by_sessions(aws: RecordingS3) -> None:
    """By folders only, and from the start.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-express-create-session.html
    https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
    """
    bucket = "mine--usw2-az1--x-s3"
    aws.objects |= {"f/b": b"2", "f/a": b"bytes"}
    assert objects.read(f"s3://{bucket}/f/a", OPTIONS) == b"bytes"
    assert objects.listed(f"s3://{bucket}/f/", OPTIONS) == [f"s3://{bucket}/f/a", f"s3://{bucket}/f/b"]
    assert objects.found(f"s3://{bucket}/f/a", OPTIONS).size == 5
    sent = aws.taken()
    assert {one.host for one in sent} == {f"{bucket}.s3express-usw2-az1.us-west-2.amazonaws.com"}
    for one in sent:
        if one.operation in ("GetObject", "ListObjectsV2"):
            assert one.headers["x-amz-s3session-token"] == "of-session"
        if one.operation == "ListObjectsV2":
            assert one.query.get("prefix", "") in ("", "f/", "f/a/")
            assert "start-after" not in one.query


def test_a_version_of_an_object_is_read_by_its_url_and_a_missing_one_is_named(s3: S3Server) -> None:
    """Also after it was replaced and deleted. A key that looks like a version has one more mark behind it."""
    bucket, client, options = s3.new_bucket(), s3.client(), s3.storage_options
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    versions = {client.put_object(Bucket=bucket, Key="a", Body=data)["VersionId"]: data for data in (b"one", b"second")}
    marker = client.delete_object(Bucket=bucket, Key="a")["VersionId"]
    client.put_object(Bucket=bucket, Key="notes?versionId=3", Body=b"odd")
    [odd] = objects.listed(f"s3://{bucket}/", options)
    assert odd == f"s3://{bucket}/notes?versionId=3?versionId="
    for version, data in versions.items():
        assert objects.read(f"s3://{bucket}/a?versionId={version}", options, part_bytes=2) == data
    for missing in ("a", f"a?versionId={'0' * 32}", f"a?versionId={marker}"):
        with pytest.raises(ObjectNotFoundError, match=r"no such (object|version)"):
            objects.read(f"s3://{bucket}/{missing}", options)
    assert objects.read(odd, options) == b"odd"
    with pytest.raises(UrlError, match="neither written nor deleted"):
        objects.write(f"s3://{bucket}/x?versionId=", options)


# Refusals

ARN = "arn:aws:kms:eu-west-1:123456789012:key/1234"
DENIED = (
    f"User: arn:aws:iam::1:user/me is not authorized to perform: kms:Decrypt on resource: {ARN} as it's not allowed"
)


@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.FSSPEC])
@pytest.mark.parametrize(
    ("status", "code", "said", "advice"),
    [
        (403, "InvalidObjectState", "The operation is not valid for the object's storage class", "restore it"),
        (403, "AccessDenied", DENIED, "Check the credentials"),
        (400, "InvalidRequest", 'The "tier" is <new>', ""),
        (403, "InvalidAccessKeyId", "no", "Check the credentials"),
        (403, "SignatureDoesNotMatch", "no", "Check the credentials"),
    ],
)
def test_a_refusal_has_the_words_of_the_store_and_a_remedy_and_costs_one_request(
    backend: Backend, status: int, code: str, said: str, advice: str
) -> None:
    def respond(request: Request) -> Answer:
        if request.method == "HEAD":
            return Answer(200, headers={"Content-Length": "5", "ETag": '"1"'})
        more = "<StringToSign>canary</StringToSign>"
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{escape(said)}.</Message>{more}</Error>"
        return Answer(status, body.encode())

    with scripted(respond) as server, pytest.raises(StorageError) as caught:
        objects.read("s3://bucket/a.bin", {**OPTIONS, "endpoint_url": server.url}, backend=backend)
    message = str(caught.value)
    assert message.startswith(f"s3://bucket/a.bin: the store answered {status} {code}: {said}. ")
    assert advice in message
    assert "canary" not in message
    assert isinstance(caught.value, AccessDeniedError) == (code not in ("InvalidObjectState", "InvalidRequest"))
    assert sum(request.method == "GET" for request in server.requests) == 1


# Servers that implement a part of S3


REFUSED: dict[str, Callable[[Request], bool]] = {
    "list uploads": lambda one: one.method == "GET" and "uploads" in one.target.partition("?")[2].split("&"),
    "abort uploads": lambda one: one.method == "DELETE" and "uploadId" in one.target,
    "conditions": lambda one: "if-none-match" in one.headers,
}


@pytest.mark.parametrize("refused", REFUSED)
def test_a_server_that_implements_a_part_of_s3_is_written_to_with_one_warning(
    moto: S3Server, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Leftovers that cannot be removed are no error, and what exists is kept all the same."""

    def decide(one: Request) -> Answer | None:
        return Answer.of_error(501, "NotImplemented") if REFUSED[refused](one) else None

    bucket = moto.new_bucket()
    with between(moto.endpoint_url, decide) as url, caplog.at_level(logging.WARNING, "torchdata_remote"):
        options = {**moto.storage_options, "endpoint_url": url}
        for number in range(2):
            writer = tdr.ShardWriter(f"s3://{bucket}/aborted/{{shard}}.tar", overwrite=True, storage_options=options)
            writer.write({"__key__": f"{number}", "bin": bytes(LARGE + 1)})
            writer.abort()
        for overwrite, num_bytes in ((False, 10), (True, LARGE)):
            objects.write(f"s3://{bucket}/d/", options, overwrite=overwrite, num_bytes=num_bytes)
    said = warnings_of(caplog)
    expected = "If-None-Match" if refused == "conditions" else "multipart uploads"
    assert [expected in line for line in said] in ([True], [] if refused == "list uploads" else [True])
