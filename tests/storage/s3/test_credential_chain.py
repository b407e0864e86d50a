"""Each source of credentials, on the wire: what it is asked, what S3 is sent, and that it is asked again in time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers.aws_credentials import CONTAINER_PATH, METADATA_TOKEN, ROLE, sts_error
from tests.servers.recording_s3 import Recorded, RecordingS3, Response
from tests.support.aws_sources import (
    LOGIN,
    POD_TOKEN,
    SOURCES,
    AwsPlace,
    machine,
    pod_identity,
    process,
    role_of_environment,
    role_of_profile,
    sso,
    web_identity,
    write_login,
)
from tests.support.s3_stores import write
from tests.support.waiting import wait_for
from torchdata_remote import RetryPolicy
from torchdata_remote.core.retry import call_with_retries
from torchdata_remote.errors import AccessDeniedError, TransientStorageError
from torchdata_remote.storage.s3 import credential_chain
from torchdata_remote.storage.s3.store import S3Store

DATA = b"0123456789"
SOON_S = 300.0  # in which botocore renews

Configure = Callable[[AwsPlace], dict[str, Any]]
each_source = pytest.mark.parametrize("configure", SOURCES.values(), ids=SOURCES.keys())


def read(store: S3Store) -> bytes:
    return store.read("a", 0, None, None).whole()


def list_keys(store: S3Store) -> list[str]:
    return [entry.path for entry in store.list_page("", recursive=True, token=None).entries]


def signed_by(requests: list[Recorded]) -> list[tuple[str, str | None]]:
    return [(one.access_key, one.headers.get("x-amz-security-token")) for one in requests]


@each_source
def test_reads_listings_and_writes_are_signed_by_what_the_source_issues(
    configure: Configure, store_from: Callable[..., S3Store], aws_place: AwsPlace, recorder: RecordingS3
) -> None:
    """By obstore and by botocore; the source is asked once for all."""
    store = store_from(configure)
    assert read(store) == store.read_without_obstore("a", 0, None, None).whole() == DATA
    assert list_keys(store) == ["a"]
    write(store, "b", DATA)
    sent = recorder.taken()
    assert {(one.operation, one.is_by_obstore) for one in sent} >= {
        ("GetObject", True),
        ("GetObject", False),
        ("ListObjectsV2", False),
        ("PutObject", False),
    }
    assert set(signed_by(sent)) == {("ASIA1", "token-1")}
    assert all("x-amz-security-token" in one.signed[2] for one in sent)
    assert aws_place.aws.num_issued == 1


@each_source
def test_the_source_is_asked_again_where_the_store_reports_expired_credentials(
    configure: Configure, store_from: Callable[..., S3Store], recorder: RecordingS3
) -> None:
    """In the middle of reading and of listing, without an error."""
    expired: set[str] = set()

    def answer(request: Recorded) -> Response | None:
        error = b"<Error><Code>ExpiredToken</Code></Error>"
        return (400, {}, error) if request.access_key in expired else None

    recorder.answer = answer
    store = store_from(configure)
    assert read(store) == DATA
    expired.add("ASIA1")
    assert read(store) == DATA
    expired.add("ASIA2")
    assert list_keys(store) == ["a"]
    sent = recorder.taken()
    assert [one.access_key for one in sent] == ["ASIA1", "ASIA1", "ASIA2", "ASIA2", "ASIA3"]
    assert [one.is_by_obstore for one in sent] == [True, True, True, False, False]


def test_a_role_is_assumed_with_the_keys_of_its_source_profile(
    store_from: Callable[..., S3Store], aws_place: AwsPlace
) -> None:
    """https://docs.aws.amazon.com/sdkref/latest/guide/feature-assume-role-credentials.html"""
    assert read(store_from(role_of_profile)) == DATA
    [request] = aws_place.aws.requests
    asked = {name: request.form[name] for name in ("Action", "RoleArn", "ExternalId")}
    assert asked == {"Action": "AssumeRole", "RoleArn": ROLE, "ExternalId": "x1"}
    assert (request.access_key, request.signed[:2]) == ("AKIASOURCE", ("us-west-2", "sts"))


