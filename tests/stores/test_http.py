"""Web servers as stores: with and without ranges, signed URLs, headers that stay at their host."""

from __future__ import annotations

import re
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.servers.scripted import Request, Response, Scripted, scripted
from tests.support import objects
from torchdata_remote.errors import (
    StorageError,
    UrlError,
)

PATHS = ["/a.bin", "/a%20b.bin", "/a+b.bin", "/dir//a.bin", "/%C3%A5.bin", "/~a(1),b.bin"]
QUERIES = ["/a.bin?x=1", "/a.bin?x=a%2Fb&sig=a%2Bb%3D"]


class Site:
    """Objects by path and query, and what a server does with them."""

    def __init__(self, *, honours_ranges: bool) -> None:
        self.honours_ranges = honours_ranges
        self.objects: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.server = Scripted("", [])

    @property
    def url(self) -> str:
        return self.server.url

    def respond(self, request: Request) -> Response:
        if request.target in self.redirects:
            return Response(302, b"", {"Location": self.redirects[request.target]})
        if request.method == "HEAD":  # a URL may be signed for GET only
            return Response(403)
        if request.target not in self.objects:
            return Response(404, b"not here")
        data = self.objects[request.target]
        if not self.honours_ranges:
            return Response(200, data, {"Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"})
        first = re.match(r"bytes=(\d+)-", request.headers.get("range", "bytes=0-"))
        if first is not None and "range" in request.headers and int(first[1]) >= len(data):
            return Response(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return Response.of_object(request, data, f'"{abs(hash(data)):x}"')


@pytest.fixture(params=[True, False], ids=["ranges", "no ranges"])
def site(request: pytest.FixtureRequest) -> Any:
    """Each kind of server in turn."""
    running = Site(honours_ranges=request.param)
    with scripted(running.respond) as running.server:
        yield running


@pytest.fixture
def ranged() -> Any:
    running = Site(honours_ranges=True)
    with scripted(running.respond) as running.server:
        yield running


@pytest.fixture
def other() -> Any:
    """Another host: it has another port."""
    running = Site(honours_ranges=False)
    with scripted(running.respond) as running.server:
        yield running


@pytest.mark.parametrize("path", [*PATHS, *QUERIES])
def test_path_and_query_are_sent_unchanged(site: Site, path: str) -> None:
    """A signature covers them."""
    site.objects[path] = b"0123456789"
    assert objects.found(site.url + path).size == 10
    assert objects.read(site.url + path) == b"0123456789"
    assert {request.target for request in site.server.requests} == {path}


@pytest.mark.parametrize("query", ["", "?x=1"])
def test_redirects_are_followed_for_sizes_and_bytes(site: Site, other: Site, query: str) -> None:
    """Within the host and to another one."""
    site.objects["/b.bin"] = other.objects["/b.bin?sig=1"] = b"0123456789"
    for target in (f"{site.url}/b.bin", f"{other.url}/b.bin?sig=1"):
        site.redirects["/a.bin" + query] = target
        url = objects.found(f"{site.url}/a.bin{query}")
        assert (url.size, objects.read(url, part_bytes=4)) == (10, b"0123456789")


def test_folders_cannot_be_listed_and_an_object_is_a_listing_of_itself(site: Site) -> None:
    """The error says what to do instead. A pattern is for the name. An object is not looked up."""
    for url in (site.url, f"{site.url}/", f"{site.url}/dir/"):
        with pytest.raises(UrlError, match="brace range"):
            objects.listed(url)
    site.objects["/a.tar"] = site.objects["/a.tar?sig=a/b"] = b"12345"
    for source in (f"{site.url}/a.tar", f"{site.url}/a.tar?sig=a/b", f"{site.url}/{{a,b}}.tar?sig=a/b"):
        first, *_ = objects.listed(source, pattern="*.tar")
        assert first == source.replace("{a,b}", "a")
    site.server.requests.clear()
    assert objects.listed(f"{site.url}/b.tar") == [f"{site.url}/b.tar"]
    assert site.server.requests == []


@pytest.mark.parametrize("query", ["", "?x=1"])
def test_a_server_without_a_length_is_read_whole_or_refused_at_once(query: str) -> None:
    """It is not asked for minutes."""
    from tests.servers.raw import answer, raw

    with raw(lambda head: answer("200 OK", b"a\r\n0123456789\r\n0\r\n\r\n", "Transfer-Encoding: chunked")) as server:
        assert objects.read(f"{server.url}/a{query}") == b"0123456789"
        assert server.num_requests < 5
    with raw(lambda head: answer("200 OK", b"0123456789")) as server:
        with pytest.raises(StorageError):
            objects.read(f"{server.url}/a{query}", retry=tdr.RetryPolicy(first_wait_s=0))
        assert server.num_requests <= 16


@pytest.mark.parametrize("query", ["", "?x=1"])
@pytest.mark.parametrize("name", ["Authorization", "Private-Token"])
def test_headers_are_sent_and_stay_at_their_host(ranged: Site, other: Site, query: str, name: str) -> None:
    """By each library, after redirects within the host, and not to another one."""
    options = {"headers": {name: "secret-canary", "User-Agent": "tests"}}
    ranged.objects["/a.bin" + query] = other.objects["/b.bin"] = b"0123456789"
    ranged.redirects["/moved.bin" + query] = f"{ranged.url}/a.bin{query}"
    ranged.redirects["/away.bin" + query] = f"{other.url}/b.bin"
    for path in ("a.bin", "moved.bin", "away.bin"):
        url = objects.found(f"{ranged.url}/{path}{query}", options)
        assert objects.read(url, options) == b"0123456789"
    here = ranged.server.requests
    assert {(one.headers[name.lower()], one.headers["user-agent"]) for one in here} == {("secret-canary", "tests")}
    assert other.server.requests
    assert "secret-canary" not in str(other.server.requests)
