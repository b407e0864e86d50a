"""Credentials of last resort: used where AWS's own chain finds none, and never shown or sent anywhere else."""

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
from torchdata_remote import Backend, RemoteUrl, RetryPolicy, StorageOptions
from torchdata_remote.core.options import FetchOptions
from torchdata_remote.errors import AccessDeniedError
from torchdata_remote.fetch.listing.sources import list_source
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage.fsspec_store import FsspecStore
from torchdata_remote.storage.http_store import HttpStore
from torchdata_remote.storage.local.store import LocalStore
from torchdata_remote.storage.registry import Connection, open_store
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
def test_the_file_is_used_where_nothing_else_is(server: Scripted, options: dict[str, Any], backend: Backend) -> None:
    """Every request is signed by the file's key and carries its token."""
    assert read(options, backend) == DATA
    assert server.requests
    assert signed_by(server) == {("FILE", "CANARY-token")}


@pytest.mark.parametrize("more", [{}, {"default_fill_cache": False}])
def test_listing_and_stat_use_it_as_well(server: Scripted, options: dict[str, Any], more: dict[str, Any]) -> None:
    """By botocore, and by s3fs where an option asks for it."""
    chosen = StorageOptions({**options, **more})
    assert list(list_source("s3://b/", pattern=None, recursive=True, options=chosen, retry=QUICK)) == ["s3://b/a"]
    store, path = open_store("s3://b/a", chosen)
    assert type(store) is (FsspecStore if more else S3Store)
    assert store.stat(path).size == len(DATA)
    assert signed_by(server) == {("FILE", "CANARY-token")}


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_the_environment_comes_first(
    server: Scripted, options: dict[str, Any], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables are the normal chain: the file's key and token stay at home."""
    set_environment(monkeypatch, "ENVIRONMENT")
    assert read(options, backend) == DATA
    assert signed_by(server) == {("ENVIRONMENT", None)}


@pytest.mark.parametrize("backend", TRANSPORTS)
@pytest.mark.parametrize(
    "section", ["aws_access_key_id = PROFILE\naws_secret_access_key = s", "credential_process = {}/helper"]
)
@pytest.mark.parametrize("name", ["default", "lab"])
def test_profiles_come_first(
    server: Scripted,
    options: dict[str, Any],
    backend: Backend,
    section: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """So do the files of AWS, for the default and for a chosen profile, and what they name."""
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
def test_a_profile_without_credentials_leaves_it_to_the_file(
    server: Scripted, options: dict[str, Any], backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A section that tells a region only is no source of credentials."""
    (tmp_path / "config").write_text("[profile lab]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert read({**options, "profile": "lab"}, backend) == DATA
    assert signed_by(server) == {("FILE", "CANARY-token")}
    assert "/eu-west-3/s3/" in server.requests[0].headers["authorization"]


@pytest.mark.parametrize("backend", TRANSPORTS)
@pytest.mark.parametrize(
    "explicit",
    [
        {"key": "EXPLICIT", "secret": "s"},
        {"client_kwargs": {"aws_access_key_id": "EXPLICIT", "aws_secret_access_key": "s"}},
    ],
)
def test_an_explicit_key_comes_before_all(
    server: Scripted,
    options: dict[str, Any],
    backend: Backend,
    explicit: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the environment too; the file's token does not get mixed in."""
    set_environment(monkeypatch, "ENVIRONMENT")
    assert read({**options, **explicit}, backend) == DATA
    assert signed_by(server) == {("EXPLICIT", None)}


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_anon_stays_anon(server: Scripted, options: dict[str, Any], backend: Backend) -> None:
    """No request is signed, and no token goes along."""
    assert read({**options, "anon": True}, backend) == DATA
    assert signed_by(server) == {("", None)}


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_half_of_the_environment_is_a_mistake_not_an_absence(
    server: Scripted, options: dict[str, Any], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key without its secret is an error, as without a file, and nothing is asked of the store."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    with pytest.raises(AccessDeniedError, match="s3://b"):
        read(options, backend)
    assert not server.requests


@pytest.mark.parametrize("backend", TRANSPORTS)
@pytest.mark.parametrize("lone", ["fallback_key", "fallback_secret", "fallback_token"])
def test_half_of_a_fallback(backend: Backend, lone: str) -> None:
    """A key without its secret, or a token without either, is refused, by its name."""
    with pytest.raises(AccessDeniedError, match=r"'fallback_key' and 'fallback_secret' together") as caught:
        open_store("s3://b/a", StorageOptions({lone: "CANARY"}), Connection(backend))
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE])
def test_when_the_files_credentials_expire_the_chain_is_asked_again(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever logs in meanwhile goes on with that login."""

    def renewed(request: Request) -> Response:
        set_environment(monkeypatch, "NEW")
        fresh = "Credential=NEW/" in request.headers["authorization"]
        return respond(request) if fresh else Response.of_error(400, "ExpiredToken")

    with scripted(renewed) as server:
        assert read({**from_file(tmp_path), "endpoint_url": server.url}, backend) == DATA
        assert signed_by(server) == {("FILE", "CANARY-token"), ("NEW", None)}


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_a_real_server_takes_the_files_credentials(
    s3: S3Server, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written, listed and read with them is there; wrong ones in the environment are used all the same."""
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({"access_key": s3.key, "secret": s3.secret}))
    options = {**StorageOptions.from_file(path), "endpoint_url": s3.endpoint_url}
    bucket = s3.new_bucket()
    store, key = open_store(f"s3://{bucket}/d/a", StorageOptions(options), Connection(backend))
    pending = store.create(key, overwrite=False)
    pending.write(DATA)
    pending.commit()
    assert [entry.path for entry in store.list_page("d/", recursive=True, token=None).entries] == ["d/a"]
    assert store.read(key, 2, 5, None).whole() == DATA[2:5]
    if s3.name == "ceph":  # moto believes every signature
        set_environment(monkeypatch, "WRONG")
        other = StorageOptions({**options, "region": "us-east-1"})  # another store: this one keeps what it found
        with pytest.raises(AccessDeniedError, match=f"s3://{bucket}/d/a"):
            open_store(f"s3://{bucket}/d/a", other, Connection(backend))[0].read(key, 0, 5, None)


class RecordingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Keeps what it was made with."""

    protocol = "recording"
    cachable = False

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.given = keywords


def test_other_filesystems_never_get_them(tmp_path: Path) -> None:
    """Neither the names nor the values; their own options arrive."""
    fsspec.register_implementation("recording", RecordingFileSystem, clobber=True)
    store, _ = open_store("recording://b/a", StorageOptions({**from_file(tmp_path), "x": 1}))
    assert isinstance(store, FsspecStore)
    assert store._filesystem.given == {"x": 1}


@pytest.mark.parametrize("backend", [Backend.AUTOMATIC, Backend.FSSPEC])
def test_http_never_gets_them(tmp_path: Path, server: Scripted, backend: Backend) -> None:
    """Web servers are read as if there were no options, and see nothing of them."""
    options = from_file(tmp_path)
    store, path = open_store(f"{server.url}/a", options, Connection(backend))
    assert type(store) is (HttpStore if backend is Backend.AUTOMATIC else FsspecStore)
    assert store.read(path, 0, None, None).whole() == DATA
    assert server.requests
    assert not any(text in f"{request}" for request in server.requests for text in ("FILE", "CANARY"))


def test_local_files_are_read_as_without_them(tmp_path: Path) -> None:
    """By the system, and by the same store as without options."""
    assert isinstance(open_store(f"{tmp_path}/a", from_file(tmp_path))[0], LocalStore)
    assert open_store(f"{tmp_path}/a", from_file(tmp_path))[0] is open_store(f"{tmp_path}/a", StorageOptions())[0]


@pytest.mark.parametrize("backend", TRANSPORTS)
def test_they_are_not_shown(
    server: Scripted, options: dict[str, Any], backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by the store, by what it logs, or by the error that refuses them."""
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
