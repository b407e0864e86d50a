"""Values of storage options that cannot be meant are refused before any request, by name and without the value."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError, HTTPClientError, NoCredentialsError

import torchdata_remote as tdr
from torchdata_remote.core.options import Backend, RetryPolicy, StorageOptions
from torchdata_remote.errors import AccessDeniedError, StorageError, TransientStorageError, UrlError
from torchdata_remote.storage import Connection, open_store
from torchdata_remote.storage.error_tables import from_botocore, from_os
from torchdata_remote.storage.errors import translate_errors

SERVER = {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "s"}
SECRET = "http://user:PASSWORD@127.0.0.1:1"
ONCE = RetryPolicy(max_attempts=1)
# A second attempt would wait for an hour: what is refused is refused by the first one
NEVER_AGAIN = RetryPolicy(first_wait_s=3600, max_wait_s=3600, deadline_s=10_000_000)


def listing(url: str, options: dict[str, Any], retry: RetryPolicy = NEVER_AGAIN) -> list[str]:
    return list(tdr.IterableWrapper([url]).list_remote(storage_options=options, retry=retry))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({**SERVER, "endpoint_url": SECRET}, "storage_options['endpoint_url']"),
        ({**SERVER, "endpoint_url": "user:PASSWORD@host:9000"}, "storage_options['endpoint_url']"),
        ({**SERVER, "endpoint_url": SECRET, "use_ssl": False}, "storage_options['endpoint_url']"),
        ({"client_kwargs": {"endpoint_url": SECRET}}, "storage_options['client_kwargs']['endpoint_url']"),
    ],
)
def test_an_endpoint_with_a_password_is_refused_when_the_chain_is_built(options: dict[str, Any], named: str) -> None:
    """Errors and warnings of libraries show the address of a server. The message does not."""
    with pytest.raises(UrlError) as caught:
        tdr.stream_shards("s3://b/x/", storage_options=options)
    assert f"{named} holds credentials" in str(caught.value)
    assert "PASSWORD" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize("backend", [Backend.AUTOMATIC, Backend.FSSPEC])
def test_an_endpoint_with_a_password_in_the_environment_is_refused(
    variable: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is used like the option; an option comes before it."""
    monkeypatch.setenv(variable, SECRET)
    with pytest.raises(UrlError, match=f"environment variable {variable} holds credentials") as caught:
        open_store("s3://b/x", StorageOptions({"key": "k", "secret": "s"}), Connection(backend))
    assert "PASSWORD" not in str(caught.value)
    open_store("s3://b/x", StorageOptions(SERVER), Connection(backend))


def test_an_endpoint_with_a_password_in_the_configuration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third place that botocore reads."""
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = {SECRET}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(UrlError, match=r"~/.aws/config holds credentials") as caught:
        listing("s3://configured/x/", {"key": "k", "secret": "s"})
    assert "PASSWORD" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url=f"{SECRET}/b?list-type=2"),
        HTTPClientError(error=OSError(f"no route to proxy {SECRET}")),
        OSError(f"cannot connect to proxy {SECRET}"),
    ],
)
@pytest.mark.parametrize("table", [from_botocore, from_os])
def test_a_password_in_the_message_of_a_library_is_removed(error: Exception, table: Any) -> None:
    """Such as that of a proxy: from the message, and from what a traceback shows."""
    options = {"transient": True} if table is from_os else {}
    with pytest.raises(TransientStorageError) as caught, translate_errors(table, "s3://b/x", **options):
        raise error
    assert "127.0.0.1:1" in str(caught.value)
    assert "PASSWORD" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("selects", [{"default_fill_cache": False}, {"default_block_size": 1 << 20}])
def test_missing_credentials_are_an_error_at_once_where_an_option_selects_s3fs(selects: dict[str, Any]) -> None:
    """As without the option: credentials do not appear by asking again."""
    with pytest.raises(AccessDeniedError, match=r"Unable to locate credentials.*'anon'"):
        listing("s3://b/x/", {"endpoint_url": "http://127.0.0.1:1", **selects})


def test_a_missing_profile_is_an_error_at_once_where_an_option_selects_s3fs() -> None:
    """Its name is in the message."""
    with pytest.raises(AccessDeniedError, match=r"profile \(nowhere\) could not be found"):
        listing("s3://b/x/", {"endpoint_url": "http://127.0.0.1:1", "profile": "nowhere", "default_fill_cache": False})


@pytest.mark.parametrize(
    "message",
    [
        "Prior attempt to load libhdfs failed",
        "Unable to load libjvm: /usr/lib/jvm/libjvm.so: cannot open shared object file: No such file or directory",
    ],
)
def test_a_missing_native_library_is_an_error_at_once(message: str) -> None:
    """No later attempt finds it; what to install is said."""
    with pytest.raises(UrlError, match=r"JAVA_HOME.*ARROW_LIBHDFS_DIR"), translate_errors(
        from_os, "hdfs://h/x", transient=True
    ):  # fmt: skip
        raise OSError(message)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"client_kwargs": {"verify": "/nope.pem"}}, "['client_kwargs']['verify']"),
        ({"config_kwargs": {"client_cert": "/nope.pem"}}, "['config_kwargs']['client_cert']"),
        ({"config_kwargs": {"client_cert": (__file__, "/nope.pem")}}, "['config_kwargs']['client_cert']"),
    ],
)
def test_a_missing_file_of_certificates_is_an_error_at_once(options: dict[str, Any], named: str) -> None:
    """File and option are named; s3fs says `No such file` without its name, as a fault of the network."""
    with pytest.raises(UrlError) as caught:
        listing("s3://b/x/", {**SERVER, **options})
    assert "no such file: '/nope.pem'" in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"use_ssl": True}])
def test_a_missing_bundle_of_the_environment_is_an_error_at_once(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where TLS is used; a server without TLS needs no authorities."""
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nope.pem")
    with pytest.raises(UrlError, match=r"no such file: '/nope.pem', .*AWS_CA_BUNDLE"):
        listing("s3://b/x/", {**SERVER, "endpoint_url": "https://127.0.0.1:1", **options})
    with pytest.raises(TransientStorageError, match="refuses connections"):
        listing("s3://b/x/", SERVER, ONCE)


