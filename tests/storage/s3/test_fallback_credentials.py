"""Fallback credentials: used if AWS's own chain finds none, never shown, and never sent to other stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.servers.s3 import S3Server
from tests.servers.scripted import Request, Response, Scripted, scripted
from tests.support.s3_stores import write
from torchdata_remote import Backend, RemoteUrl, RetryPolicy, StorageOptions
from torchdata_remote.core.options import FetchOptions
from torchdata_remote.errors import AccessDeniedError
from torchdata_remote.fetch.listing.sources import list_source
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage import Connection, open_store
from torchdata_remote.storage.fsspec_store import FsspecStore
from torchdata_remote.storage.http_store import HttpStore
from torchdata_remote.storage.local.store import LocalStore
from torchdata_remote.storage.s3.store import S3Store

DATA = b"0123456789"
LISTING = (
    b"<ListBucketResult><IsTruncated>false</IsTruncated><Name>b</Name>"
    b"<Contents><Key>a</Key><Size>10</Size><ETag>1</ETag><LastModified>2026-11-21T00:00:00Z</LastModified></Contents>"
    b"</ListBucketResult>"
)
QUICK = RetryPolicy(first_wait_s=0, max_attempts=2)
TRANSPORTS = [Backend.OBSTORE, Backend.BOTOCORE, Backend.FSSPEC]


def respond(request: Request) -> Response:
    return Response(200, LISTING) if "list-type=2" in request.target else Response.of_object(request, DATA)


def from_file(folder: Path, **more: str) -> StorageOptions:
    path = folder / "credentials.json"
    keys = {"aws_access_key_id": "FILE", "aws_secret_access_key": "CANARY-secret", "aws_session_token": "CANARY-token"}
    path.write_text(json.dumps({**keys, **more}))
    return StorageOptions.from_file(path)


def read(options: Any, backend: Backend, url: str = "s3://b/a") -> bytes:
    chosen = FetchOptions(retry=QUICK, backend=backend)
    [(_, stream)] = stream_objects([RemoteUrl(url, len(DATA), '"1"')], FetchSession(chosen, StorageOptions(options)))
    with stream:
        return stream.read()


def signed_by(server: Scripted) -> set[tuple[str, str | None]]:
    """Key and token of each request; an empty key for one without a signature."""
    headers = [request.headers for request in server.requests]
    keys = [each.get("authorization", "Credential=/").partition("Credential=")[2].partition("/")[0] for each in headers]
    return {(key, each.get("x-amz-security-token")) for key, each in zip(keys, headers, strict=True)}


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted(respond) as running:
        yield running


@pytest.fixture
def options(server: Scripted, tmp_path: Path) -> dict[str, Any]:
    """From a file, for this server."""
    return {**from_file(tmp_path), "endpoint_url": server.url}


def set_environment(patch: pytest.MonkeyPatch, key: str) -> None:
    patch.setenv("AWS_ACCESS_KEY_ID", key)
    patch.setenv("AWS_SECRET_ACCESS_KEY", "s")


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_reads_are_signed_by_the_file_if_there_are_no_other_credentials(
    server: Scripted, options: dict[str, Any], backend: Backend
) -> None:
    """Every request is signed by the file's key and carries its token."""
    assert read(options, backend) == DATA
    assert server.requests
    assert signed_by(server) == {("FILE", "CANARY-token")}


