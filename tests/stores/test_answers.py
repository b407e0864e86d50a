"""What each answer of a store leads to, by every transport: repeated, continued, refused, or an error at once."""

from __future__ import annotations

import gzip
import itertools
import ssl
from typing import Any

import pytest
import trustme

import torchdata_remote as tdr
from tests.servers.raw import answer, raw
from tests.servers.scripted import Request, Response, scripted
from tests.stores.transports import KEYS, by, target
from tests.support import objects
from torchdata_remote.errors import (
    AccessDeniedError,
    ContentEncodingError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from torchdata_remote.testing import FaultyStore

DATA = bytes(range(256)) * 10
SIZE = len(DATA)
MAX_ATTEMPTS = 8  # at what looks permanent
AT_ONCE = tdr.RetryPolicy(first_wait_s=0)


def gets(requests: list[Request]) -> list[Request]:
    """Those of objects; others are sent to explain an error."""
    return [
        one for one in requests if one.method == "GET" and "list-type" not in one.target and "comp=" not in one.target
    ]


@by()
@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (404, "NoSuchKey"), (401, "Unauthorized")])
def test_a_refused_or_missing_object_is_an_error_after_one_request(transport: str, status: int, code: str) -> None:
    with scripted(lambda request: Response.of_error(status, code)) as server:
        here = target(transport, server.url)
        with pytest.raises(ObjectNotFoundError if status == 404 else AccessDeniedError) as caught:
            here.read(SIZE)
        assert here.url.partition("?")[0] in str(caught.value)
        assert "?x=1" not in str(caught.value)
        sent = [one.target for one in gets(server.requests)]
        assert len(sent) == 1 or (transport in ("hub", "datasets") and len(sent) <= 4), "which ask what is missing"


@by()
def test_a_store_that_is_busy_or_fails_is_asked_again_for_the_same_bytes(transport: str) -> None:
    refusals = [(503, "SlowDown"), (500, "InternalError"), (429, "TooMany"), (502, ""), (504, "")]

    def respond(request: Request) -> Response:
        if request.number <= len(refusals):
            return Response.of_error(*refusals[request.number - 1])
        return Response.of_object(request, DATA)

    with scripted(respond) as server:
        retry = tdr.RetryPolicy(first_wait_s=0, max_attempts=6)
        assert target(transport, server.url).read(SIZE, '"1"', part_bytes=SIZE, retry=retry) == DATA
        sent = gets(server.requests)
        assert len(sent) >= 6
        assert {one.headers.get("range") for one in sent} == {f"bytes=0-{SIZE - 1}"}
        if transport.partition(" ")[0] in ("s3", "gs", "az"):
            assert {one.headers["if-match"] for one in sent} == {'"1"'}


@by()
def test_the_number_of_requests_is_that_of_the_policy_and_the_error_says_all(transport: str) -> None:
    """No layer below retries."""
    with scripted(lambda request: Response.of_error(503, "SlowDown")) as server:
        with pytest.raises(TransientStorageError, match=r"Gave up after 4 attempts") as caught:
            target(transport, server.url).read(SIZE, '"1"', part_bytes=SIZE)
        assert len(server.requests) == 4
        error = caught.value
        assert (error.attempts, error.start_byte, error.end_byte, error.etag) == (4, 0, SIZE, '"1"')
        assert error.elapsed_s is not None


BROKEN = ["cut_body", "cut_without_length", "reset_in_body", "early_end", "reset"]
BROKEN_RANGES = ["short_range", "ignored_range", "shifted_range"]


@by()
@pytest.mark.parametrize("fault", [*BROKEN, *BROKEN_RANGES])
def test_a_body_that_breaks_off_is_continued_and_one_of_another_range_is_not_used(transport: str, fault: str) -> None:
    with (
        scripted(lambda request: Response.of_object(request, DATA)) as server,
        FaultyStore(server.url, seed=3) as store,
    ):
        store.script(fault, None, fault, fault, None)
        retry = tdr.RetryPolicy(first_wait_s=0, max_attempts=9)
        assert target(transport, store.endpoint_url).read(SIZE, '"1"', part_bytes=1000, retry=retry) == DATA
        assert store.counts[fault] >= 1