def test_a_missing_bundle_of_the_configuration_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ca_bundle`` in ``~/.aws/config``."""
    (tmp_path / "config").write_text("[default]\nca_bundle = /nope.pem\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(UrlError, match=r"no such file: '/nope.pem', .*ca_bundle"):
        listing("s3://b/x/", {**SERVER, "endpoint_url": "https://127.0.0.1:1"})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": 1, "secret": 2}, "storage_options['key'] must be a str, got an int"),
        ({"key": "k", "secret": b"SECRET"}, "['secret'] must be a str, got a bytes. Decode the bytes: value.decode()"),
        ({"fallback_key": 1, "fallback_secret": 2}, "storage_options['fallback_key'] must be a str"),
        ({"client_kwargs": {"aws_secret_access_key": 5}}, "['client_kwargs']['aws_secret_access_key'] must be a str"),
        ({"loop": 3}, "storage_options['loop'] must be an event loop of asyncio, got an int. Leave it out."),
        ({"anon": "False"}, "storage_options['anon'] must be True or False, got 'False' (str). Write False"),
        ({"s3_additional_kwargs": 5}, "storage_options['s3_additional_kwargs'] must be a dict, got int"),
        ({"client_kwargs": {"config": Config()}}, "pass a dict of its arguments there, such as {'read_timeout': 60}"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_the_name_of_its_option(options: dict[str, Any], text: str) -> None:
    """When the chain is built, and without the value."""
    with pytest.raises(UrlError) as caught:
        tdr.stream_shards("s3://b/x/", storage_options=options)
    assert text in str(caught.value)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://b/x/", {**SERVER, "max_concurrency": "x"}),
        ("s3://b/x/", {**SERVER, "session": 3}),
        ("s3://b/x/", {**SERVER, "config_kwargs": {"retries": 3}}),
    ],
)
def test_a_value_that_only_the_library_refuses_is_blamed_on_the_options(url: str, options: dict[str, Any]) -> None:
    """The message names them, because that of the library names a class or an operator."""
    with pytest.raises((UrlError, OSError), match=rf"Check .*the kinds of .*storage_options \(.*{[*options][-1]}"):
        listing(url, options)


@pytest.mark.parametrize("anon", [True, np.True_, 1])
def test_a_flag_may_be_numpys_or_a_number(anon: Any) -> None:
    """As every other flag of the package."""
    with pytest.raises(TransientStorageError, match="refuses connections"):
        listing("s3://b/x/", {"endpoint_url": "http://127.0.0.1:1", "anon": anon}, ONCE)


def test_credentials_that_a_library_of_another_cloud_does_not_find_are_no_fault() -> None:
    """gcsfs raises google's error of that name, which is no fault of the network."""
    kind = type("DefaultCredentialsError", (Exception,), {"__module__": "google.auth.exceptions"})
    for error in (kind("none found"), NoCredentialsError()):
        with pytest.raises(AccessDeniedError), translate_errors(from_os, "gs://b/x", transient=True):
            raise error


