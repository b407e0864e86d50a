"""What S3 answers when something is wrong with the request, the credentials, or the load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.scripted import Request, Response, scripted
from torchdata_remote import Backend, RemoteUrl, RetryPolicy
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from torchdata_remote.fetch.listing.sources import list_source
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage import Connection, open_store

DATA = bytes(range(256)) * 10
BOTH = pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE])
LISTING = (
    b"<ListBucketResult><IsTruncated>false</IsTruncated>"
    b"<Contents><Key>a</Key><Size>1</Size><ETag>1</ETag></Contents></ListBucketResult>"
)
QUICK = RetryPolicy(first_wait_s=0, max_attempts=4)
AT_ONCE = RetryPolicy(first_wait_s=0)


def read(url: str, endpoint_url: str, backend: Backend = Backend.AUTOMATIC, **more: Any) -> bytes:
    options: dict[str, Any] = {"endpoint_url": endpoint_url, "key": "k", "secret": "s", "token": "canary", **more}
    chosen = FetchOptions(retry=QUICK, backend=backend)
    [(_, stream)] = stream_objects([RemoteUrl(url, len(DATA), '"1"')], FetchSession(chosen, StorageOptions(options)))
    with stream:
        return stream.read()


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (404, "NoSuchKey"), (401, "Unauthorized")])
@BOTH
def test_permanent_errors_cost_one_request(backend: Backend, status: int, code: str) -> None:
    """Denied and missing objects."""
    with scripted(lambda request: Response.of_error(status, code)) as server:
        with pytest.raises(ObjectNotFoundError if status == 404 else AccessDeniedError, match="s3://bucket/a"):
            read("s3://bucket/a", server.url, backend)
        sent = [request for request in server.requests if "list-type" not in request.target]  # others are for the error
        assert len(sent) == 1


@pytest.mark.parametrize("backend", ["obstore", "botocore", "fsspec"])
@pytest.mark.parametrize("listed", ["1f", '"1f"', "&quot;1f&quot;", 'W/"1f"', "W/1f"])
@pytest.mark.parametrize("answered", ["1f", '"1f"', 'W/"1f"'])
def test_etags_that_differ_in_form_only_are_one_version(
    backend: str, listed: str, answered: str, tmp_path: Path
) -> None:
    """If-Match has quotes, and is not sent for a weak one; no object counts as changed, and it is cached."""

    def respond(request: Request) -> Response:
        if "list-type=2" in request.target:
            page = LISTING.replace(b">1</", b">%d</" % len(DATA), 1)
            return Response(200, page.replace(b">1</", b">%b</" % listed.encode()))
        if request.headers.get("if-match", '"1f"') != '"1f"':
            return Response.of_error(412, "PreconditionFailed")
        return Response.of_object(request, DATA, answered)

    with scripted(respond) as server:
        options: dict[str, Any] = {"endpoint_url": server.url, "key": "k", "secret": "s"}
        source = IterableWrapper(["s3://bucket/"]).list_remote(storage_options=options)
        pipe = source.async_prefetch(
            backend=backend, cache_dir=str(tmp_path), cache_bytes=1 << 20, storage_options=options
        )
        for _ in range(2):
            [(url, stream)] = [(url, stream.read()) for url, stream in pipe]
            assert (url.etag in ('"1f"', 'W/"1f"'), stream) == (True, DATA)
        gets = [request for request in server.requests if request.method == "GET" and "list-type" not in request.target]
        assert len(gets) == 1


@pytest.mark.parametrize(("backend", "query"), [("automatic", ""), ("automatic", "?x=1"), ("fsspec", "")])
@pytest.mark.parametrize("given", ["1f", '"1f"', 'W/"1f"'])
@pytest.mark.parametrize("answered", ['"1f"', 'W/"1f"'])
def test_etags_of_http_that_differ_in_form_only_are_one_version(
    backend: str, query: str, given: str, answered: str
) -> None:
    """Those that a user passes, too; by each library that reads."""
    with scripted(lambda request: Response.of_object(request, DATA, answered)) as server:
        url = RemoteUrl(f"{server.url}/a{query}", len(DATA), given)
        [data] = [stream.read() for _, stream in IterableWrapper([url]).async_prefetch(backend=backend)]
    assert data == DATA


@pytest.mark.parametrize(
    ("backend", "answers"),
    [
        *((backend, answers) for backend in ("obstore", "botocore", "http") for answers in ('"2f"', '"1f-gzip"')),
        *(("obstore", "412"), ("botocore", "412")),  # http sends no If-Match
    ],
)
def test_a_server_that_lastingly_has_two_etags_for_an_object_is_named(backend: str, answers: str) -> None:
    """Listing again does not help, so the error does not say it; what it says helps."""

    def respond(request: Request) -> Response:
        if "list-type=2" in request.target:
            return Response(200, LISTING.replace(b">1</", b">%d</" % len(DATA), 1).replace(b">1</", b">1f</"))
        if request.method == "HEAD":
            return Response.of_object(request, DATA, '"1f"')
        if request.headers.get("if-match", answers) != answers and answers == "412":
            return Response.of_error(412, "PreconditionFailed")
        return Response.of_object(request, DATA, answers)

    with scripted(respond) as server:
        options: dict[str, Any] = {"endpoint_url": server.url, "key": "k", "secret": "s"}
        url, more = "s3://bucket/a", {"backend": backend, "storage_options": options}
        if backend == "http":
            url, more, options = f"{server.url}/a", {}, {}
        listed = IterableWrapper([url]).list_remote(storage_options=options)
        with pytest.raises(ObjectChangedError, match=r'is still listed with the etag "1f".* two for one') as caught:
            [stream.read() for _, stream in listed.async_prefetch(retry=AT_ONCE, **more)]
        assert "ist it again" not in str(caught.value)
        pipe = listed.map(str).async_prefetch(retry=AT_ONCE, **more)
        assert [stream.read() for _, stream in pipe] == [DATA]


@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE])
def test_an_empty_etag_is_none(backend: Backend) -> None:
    """In listings and in responses."""

    def respond(request: Request) -> Response:
        if "list-type=2" in request.target:
            return Response(200, LISTING.replace(b">1</ETag>", b"></ETag>"))
        return Response.of_object(request, DATA, "")

    with scripted(respond) as server:
        options = StorageOptions({"endpoint_url": server.url, "key": "k", "secret": "s"})
        store, path = open_store("s3://bucket/a", options, Connection(backend))
        [entry] = store.list_page("", recursive=True, token=None).entries
        answer = store.read(path, 0, 10, entry.etag)
        assert (entry.etag, answer.etag, answer.whole()) == (None, None, DATA[:10])


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (429, "TooMany"), (504, "")])
@BOTH
def test_transient_errors_are_retried(backend: Backend, status: int, code: str) -> None:
    """With the same range and version, until the store responds."""

    def respond(request: Request) -> Response:
        return Response.of_error(status, code) if request.number < 4 else Response.of_object(request, DATA)

    with scripted(respond) as server:
        assert read("s3://bucket/a", server.url, backend) == DATA
        assert len(server.requests) == 4
        assert {(each.headers["range"], each.headers["if-match"]) for each in server.requests} == {
            (f"bytes=0-{len(DATA) - 1}", '"1"')
        }


def test_the_number_of_requests_is_that_of_the_policy() -> None:
    """No layer below retries; obstore and the fallback take turns."""
    with scripted(lambda request: Response.of_error(503, "SlowDown")) as server:
        with pytest.raises(TransientStorageError, match=r"Gave up after 4 attempts") as caught:
            read("s3://bucket/a", server.url)
        assert len(server.requests) == 4
        assert (caught.value.attempts, caught.value.start_byte, caught.value.end_byte) == (4, 0, len(DATA))
        assert caught.value.etag == '"1"'
        assert "canary" not in str(caught.value)


def test_retry_after_is_honoured() -> None:
    """Although obstore does not show that header."""

    def respond(request: Request) -> Response:
        refusal = Response.of_error(503, "SlowDown", {"Retry-After": "1"})
        return refusal if request.number < 3 else Response.of_object(request, DATA)

    with scripted(respond) as server:
        assert read("s3://bucket/a", server.url) == DATA
        first, second, third = server.requests
        assert "object_store" in first.headers["user-agent"]
        assert "otocore" in second.headers["user-agent"]
        assert third.time_s - second.time_s >= 1.0
        assert "object_store" not in third.headers["user-agent"] or third.number == 3


@pytest.mark.parametrize(("status", "code"), [(400, "ExpiredToken"), (403, "RequestTimeTooSkewed")])
@BOTH
def test_expired_credentials_are_loaded_again(
    backend: Backend, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an error, if there are new ones."""
    for name, value in (("AWS_ACCESS_KEY_ID", "OLD"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SESSION_TOKEN", "t")):
        monkeypatch.setenv(name, value)

    def respond(request: Request) -> Response:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NEW")
        fresh = "Credential=NEW/" in request.headers["authorization"]
        return Response.of_object(request, DATA) if fresh else Response.of_error(status, code)

    with scripted(respond) as server:
        from_environment = {"key": None, "secret": None, "token": None}
        assert read("s3://bucket/a", server.url, backend, **from_environment) == DATA
        assert len(server.requests) == 2


@BOTH
def test_credentials_that_stay_expired_are_an_error(backend: Backend) -> None:
    """After the second request; it says what to do."""
    with scripted(lambda request: Response.of_error(400, "ExpiredToken")) as server:
        with pytest.raises(ExpiredCredentialsError, match="Renew the credentials") as caught:
            read("s3://bucket/a", server.url, backend)
        assert len(server.requests) == 2
        assert "canary" not in repr(caught.value)


def test_a_listing_loads_expired_credentials_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OLD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")

    def respond(request: Request) -> Response:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NEW")
        fresh = "Credential=NEW/" in request.headers["authorization"]
        return Response(200, LISTING) if fresh else Response.of_error(400, "ExpiredToken")

    with scripted(respond) as server:
        options = StorageOptions({"endpoint_url": server.url})
        assert list(list_source("s3://b/", pattern=None, recursive=True, options=options, retry=QUICK)) == ["s3://b/a"]


def test_botocore_refuses_redirects_to_another_host() -> None:
    """The token is not sent there, and no byte is read from there."""
    with scripted(lambda request: Response.of_object(request, DATA)) as other:

        def respond(request: Request) -> Response:
            return Response(307, b"", {"Location": f"{other.url}/bucket/a"})

        with scripted(respond) as server:
            with pytest.raises(StorageError, match=f"redirects to {other.url}/bucket/a"):
                read("s3://bucket/a", server.url, Backend.BOTOCORE)
            assert len(server.requests) == 1
        assert not other.requests


def test_a_bucket_in_another_region_is_read_by_botocore(caplog: pytest.LogCaptureFixture) -> None:
    """AWS sends a 301 without Location, and botocore looks up the region; obstore is not used again."""

    def respond(request: Request) -> Response:
        by_obstore = "object_store" in request.headers["user-agent"]
        return Response(301) if by_obstore else Response.of_object(request, DATA)

    with scripted(respond) as server:
        assert read("s3://bucket/a", server.url) == DATA
        assert len(server.requests) == 2
        assert "not in the configured region" in caplog.text
        assert read("s3://bucket/b", server.url) == DATA
        assert len(server.requests) == 3


@pytest.mark.parametrize("body", [b"", b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"])
def test_a_truncated_page_of_a_listing_is_retried(body: bytes) -> None:
    """An empty body, which is an empty listing for botocore, and a page without its token."""

    def respond(request: Request) -> Response:
        return Response(200, body if request.number < 3 else LISTING)

    options: dict[str, Any] = {"key": "k", "secret": "s"}
    with scripted(respond) as server:
        options["endpoint_url"] = server.url
        found = list_source("s3://b/", pattern=None, recursive=True, options=StorageOptions(options), retry=QUICK)
        assert list(found) == ["s3://b/a"]
        assert len(server.requests) == 3


def test_s3fs_does_not_retry_by_itself() -> None:
    """The number of requests is that of the policy."""
    with scripted(lambda request: Response.of_error(503, "SlowDown")) as server:
        with pytest.raises(TransientStorageError, match=r"Gave up after 4 attempts"):
            read("s3://bucket/a", server.url, Backend.FSSPEC)
        assert len(server.requests) == 4


def test_an_invalid_retry_after_is_ignored() -> None:
    for value in ("soon", "\u00b2", "-1", "", f"Wed, 21 Oct 2015 07:28:00 +{'9' * 30}"):

        def respond(request: Request, value: str = value) -> Response:
            refusal = Response.of_error(503, "SlowDown", {"Retry-After": value})
            return refusal if request.number < 3 else Response.of_object(request, DATA)

        with scripted(respond) as server:
            assert read("s3://bucket/a", server.url) == DATA


@BOTH
def test_credentials_that_cannot_be_loaded_are_an_error_at_once(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper that fails is an AccessDeniedError, by either transport."""
    config = tmp_path / "config"
    config.write_text("[profile broken]\ncredential_process = false\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with scripted(lambda request: Response.of_object(request, DATA)) as server:
        none = {"key": None, "secret": None, "token": None}
        with pytest.raises(AccessDeniedError, match=r"s3://bucket/?a?: "):
            read("s3://bucket/a", server.url, backend, profile="broken", **none)
        assert not server.requests
