"""No exception of a library leaves ``storage``: each kind, through each operation, becomes this package's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ftplib
import http.client
import socket
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
import botocore.exceptions
import fsspec
import pytest
import requests
import urllib3
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.memory import MemoryFileSystem

from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.storage.errors import from_status, from_unknown
from torchdata_remote.storage.fsspec_store import FsspecStore
from torchdata_remote.storage.network_errors import mark_host_known, network_error


class HfHubHTTPError(Exception):
    """As huggingface_hub's: the status is in a response."""

    __module__ = "huggingface_hub.errors"

    def __init__(self, status: int) -> None:
        super().__init__(f"{status}")
        self.response = requests.Response()
        self.response.status_code = status


def of_module(module: str, name: str, base: type[Exception] = Exception) -> Exception:
    """An exception of a library that need not be installed here."""
    error: Exception = type(name, (base,), {"__module__": module})("words of the library")
    return error


def with_code(error: Exception, code: int) -> Exception:
    error.code = code  # type: ignore[attr-defined]
    return error


FAULTS: list[tuple[Exception, type[StorageError]]] = [
    (ftplib.error_reply("226 Transfer complete."), TransientStorageError),
    (ftplib.error_temp("421 Too many connections."), TransientStorageError),
    (ftplib.error_proto("nonsense"), TransientStorageError),
    (ftplib.error_perm("550 No such file."), ObjectNotFoundError),
    (ftplib.error_perm("530 Login incorrect."), AccessDeniedError),
    (ftplib.error_perm("502 Not implemented."), StorageError),
    (EOFError(), TransientStorageError),
    (FSTimeoutError(), TransientStorageError),
    (asyncio.TimeoutError(), TransientStorageError),
    (asyncio.IncompleteReadError(b"1", 2), TransientStorageError),
    (concurrent.futures.TimeoutError(), TransientStorageError),
    (aiohttp.ServerDisconnectedError(), TransientStorageError),
    (aiohttp.ClientPayloadError("cut"), TransientStorageError),
    (botocore.exceptions.ReadTimeoutError(endpoint_url="x"), TransientStorageError),
    (botocore.exceptions.ClientError({"ResponseMetadata": {"HTTPStatusCode": 403}}, "GetObject"), AccessDeniedError),
    (urllib3.exceptions.ProtocolError("broken"), TransientStorageError),
    (http.client.IncompleteRead(b""), TransientStorageError),
    (requests.ConnectionError("reset"), TransientStorageError),
    (socket.gaierror(-3, "Temporary failure in name resolution"), TransientStorageError),
    (ssl.SSLCertVerificationError("CERTIFICATE_VERIFY_FAILED"), StorageError),
    (of_module("httpx", "ReadTimeout"), TransientStorageError),
    (of_module("httpcore", "RemoteProtocolError"), TransientStorageError),
    (of_module("paramiko.ssh_exception", "SSHException"), TransientStorageError),
    (of_module("paramiko.ssh_exception", "AuthenticationException"), AccessDeniedError),
    (of_module("azure.core.exceptions", "ServiceResponseError"), TransientStorageError),
    (of_module("httpx", "InvalidURL", ValueError), StorageError),
    (with_code(of_module("google.api_core.exceptions", "ServiceUnavailable"), 503), TransientStorageError),
    (with_code(of_module("gcsfs.retry", "HttpError"), 403), AccessDeniedError),
    (HfHubHTTPError(404), ObjectNotFoundError),
    (HfHubHTTPError(429), TransientStorageError),
    (HfHubHTTPError(412), ObjectChangedError),
    (KeyError("ContentLength"), StorageError),
    (ValueError("odd"), StorageError),
    (ZeroDivisionError("a mistake"), StorageError),
    (of_module("unknown.module", "StrangeError"), StorageError),
]


class FailingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Raises one error for every call."""

    protocol = "failing"
    cachable = False
    fault: Exception | None = None

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        fault = type(self).fault
        if fault is not None and name in ("ls", "find", "info", "isdir", "exists", "cat_file", "pipe_file", "makedirs"):
            return _raising(fault)
        return _raising(fault) if fault is not None and name in ("rm", "rm_file") else found


def _raising(fault: Exception) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        raise fault

    return call


def _write(store: FsspecStore) -> None:
    writer = store.create("d/a", overwrite=False)
    writer.write(b"1")
    writer.commit()


OPERATIONS: dict[str, Callable[[FsspecStore], object]] = {
    "list": lambda store: store.list_page("d/", recursive=True, token=None),
    "list_after": lambda store: store.list_after("d/", recursive=False, after="", limit=5),
    "stat": lambda store: store.stat("d/a"),
    "find": lambda store: store.find("d/a"),
    "read": lambda store: store.read("d/a", 0, None, None),
    "read a range of a version": lambda store: store.read("d/a", 0, 1, "etag"),
    "write": _write,
    "delete": lambda store: store.delete("d/a"),
    "has_folder": lambda store: store.has_folder("d/"),
    "make_folder": lambda store: store.make_folder("d/"),
    "remove_folder": lambda store: store.remove_folder("d/"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("fault", "expected"), FAULTS, ids=[repr(fault)[:40] for fault, _ in FAULTS])
def test_errors_of_every_library_are_converted(
    operation: str, fault: Exception, expected: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the URL, keeps its cause, and is transient only if a retry may succeed."""
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    store = FsspecStore("failing", "bucket", StorageOptions(), 30.0)
    monkeypatch.setattr(FailingFileSystem, "fault", fault)
    if expected is ObjectNotFoundError and operation in ("list", "list_after", "find", "delete", "remove_folder"):
        OPERATIONS[operation](store)  # what is not there is nothing, or removed already
        return
    with pytest.raises(StorageError) as caught:
        OPERATIONS[operation](store)
    assert type(caught.value) is expected
    assert "failing://bucket/d" in str(caught.value)
    assert caught.value.__cause__ is fault