def test_a_role_is_assumed_with_the_keys_of_the_environment(
    store_from: Callable[..., S3Store], aws_place: AwsPlace
) -> None:
    """``credential_source = Environment``; those keys are not sent to S3."""
    assert read(store_from(role_of_environment)) == DATA
    [request] = aws_place.aws.requests
    assert (request.form["Action"], request.access_key) == ("AssumeRole", "AKIAENV")


def test_a_web_identity_is_exchanged_without_a_signature(
    store_from: Callable[..., S3Store], aws_place: AwsPlace
) -> None:
    """https://docs.aws.amazon.com/eks/latest/userguide/iam-roles-for-service-accounts.html"""
    assert read(store_from(web_identity)) == DATA
    [request] = aws_place.aws.requests
    asked = {name: request.form[name] for name in ("Action", "RoleArn", "WebIdentityToken")}
    assert asked == {"Action": "AssumeRoleWithWebIdentity", "RoleArn": ROLE, "WebIdentityToken": POD_TOKEN}
    assert "authorization" not in request.headers


def test_a_web_identity_is_read_again_from_its_file(store_from: Callable[..., S3Store], aws_place: AwsPlace) -> None:
    """Kubernetes replaces the file before the token in it expires."""
    aws_place.aws.expires_in_s = SOON_S
    store = store_from(web_identity)
    assert list_keys(store) == ["a"]
    (aws_place.folder / "identity").write_text("replaced")
    aws_place.patch.setattr(credential_chain, "ASK_AGAIN_S", 0.0)
    assert list_keys(store) == ["a"]
    assert [one.form["WebIdentityToken"] for one in aws_place.aws.requests] == [POD_TOKEN, "replaced"]


def test_a_container_is_asked_with_the_token_of_its_file(
    store_from: Callable[..., S3Store], aws_place: AwsPlace
) -> None:
    """https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html"""
    assert read(store_from(pod_identity)) == DATA
    [request] = aws_place.aws.requests
    assert (request.method, request.path) == ("GET", CONTAINER_PATH)
    assert request.headers["authorization"] == POD_TOKEN