@by()
@pytest.mark.parametrize("stall", ["stall", "stall_in_body"])
def test_a_request_that_stands_still_is_sent_again_in_time(transport: str, stall: str) -> None:
    with (
        scripted(lambda request: Response.of_object(request, DATA)) as server,
        FaultyStore(server.url, tdr.testing.Faults(stall_s=600)) as store,
    ):
        store.script(stall, None, stall)
        retry = tdr.RetryPolicy(progress_timeout_s=0.3, first_wait_s=0)
        assert target(transport, store.endpoint_url).read(SIZE, '"1"', part_bytes=2000, retry=retry) == DATA
        assert store.counts[stall] == 2
        store.script(*[stall] * 20)
        policy = tdr.RetryPolicy(max_attempts=2, progress_timeout_s=0.3, first_wait_s=0)
        with pytest.raises(TransientStorageError, match="Gave up after 2 attempts"):
            target(transport, store.endpoint_url, "b").read(SIZE, '"1"', retry=policy)


FORMS = ["1f", '"1f"', 'W/"1f"']


@by("az", "hub", "datasets", "gs by obstore")
def test_etags_that_differ_in_form_only_are_one_version(transport: str) -> None:
    """If-Match has quotes, and is not sent for a weak one."""
    answered = FORMS[0]

    def respond(request: Request) -> Response:
        if request.headers.get("if-match", '"1f"') != '"1f"':
            return Response.of_error(412, "PreconditionFailed")
        return Response.of_object(request, DATA, answered)

    with scripted(respond) as server:
        for answered, given in itertools.product(FORMS, [*FORMS, "W/1f"]):  # noqa: B007  # the server uses it
            assert target(transport, server.url).read(SIZE, given, part_bytes=1000) == DATA


KNOWN = ('ETag: "1"', "Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT")
TEN, LENGTH, RANGE = b"0123456789", "Content-Length: 10", "Content-Range: bytes 0-9/10"


HOPELESS = {
    "206 without Content-Range": answer("206 Partial Content", TEN, LENGTH, *KNOWN),
    "206 of an unknown size": answer("206 OK", TEN, "Content-Range: bytes 0-9/*", LENGTH, *KNOWN),
    "206 in several parts": answer("206 OK", TEN, LENGTH, "Content-Type: multipart/byteranges; boundary=x", *KNOWN),
    "another range": answer("206 Partial Content", TEN[:5], "Content-Range: bytes 2-6/10", "Content-Length: 5", *KNOWN),
    "lengths that differ": answer("206 Partial Content", TEN, RANGE, LENGTH, "Content-Length: 11", *KNOWN),
    "a negative length": answer("200 OK", TEN, "Content-Length: -5", *KNOWN),
    "a redirect loop": answer("302 Found", b"", "Location: /a", "Content-Length: 0"),
    "another protocol": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "HTTP/0.9": b"<html>hello</html>\n",
    "400": answer("400 Bad Request", b"no", "Content-Length: 2"),
    "405": answer("405 Method Not Allowed", b"no", "Content-Length: 2"),
}


@by("az", "hub", "gs by obstore")
@pytest.mark.parametrize("case", HOPELESS)
def test_an_answer_that_violates_the_protocol_is_an_error_after_a_few_attempts(transport: str, case: str) -> None:
    """Long before the deadline; it is not transient."""
    with raw(lambda request: HOPELESS[case]) as server:
        with pytest.raises(StorageError) as caught:
            target(transport, server.url).read(10, retry=AT_ONCE)
        assert not isinstance(caught.value, TransientStorageError)
        assert server.num_requests <= 2 * MAX_ATTEMPTS  # by obstore, then by the fallback
        assert caught.value.url is not None


