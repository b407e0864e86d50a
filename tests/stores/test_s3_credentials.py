"""Credentials of S3: each source on the wire, renewed in time, named where it fails, and never shown."""

from __future__ import annotations

import itertools
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.aws_credentials import ROLE, aws_credentials, sts_error
from tests.servers.recording_s3 import Recorded, RecordingS3, Response
from tests.servers.s3 import S3Server
from tests.support import aws_sources as sources
from tests.support import objects
from tests.support.aws_sources import PROFILE, SECRETS, SOURCES, AwsPlace
from tests.support.objects import text_of
from torchdata_remote import Backend, StorageOptions
from torchdata_remote.errors import AccessDeniedError, ExpiredCredentialsError, TransientStorageError

DATA = b"0123456789"
SOON_S = 300.0  # in which botocore renews
EXPIRED = b"<Error><Code>ExpiredToken</Code></Error>"
Configure = Callable[[AwsPlace], dict[str, Any]]
each_source = pytest.mark.parametrize("name", SOURCES)
_numbers = itertools.count()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsPlace]:
    """The environment and the files of AWS, and its servers of credentials."""
    with aws_credentials(tmp_path) as running:
        yield AwsPlace(monkeypatch, tmp_path, running)


class Bucket:
    """One that this process has not used before, with ``a``: ten digits; its store is looked up where it is used."""

    def __init__(self, recorder: RecordingS3, options: dict[str, Any]) -> None:
        recorder.objects["a"] = DATA
        self.url = f"s3://bucket-{next(_numbers)}"
        self.options = {"endpoint_url": recorder.url, "region": "us-west-2", **options}

    def read(self, backend: Backend = Backend.AUTOMATIC, **more: Any) -> bytes:
        return objects.read(f"{self.url}/a", self.options, backend=backend, **more)

    def listed(self) -> list[str]:
        return [url.removeprefix(f"{self.url}/") for url in objects.listed(f"{self.url}/", self.options)]


@pytest.fixture
def bucket_of(place: AwsPlace, recorder: RecordingS3) -> Callable[..., Bucket]:
    return lambda configure, **more: Bucket(recorder, {**configure(place), **more})


@each_source
def test_reads_listings_and_writes_are_signed_by_what_the_source_issues(
    name: str, bucket_of: Callable[..., Bucket], place: AwsPlace, recorder: RecordingS3
) -> None:
    """By both libraries; each asks the source once, and not at all for anonymous requests."""
    bucket = bucket_of(SOURCES[name])
    assert (bucket.read(), bucket.listed()) == (DATA, ["a"])
    objects.write(f"{bucket.url}/d/", bucket.options)
    sent = recorder.taken()
    assert {one.operation for one in sent} >= {"GetObject", "ListObjectsV2", "PutObject"}
    assert signed_by([one for one in sent if one.is_by_obstore]) == {("ASIA1", "token-1")}
    assert all(one.headers["x-amz-security-token"] == f"token-{one.access_key[-1]}" for one in sent)
    assert all("x-amz-security-token" in one.signed[2] for one in sent)
    num_issued = place.aws.num_issued
    assert num_issued <= 3  # s3fs asks a container and a command twice to begin
    anonymous = bucket_of(lambda _: dict(bucket.options), anon=True)
    assert anonymous.read() == DATA
    assert signed_by(recorder.taken()) == {("", None)}
    assert place.aws.num_issued == num_issued


@each_source
def test_the_source_is_asked_again_where_the_store_reports_expired_credentials(
    name: str, bucket_of: Callable[..., Bucket], recorder: RecordingS3
) -> None:
    """In the middle of reading and of listing, without an error."""
    expired: set[str] = set()
    recorder.answer = lambda one: (400, {}, EXPIRED) if one.access_key in expired else None
    bucket = bucket_of(SOURCES[name])
    assert bucket.read() == DATA
    expired.add("ASIA1")
    assert bucket.read() == DATA
    expired.add("ASIA2")
    assert bucket.listed() == ["a"]
    assert [one.access_key for one in recorder.taken()] == ["ASIA1", "ASIA1", "ASIA2", "ASIA2", "ASIA3"]


@each_source
def test_a_source_whose_credentials_never_last_is_asked_once_in_a_while(
    name: str, bucket_of: Callable[..., Bucket], place: AwsPlace
) -> None:
    """Rather than for each request: STS and metadata services limit their requests, and a command takes a second."""
    place.aws.expires_in_s = SOON_S
    bucket = bucket_of(SOURCES[name])
    for _ in range(5):
        bucket.read()
        bucket.listed()
    assert place.aws.num_issued <= 2  # botocore asks a container and a command twice to begin


