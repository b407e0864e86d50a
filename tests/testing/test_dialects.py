"""The faulty store in front of stores other than S3: their listings, ranges, errors and redirects."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from email.message import Message

import pytest

from tests.servers.scripted import Request, Response, scripted
from torchdata_remote.testing import Faults, FaultyStore

DATA = b"0123456789"


def get(url: str, **headers: str) -> tuple[int, Message, bytes]:
    """Status, headers and body; redirects are followed."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    with contextlib.ExitStack() as stack:
        try:
            response = stack.enter_context(urllib.request.urlopen(request, timeout=20))
        except urllib.error.HTTPError as error:
            response = error
        return response.status, response.headers, response.read()


@pytest.mark.parametrize(
    "target",
    [
        "/bucket?list-type=2&prefix=a",
        "/account/container?restype=container&comp=list&marker=",
        "/api/datasets/org/name/tree/main/a%20b?recursive=1",
        "/api/datasets/name/tree/refs%2Fpr%2F1/",
        "/datasets/photos/files?limit=10",
        "/storage/v1/b/bucket/o?prefix=a",
    ],
)
def test_listings_of_each_dialect_are_left_intact_unless_they_are_to_be_broken(target: str) -> None:
    """By ``listings=``, as those of S3."""
    with scripted(lambda request: Response(200, b"[]")) as upstream:
        with FaultyStore(upstream.url, Faults(internal_error=1)) as store:
            assert get(store.endpoint_url + target)[0] == 200
        with FaultyStore(upstream.url, Faults(internal_error=1, listings=True)) as store:
            assert get(store.endpoint_url + target)[0] == 500


@pytest.mark.parametrize(
    "target",
    [
        "/bucket/api/datasets/tree",
        "/account/container/a?comp=block&blockid=x",
        "/datasets/org/name/resolve/main/tree/a",
        "/datasets/photos/files/a.jpg",
        "/storage/v1/b/bucket/o/a",
    ],
)
def test_objects_of_each_dialect_are_broken(target: str) -> None:
    """Whatever words their names contain."""
    faults = Faults(internal_error=1)
    with scripted(lambda request: Response(200, DATA)) as upstream, FaultyStore(upstream.url, faults) as store:
        assert get(store.endpoint_url + target)[0] == 500


def test_a_range_in_azures_header_is_a_range() -> None:
    """It is recorded, can have the faults of ranges, and is removed from a request of the whole object."""

    def respond(request: Request) -> Response:
        if "x-ms-range" in request.headers:
            return Response(206, DATA[2:5], {"Content-Range": "bytes 2-4/10"})
        return Response(200, DATA)

    with scripted(respond) as upstream, FaultyStore(upstream.url) as store:
        store.script("ignored_range", "short_range")
        status, _, body = get(store.endpoint_url + "/account/box/a", x_ms_range="bytes=2-4")
        assert (status, body) == (200, DATA)
        status, headers, body = get(store.endpoint_url + "/account/box/a", x_ms_range="bytes=2-4")
        assert headers["Content-Range"] == f"bytes 2-{1 + len(body)}/10"
        assert len(body) < 3
        assert store.requests[0].range == "bytes=2-4"


def test_errors_have_the_codes_of_azure_for_its_clients() -> None:
    """In the body and in the header that its libraries read."""
    with scripted(lambda request: Response(200, DATA)) as upstream, FaultyStore(upstream.url) as store:
        store.script("slow_down", "slow_down")
        _, headers, body = get(store.endpoint_url + "/account/box/a", x_ms_version="2024-11-04")
        assert b"<Code>ServerBusy</Code>" in body
        assert headers["x-ms-error-code"] == "ServerBusy"
        _, headers, body = get(store.endpoint_url + "/bucket/a")
        assert b"<Code>SlowDown</Code>" in body
        assert "x-ms-error-code" not in headers


def test_too_many_requests_say_when_to_ask_again() -> None:
    """By ``retry_after_s``; the upstream server gets no request."""
    faults = Faults(too_many_requests=1, retry_after_s=7)
    with scripted(lambda request: Response(200, DATA)) as upstream, FaultyStore(upstream.url, faults) as store:
        status, headers, _ = get(store.endpoint_url + "/bucket/a")
        assert (status, headers["Retry-After"]) == (429, "7")
        assert upstream.requests == []


def test_the_target_of_a_redirect_is_broken_too() -> None:
    """It is another address, as without the proxy, and has the same faults; a relative target is left as it is."""
    with scripted(lambda request: Response(200, DATA)) as target:
        places = {"/far": f"{target.url}/blob/1?signature=a%2Fb", "/near": "/here"}

        def respond(request: Request) -> Response:
            if request.target in places:
                return Response(302, b"", {"Location": places[request.target]})
            return Response(200, b"here")

        with scripted(respond) as upstream, FaultyStore(upstream.url) as store:
            assert get(store.endpoint_url + "/far")[::2] == (200, DATA)
            assert get(store.endpoint_url + "/near")[::2] == (200, b"here")
            store.script(None, "internal_error")
            assert get(store.endpoint_url + "/far")[0] == 500
            assert [request.target for request in target.requests] == ["/blob/1?signature=a%2Fb"]
            assert target.requests[0].headers["host"] not in (upstream.url[7:], store.endpoint_url[7:])
            assert [request.path for request in store.requests] == [
                "/far",
                "/blob/1",
                "/near",
                "/here",
                "/far",
                "/blob/1",
            ]
            assert store.counts == {"well": 5, "internal_error": 1}
