"""Refusals of S3: the error has the store's own words and a remedy, whichever library reads."""

from __future__ import annotations

import logging
from html import escape
from typing import Any

import pytest

from tests.servers.s3 import S3Server
from tests.servers.scripted import Request, Response, scripted
from torchdata_remote import Backend, IterableWrapper
from torchdata_remote.errors import AccessDeniedError, StorageError

KEY = "arn:aws:kms:eu-west-1:123456789012:key/1234"
DENIED = (
    f"User: arn:aws:iam::1:user/me is not authorized to perform: kms:Decrypt on resource: {KEY} as it's not allowed"
)
BY = pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE, Backend.FSSPEC])


def read(url: str, options: dict[str, Any], backend: Backend) -> list[Any]:
    return list(IterableWrapper([url]).async_prefetch(backend=backend, storage_options=options).file_reader())


@BY
@pytest.mark.parametrize(
    ("status", "code", "said", "advice", "is_about_access"),
    [
        (403, "InvalidObjectState", "The operation is not valid for the object's storage class", "restore it", False),
        (400, "KMS.DisabledException", f"{KEY} is disabled", "its key of KMS must be enabled", True),
        (403, "AccessDenied", DENIED, "the credentials need kms:Decrypt", True),
        (403, "AccessDenied", "Access Denied", "Check the credentials", True),
        (400, "InvalidRequest", 'The "tier" is <new>', "", False),
    ],
)
def test_a_refusal_has_the_words_of_the_store_and_costs_one_request(
    backend: Backend, status: int, code: str, said: str, advice: str, is_about_access: bool
) -> None:
    def respond(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(200, headers={"Content-Length": "5", "ETag": '"1"'})
        more = "<StringToSign>canary</StringToSign>"
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{escape(said)}.</Message>{more}</Error>"
        return Response(status, body.encode())

    with scripted(respond) as server, pytest.raises(StorageError) as caught:
        read("s3://bucket/a.bin", {"endpoint_url": server.url, "key": "k", "secret": "s"}, backend)
    message = str(caught.value)
    assert message.startswith(f"s3://bucket/a.bin: the store answered {status} {code}: {said}. ")
    assert advice in message
    assert "canary" not in message
    assert "gives no reason" not in message
    assert isinstance(caught.value, AccessDeniedError) == is_about_access
    assert sum(request.method == "GET" for request in server.requests) == 1


def test_archived_objects_are_named_when_they_are_listed(moto: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    """Once for a store: they may have been restored. Those of classes that are read at once are not."""
    bucket, client, options = moto.new_bucket(), moto.client(), moto.storage_options
    for kind in ("STANDARD", "GLACIER_IR", "GLACIER"):
        client.put_object(Bucket=bucket, Key=f"{kind}/a.bin", Body=b"1", StorageClass=kind)
        with caplog.at_level(logging.WARNING, "torchdata_remote"):
            assert len(list(IterableWrapper([f"s3://{bucket}/{kind}/"]).list_remote(storage_options=options))) == 1
        assert caplog.text.count("archived (GLACIER)") == (kind == "GLACIER")
    assert (
        f"s3://{bucket}/GLACIER/: some of the objects there are archived (GLACIER), and can be read only where"
        in caplog.text
    )
    for backend in (Backend.OBSTORE, Backend.BOTOCORE):
        with pytest.raises(StorageError, match=r"403 InvalidObjectState.* The object is archived: restore it"):
            read(f"s3://{bucket}/GLACIER/a.bin", options, backend)
