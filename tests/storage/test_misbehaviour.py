"""Servers that violate their protocol: read if the responses are unambiguous, else refused after a few attempts."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time
from typing import Any

import pytest

from tests.servers.raw import answer, raw
from tests.servers.scripted import Request, Response, scripted
from torchdata_remote import Backend, RemoteUrl, RetryPolicy
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.core.retry import MAX_LIKELY_PERMANENT
from torchdata_remote.errors import ObjectChangedError, StorageError, TransientStorageError
from torchdata_remote.fetch.listing.sources import list_source
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage import network_errors as _errors
from torchdata_remote.storage.preferred_reader import MAX_UNREADABLE

DATA = b"0123456789"
KNOWN = ('ETag: "1"', "Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT")
LENGTH, RANGE = "Content-Length: 10", "Content-Range: bytes 0-9/10"
TRANSPORTS = {
    "s3 by obstore": ("s3://bucket/a", Backend.OBSTORE),
    "s3 by botocore": ("s3://bucket/a", Backend.BOTOCORE),
    "http by obstore": ("{url}/a", Backend.AUTOMATIC),
    "http by urllib3": ("{url}/a?x=1", Backend.AUTOMATIC),
    "service": ("datasets://{host}/d/a", Backend.AUTOMATIC),
}
EACH = pytest.mark.parametrize("transport", TRANSPORTS)
_MAKE_CERTIFICATE = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
EAGER = RetryPolicy(first_wait_s=0, deadline_s=20)


def read(
    transport: str, server_url: str, size: int | None = None, retry: RetryPolicy = EAGER, part_bytes: int | None = None
) -> bytes:
    template, backend = TRANSPORTS[transport]
    url = template.format(url=server_url, host=server_url.partition("://")[2])
    options: dict[str, Any] = {}
    if url.startswith("s3"):
        options = {"endpoint_url": server_url, "key": "k", "secret": "s"}
    if url.startswith("datasets") and server_url.startswith("https"):
        options = {"secure": True}
    fetch = FetchOptions(retry=retry, backend=backend, part_bytes=part_bytes)
    [(_, stream)] = stream_objects([RemoteUrl(url, size)], FetchSession(fetch, StorageOptions(options)))
    with stream:
        return stream.read()


READABLE: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "total unknown": ("206 Partial Content", DATA, ("Content-Range: bytes 0-9/*", LENGTH)),
    "empty, 0-0/0": ("206 Partial Content", b"", ("Content-Range: bytes 0-0/0", "Content-Length: 0")),
    "empty, */0": ("206 Partial Content", b"", ("Content-Range: bytes */0", "Content-Length: 0")),
    "empty, 0--1/0": ("206 Partial Content", b"", ("Content-Range: bytes 0--1/0", "Content-Length: 0")),
    "length twice": ("206 Partial Content", DATA, (RANGE, LENGTH, LENGTH)),
    "200 with a Content-Range": ("200 OK", DATA, (RANGE, LENGTH)),
    "a Last-Modified that is no date": ("206 Partial Content", DATA, (RANGE, LENGTH, "Last-Modified: yesterday")),
    "a file name in UTF-8": (
        "206 Partial Content",
        DATA,
        (RANGE, LENGTH, 'Content-Disposition: attachment; filename="\xc3\xa9.jpg"'),
    ),
    "metadata in UTF-8": ("206 Partial Content", DATA, (RANGE, LENGTH, "x-amz-meta-title: \xc3\xa9")),
    "a content type beyond ASCII": ("206 Partial Content", DATA, (RANGE, LENGTH, "Content-Type: text/\xe9")),
}


@EACH
@pytest.mark.parametrize("case", READABLE)
def test_unusual_but_unambiguous_responses_are_read(transport: str, case: str) -> None:
    """Without a retry: what RFC 9110 allows, and violations with one possible meaning."""
    status, body, headers = READABLE[case]
    if transport == "service" and case in ("total unknown", "200 with a Content-Range"):
        pytest.skip("our own service does not answer like this, so that it is not our service")

    def respond(request: str) -> bytes:
        if request.startswith("HEAD"):
            return answer("200 OK", b"", LENGTH, *KNOWN)
        return answer(status, body, *headers, *(known for known in KNOWN if known[:4] not in str(headers)))

    with raw(respond) as server:
        assert read(transport, server.url, len(body)) == body
        assert read(transport, server.url) == body
        assert server.num_requests <= 6


HOPELESS = {
    "206 without Content-Range": answer("206 Partial Content", DATA, LENGTH, *KNOWN),
    "206 in several parts": answer("206 OK", DATA, LENGTH, "Content-Type: multipart/byteranges; boundary=x", *KNOWN),
    "another range": answer(
        "206 Partial Content", DATA[:5], "Content-Range: bytes 2-6/10", "Content-Length: 5", *KNOWN
    ),
    "lengths that differ": answer("206 Partial Content", DATA, RANGE, LENGTH, "Content-Length: 11", *KNOWN),
    "a negative length": answer("200 OK", DATA, "Content-Length: -5", *KNOWN),
    "a redirect loop": answer("302 Found", b"", "Location: /a", "Content-Length: 0"),
    "another protocol": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "HTTP/0.9": b"<html>hello</html>\n",
    "204": answer("204 No Content"),
    "400": answer("400 Bad Request", b"no", "Content-Length: 2"),
    "405": answer("405 Method Not Allowed", b"no", "Content-Length: 2"),
    "501": answer("501 Not Implemented", b"no", "Content-Length: 2"),
}


@EACH
@pytest.mark.parametrize("case", HOPELESS)
def test_permanent_protocol_errors_end_after_a_few_attempts(transport: str, case: str) -> None:
    """They are raised long before the deadline, and are not transient."""
    with raw(lambda request: HOPELESS[case]) as server:
        with pytest.raises(StorageError) as caught:
            read(transport, server.url, 10)
        assert not isinstance(caught.value, TransientStorageError)
        assert server.num_requests <= 2 * MAX_LIKELY_PERMANENT  # by obstore, then by the fallback
        assert caught.value.url is not None


def test_permanent_protocol_errors_end_within_10_s_by_default() -> None:
    """Seven waits, the longest of 3.2 s."""
    with raw(lambda request: HOPELESS["206 without Content-Range"]) as server:
        began_s = time.monotonic()
        with pytest.raises(StorageError, match="Gave up after 8 attempts"):
            read("http by urllib3", server.url, 10, RetryPolicy())
        assert time.monotonic() - began_s < 10


@EACH
@pytest.mark.parametrize("broken", ["206 without Content-Range", "another range", "another protocol"])
def test_a_few_broken_responses_are_retried(transport: str, broken: str) -> None:
    """The mistakes of a proxy cost retries, not the job."""
    sound = answer("206 Partial Content", DATA, RANGE, LENGTH, *KNOWN)
    with raw(lambda request: HOPELESS[broken] if server.num_requests < MAX_LIKELY_PERMANENT else sound) as server:
        assert read(transport, server.url, 10) == DATA


@EACH
def test_an_unknown_host_name_is_an_error_after_a_few_attempts(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so. (With the default policy it is raised within ten seconds, as all errors that look permanent.)"""
    monkeypatch.setattr(_errors, "_known_hosts", set())  # by other tests, for a bucket of this name
    # A lost packet to the name server of this machine costs five seconds
    monkeypatch.setattr("torchdata_remote.core.retry.LIKELY_PERMANENT_S", 300.0)
    with pytest.raises(StorageError, match="No such host") as caught:
        read(transport, "http://no-such-host.invalid", 10, RetryPolicy(first_wait_s=0, deadline_s=300))
    assert not isinstance(caught.value, TransientStorageError)
    assert caught.value.attempts == MAX_LIKELY_PERMANENT