SSE = {"ServerSideEncryption": "aws:kms"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": "PASSWORD\n"}, "storage_options['key'] has a line break or another control character at its end"),
        ({"secret": "PASSWORD\r\n"}, "storage_options['secret'] has a line break"),
        (
            {"token": "PASS\nWORD"},
            "storage_options['token'] has a line break or another control character at position 4",
        ),
        ({"region": "us-west-2\n"}, "storage_options['region'] has a line break"),
        ({"client_kwargs": {"region_name": "a\0"}}, "['region_name'] has a line break"),
        ({"config_kwargs": {"user_agent": "a\nb: PASSWORD"}}, "['user_agent'] has a line break"),
        ({"s3_additional_kwargs": {"ExpectedBucketOwner": "1\nPASSWORD"}}, "['ExpectedBucketOwner'] has a line break"),
        ({"s3_additional_kwargs": {**SSE, "SSEKMSKeyId": "PASSWORD\n"}}, "['SSEKMSKeyId'] has a line break"),
        ({"endpoint_url": "http://host:99999"}, "storage_options['endpoint_url'] is no address of a server"),
        ({"endpoint_url": "http://host:port"}, "is no address of a server"),
        ({"endpoint_url": "http://[::1"}, "is no address of a server"),
        ({"endpoint_url": "http://ho st"}, "is no address of a server"),
        ({"endpoint_url": "http://host/a path"}, "is no address of a server"),
        ({"endpoint_url": "http://host?password=PASSWORD"}, "is no address of a server"),
        ({"endpoint_url": "http://host/#PASSWORD"}, "is no address of a server"),
        ({"client_kwargs": {"endpoint_url": "http://hö.test"}}, "['endpoint_url'] is no address of a server"),
        ({"config_kwargs": {5: 5, "read_timeout": 3}}, "['config_kwargs'] must have names that are str, got an int"),
        ({"client_kwargs": {5: 5, "region_name": "a"}}, "['client_kwargs'] must have names that are str"),
        ({"s3_additional_kwargs": {5: 5, "ACL": "a"}}, "['s3_additional_kwargs'] must have names that are str"),
        ({"config_kwargs": {"s3": {5: 5, "addressing_style": "path"}}}, "['config_kwargs']['s3'] must have names"),
    ],
)
def test_what_no_request_can_carry_is_refused_before_any_request(options: dict[str, Any], text: str) -> None:
    """obstore would abort the call, and botocore show the value of the header."""
    with pytest.raises(UrlError) as caught:
        open_store("s3://b/x", StorageOptions({**SERVER, **options}))
    assert text in str(caught.value)
    assert "PASSWORD" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_unusable_address_in_the_environment_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries read it in different ways."""
    monkeypatch.setenv(variable, "http://host:99999")
    with pytest.raises(UrlError, match=f"{variable} is no address of a server"):
        open_store("s3://b/x", StorageOptions({"key": "k", "secret": "s"}))


@pytest.mark.parametrize("bucket", ["my photos", "my%20photos", "föto", "..", "a:b", "x" * 256])
def test_a_name_that_no_bucket_has_is_refused_before_any_request(bucket: str) -> None:
    """obstore would abort the call, or request another address."""
    with pytest.raises(UrlError, match="no name of a bucket"):
        open_store(f"s3://{bucket}/x", StorageOptions(SERVER))


def test_a_token_of_the_environment_with_a_line_break_is_an_error_that_does_not_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By both libraries: obstore aborts the call, and Python's client shows the value. Neither leaves the package."""
    for name, value in (("ACCESS_KEY_ID", "k"), ("SECRET_ACCESS_KEY", "s"), ("SESSION_TOKEN", "PASSWORD\n")):
        monkeypatch.setenv(f"AWS_{name}", value)
    store: Any = open_store("s3://b/x", StorageOptions({"endpoint_url": "http://127.0.0.1:1"}))[0]
    for attempt in (store.read, store.read_without_obstore):
        with pytest.raises(StorageError, match="line break") as caught:
            attempt("x", 0, None, None)
        assert not isinstance(caught.value, TransientStorageError)
        assert "PASSWORD" not in "".join(traceback.format_exception(caught.value))