@pytest.mark.parametrize("configure", [sources.web_identity, sources.pod_identity, sources.process, sources.sso])
def test_a_renewal_that_fails_is_no_error_until_the_credentials_have_expired(
    configure: Configure, bucket_of: Callable[..., Bucket], place: AwsPlace, recorder: RecordingS3
) -> None:
    """Then the error names the source."""
    place.patch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    place.aws.expires_in_s = SOON_S
    bucket = bucket_of(configure)
    assert bucket.read() == DATA
    place.aws.failure = sts_error(403, "AccessDenied", "no")
    assert (bucket.read(), bucket.listed()) == (DATA, ["a"])
    recorder.answer = lambda _: (400, {}, EXPIRED)
    with pytest.raises(AccessDeniedError, match=rf"{bucket.url}: no credentials from "):
        bucket.read()


@pytest.mark.parametrize("configure", [sources.role_of_profile, sources.web_identity, sources.sso])
def test_a_source_that_is_overloaded_or_down_is_asked_again_as_a_store_is(
    configure: Configure, bucket_of: Callable[..., Bucket], place: AwsPlace
) -> None:
    """The layer below repeats nothing."""
    bucket = bucket_of(configure)
    place.aws.failure = sts_error(503, "ServiceUnavailable", "later")
    for attempt in (bucket.read, bucket.listed):
        with pytest.raises(TransientStorageError, match=r"no credentials from .*(503|ServiceUnavailable)"):
            attempt()
    assert len(place.aws.requests) == 2
    place.aws.failure = None
    assert bucket.read(retry=objects.QUICK) == DATA


def failing(text: str, of: Configure = sources.role_of_profile) -> Configure:
    def configure(place: AwsPlace) -> dict[str, Any]:
        options = of(place)
        place.config(text)
        return options

    return configure


def missing(file: str, of: Configure) -> Configure:
    def configure(place: AwsPlace) -> dict[str, Any]:
        options = of(place)
        (place.folder / file).unlink()
        return options

    return configure


def answered(status: int, body: bytes, of: Configure, headers: dict[str, str] | None = None) -> Configure:
    def configure(place: AwsPlace) -> dict[str, Any]:
        place.patch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
        place.aws.failure = (status, headers or {}, body)
        return of(place)

    return configure


def command(code: str) -> Configure:
    def configure(place: AwsPlace) -> dict[str, Any]:
        sources.write_process(place, code)
        return PROFILE

    return configure


def environment(**variables: str) -> Configure:
    def configure(place: AwsPlace) -> dict[str, Any]:
        place.set(**variables)
        return {}

    return configure


def of_sts(status: int, code: str, message: str) -> bytes:
    return sts_error(status, code, message)[2]