PARTIAL, WHOLE, NOT_SATISFIABLE = "206 Partial Content", "200 OK", "416 Range Not Satisfiable"
# Status, body, Content-Range, whether a length is sent, and the size of the listing
SPANS: dict[str, tuple[str, bytes, str, bool, int | None]] = {
    "one byte": (PARTIAL, b"0", "bytes 0-0/1", True, 1),
    "one byte, unlisted": (PARTIAL, b"0", "bytes 0-0/1", True, None),
    "empty, 0-0/0": (PARTIAL, b"", "bytes 0-0/0", True, None),
    "without a length": (PARTIAL, TEN, "bytes 0-9/10", False, 10),
    "without a length, and longer": (PARTIAL, TEN + b"ab", "bytes 0-9/10", False, 10),
    "start after end": (PARTIAL, b"", "bytes 5-4/10", True, 10),
    "empty of ten": (PARTIAL, b"", "bytes 0--1/10", True, 10),
    "another range of the length": (PARTIAL, TEN, "bytes 1-10/11", True, 10),
    "longer than the object": (PARTIAL, TEN, "bytes 0-9/5", True, 10),
    "no range": (PARTIAL, TEN, "bytes */10", True, 10),
    "no range of an empty one": (PARTIAL, TEN, "bytes */0", True, 10),
    "another unit": (PARTIAL, TEN, "items 0-9/10", True, 10),
    "thousands of digits": (PARTIAL, TEN, f"bytes 0-9/{'9' * 5000}", True, 10),
    "shorter than it says": (PARTIAL, TEN[:6], "bytes 0-9/10", True, 10),
    "shorter, without a length": (PARTIAL, TEN[:6], "bytes 0-9/10", False, 10),
    "an object that grew": (PARTIAL, TEN, "bytes 0-9/12", True, 10),
    "an object that shrank": (PARTIAL, TEN[:6], "bytes 0-5/6", True, 10),
    "whole, longer": (WHOLE, TEN + b"ab", "", True, 10),
    "whole, shorter": (WHOLE, TEN[:6], "", True, 10),
    "whole, of another range": (WHOLE, TEN, "bytes 2-11/12", True, 10),
    "beyond its end": (NOT_SATISFIABLE, b"", "bytes */5", True, 10),
    "beyond its end, now empty": (NOT_SATISFIABLE, b"", "bytes */0", True, 10),
}
NUM_READABLE = 5


@by()
def test_an_answer_to_a_range_is_the_exact_bytes_or_an_error(transport: str) -> None:
    """Never other bytes, fewer, or more."""
    got: dict[str, Any] = {}
    for case, (status, body, span, has_length, size) in SPANS.items():
        lines = [f"Content-Length: {len(body)}"] * has_length + [f"Content-Range: {span}"] * bool(span)
        response = answer(status, body, *lines, *KNOWN)
        with raw(lambda head, response=response: response) as server:  # type: ignore[misc]
            try:
                got[case] = target(transport, server.url).read(size, retry=objects.ONCE)
            except StorageError as error:
                got[case] = error.url is not None
    names = list(SPANS)
    exact: dict[str, Any] = dict(zip(names, [b"0", b"0", b"", TEN, TEN], strict=False))
    if transport in ("gs by obstore", "az"):  # obstore needs a length
        exact |= dict.fromkeys(names[2:NUM_READABLE], True)
    assert got == {**exact, **dict.fromkeys(names[NUM_READABLE:], True)}