@pytest.mark.parametrize("more", [{}, {"default_fill_cache": False}])
def test_listing_and_stat_are_signed_by_the_file(
    server: Scripted, options: dict[str, Any], more: dict[str, Any]
) -> None:
    """By botocore, and by s3fs if an option selects it."""
    chosen = StorageOptions({**options, **more})
    assert list(list_source("s3://b/", pattern=None, recursive=True, options=chosen, retry=QUICK)) == ["s3://b/a"]
    store, path = open_store("s3://b/a", chosen)
    assert type(store) is (FsspecStore if more else S3Store)
    assert store.stat(path).size == len(DATA)
    assert signed_by(server) == {("FILE", "CANARY-token")}


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_the_environment_precedes_the_file(
    server: Scripted, options: dict[str, Any], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's key and token are not sent."""
    set_environment(monkeypatch, "ENVIRONMENT")
    assert read(options, backend) == DATA
    assert signed_by(server) == {("ENVIRONMENT", None)}


KEYS_OF_PROFILE = "aws_access_key_id = PROFILE\naws_secret_access_key = s"
HELPER_OF_PROFILE = "credential_process = {}/helper"


@pytest.mark.parametrize(  # each pair of backend, kind of section and profile; all are resolved by make_session
    ("backend", "section", "name"),
    [
        (Backend.OBSTORE, KEYS_OF_PROFILE, "default"),
        (Backend.OBSTORE, HELPER_OF_PROFILE, "lab"),
        (Backend.BOTOCORE, KEYS_OF_PROFILE, "lab"),
        (Backend.BOTOCORE, HELPER_OF_PROFILE, "default"),
        (Backend.FSSPEC, KEYS_OF_PROFILE, "lab"),
        (Backend.FSSPEC, HELPER_OF_PROFILE, "default"),
    ],
)
def test_profiles_precede_the_file(
    server: Scripted,
    options: dict[str, Any],
    backend: Backend,
    section: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The default and a chosen profile, with a key or with a helper that prints one."""
    helper = tmp_path / "helper"
    found = json.dumps({"Version": 1, "AccessKeyId": "PROFILE", "SecretAccessKey": "s"})
    helper.write_text(f"#!/bin/sh\necho '{found}'\n")
    helper.chmod(0o700)
    config = tmp_path / "config"
    config.write_text(f"[{'' if name == 'default' else 'profile '}{name}]\n" + section.format(tmp_path) + "\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    chosen = {} if name == "default" else {"profile": name}
    assert read({**options, **chosen}, backend) == DATA
    assert signed_by(server) == {("PROFILE", None)}


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_the_file_is_used_if_the_profile_has_no_credentials(
    server: Scripted, options: dict[str, Any], backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The profile's region is used all the same."""
    (tmp_path / "config").write_text("[profile lab]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert read({**options, "profile": "lab"}, backend) == DATA
    assert signed_by(server) == {("FILE", "CANARY-token")}
    assert "/eu-west-3/s3/" in server.requests[0].headers["authorization"]


KEY_OPTION = {"key": "EXPLICIT", "secret": "s"}
KEY_IN_CLIENT_KWARGS = {"client_kwargs": {"aws_access_key_id": "EXPLICIT", "aws_secret_access_key": "s"}}


@pytest.mark.parametrize(
    ("backend", "explicit"),
    [
        (Backend.OBSTORE, KEY_OPTION),
        (Backend.BOTOCORE, KEY_IN_CLIENT_KWARGS),
        (Backend.FSSPEC, KEY_OPTION),
        (Backend.FSSPEC, KEY_IN_CLIENT_KWARGS),
    ],
)
def test_an_explicit_key_precedes_environment_and_file(
    server: Scripted,
    options: dict[str, Any],
    backend: Backend,
    explicit: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file's token is not sent with the explicit key."""
    set_environment(monkeypatch, "ENVIRONMENT")
    assert read({**options, **explicit}, backend) == DATA
    assert signed_by(server) == {("EXPLICIT", None)}


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_anon_requests_are_not_signed_by_the_file(server: Scripted, options: dict[str, Any], backend: Backend) -> None:
    """No token is sent."""
    assert read({**options, "anon": True}, backend) == DATA
    assert signed_by(server) == {("", None)}


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_incomplete_credentials_in_the_environment_are_an_error(
    server: Scripted, options: dict[str, Any], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key without its secret is not replaced by the file's; no request is sent."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    with pytest.raises(AccessDeniedError, match="s3://b"):
        read(options, backend)
    assert not server.requests


@pytest.mark.parametrize(
    ("backend", "lone"),
    [
        (Backend.OBSTORE, "fallback_key"),
        (Backend.BOTOCORE, "fallback_secret"),
        (Backend.FSSPEC, "fallback_secret"),
        (Backend.FSSPEC, "fallback_token"),
    ],
)
def test_incomplete_fallback_credentials_are_refused(backend: Backend, lone: str) -> None:
    """A key without its secret, or a token without either; the error names the options."""
    with pytest.raises(AccessDeniedError, match=r"'fallback_key' and 'fallback_secret' together") as caught:
        open_store("s3://b/a", StorageOptions({lone: "CANARY"}), Connection(backend))
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE])
def test_expired_fallback_credentials_are_replaced_by_those_of_the_chain(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login in the meantime is used without an error."""

    def renewed(request: Request) -> Response:
        set_environment(monkeypatch, "NEW")
        fresh = "Credential=NEW/" in request.headers["authorization"]
        return respond(request) if fresh else Response.of_error(400, "ExpiredToken")

    with scripted(renewed) as server:
        assert read({**from_file(tmp_path), "endpoint_url": server.url}, backend) == DATA
        assert signed_by(server) == {("FILE", "CANARY-token"), ("NEW", None)}


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_a_server_that_checks_signatures_accepts_the_files_credentials(
    ceph: S3Server, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For writing, listing and reading. Wrong credentials in the environment precede them, and are refused."""
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({"access_key": ceph.key, "secret": ceph.secret}))
    options = {**StorageOptions.from_file(path), "endpoint_url": ceph.endpoint_url}
    bucket = ceph.new_bucket()
    store, key = open_store(f"s3://{bucket}/d/a", StorageOptions(options), Connection(backend))
    write(store, key, DATA)
    assert [entry.path for entry in store.list_page("d/", recursive=True, token=None).entries] == ["d/a"]
    assert store.read(key, 2, 5, None).whole() == DATA[2:5]
    set_environment(monkeypatch, "WRONG")
    other = StorageOptions({**options, "region": "us-east-1"})  # opens another store: this one keeps its credentials
    with pytest.raises(AccessDeniedError, match=f"s3://{bucket}/d/a"):
        open_store(f"s3://{bucket}/d/a", other, Connection(backend))[0].read(key, 0, 5, None)


class RecordingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Records its options."""

    protocol = "recording"
    cachable = False

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.received = keywords


def test_other_filesystems_do_not_receive_fallback_credentials(tmp_path: Path) -> None:
    """Neither names nor values; other options are passed on."""
    fsspec.register_implementation("recording", RecordingFileSystem, clobber=True)
    store, _ = open_store("recording://b/a", StorageOptions({**from_file(tmp_path), "x": 1}))
    assert isinstance(store, FsspecStore)
    assert store._filesystem.received == {"x": 1}


@pytest.mark.parametrize("backend", [Backend.AUTOMATIC, Backend.FSSPEC])
def test_http_servers_do_not_receive_fallback_credentials(tmp_path: Path, server: Scripted, backend: Backend) -> None:
    """They are read as if there were no options."""
    options = from_file(tmp_path)
    store, path = open_store(f"{server.url}/a", options, Connection(backend))
    assert type(store) is (HttpStore if backend is Backend.AUTOMATIC else FsspecStore)
    assert store.read(path, 0, None, None).whole() == DATA
    assert server.requests
    assert not any(text in f"{request}" for request in server.requests for text in ("FILE", "CANARY"))


def test_local_files_are_read_as_without_fallback_credentials(tmp_path: Path) -> None:
    """By the operating system, and by the same store as without options."""
    assert isinstance(open_store(f"{tmp_path}/a", from_file(tmp_path))[0], LocalStore)
    assert open_store(f"{tmp_path}/a", from_file(tmp_path))[0] is open_store(f"{tmp_path}/a", StorageOptions())[0]


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_fallback_credentials_are_not_shown(
    server: Scripted, options: dict[str, Any], backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by the store, nor in logs, nor in the error of a store that refuses them."""
    with caplog.at_level("DEBUG", "torchdata_remote"):
        assert read(options, backend) == DATA
    store, _ = open_store("s3://b/a", StorageOptions(options), Connection(backend))
    assert "CANARY" not in f"{caplog.text} {store!r} {vars(store).get('_settings')!r}"
    with scripted(lambda request: Response.of_error(403, "AccessDenied")) as refusing:
        with pytest.raises(AccessDeniedError) as caught:
            read({**options, "endpoint_url": refusing.url}, backend)
        link: BaseException | None = caught.value
        while link is not None:
            assert "CANARY" not in f"{link} {link!r} {vars(link)}"
            link = link.__cause__ or link.__context__
