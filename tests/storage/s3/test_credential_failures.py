"""A source of credentials that is configured and fails: an error at once, which names it and says what to do."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.servers.aws_credentials import ROLE, sts_error
from tests.servers.recording_s3 import RecordingS3
from tests.support.aws_sources import (
    PROFILE,
    SECRETS,
    AwsPlace,
    machine,
    pod_identity,
    process,
    role_of_profile,
    sso,
    web_identity,
    write_login,
    write_process,
)
from tests.support.s3_stores import raises_of, text_of
from torchdata_remote.errors import AccessDeniedError, TransientStorageError
from torchdata_remote.storage.s3.store import S3Store

MOST_REQUESTS = 8  # to a source, by two attempts


def missing_identity(place: AwsPlace) -> dict[str, Any]:
    web_identity(place)
    (place.folder / "identity").unlink()
    return {}


def identity_without_role(place: AwsPlace) -> dict[str, Any]:
    web_identity(place)
    place.patch.delenv("AWS_ROLE_ARN")
    return {}


def expired_identity(place: AwsPlace) -> dict[str, Any]:
    place.aws.failure = sts_error(400, "ExpiredTokenException", "Token expired: current date/time must be before")
    return web_identity(place)


def role_without_trust(place: AwsPlace) -> dict[str, Any]:
    place.aws.failure = sts_error(403, "AccessDenied", "User: me is not authorized to perform: sts:AssumeRole")
    return role_of_profile(place)


def missing_source_profile(place: AwsPlace) -> dict[str, Any]:
    place.config(f"[profile lab]\nrole_arn = {ROLE}\nsource_profile = base\n")
    return PROFILE


def missing_pod_token(place: AwsPlace) -> dict[str, Any]:
    pod_identity(place)
    (place.folder / "eks-token").unlink()
    return {}


def pod_without_role(place: AwsPlace) -> dict[str, Any]:
    place.patch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    place.aws.failure = (404, {}, b"no association")
    return pod_identity(place)


def incomplete_answer(place: AwsPlace) -> dict[str, Any]:
    place.aws.failure = (200, {}, b'{"Code": "Failed", "SecretAccessKey": "CANARY"}')
    return pod_identity(place)


def forbidden_host(place: AwsPlace) -> dict[str, Any]:
    pod_identity(place)
    place.set(AWS_CONTAINER_CREDENTIALS_FULL_URI="http://10.0.0.1/v1/credentials")
    return {}


def failing_command(place: AwsPlace) -> dict[str, Any]:
    write_process(place, "import sys\nsys.exit('the vault is\\nsealed')")
    return PROFILE


def talking_command(place: AwsPlace) -> dict[str, Any]:
    write_process(place, "print('CANARY: welcome')")
    return PROFILE


def missing_command(place: AwsPlace) -> dict[str, Any]:
    place.config("[profile lab]\ncredential_process = /nonexistent/vault\n")
    return PROFILE


def expired_command(place: AwsPlace) -> dict[str, Any]:
    place.aws.expires_in_s = -60.0
    return process(place)


def expired_login(place: AwsPlace) -> dict[str, Any]:
    options = sso(place)
    write_login(place, expires_in_s=-60.0)
    return options


def no_login(place: AwsPlace) -> dict[str, Any]:
    options = sso(place)
    for file in (place.folder / ".aws" / "sso" / "cache").iterdir():
        file.unlink()
    return options


def withdrawn_login(place: AwsPlace) -> dict[str, Any]:
    error = b'{"message": "Session token not found or invalid"}'
    place.aws.failure = (401, {"x-amzn-ErrorType": "UnauthorizedException", "Content-Type": "application/json"}, error)
    return sso(place)


def key_without_secret(place: AwsPlace) -> dict[str, Any]:
    place.set(AWS_ACCESS_KEY_ID="AKIAENV")
    return {}


def machine_without_role(place: AwsPlace) -> dict[str, Any]:
    place.aws.failure = (404, {}, b"")
    return machine(place)


@pytest.mark.parametrize(
    ("configure", "message"),
    [
        (missing_identity, r"a web identity \(AWS_WEB_IDENTITY_TOKEN_FILE\): No such file or directory: '/.*identity'"),
        (identity_without_role, r"AWS_WEB_IDENTITY_TOKEN_FILE\): .*the AWS_ROLE_ARN env var"),
        (expired_identity, r"AWS_WEB_IDENTITY_TOKEN_FILE\): AssumeRoleWithWebIdentity was answered 400 ExpiredTokenE"),
        (
            role_without_trust,
            r"the role \(role_arn\) in /.*config, profile 'lab': AssumeRole was answered 403 .*: User",
        ),
        (missing_source_profile, r"profile 'lab': .*\"base\" .*does not exist. Check role_arn and source_profile"),
        (missing_pod_token, r"the role of this container: No such file .*eks-token'. Check AWS_CONTAINER_CREDENTIALS_"),
        (
            pod_without_role,
            r"the role of this container: .* 404 .*no association. Check AWS_CONTAINER_CREDENTIALS_FULL",
        ),
        (incomplete_answer, r"the role of this container: the answer has no 'AccessKeyId'"),
        (forbidden_host, r"the role of this container: .*Unsupported host '10.0.0.1'"),
        (failing_command, r"credential_process in /.*config, profile 'lab': the vault is sealed. Run that command"),
        (talking_command, r"credential_process in /.*config, profile 'lab': JSONDecodeError.* Run that command"),
        (missing_command, r"credential_process in /.*, profile 'lab': No such file .*'/nonexistent/vault'"),
        (expired_command, r"credential_process in /.*, profile 'lab': .*still expired"),
        (expired_login, r"SSO in /.*config, profile 'lab': .*has expired.*: aws sso login --profile lab"),
        (
            no_login,
            r"SSO in /.*config, profile 'lab': .*corp does not exist. Log in again: aws sso login --profile lab",
        ),
        (
            withdrawn_login,
            r"SSO in /.*config, profile 'lab': .*expired or is otherwise invalid.*aws sso login --profile",
        ),
        (key_without_secret, r"the environment .*: .*AWS_SECRET_ACCESS_KEY"),
        (machine_without_role, r"Unable to locate credentials: .* the metadata service of EC2 \(http://127.*no role"),
    ],
    ids=lambda value: getattr(value, "__name__", "message"),
)
def test_a_source_that_fails_is_named_at_once(
    configure: Callable[[AwsPlace], dict[str, Any]],
    message: str,
    store_from: Callable[..., S3Store],
    aws_place: AwsPlace,
    recorder: RecordingS3,
) -> None:
    """For reads by obstore and listings by botocore: on one line, without secrets, and nothing is sent to S3."""
    store = store_from(configure)
    attempts: list[Callable[[], object]] = [
        lambda: store.read("a", 0, None, None),
        lambda: store.list_page("", recursive=True, token=None),
    ]
    for error in raises_of(attempts, AccessDeniedError):
        assert not isinstance(error, TransientStorageError)
        assert re.fullmatch(rf"s3://bucket(/a?)?: .*{message}.*", str(error)), error  # a dot is no end of a line
        assert not [secret for secret in SECRETS if secret in text_of(error)]
        assert "The credentials are from" not in str(error)
    assert not recorder.requests
    assert len(aws_place.aws.requests) <= MOST_REQUESTS


@contextmanager
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_metadata_service_that_hangs_costs_seconds(store_from: Callable[..., S3Store], aws_place: AwsPlace) -> None:
    """Not minutes: one second for each of its two requests, and the error has its address."""
    with silent_server() as url:
        machine(aws_place)
        aws_place.set(AWS_EC2_METADATA_SERVICE_ENDPOINT=url)
        with pytest.raises(AccessDeniedError, match=rf"the metadata service of EC2 \({url}\) does not answer"):
            store_from(lambda _: {}).read("a", 0, None, None)


def test_an_sts_that_hangs_is_given_up_once(store_from: Callable[..., S3Store], aws_place: AwsPlace) -> None:
    """The retries are those of the request; botocore's own would take five minutes."""
    aws_place.patch.setattr("torchdata_remote.storage.s3.credential_chain.CONNECT_TIMEOUT_S", 0.2)
    with silent_server() as url:
        options = web_identity(aws_place)
        aws_place.set(AWS_ENDPOINT_URL_STS=url)
        with pytest.raises(TransientStorageError, match=rf"a web identity .*: .*{url}"):
            store_from(lambda _: options).read("a", 0, None, None)