@pytest.mark.parametrize("missing", [FileNotFoundError("d/a")])
@pytest.mark.parametrize(("fault", "expected"), FAULTS, ids=[repr(fault)[:40] for fault, _ in FAULTS])
def test_the_cause_of_a_missing_file_decides(
    missing: FileNotFoundError, fault: Exception, expected: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec's http and ftp report a missing file for every error."""
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    store = FsspecStore("failing", "bucket", StorageOptions(), 30.0)
    missing.__cause__ = fault
    monkeypatch.setattr(FailingFileSystem, "fault", missing)
    with pytest.raises(StorageError) as caught:
        store.stat("d/a")
    assert type(caught.value) is (ObjectNotFoundError if isinstance(fault, KeyError) else expected)


def test_an_unknown_exception_is_in_the_message() -> None:
    error = from_unknown(ValueError("odd"), "hf://bucket/a")
    assert "hf://bucket/a: ValueError: odd" in str(error)


@pytest.mark.parametrize("scheme", ["s3", "http", "datasets", "ftp"])
def test_a_refused_connection_is_transient_and_names_the_server(scheme: str) -> None:
    """And what to check."""
    error = network_error(f"{scheme}://host-a/a", "x", "http://host-b:81/a Connection refused")
    assert isinstance(error, TransientStorageError)
    assert (error.likely_permanent, error.unreachable) == (False, "host-b:81")
    assert "host-b:81 refuses connections (x). Check " in str(error)


def test_a_name_server_that_does_not_answer_is_asked_for_some_seconds() -> None:
    """Unless the host has responded before: then the name is right, and it is asked until the deadline."""
    details = "Temporary failure in name resolution"
    before = network_error("http://host-c/a", "x", details)
    mark_host_known("http://host-c/b")
    after = network_error("http://host-c/a", "x", details)
    assert isinstance(before, TransientStorageError)
    assert isinstance(after, TransientStorageError)
    assert (before.likely_permanent, after.likely_permanent) == (True, False)


@pytest.mark.parametrize(
    ("url", "check"),
    [
        (
            "s3://b/a",
            "endpoint_url (in storage_options, AWS_ENDPOINT_URL or ~/.aws/config), the region and the spelling",
        ),
        ("https://host-d/a", "the host of the URL and the spelling"),
        ("datasets://host-d:1/a", "that `torchdata-remote serve` runs there"),
        ("ftp://host-d/a", "the host in the URL or in storage_options"),
    ],
)
def test_an_unknown_host_says_what_to_check(url: str, check: str) -> None:
    error = network_error(url, "x", "Cannot connect to host host-e:81 Name or service not known")
    assert "No such host: host-e:81. Check " in str(error)
    assert check in str(error)


def test_a_host_that_has_responded_is_never_unknown() -> None:
    """A name server that fails for a while does not end a job that has read from the host."""
    url = "http://host-that-answered/a"
    unknown = "Name or service not known"
    before = network_error(url, "x", unknown)
    mark_host_known(url)
    after = network_error(url, "x", unknown)
    assert isinstance(before, TransientStorageError)
    assert isinstance(after, TransientStorageError)
    assert (before.likely_permanent, after.likely_permanent) == (True, False)


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (404, "NoSuchBucket", "no such bucket: 'photos'. Check its spelling, and that endpoint_url"),
        (403, "InvalidAccessKeyId", "This store does not know the access key."),
        (403, "SignatureDoesNotMatch", "The secret is not that of the access key"),
        (
            400,
            "AuthorizationHeaderMalformed",
            "The bucket is in the region eu-west-1: pass storage_options={'region': 'eu-w",
        ),
        (301, "PermanentRedirect", "The bucket is in the region eu-west-1"),
        (400, "", "It gives no reason. Check the region"),
    ],
)
def test_a_refusal_of_s3_says_what_to_change(status: int, code: str, text: str) -> None:
    assert text in str(from_status(status, code, "s3://photos/a", region="eu-west-1"))


def test_a_refusal_of_a_web_server_does_not_speak_of_s3() -> None:
    assert str(from_status(404, "", "https://h/a")).endswith("the server answered 404. Check host and path.")
    assert "anon" not in str(from_status(403, "", "https://h/a"))


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        ("minio", "did you mean 's3'? Pass the address of the server by storage_options={'endpoint_url': ...}."),
        ("htps", "did you mean 'https'?"),
        ("gs", "the package that reads 'gs' is missing: "),
    ],
)
def test_an_unknown_scheme_suggests_one(scheme: str, text: str) -> None:
    """Or names the missing package."""
    with pytest.raises(UrlError) as caught:
        FsspecStore(scheme, "photos", StorageOptions(), 30.0)
    assert text in str(caught.value)