def test_a_machine_is_asked_by_imdsv2_only(store_from: Callable[..., S3Store], aws_place: AwsPlace) -> None:
    """A PUT for a token, and no GET without it.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
    """
    assert read(store_from(machine)) == DATA
    first, *others = aws_place.aws.requests
    assert (first.method, first.path) == ("PUT", "/latest/api/token")
    assert int(first.headers["x-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
    assert {(one.method, one.headers.get("x-aws-ec2-metadata-token")) for one in others} == {("GET", METADATA_TOKEN)}


def test_sso_is_asked_with_the_token_of_the_login(store_from: Callable[..., S3Store], aws_place: AwsPlace) -> None:
    """https://docs.aws.amazon.com/singlesignon/latest/PortalAPIReference/API_GetRoleCredentials.html"""
    assert read(store_from(sso)) == DATA
    [request] = aws_place.aws.requests
    assert request.query == {"account_id": "123456789012", "role_name": "trainer"}
    assert request.headers["x-amz-sso_bearer_token"] == LOGIN
    assert "authorization" not in request.headers


def test_a_login_of_sso_that_expires_soon_is_renewed(store_from: Callable[..., S3Store], aws_place: AwsPlace) -> None:
    """By its refresh token: https://docs.aws.amazon.com/singlesignon/latest/OIDCAPIReference/API_CreateToken.html"""
    options = sso(aws_place)
    more = {"clientId": "c", "clientSecret": "CANARY", "registrationExpiresAt": "2999-01-01T00:00:00Z"}
    write_login(aws_place, expires_in_s=60, refreshToken="r1", **more)
    assert read(store_from(lambda _: options)) == DATA
    renewal, request = aws_place.aws.requests
    assert json.loads(renewal.body)["refreshToken"] == "r1"
    assert request.headers["x-amz-sso_bearer_token"] == "renewed-login"


@each_source
def test_anonymous_requests_are_not_signed_and_no_source_is_asked(
    configure: Configure, store_from: Callable[..., S3Store], aws_place: AwsPlace, recorder: RecordingS3
) -> None:
    store = store_from(configure, anon=True)
    assert (read(store), list_keys(store)) == (DATA, ["a"])
    assert set(signed_by(recorder.taken())) == {("", None)}
    assert not aws_place.aws.requests


@pytest.mark.parametrize("configure", [one for one in SOURCES.values() if one is not machine])
def test_credentials_that_expire_soon_are_renewed_while_objects_are_read(
    configure: Configure, store_from: Callable[..., S3Store], aws_place: AwsPlace, recorder: RecordingS3
) -> None:
    """By obstore, without a refused request. (botocore gives a machine's role 15 minutes more, as AWS asks.)"""
    aws_place.patch.setattr(credential_chain, "ASK_AGAIN_S", 0.0)
    aws_place.aws.expires_in_s = SOON_S
    store = store_from(configure)

    def key_of_next_read() -> str:
        assert read(store) == DATA
        [request] = recorder.taken()
        assert request.is_by_obstore
        return request.access_key

    first = key_of_next_read()
    wait_for(lambda: key_of_next_read() != first)  # obstore itself keeps them for 0.1 s


@each_source
def test_a_source_whose_credentials_never_last_is_asked_once_in_a_while(
    configure: Configure, store_from: Callable[..., S3Store], aws_place: AwsPlace
) -> None:
    """Rather than for each request: STS and metadata services limit their requests, and a command takes a second."""
    aws_place.aws.expires_in_s = SOON_S
    store = store_from(configure)
    for _ in range(10):
        read(store)
        list_keys(store)
    assert aws_place.aws.num_issued <= 2  # botocore asks a container and a command twice to begin


@pytest.mark.parametrize("configure", [web_identity, pod_identity, process, sso])
def test_a_renewal_that_fails_is_no_error_until_the_credentials_have_expired(
    configure: Configure, store_from: Callable[..., S3Store], aws_place: AwsPlace, recorder: RecordingS3
) -> None:
    """Then the error names the source. The warning does so before."""
    aws_place.patch.setattr(credential_chain, "ASK_AGAIN_S", 0.0)
    aws_place.patch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    aws_place.aws.expires_in_s = SOON_S
    store = store_from(configure)
    assert read(store) == DATA
    aws_place.aws.failure = sts_error(403, "AccessDenied", "no")
    assert (read(store), list_keys(store)) == (DATA, ["a"])
    recorder.answer = lambda _: (400, {}, b"<Error><Code>ExpiredToken</Code></Error>")
    with pytest.raises(AccessDeniedError, match=r"s3://bucket: no credentials from "):
        read(store)


@pytest.mark.parametrize("configure", [role_of_profile, web_identity, sso])
def test_a_source_that_is_overloaded_or_down_is_asked_again(
    configure: Configure, store_from: Callable[..., S3Store], aws_place: AwsPlace
) -> None:
    """By the retries of the request, as for a fault of the store: the layer below repeats nothing."""
    store = store_from(configure)
    aws_place.aws.failure = sts_error(503, "ServiceUnavailable", "later")
    for attempt in (lambda: read(store), lambda: list_keys(store)):
        with pytest.raises(TransientStorageError, match=r"no credentials from .* 503"):
            attempt()
    assert len(aws_place.aws.requests) == 2

    def recover(_: float) -> None:
        aws_place.aws.failure = None

    assert call_with_retries(lambda: read(store), RetryPolicy(), sleep=recover) == DATA


def test_a_source_that_cannot_be_reached_is_named(store_from: Callable[..., S3Store], aws_place: AwsPlace) -> None:
    """Its address, rather than that of the store."""
    options = web_identity(aws_place)
    aws_place.set(AWS_ENDPOINT_URL_STS="http://127.0.0.1:9")
    with pytest.raises(TransientStorageError, match=r"no credentials from a web identity.*http://127.0.0.1:9/"):
        read(store_from(lambda _: options))