@by()
def test_a_further_part_of_another_range_or_object_is_not_put_behind_the_first(transport: str) -> None:
    data = bytes(range(25))
    for wrong in ("0-9/25", "11-20/25", "10-19/26", "10-19/19", "10-18/25", "*/25", "416"):

        def respond(request: Request, wrong: str = wrong) -> Response:
            sound = Response.of_object(request, data)
            if request.headers.get("range") != "bytes=10-19":
                return sound
            if wrong == "416":
                return Response(416, b"", {"Content-Range": "bytes */10"})
            return Response(206, sound.body, {**sound.headers, "Content-Range": f"bytes {wrong}"})

        with scripted(respond) as server:
            with pytest.raises(StorageError) as caught:
                target(transport, server.url).read(25, '"1"', part_bytes=10, retry=objects.ONCE)
            assert caught.value.url is not None


def untrusted() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context


@by("hub")
def test_an_untrusted_certificate_is_an_error_at_the_first_attempt(transport: str) -> None:
    with raw(lambda request: HOPELESS["400"], tls=untrusted()) as server:
        with pytest.raises(StorageError, match="certificate is not trusted") as caught:
            target(transport, server.url).read(10, retry=AT_ONCE)
        assert not isinstance(caught.value, TransientStorageError)
        assert caught.value.attempts == 1


STORED = gzip.compress(DATA)


def stored_as(encoding: str, data: bytes = STORED) -> Any:
    def respond(request: Request) -> Response:
        response = Response.of_object(request, data)
        return Response(response.status, response.body, {**response.headers, "Content-Encoding": encoding})

    return respond


@by("az", "hub", "gs by obstore")
def test_an_object_stored_with_an_encoding_is_refused_unless_its_name_says_so(transport: str) -> None:
    """No encoded byte is taken for the content, and none is decoded on the way."""
    for encoding, name in [("gzip", "cat.jpg"), ("br", "0.jpg"), ("gzip, gzip", "0.tar.gz"), ("zstd", "0.tar.gz")]:
        with scripted(stored_as(encoding)) as server:
            with pytest.raises(ContentEncodingError, match=rf"{name} has Content-Encoding: {encoding}"):
                target(transport, server.url, name).read()
            assert len(gets(server.requests)) == 1
    for encoding, name in [
        ("gzip", "0.tar.gz"),
        ("gzip", "0.tar"),
        ("X-Gzip", "0.TGZ"),
        ("zstd, aws-chunked", "a.zst"),
    ]:
        with scripted(stored_as(encoding)) as server:
            assert target(transport, server.url, name).read() == STORED
    for encoding in ("aws-chunked", "AWS-Chunked, identity", "UTF-8", "binary", "none", ""):
        with scripted(stored_as(encoding, DATA)) as server:
            assert target(transport, server.url, "cat.jpg").read() == DATA
            asked = {request.headers.get("accept-encoding", "identity") for request in server.requests}
            assert asked == {"gzip" if transport.startswith("gs") else "identity"}, "or Google would decompress it"


def test_a_redirect_to_another_host_is_refused_by_s3fs() -> None:
    """Those of the Hub and of web servers are followed, without credentials."""
    away = Response(307, b"", {"Location": "http://127.0.0.1:9/bucket/a"})
    with scripted(lambda request: away) as server:
        with pytest.raises(StorageError, match=r"redirects to http://127\.0\.0\.1:9/bucket/a"):
            target("s3 by s3fs", server.url).read()
        assert len(server.requests) == 1


def listed(server_url: str) -> list[str]:
    options = {**KEYS, "endpoint_url": server_url}
    return list(objects.listed("s3://b/", options, retry=AT_ONCE))


@pytest.mark.parametrize("body", [b"", b"<ListBucketResult><Contents>", b"\x00\x01 no XML", b"<html><body>hi</html>"])
def test_a_listing_that_cannot_be_parsed_is_an_error_and_never_empty(body: bytes) -> None:
    with scripted(lambda request: Response(200, body)) as server:
        with pytest.raises(StorageError) as caught:
            listed(server.url)
        assert not isinstance(caught.value, TransientStorageError)
        assert len(server.requests) <= MAX_ATTEMPTS
