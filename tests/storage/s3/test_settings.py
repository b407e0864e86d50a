"""Endpoint, region and credentials of S3, from options, environment and profiles."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers.s3 import S3Server
from tests.support.s3_stores import BY_S3FS, raises_of, read, s3_store, store_of, write
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import AccessDeniedError, UrlError
from torchdata_remote.storage import open_store
from torchdata_remote.storage.fsspec_store import FsspecStore
from torchdata_remote.storage.s3.client import make_client
from torchdata_remote.storage.s3.session import make_session
from torchdata_remote.storage.s3.settings import S3Settings
from torchdata_remote.storage.s3.store import S3Store


def test_key_and_secret_are_not_in_reprs(moto: S3Server) -> None:
    """Neither a store nor its settings, readers and options show them."""
    store = s3_store(moto, moto.new_bucket(), read_by_obstore=True)
    write(store, "a", b"1")
    read(store, "a")
    text = f"{store!r} {store._settings!r} {store._obstore!r} {StorageOptions(moto.storage_options)!r}"
    assert moto.secret not in text
    assert moto.key not in text


def test_missing_credentials_are_an_error_that_names_their_sources(moto: S3Server) -> None:
    """For a listing and for a read."""
    store, _ = open_store(f"s3://{moto.new_bucket()}", StorageOptions({"endpoint_url": moto.endpoint_url}))
    attempts: list[Callable[[], object]] = [
        lambda: store.list_page("", recursive=True, token=None),
        lambda: store.read("a", 0, 10, None),
    ]
    assert all("AWS_ACCESS_KEY_ID" in str(error) for error in raises_of(attempts, AccessDeniedError))


@pytest.mark.parametrize("lone", [{"key": "k"}, {"secret": "s"}, {"token": "t"}])
def test_incomplete_credentials_are_refused(lone: dict[str, str]) -> None:
    """A key without its secret, or a token without either, is an error rather than ignored."""
    with pytest.raises(AccessDeniedError, match="a-bucket"):
        open_store("s3://a-bucket", StorageOptions({"endpoint_url": "http://127.0.0.1:9", **lone}))


def test_endpoint_and_credentials_come_from_the_environment(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are enough to list, read and write."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store, path = open_store(f"s3://{bucket}/a", StorageOptions())
    write(store, path, b"12")
    assert read(store, path) == b"12"
    assert store.find(path) is not None


def test_credentials_that_are_set_after_an_error_are_used(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bucket can be read without a new process."""
    bucket = moto.new_bucket()
    moto.client().put_object(Bucket=bucket, Key="a", Body=b"12")
    options = StorageOptions({"endpoint_url": moto.endpoint_url})
    with pytest.raises(AccessDeniedError):
        read(open_store(f"s3://{bucket}", options)[0], "a")
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    assert read(open_store(f"s3://{bucket}", options)[0], "a") == b"12"


