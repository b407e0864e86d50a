"""Storage options, in fsspec's vocabulary: each has an effect, or is an error before any request, without its value."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.scripted import Response, scripted
from tests.support import objects
from tests.support.objects import text_of, warnings_of
from torchdata_remote import Backend, RetryPolicy, StorageOptions
from torchdata_remote.errors import AccessDeniedError, StorageError, TransientStorageError, UrlError

SERVER = {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "s", "region": "us-east-1"}
PASSWORD = "http://user:PASSWORD@127.0.0.1:1"
# A second attempt would wait for an hour: what is refused is refused by the first one
NEVER_AGAIN = RetryPolicy(first_wait_s=3600, max_wait_s=3600, deadline_s=10_000_000)


def refusal(url: str, options: dict[str, Any], *, kind: Any = UrlError) -> str:
    """The message of the error of a listing, or of the object that it names, in which no password is."""

    def list_and_read() -> None:
        for listed in objects.listed(url, options, retry=NEVER_AGAIN):  # without a request, if it names an object
            objects.read(listed, options, retry=NEVER_AGAIN)

    with pytest.raises(kind) as caught:
        list_and_read()
    assert "PASSWORD" not in text_of(caught.value)
    return str(caught.value)


# The objects


@given(st.dictionaries(st.sampled_from(["key", "secret", "token", "client_kwargs"]), st.just("XYZ")))
def test_storage_options_show_names_only_and_are_the_users_mapping(options: dict[str, str]) -> None:
    shown = StorageOptions({**options, "config_kwargs": {"a": "XYZXYZ"}})
    for text in (repr(shown), str(shown)):
        assert all(name in text for name in options)
        assert "XYZ" not in text
    assert dict(pickle.loads(pickle.dumps(shown))) == {**options, "config_kwargs": {"a": "XYZXYZ"}}
    given_options = {"key": "a"}
    kept = StorageOptions(given_options)
    given_options["key"] = "b"
    assert (kept["key"], len(kept), bool(StorageOptions(None))) == ("a", 1, False)
    with pytest.raises(TypeError, match=r"dict.*str") as caught:
        StorageOptions("key=hush")  # type: ignore[arg-type]
    assert "hush" not in str(caught.value)


def first_of(server_url: str, **more: Any) -> bytes:
    return objects.read("s3://bucket/a", {**SERVER, "endpoint_url": server_url, **more})


def test_other_options_are_another_store_and_equal_ones_are_not() -> None:
    """Each server, region and key is asked by its own options, although the bucket is the same."""
    with scripted(lambda one: Response.of_object(one, b"first")) as first, scripted(
        lambda one: Response.of_object(one, b"other")
    ) as other:  # fmt: skip
        for _ in range(2):
            assert (first_of(first.url), first_of(other.url)) == (b"first", b"other")
            assert first_of(first.url, key="k2", region="eu-west-1") == b"first"
    scopes = [re.search(r"Credential=(\w+)/\d+/([\w-]+)", one.headers["authorization"]) for one in first.requests]
    assert [one.groups() for one in scopes if one] == [("k", "us-east-1"), ("k2", "eu-west-1")] * 2


LONG = {"aws_access_key_id": "CANARY-key", "aws_secret_access_key": "CANARY-secret"}


def credential_file(folder: Path, content: object) -> Path:
    path = folder / "credentials.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@pytest.mark.parametrize("token", ["CANARY-token", None, ""])
def test_a_credential_file_is_read_in_its_short_and_its_long_form(tmp_path: Path, token: str | None) -> None:
    """What is empty is as absent, and other fields are ignored; copies and pickles keep it all."""
    short = StorageOptions.from_file(str(credential_file(tmp_path, {"access_key": "CANARY-key", "secret": "CANARY-s"})))
    assert dict(short) == {"fallback_key": "CANARY-key", "fallback_secret": "CANARY-s"}
    content = {**LONG, "aws_session_token": token, "bucket_name": "CANARY-bucket"}
    original = StorageOptions.from_file(credential_file(tmp_path, content))
    for options in (original, StorageOptions(original), pickle.loads(pickle.dumps(original))):
        assert options.get("fallback_token") == (token or None)
        assert (options["fallback_key"], options["fallback_secret"]) == ("CANARY-key", "CANARY-secret")
        assert repr(options).startswith("StorageOptions(fallback_key, fallback_secret")
        assert "CANARY" not in f"{options} {options!r} {[options]}"


@pytest.mark.parametrize(
    "content",
    [
        {"access_key": "CANARY"},
        {"access_key": "CANARY", "secret": ""},
        {"aws_access_key_id": "CANARY", "aws_session_token": "CANARY"},
        {"access_key": "CANARY", "secret": ["CANARY"]},
        ["CANARY"],
        b'{"access_key": "CANARY",\n "secret": CANARY}',
    ],
)
def test_another_file_than_one_of_credentials_is_refused_without_its_values(tmp_path: Path, content: object) -> None:
    with pytest.raises(ValueError, match=r"credentials\.json: not a file of credentials") as caught:
        StorageOptions.from_file(credential_file(tmp_path, content))
    assert "CANARY" not in text_of(caught.value)


# Names

PETS = {"account_name": "pets"}


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("s3://b/a", {"endpoint": "x"}, "unknown option 'endpoint' in storage_options; did you mean 'endpoint_url'?"),
        ("s3://b/a", {"aws_access_key_id": "PASSWORD"}, "'aws_access_key_id' in storage_options; did you mean 'key'?"),
        ("s3://b/a", {"anonymous": True}, "did you mean 'anon'?"),
        (
            "s3://b/a",
            {"colour": "PASSWORD"},
            "unknown option 'colour' in storage_options. Known are anon, client_kwargs, config_kwargs, endpoint_url",
        ),
        ("s3://b/a", {"config_kwargs": {"s3": {"adressing_style": "x"}}}, "did you mean 'addressing_style'?"),
        ("gs://b/a", {"anon": True}, "Known are access, "),
        ("az://b/a", {"acount_name": "pets"}, "did you mean 'account_name'"),
        ("hf://datasets/a/b/c", {"endpont": "x"}, "did you mean 'endpoint'"),
        ("datasets://h:1/d/a", {"tokn": "x"}, "did you mean 'token'?"),
        ("/data/a", {"auto_mkdri": True}, "did you mean 'auto_mkdir'?"),
        ("memory://b/a", {"colour": "x"}, "unknown option 'colour' in storage_options. Known are "),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(url: str, options: dict[str, Any], text: str) -> None:
    assert text in refusal(url, options)
    for build in (tdr.stream_shards, tdr.stream_files):
        with pytest.raises(UrlError, match=re.escape(text)):
            build(f"{url}/", storage_options=options)


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("s3://b/a", {"client_kwargs": {"region": "x"}}, "unexpected keyword argument 'region'"),
        ("s3://b/a", {"config_kwargs": {"read_timout": 1}}, "unexpected keyword argument 'read_timout'"),
        ("s3://b/a", {"s3_additional_kwargs": {"SSEKmsKeyId": "k"}}, "did you mean 'SSEKMSKeyId'"),
        ("https://h/a", {"header": {}}, "unknown option 'header'"),
    ],
)
def test_an_unknown_name_that_a_library_would_receive_is_an_error_at_the_first_request(
    url: str, options: dict[str, Any], text: str
) -> None:
    assert text in refusal(url, {**(SERVER if url.startswith("s3") else {}), **options}, kind=(StorageError, UrlError))


def test_local_and_memory_urls_accept_the_options_of_other_stores(tmp_path: Path, memory_folder: str) -> None:
    """A list of URLs of several stores has one dict of options; other libraries get no fallback credentials."""
    (tmp_path / "a").write_bytes(b"1")
    fsspec.filesystem("memory").pipe(f"{memory_folder}/a", b"1")
    fallback: dict[str, Any] = {"fallback_key": "a", "fallback_secret": "b"}
    for more in ({}, SERVER, {"skip_instance_cache": True}):
        for url in (f"{tmp_path}/a", f"{memory_folder}/a"):
            assert objects.read(url, {**fallback, **more}) == b"1"
    received: list[dict[str, Any]] = []

    class Recording(MemoryFileSystem):  # type: ignore[misc]
        protocol, cachable = "recording", False

        def __init__(self, **options: Any) -> None:
            received.append(options)
            super().__init__(**options)

    fsspec.register_implementation("recording", Recording, clobber=True)
    with pytest.raises(StorageError):
        objects.read("recording://box/a", {**fallback, "x": 1})
    assert received[0] == {"x": 1}


# Values

SSE_C = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": bytes(range(32))}


def of_request(**arguments: Any) -> dict[str, Any]:
    return {"s3_additional_kwargs": arguments}


MAPPINGS = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")


def of_config(**arguments: Any) -> dict[str, Any]:
    return {"config_kwargs": arguments}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(
            ({"endpoint_url": url}, "AWS_ENDPOINT_URL is no address of a server")
            for url in (
                *(PASSWORD, "host:80", "http://host:99999", "http://host:port", "http://[::1", "http://ho st"),
                *("http://host/a path", "http://host?password=PASSWORD", "http://host/#PASSWORD"),
            )
        ),
        ({"secret": b"PASSWORD"}, "secret_access_key is no str"),
        ({"key": "PASSWORD\n"}, "access_key_id is no str, or has a line break"),
        ({"token": "PASS\nWORD"}, "token is no str, or has a line break"),
        ({"anon": "False"}, "storage_options['anon'] must be True or False, got 'False' (str)."),
        ({"client_kwargs": {"verify": "/nope.pem"}}, "'/nope.pem' is no file of certificates"),
        ({"client_kwargs": {"verify": __file__}}, "is no file of certificates in PEM"),
        *((of_config(client_cert=value), "'client_cert' names ") for value in ("/nope.pem", __file__, 5, ())),
        (of_config(proxies={"https": "socks5://u:PASSWORD@p:1"}), "the proxy, behind its user, is no address"),
        (of_config(proxies={"https": "http://u:PASSWORD@p:99999"}), "the proxy, behind its user, is no address"),
        (of_config(proxies="http://u:PASSWORD@p"), "'str' object"),
        *((of_config(read_timeout=value), "") for value in ("60", -1, math.nan)),
        *((of_config(max_pool_connections=value), "storage_options cannot be used") for value in (1.5, True)),
        (of_config(s3={"use_accelerate_endpoint": "yes"}), "(Accelerate) is the wrong type"),
        *((of_config(**{name: 3}), f"{name!r} must be a dict") for name in ("s3", "proxies_config")),
        *(({name: "PASSWORD"}, f"{name!r} must be a dict, got a str") for name in MAPPINGS),
        (of_request(SSEKMSKeyId="k"), "needs 'ServerSideEncryption': 'aws:kms'"),
        (of_request(ServerSideEncryption="AES256", BucketKeyEnabled=True), "needs 'ServerSideEncryption'"),
        (of_request(**{**SSE_C, "SSECustomerKey": b"PASSWORD"}), "must have 32 bytes"),
        ({"endpoint_url": "http://s3.us-west-2.amazonaws.com", **of_request(**SSE_C)}, "accepts it by https only"),
    ],
)
def test_a_value_of_s3_that_cannot_be_meant_is_refused_by_the_name_of_its_option(
    options: dict[str, Any], text: str
) -> None:
    """By way of TLS where files of certificates are read, and before anything is sent."""
    secure = {"endpoint_url": "https://127.0.0.1:1"}
    assert text in refusal("s3://b/x/", {**SERVER, **secure, **options}, kind=(UrlError, AccessDeniedError))


GS = "http://h"


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("gs://b/a", {"token": '{"private_key": "PASSWORD"}'}, r"neither an access token.*json\.loads"),
        ("gs://b/a", {"token": "/nonexistent/key.json"}, "nor a file that exists"),
        ("gs://b/a", {"token": "raw-PASSWORD\nx"}, "token is no str, or has"),
        ("gs://b/a", {"endpoint_url": "host:80"}, "Expected such as 'https://host:port'"),
        ("gs://b/a", {"endpoint_url": "https://u:PASSWORD@host"}, "is no address of a server"),
        ("gs://b/a", {"token": "t", "requester_pays": "my project\n"}, "storage_options cannot be used"),
        (
            "gs://b/a",
            {"token": "t", "requester_pays": True, "endpoint_url": GS},
            "needs a project: pass requester_pays",
        ),
        ("az://box/a", {}, "no storage account is named.*AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://box/a", {**PETS, "client_id": "x"}, "secret should be a Microsoft Entra application's client secret"),
        ("az://box/a", {"account_name": "a b"}, "is no address of a server"),
        *(
            ("az://box/a", {"connection_string": text}, "no storage account is named")
            for text in ("PASSWORD", "AccountKey=PASSWORD", ";", "AccountName=;AccountKey=PASSWORD")
        ),
        *(
            ("az://box/a", {"connection_string": text}, "BlobEndpoint .*is no address")
            for text in (
                "BlobEndpoint=ftp://h/x;AccountName=a",
                "BlobEndpoint=pets.blob.core.windows.net",
                "BlobEndpoint=http://a b/x",
                "BlobEndpoint=http://h:99999",
                "BlobEndpoint=https://u:PASSWORD@h/x",
                "AccountName=pets;DefaultEndpointsProtocol=ftp",
            )
        ),
        *(
            ("az://box/a", {**PETS, name: b"PASSWORD"}, "Check .*the kinds of the values in storage_options")
            for name in ("account_key", "connection_string")
        ),
        ("az://box/a", {**PETS, "credential": 3}, "Check .*the kinds of the values in storage_options"),
        ("az://box/a", {**PETS, "anon": "yes"}, "'anon'.* must be True or False, got 'yes'"),
        ("az://box/a?sv=1&sig=PASSWORD", PETS, "a SAS does not belong into a URL"),
        ("https://h/a", {"headers": {"a b": "PASSWORD"}}, r"storage_options\['headers'\]"),
        ("https://h/a", {"headers": {"X-A": "PASSWORD\r\nX-B: 1"}}, r"storage_options\['headers'\]"),
        *((f"s3://{bucket}/x", SERVER, "no name of a bucket") for bucket in ("my photos", "..")),
        ("hf://datasets/a/b/c", {"endpoint": "https://me:PASSWORD@hub"}, ""),
        ("hf://datasets/a/b/c", {"revision": ".."}, "no segment"),
        *(
            ("hf://datasets/a/b/c", {"endpoint": url}, "the endpoint .*is no address of a server")
            for url in (5, "hub", "ftp://hub")
        ),
        ("hf://datasets/a/b/c", {"token": "PASSWORD x"}, "the token has characters that are invalid"),
        ("hf://datasets/a/b/c", {"block_size": 5}, "unknown option 'block_size'.*Known are endpoint, revision, token"),
        ("https://h/a", {"block_size": 5}, "unknown option 'block_size'.*Known are headers"),
        ("https://h/a", {"headers": "PASSWORD"}, "must be a dict, got a str"),
        ("nope://bucket/a", {}, r"no transport for the scheme 'nope'.*Known are s3, http"),
        ("ftp://127.0.0.1:99999/a", {}, "Check host, port"),
        ("webdav://a/b", {}, "missing 1 required positional argument: 'base_url'"),
        ("webdav://a/b", {"base_url": "http://127.0.0.1:9", "auth": "PASSWORD"}, "the kinds of the values"),
    ],
)
def test_a_value_of_another_store_that_cannot_be_meant_is_refused(url: str, options: dict[str, Any], text: str) -> None:
    assert re.search(text, refusal(url, options, kind=(UrlError, AccessDeniedError)))


def test_a_mistake_in_a_later_url_of_a_bucket_is_refused_as_in_the_first_one() -> None:
    urls = tdr.IterableWrapper(["az://box/a.jpg", "az://box/b.jpg?sv=1&sig=PASSWORD"])
    streams = iter(urls.async_prefetch(storage_options={**PETS, "anon": True}, retry=NEVER_AGAIN))
    next(streams)
    with pytest.raises(UrlError, match="a SAS does not belong into a URL") as caught:
        next(streams)
    assert "PASSWORD" not in text_of(caught.value)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "config"])
def test_an_unusable_address_of_the_environment_is_named_and_one_of_the_options_goes_first(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if variable == "config":
        (tmp_path / "config").write_text(f"[default]\nendpoint_url = {PASSWORD}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    else:
        monkeypatch.setenv(variable, PASSWORD)
    message = refusal("s3://b-of-environment/x/", {"key": "k", "secret": "s"})
    assert ("~/.aws/config" if variable == "config" else variable) in message
    assert "is no address of a server" in message
    assert "refuses connections" in refusal_of_connection()


def refusal_of_connection() -> str:
    with pytest.raises(TransientStorageError) as caught:
        objects.listed("s3://b/x/", SERVER)
    return str(caught.value)


# Which library reads

UNTRANSLATED = {**SERVER, "default_fill_cache": False}
CHOICES = [
    ("s3://{}/a", SERVER, Backend.AUTOMATIC, "is read by obstore"),
    ("s3://{}/a", SERVER, Backend.OBSTORE, "is read by obstore"),
    ("s3://{}/a", SERVER, Backend.FSSPEC, "is read by fsspec"),
    ("http://{}.invalid/a", {}, Backend.AUTOMATIC, "is read by obstore"),
    ("memory://{}/a", {"max_paths": 1}, Backend.AUTOMATIC, "is read by fsspec"),
]


@pytest.mark.parametrize(("url", "options", "backend", "reason"), CHOICES)
def test_the_library_that_reads_and_the_reason_are_logged_once(
    url: str, options: dict[str, Any], backend: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    where = url.format(f"logged-{CHOICES.index((url, options, backend, reason))}")
    with caplog.at_level("INFO", "torchdata_remote"):
        for _ in range(2):
            with pytest.raises(StorageError):
                objects.read(where, options, backend=backend)
    lines = [one.getMessage() for one in caplog.records if one.levelname == "INFO" and " is read by " in one.message]
    assert [reason in line for line in lines] == [True]


@pytest.mark.parametrize(
    ("url", "options", "backend"),
    [
        ("memory://a/b", {}, Backend.OBSTORE),
        ("s3://bucket/a", UNTRANSLATED, Backend.OBSTORE),
        ("hf://datasets/a/b/c", {}, Backend.OBSTORE),
        ("http://localhost/a.bin", {}, Backend.FSSPEC),
    ],
)
def test_a_library_that_cannot_read_a_url_is_refused_and_not_replaced(
    url: str, options: dict[str, Any], backend: Backend
) -> None:
    with pytest.raises(UrlError, match=f"backend='{backend.value}' cannot read .*backend='automatic'"):
        objects.read(url, options, backend=backend)


@pytest.mark.parametrize(
    ("url", "options", "what"),
    [
        ("s3://un-1/a", {"default_fill_cache": False}, "s3fs, more slowly: no translation for 'default_fill_cache'"),
        ("s3://un-2/a", of_config(tcp_keepalive=True),
         "s3fs, more slowly: no translation for config_kwargs['tcp_keepalive']"),
        ("gs://un-4/a", {"token": "cache", "endpoint_url": "http://127.0.0.1:1"}, "gcsfs"),
    ],
)  # fmt: skip
def test_an_option_without_a_translation_selects_fsspec_with_a_warning(
    url: str, options: dict[str, Any], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is never dropped."""
    more = SERVER if url.startswith("s3") else {}
    policy = RetryPolicy(max_attempts=1, progress_timeout_s=1)
    with pytest.raises((StorageError, UrlError)):
        objects.read(url, {**more, **options}, retry=policy)
    assert any(what in line for line in [*warnings_of(caplog), caplog.text])