XML = {"Content-Type": "text/xml"}
OF_SSO = {"x-amzn-ErrorType": "UnauthorizedException", "Content-Type": "application/json"}
FAILURES: dict[str, tuple[Configure, str]] = {
    "no file of a web identity": (
        missing("identity", sources.web_identity),
        r"'assume-role-with-web-identity' of botocore .*No such file or directory: '/.*identity'",
    ),
    "a role without trust": (
        answered(403, of_sts(403, "AccessDenied", "User: me is not authorized"), sources.role_of_profile, XML),
        r"'assume-role' of botocore \(profile 'lab'\): .*AccessDenied.*: User",
    ),
    "no source profile": (
        failing(f"[profile lab]\nrole_arn = {ROLE}\nsource_profile = base\n"),
        r"profile 'lab'\): .*\"base\" .*does not exist",
    ),
    "a pod without a role": (
        answered(404, b"no association", sources.pod_identity),
        r"'container-role' of botocore .* 404 .*no association",
    ),
    "an incomplete answer": (
        answered(200, b'{"Code": "Failed", "SecretAccessKey": "CANARY"}', sources.pod_identity),
        r"'container-role' of botocore .*'AccessKeyId'",
    ),
    "a command that fails": (
        command("import sys\nsys.exit('the vault is\\nsealed')"),
        r"'custom-process' of botocore \(profile 'lab'\): .*the vault is sealed",
    ),
    "a withdrawn login": (
        answered(401, b'{"message": "Session token not found or invalid"}', sources.sso, OF_SSO),
        r"'sso' of botocore \(profile 'lab'\): .*expired or is otherwise invalid.*aws sso login",
    ),
    "half a key": (environment(AWS_ACCESS_KEY_ID="AKIAENV"), r"'env' of botocore .*AWS_SECRET_ACCESS_KEY"),
    "a machine without a role": (
        answered(404, b"", sources.machine),
        r"Unable to locate credentials: .*role of this machine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_a_source_that_is_configured_and_fails_is_named_at_once_with_its_own_words(
    name: str, bucket_of: Callable[..., Bucket], place: AwsPlace, recorder: RecordingS3
) -> None:
    """By botocore's name, on one line, without secrets, and nothing is sent to S3."""
    configure, message = FAILURES[name]
    bucket = bucket_of(configure)
    for attempt in (bucket.read, bucket.listed):
        with pytest.raises(AccessDeniedError) as caught:
            attempt()
        assert re.fullmatch(rf"{bucket.url}(/a?)?: .*{message}.*", str(caught.value)), caught.value
        assert not [secret for secret in SECRETS if secret in text_of(caught.value)]
    assert not recorder.requests
    assert len(place.aws.requests) <= 8


def test_a_source_that_cannot_be_reached_or_hangs_is_named_by_its_address(
    bucket_of: Callable[..., Bucket], place: AwsPlace
) -> None:
    """Rather than that of the store, and it is given up once: the retries are those of the request."""
    options = sources.web_identity(place)
    place.set(AWS_ENDPOINT_URL_STS="http://127.0.0.1:9")
    with pytest.raises(TransientStorageError, match=r"no credentials from .*web-identity.*http://127.0.0.1:9/"):
        bucket_of(lambda _: options).read()
    place.patch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        place.patch.delenv("AWS_EC2_METADATA_DISABLED")
        place.set(AWS_EC2_METADATA_SERVICE_ENDPOINT=url)
        with pytest.raises(AccessDeniedError, match="Unable to locate credentials"):
            bucket_of(lambda _: {}).read()


KEYS = {"key": "AKIACANARY", "secret": "CANARY"}
NAMED: dict[str, tuple[Configure, str]] = {
    "options": (lambda _: KEYS, "The credentials are from 'key' and 'secret' of storage_options."),
    "client_kwargs": (
        lambda _: {"client_kwargs": {"aws_access_key_id": "AKIACANARY", "aws_secret_access_key": "CANARY"}},
        "storage_options",
    ),
    "environment": (
        environment(AWS_ACCESS_KEY_ID="AKIACANARY", AWS_SECRET_ACCESS_KEY="CANARY"),
        "The credentials are from 'env' of botocore",
    ),
    "profile": (
        failing("[profile lab]\naws_access_key_id = AKIACANARY\naws_secret_access_key = CANARY\n"),
        "(profile 'lab').",
    ),
    "anon": (lambda _: {"anon": True}, "The request was not signed (anon=True)."),
}


@pytest.mark.parametrize("name", NAMED)
def test_an_error_of_access_names_where_the_credentials_are_from(
    name: str, bucket_of: Callable[..., Bucket], recorder: RecordingS3
) -> None:
    recorder.answer = lambda _: (403, {}, b"<Error><Code>AccessDenied</Code></Error>")
    with pytest.raises(AccessDeniedError) as caught:
        bucket_of(NAMED[name][0]).read()
    assert NAMED[name][1] in str(caught.value)
    assert "CANARY" not in text_of(caught.value)


def test_credentials_that_stay_expired_are_an_error_after_one_renewal(recorder: RecordingS3) -> None:
    recorder.answer = lambda _: (400, {}, EXPIRED)
    bucket = Bucket(recorder, KEYS)
    for backend in (Backend.OBSTORE,):
        with pytest.raises(ExpiredCredentialsError, match="Renew the credentials"):
            bucket.read(backend)
        assert len(recorder.taken()) == 2


@pytest.mark.parametrize(("status", "code"), [(400, b"ExpiredToken"), (403, b"RequestTimeTooSkewed")])
def test_new_credentials_of_the_environment_are_used_where_the_old_ones_have_expired_or_failed(
    recorder: RecordingS3, status: int, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an error where there are new ones, and after one without a new process."""
    error = b"<Error><Code>" + code + b"</Code></Error>"
    recorder.answer = lambda one: None if one.access_key == "NEW" else (status, {}, error)
    bucket = Bucket(recorder, {})
    with pytest.raises(AccessDeniedError, match="AWS_ACCESS_KEY_ID"):
        bucket.read()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OLD")

    def answer(one: Recorded) -> Response | None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NEW")
        return None if one.access_key == "NEW" else (status, {}, error)

    recorder.answer = answer
    assert bucket.read() == DATA
    assert [one.access_key for one in recorder.taken()] == ["OLD", "NEW"]


# Fallback credentials

ANY = [Backend.OBSTORE, Backend.FSSPEC]


@pytest.fixture
def of_file(tmp_path: Path) -> dict[str, Any]:
    """Storage options of a credential file."""
    path = tmp_path / "credentials.json"
    keys = {"aws_access_key_id": "FILE", "aws_secret_access_key": "CANARY-secret", "aws_session_token": "CANARY-token"}
    path.write_text(json.dumps(keys))
    return dict(StorageOptions.from_file(path))


def signed_by(requests: list[Recorded]) -> set[tuple[str, str | None]]:
    return {(one.access_key, one.headers.get("x-amz-security-token")) for one in requests}


@pytest.mark.parametrize("backend", ANY)
def test_fallback_credentials_are_used_only_where_there_are_no_others(
    backend: Backend, recorder: RecordingS3, of_file: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither before options, the environment or a profile, nor beside half of them, nor for anonymous requests."""

    def read(**more: Any) -> set[tuple[str, str | None]]:
        bucket = Bucket(recorder, {**of_file, **more})
        assert bucket.read(backend) == DATA
        assert bucket.listed() == ["a"]
        return signed_by(recorder.taken())

    assert read() == {("FILE", "CANARY-token")}
    assert read(anon=True) == {("", None)}
    assert read(key="EXPLICIT", secret="s") == {("EXPLICIT", None)}
    config = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    config.write_text("[profile lab]\nregion = eu-west-3\n")
    assert read(profile="lab") == {("FILE", "CANARY-token")}
    helper = json.dumps({"Version": 1, "AccessKeyId": "HELPER", "SecretAccessKey": "s"})
    (tmp_path / "helper").write_text(f"#!/bin/sh\necho '{helper}'\n")
    (tmp_path / "helper").chmod(0o700)
    config.write_text(f"[profile lab]\ncredential_process = {tmp_path}/helper\n")
    assert read(profile="lab") == {("HELPER", None)}
    config.write_text("[default]\naws_access_key_id = PROFILE\naws_secret_access_key = s\n")
    assert read() == {("PROFILE", None)}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    with pytest.raises(AccessDeniedError):
        read()
    assert recorder.taken() == []
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert read() == {("ENVIRONMENT", None)}


# A server that checks signatures


@pytest.mark.ceph
@pytest.mark.parametrize("backend", ANY)
def test_a_server_that_checks_signatures_accepts_each_library_and_refuses_a_wrong_secret(
    ceph: S3Server, backend: Backend
) -> None:
    """Which is not shown; nothing is written. Anonymous requests read what is public."""
    name, client = ceph.new_bucket(), ceph.client()
    here = {"endpoint_url": ceph.endpoint_url, **({"default_fill_cache": False} if backend is Backend.FSSPEC else {})}
    good = {**here, "fallback_key": ceph.key, "fallback_secret": ceph.secret}
    wrong = {**here, "key": ceph.key, "secret": "Sup3rS3cretCanary"}
    for key, acl in (("d/private", "private"), ("public", "public-read")):
        client.put_object(Bucket=name, Key=key, Body=DATA, ACL=acl)
    assert objects.read(f"s3://{name}/d/private", good, backend=backend) == DATA
    for attempt in (
        lambda options: objects.read(f"s3://{name}/d/private", options, backend=backend),
        lambda options: objects.listed(f"s3://{name}/d/", options),
        lambda options: objects.write(f"s3://{name}/d/", options),
    ):
        for options in (wrong, {**here, "anon": True}):
            with pytest.raises(AccessDeniedError, match=f"s3://{name}/d/") as caught:
                attempt(options)
            assert "Sup3rS3cretCanary" not in text_of(caught.value)
    assert objects.read(f"s3://{name}/public", {**here, "anon": True}, backend=backend) == DATA
    assert len(client.list_objects_v2(Bucket=name)["Contents"]) == 2