@pytest.fixture(scope="module")
def untrusted(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server's context with a self-signed certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [*_MAKE_CERTIFICATE.split(), "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@EACH
def test_an_untrusted_certificate_is_refused_at_the_first_attempt(transport: str, untrusted: ssl.SSLContext) -> None:
    """By each transport."""
    with raw(lambda request: HOPELESS["400"], tls=untrusted) as server:
        with pytest.raises(StorageError, match="certificate is not trusted") as caught:
            read(transport, server.url, 10)
        assert not isinstance(caught.value, TransientStorageError)
        assert caught.value.attempts == 1


@EACH
def test_https_to_an_http_port_is_an_error_after_a_few_attempts(transport: str) -> None:
    """By each transport."""
    with raw(lambda request: HOPELESS["400"]) as server:
        with pytest.raises(StorageError) as caught:
            read(transport, server.url.replace("http:", "https:"), 10)
        assert not isinstance(caught.value, TransientStorageError)


@pytest.mark.parametrize("body", [b"", b"<ListBucketResult><Contents>", b"\x00\x01 no XML", b"<html><body>hi</html>"])
def test_a_listing_that_cannot_be_parsed_is_an_error(body: bytes) -> None:
    """After a few attempts, and never an empty listing."""
    with scripted(lambda request: Response(200, body)) as server:
        options: dict[str, Any] = {"key": "k", "secret": "s", "endpoint_url": server.url}
        with pytest.raises(StorageError) as caught:
            list(list_source("s3://b/", pattern=None, recursive=True, options=StorageOptions(options), retry=EAGER))
        assert not isinstance(caught.value, TransientStorageError)
        assert len(server.requests) <= MAX_LIKELY_PERMANENT


@pytest.mark.parametrize("transport", ["s3 by obstore", "s3 by botocore"])
@pytest.mark.parametrize("with_range", [False, True])
def test_an_s3_server_that_sends_200_for_ranges_is_read(transport: str, with_range: bool) -> None:
    """In parts if it sends Content-Range (like rclone), else whole, and soon in one request each."""
    data = bytes(range(256)) * 40

    def respond(request: Request) -> Response:
        ranged = Response.of_object(request, data)
        if not with_range:
            return Response(200, data, {"ETag": '"1"', "Last-Modified": KNOWN[1].partition(": ")[2]})
        return Response(200, ranged.body, ranged.headers)

    with scripted(respond) as server:
        assert len(data) > 1000 * MAX_UNREADABLE
        assert read(transport, server.url, len(data), part_bytes=1000) == data
        if not with_range:
            server.requests.clear()
            assert read(transport, server.url, len(data), part_bytes=1000) == data
            assert len(server.requests) == 1


@pytest.mark.parametrize("transport", ["s3 by obstore", "http by obstore"])
def test_a_host_whose_responses_obstore_cannot_read_is_read_by_the_fallback(
    transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Only by the fallback after a few such responses, with one warning."""

    def respond(request: Request) -> Response:
        sound = Response.of_object(request, DATA)
        return Response(sound.status, sound.body, {**sound.headers, "Last-Modified": "never"})

    with scripted(respond) as server:
        for _ in range(MAX_UNREADABLE):
            assert read(transport, server.url, 10) == DATA
        server.requests.clear()
        assert read(transport, server.url, 10) == DATA
        assert len(server.requests) == 1
        assert "object_store" not in server.requests[0].headers["user-agent"]
    assert caplog.text.count("it is read without obstore") == 1


def test_a_size_of_another_version_is_not_used() -> None:
    """A size that is requested separately must be of the version whose bytes were received."""

    def respond(request: str) -> bytes:
        if request.startswith("HEAD"):
            return answer("200 OK", b"", "Content-Length: 12", 'ETag: "2"')
        return answer("206 Partial Content", DATA, "Content-Range: bytes 0-9/*", LENGTH, *KNOWN)

    with raw(respond) as server, pytest.raises(StorageError, match="does not send the size of the version"):
        read("http by urllib3", server.url)


def test_an_object_that_became_empty_has_changed() -> None:
    """A 206 without bytes, where ten bytes were listed."""
    empty = answer("206 Partial Content", b"", "Content-Range: bytes */0", "Content-Length: 0", *KNOWN)
    with raw(lambda request: empty) as server, pytest.raises(ObjectChangedError):
        read("s3 by botocore", server.url, 10)