def test_a_profile_has_endpoint_region_and_credentials(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """For listing, reading and writing; an unknown profile is an error that names it."""
    config = tmp_path / "config"
    config.write_text(
        f"[profile lab]\naws_access_key_id = {s3.key}\naws_secret_access_key = {s3.secret}\n"
        f"endpoint_url = {s3.endpoint_url}\nregion = eu-central-1\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    store, path = open_store(f"s3://{bucket}/a", StorageOptions({"profile": "lab"}))
    assert isinstance(store, S3Store)
    assert store.client.meta.region_name == "eu-central-1"
    write(store, path, b"12")
    assert read(store, path) == b"12"
    with pytest.raises(AccessDeniedError, match="no-such-profile"):
        open_store(f"s3://{bucket}/a", StorageOptions({"profile": "no-such-profile"}))


@pytest.mark.parametrize("more", [{}, BY_S3FS])
def test_anon_sends_no_signature(ceph: S3Server, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]) -> None:
    """A public object is read, and a private one refused, even if the environment has credentials."""
    bucket = ceph.new_bucket()
    client = ceph.client()
    client.put_bucket_acl(Bucket=bucket, ACL="public-read")
    client.put_object(Bucket=bucket, Key="a/public", Body=b"12", ACL="public-read")
    client.put_object(Bucket=bucket, Key="a/private", Body=b"34")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    options = StorageOptions({"endpoint_url": ceph.endpoint_url, "anon": True, **more})
    store, _ = open_store(f"s3://{bucket}", options)
    listed = store.list_page("a/", recursive=True, token=None).entries
    assert sorted(entry.path for entry in listed) == ["a/private", "a/public"]
    assert read(store, "a/public") == b"12"
    with pytest.raises(AccessDeniedError, match=f"s3://{bucket}/a/private"):
        read(store, "a/private")


def test_anon_is_a_bool() -> None:
    """The str "false" would be true: unsigned requests, without a warning."""
    with pytest.raises(UrlError, match="anon"):
        open_store("s3://bucket", StorageOptions({"endpoint_url": "http://127.0.0.1:9", "anon": "false"}))


@pytest.mark.parametrize(
    "options",
    [{"region": "eu-west-3"}, {"client_kwargs": {"region_name": "eu-west-3"}}, {"region": "eu-west-3", **BY_S3FS}],
)
def test_the_region_is_that_of_the_options(moto: S3Server, options: dict[str, Any]) -> None:
    """By an option of its own and, as in s3fs, by ``client_kwargs``."""
    store = store_of(moto, moto.new_bucket(), **options)
    write(store, "a", b"12")
    assert read(store, "a") == b"12"
    if isinstance(store, S3Store):
        assert store.client.meta.region_name == "eu-west-3"
    else:
        assert isinstance(store, FsspecStore)
        assert store._filesystem.client_kwargs["region_name"] == "eu-west-3"


def test_client_kwargs_may_have_endpoint_and_credentials(moto: S3Server) -> None:
    """As for s3fs, without selecting it."""
    client_kwargs = {
        "endpoint_url": moto.endpoint_url,
        "aws_access_key_id": moto.key,
        "aws_secret_access_key": moto.secret,
    }
    store, _ = open_store(f"s3://{moto.new_bucket()}", StorageOptions({"client_kwargs": client_kwargs}))
    assert isinstance(store, S3Store)
    write(store, "a", b"12")
    assert read(store, "a") == b"12"


@pytest.mark.parametrize("more", [BY_S3FS, {"client_kwargs": {"api_version": "2006-03-01"}}])
def test_an_option_without_translation_selects_s3fs(moto: S3Server, more: dict[str, Any]) -> None:
    """s3fs gets an option that only it knows, and everything still works."""
    store = store_of(moto, moto.new_bucket(), **more)
    assert isinstance(store, FsspecStore)
    for name, value in more.items():
        assert store._filesystem.storage_options[name] == value
    write(store, "a/b", b"12")
    assert read(store, "a/b") == b"12"


@pytest.mark.parametrize("endpoint", ["not a url", "127.0.0.1:9000", ""])
def test_an_endpoint_that_is_no_url_is_named_in_the_error(endpoint: str) -> None:
    """Before any request."""
    with pytest.raises(UrlError, match="endpoint"):
        open_store("s3://bucket/a", StorageOptions({"endpoint_url": endpoint, "key": "k", "secret": "s"}))


def test_a_store_is_kept_for_each_bucket_and_set_of_options() -> None:
    """Stores, and with them connections, are kept per process; other options open another store."""
    server = S3Server("none", "http://127.0.0.1:9", "key", "secret")
    one = store_of(server, "bucket")
    assert one is store_of(server, "bucket")
    assert one is not store_of(server, "bucket", region="eu-west-1")
    assert one is not store_of(server, "bucket2")


def test_one_description_of_s3_serves_all_buckets() -> None:
    """Each description of S3's operations takes 14 MB and 0.2 s, so all clients share one."""
    settings = S3Settings(key="key", secret="secret", endpoint_url="http://127.0.0.1:9")
    sessions = [make_session(settings, "s3://bucket") for _ in range(2)]
    one, other = (make_client(settings, session, "s3://bucket").meta.service_model for session in sessions)
    assert one is not other
    assert one._service_description is other._service_description
