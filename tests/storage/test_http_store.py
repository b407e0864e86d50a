"""HTTP as a store, against servers that do and do not honour ranges."""

from __future__ import annotations

import contextlib
import email.utils
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from tests.servers.threaded import in_thread
from tests.support.read_once import read_once
from torchdata_remote import AsyncPrefetch, Backend, ListRemote, RemoteUrl, RetryPolicy, stream_shards
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ObjectChangedError,
    ObjectNotFoundError,
    ShardCorruptError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.fetch.listing.lookups import MAX_AHEAD_BY_HEAD
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage import RangeNotSatisfiableError, Store, open_store
from torchdata_remote.storage.http.headers import http_headers
from torchdata_remote.storage.http_store import HttpStore
from torchdata_remote.testing import write_small_shards

ONE_ATTEMPT = RetryPolicy(max_attempts=1)


class Site(ThreadingHTTPServer):
    """A server with its objects, by path and query, and its behaviour."""

    daemon_threads = True

    def __init__(self, *, honours_ranges: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.honours_ranges = honours_ranges
        self.chunked = False
        self.refuses_head = 0  # the status of its answers
        self.retry_after = ""
        self.headers: list[tuple[str, dict[str, str]]] = []
        self.waiting: set[str] = set()  # paths whose requests wait for each other
        self.together = threading.Barrier(32)
        self.now_together = self.most_together = 0
        self.counting = threading.RLock()
        self.cuts_bodies = False
        self.etags: dict[str, str] = {}
        self.objects: dict[str, bytes] = {}
        self.statuses: dict[str, int] = {}
        self.redirects: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def do_HEAD(self) -> None:
        self.do_GET(with_body=False)

    def do_GET(self, with_body: bool = True) -> None:
        site = self.server
        site.requests.append((self.command, self.path))
        site.headers.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        with site.counting:
            site.now_together += 1
            site.most_together = max(site.most_together, site.now_together)
        if self.path in site.waiting:
            with contextlib.suppress(threading.BrokenBarrierError):
                site.together.wait(20)
        try:
            self._serve(site, with_body)
        finally:
            with site.counting:
                site.now_together -= 1

    def _serve(self, site: Site, with_body: bool) -> None:
        if self.path in site.redirects:
            self._answer(302, b"", with_body, Location=site.redirects[self.path])
        elif self.path in site.statuses or (not with_body and site.refuses_head):
            self._answer(site.statuses.get(self.path, site.refuses_head), b"sorry", with_body)
        elif self.path not in site.objects:
            self._answer(404, b"not here", with_body)
        else:
            self._object(site.objects[self.path], with_body)

    def _object(self, data: bytes, with_body: bool) -> None:
        headers = {"Last-Modified": email.utils.formatdate(0, usegmt=True)}
        if self.server.honours_ranges:
            headers["ETag"] = self.server.etags.get(self.path, f'"{hash(data):x}"')
            headers["Accept-Ranges"] = "bytes"
            wanted_range = self.headers.get("Range")
            if wanted_range is not None:
                first, last = (int(part) if part else None for part in wanted_range.removeprefix("bytes=").split("-"))
                assert first is not None
                if first >= len(data):
                    self._answer(416, b"", with_body, **{"Content-Range": f"bytes */{len(data)}"})
                    return
                end = len(data) if last is None else min(last + 1, len(data))
                headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
                self._answer(206, data[first:end], with_body, **headers)
                return
        self._answer(200, data, with_body, **headers)

    def _answer(self, status: int, data: bytes, with_body: bool, **headers: str) -> None:
        self.send_response(status)
        if self.server.retry_after:
            self.send_header("Retry-After", self.server.retry_after)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.server.chunked and status == 200:
            self.send_header("Transfer-Encoding", "chunked")
            data = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        else:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data[:-20] if self.server.cuts_bodies else data)
            self.close_connection = self.server.cuts_bodies

    def log_message(self, *arguments: Any) -> None:
        """Write no log."""


def serve(site: Site) -> Iterator[Site]:
    with in_thread(site):
        yield site


@pytest.fixture
def with_ranges() -> Iterator[Site]:
    yield from serve(Site(honours_ranges=True))


@pytest.fixture
def without_ranges() -> Iterator[Site]:
    yield from serve(Site(honours_ranges=False))


@pytest.fixture(params=["with_ranges", "without_ranges"])
def site(request: pytest.FixtureRequest) -> Site:
    """Each kind of server in turn."""
    server: Site = request.getfixturevalue(request.param)
    return server


def opened(url: str) -> tuple[Store, str]:
    return open_store(url, StorageOptions())


def fetch(*urls: str, part_bytes: int = 1 << 20, retry: RetryPolicy = ONE_ATTEMPT) -> list[bytes]:
    pipe = AsyncPrefetch(IterableWrapper(urls), part_bytes=part_bytes, retry=retry)
    return [stream.read() for _, stream in pipe]


@settings(max_examples=30)
@given(data=st.binary(max_size=200), part_bytes=st.integers(1, 210))
def test_objects_of_any_size_are_read_in_any_parts(site: Site, data: bytes, part_bytes: int) -> None:
    """From servers that honour ranges, and from those that do not."""
    site.objects["/a.bin"] = site.objects["/b.bin?x=1"] = data
    assert fetch(site.url + "/a.bin", site.url + "/b.bin?x=1", part_bytes=part_bytes) == [data, data]


@pytest.mark.parametrize(
    "path",
    [
        "/a.bin",
        "/a%20b.bin",
        "/a+b.bin",
        "/dir//a.bin",
        "/a.bin?x=1",
        "/a.bin?x=a%2Fb&sig=a%2Bb%3D",
        "/%C3%A5.bin",
        "/~a(1),b.bin",
    ],
)
def test_path_and_query_are_sent_unchanged(site: Site, path: str) -> None:
    """A signature covers them."""
    site.objects[path] = b"0123456789"
    store, inside = opened(site.url + path)
    assert store.read(inside, 0, 4, None).whole()[:4] == b"0123"
    entry = store.stat(inside)
    assert (entry.path, entry.size) == (inside, 10)
    assert store.find(inside) == entry
    assert {target for _, target in site.requests} == {path}


def test_a_small_object_costs_one_get(with_ranges: Site) -> None:
    """And no HEAD."""
    with_ranges.objects["/a.bin"] = with_ranges.objects["/b.bin?sig=1"] = b"12345"
    assert fetch(with_ranges.url + "/a.bin") == [b"12345"]
    assert with_ranges.requests == [("GET", "/a.bin")]
    with_ranges.requests.clear()
    assert fetch(with_ranges.url + "/b.bin?sig=1") == [b"12345"]
    assert with_ranges.requests == [("GET", "/b.bin?sig=1")]


def test_a_range_is_a_slice_with_the_objects_etag(with_ranges: Site) -> None:
    """A range behind the end is an error."""
    for path in ("/a.bin", "/a.bin?x=1"):
        with_ranges.objects[path] = b"0123456789"
        store, inside = opened(with_ranges.url + path)
        answer = store.read(inside, 3, 7, None)
        assert (answer.whole(), answer.total_bytes) == (b"3456", 10)
        assert answer.etag == store.stat(inside).etag
        assert answer.etag is not None
        with pytest.raises(RangeNotSatisfiableError):
            store.read(inside, 10, 12, None)


def test_a_replaced_object_is_an_error(with_ranges: Site) -> None:
    """Not a mixture of two versions."""
    for path in ("/a.bin", "/a.bin?x=1"):
        with_ranges.objects[path] = b"0123456789"
        store, inside = opened(with_ranges.url + path)
        etag = store.stat(inside).etag
        with_ranges.objects[path] = b"9876543210"
        with pytest.raises(ObjectChangedError):
            read_once(store, inside, 0, 5, etag)


def test_objects_with_weak_etags_are_read(with_ranges: Site) -> None:
    """If-Match, which never matches them, is not sent."""
    with_ranges.objects["/a.bin"], with_ranges.etags["/a.bin"] = b"0123456789", 'W/"1"'
    [url] = ListRemote(IterableWrapper([with_ranges.url + "/a.bin"]))
    assert url.etag == 'W/"1"'
    assert fetch(url, part_bytes=3) == [b"0123456789"]


@pytest.mark.parametrize("query", ["", "?sig=secret-canary"])
@pytest.mark.parametrize(
    ("status", "expected"), [(404, ObjectNotFoundError), (403, AccessDeniedError), (401, AccessDeniedError)]
)
def test_404_and_403_are_raised_at_the_first_attempt(
    site: Site, query: str, status: int, expected: type[StorageError]
) -> None:
    """The error names the URL without its query."""
    site.statuses["/a.bin" + query] = status
    store, inside = opened(site.url + "/a.bin" + query)
    for attempt in (lambda: store.read(inside, 0, 5, None), lambda: store.stat(inside)):
        with pytest.raises(expected, match=site.url + "/a.bin") as caught:
            attempt()
        assert "secret-canary" not in f"{caught.value} {caught.value.url}"
    with pytest.raises(expected):
        fetch(site.url + "/a.bin" + query, retry=RetryPolicy())


@pytest.mark.parametrize("query", ["", "?sig=1"])
@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_500_503_and_429_are_transient(site: Site, query: str, status: int) -> None:
    """By each transport."""
    site.statuses["/a.bin" + query] = status
    store, inside = opened(site.url + "/a.bin" + query)
    with pytest.raises(TransientStorageError, match=r"/a\.bin"):
        store.read(inside, 0, 5, None)


@pytest.mark.parametrize("query", ["", "?x=1"])
def test_a_redirect_within_the_host_is_followed(site: Site, query: str) -> None:
    """With and without a query."""
    site.objects["/b.bin"] = b"0123456789"
    site.redirects["/a.bin" + query] = site.url + "/b.bin"
    assert fetch(site.url + "/a.bin" + query, part_bytes=4) == [b"0123456789"]


def test_the_signature_of_a_redirects_target_is_not_shown(site: Site) -> None:
    """If the target fails."""
    site.statuses["/b.bin?sig=secret-canary"] = 500
    site.redirects["/a.bin"] = site.url + "/b.bin?sig=secret-canary"
    store, inside = opened(site.url + "/a.bin")
    with pytest.raises(TransientStorageError) as caught:
        store.read(inside, 0, 5, None)
    assert "secret-canary" not in str(caught.value)


def test_http_folders_cannot_be_listed(site: Site) -> None:
    """The error says what to do instead."""
    for url in (site.url, site.url + "/", site.url + "/dir/"):
        with pytest.raises(UrlError, match="brace range"):
            list(ListRemote(IterableWrapper([url])))


def test_http_cannot_be_written(site: Site) -> None:
    """Neither created nor deleted."""
    store, inside = opened(site.url + "/a.bin")
    with pytest.raises(UrlError):
        store.create(inside, overwrite=True)
    with pytest.raises(UrlError):
        store.delete(inside)


def test_one_url_is_a_listing_of_itself(site: Site) -> None:
    """With its size; a missing object is an empty listing."""
    site.objects["/a.tar"] = b"12345"
    [url] = ListRemote(IterableWrapper([site.url + "/a.tar"]), pattern="*.tar")
    assert (url, url.size) == (site.url + "/a.tar", 5)
    with pytest.raises(EmptyListingError, match=r"/b\.tar"):
        list(ListRemote(IterableWrapper([site.url + "/b.tar"])))


def test_a_pattern_is_matched_without_the_query(site: Site) -> None:
    """With the name of the object."""
    site.objects["/a.tar?sig=a/b"] = b"12345"
    for source in (site.url + "/a.tar?sig=a/b", site.url + "/{a,b}.tar?sig=a/b"):
        urls = list(ListRemote(IterableWrapper([source]), pattern="*.tar"))
        assert urls[0] == site.url + "/a.tar?sig=a/b"


def test_a_server_that_refuses_head_is_listed_and_read(with_ranges: Site) -> None:
    """Or whose signed URL is for GET only."""
    with_ranges.refuses_head = 405
    for path in ("/a.tar", "/b.tar?sig=1"):
        with_ranges.objects[path] = b"12345"
        urls = list(ListRemote(IterableWrapper([with_ranges.url + path])))
        assert fetch(*urls) == [b"12345"]


def test_a_server_without_content_length_is_read_or_refused_at_once(without_ranges: Site) -> None:
    """It is never retried for minutes."""
    without_ranges.chunked = True
    without_ranges.objects["/a.bin"] = without_ranges.objects["/a.bin?x=1"] = b"0123456789"
    retry = RetryPolicy(deadline_s=3, max_wait_s=0.5)
    for path in ("/a.bin", "/a.bin?x=1"):
        with contextlib.suppress(StorageError):
            assert fetch(without_ranges.url + path, retry=retry) == [b"0123456789"]
        assert len(without_ranges.requests) < 5
        without_ranges.requests.clear()


@pytest.mark.parametrize("query", ["", "?x=1"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_truncated_body_is_a_transient_error(site: Site, query: str, chunked: bool) -> None:
    """Never a shorter object."""
    site.cuts_bodies, site.chunked = True, chunked
    site.objects["/a.bin" + query] = bytes(1000)
    store, inside = opened(site.url + "/a.bin" + query)
    with pytest.raises(TransientStorageError, match=r"/a\.bin"):
        read_once(store, inside, 0, 600)
    with pytest.raises(TransientStorageError):
        fetch(site.url + "/a.bin" + query)


@pytest.mark.ceph
def test_a_url_that_s3_signed_for_get_is_listed_and_read(ceph: S3Server) -> None:
    """S3 denies HEAD for it."""
    bucket, client = ceph.new_bucket(), ceph.client()
    data = bytes(range(256)) * 10
    client.put_object(Bucket=bucket, Key="a b/c+d.tar", Body=data)
    url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a b/c+d.tar"}, ExpiresIn=600)
    assert fetch(url, part_bytes=1000) == [data]
    urls = list(ListRemote(IterableWrapper([url]), pattern="*.tar"))
    assert urls == [url]
    assert fetch(*urls, part_bytes=1000) == [data]
    denied = url.replace("Signature=", "Signature=0")
    with pytest.raises(AccessDeniedError) as caught:
        fetch(denied)
    assert "Signature" not in str(caught.value)


def test_shards_are_read_over_http(site: Site, memory_folder: str) -> None:
    """By a brace range, and by a manifest."""
    written = write_small_shards(memory_folder, num_shards=3, samples_per_shard=5)
    store, folder = opened(memory_folder + "/")
    for shard in range(3):
        site.objects[f"/d/{shard:06d}.tar"] = store.read(f"{folder}{shard:06d}.tar", 0, None, None).whole()
    site.objects["/d/index.json"] = store.read(f"{folder}index.json", 0, None, None).whole()
    for source in ("{000000..000002}.tar", "index.json"):
        read = list(stream_shards(f"{site.url}/d/{source}", seed=None))
        assert [sample["txt"] for sample in read] == [sample["txt"] for sample in written]
    damaged = bytearray(site.objects["/d/000001.tar"])
    damaged[600] ^= 1
    site.objects["/d/000001.tar"] = bytes(damaged)
    with pytest.raises(ShardCorruptError, match=r"/d/000001\.tar: the block at byte 0 "):
        list(stream_shards(f"{site.url}/d/index.json", seed=None))


@pytest.mark.parametrize("size", [5, 8, 20])
@pytest.mark.parametrize("query", ["", "?x=1"])
def test_an_object_of_another_size_than_listed_has_changed(site: Site, size: int, query: str) -> None:
    """Also if ranges are ignored."""
    site.objects["/a.bin" + query] = b"0123456789"
    with pytest.raises(ObjectChangedError, match=rf"has 10 bytes, where {size} were listed"):
        fetch(RemoteUrl(site.url + "/a.bin" + query, size), part_bytes=4)


def test_queries_are_not_in_tracebacks() -> None:
    """The transport's message about a signed URL is not kept as a cause."""
    url = "http://127.0.0.1:9/a.bin?X-Amz-Signature=canary"
    for backend in (Backend.AUTOMATIC, Backend.FSSPEC):
        [(_, stream)] = stream_objects(
            [url], FetchSession(FetchOptions(retry=RetryPolicy(max_attempts=1), backend=backend), StorageOptions())
        )
        with pytest.raises(StorageError) as caught:
            stream.read()
        assert "canary" not in "".join(traceback.format_exception(caught.value))


def served(site: Site, path: str) -> list[dict[str, str]]:
    """Headers of the requests of a path, with lower-case names."""
    return [headers for target, headers in site.headers if target == path]


@pytest.mark.parametrize("query", ["", "?x=1"])
@pytest.mark.parametrize("name", ["Authorization", "Private-Token"])
@pytest.mark.parametrize("nested", [False, True])
def test_headers_are_sent_and_stay_at_their_host(
    with_ranges: Site, without_ranges: Site, query: str, name: str, nested: bool
) -> None:
    """By each transport, after redirects within the host, and not to another one."""
    given = {name: "secret-canary", "User-Agent": "tests"}
    options = StorageOptions({"client_kwargs": {"headers": given}} if nested else {"headers": given})
    with_ranges.objects["/a.bin" + query] = without_ranges.objects["/b.bin"] = b"0123456789"
    with_ranges.redirects["/moved.bin" + query] = with_ranges.url + "/a.bin" + query
    with_ranges.redirects["/away.bin" + query] = without_ranges.url + "/b.bin"
    store, _ = open_store(with_ranges.url + "/", options)
    assert type(store) is HttpStore
    for path in ("a.bin", "moved.bin", "away.bin"):
        assert store.stat(path + query).size == 10
        assert store.read(path + query, 0, None, None).whole() == b"0123456789"
    here = [headers for _, headers in with_ranges.headers]
    assert {(headers[name.lower()], headers["user-agent"]) for headers in here} == {("secret-canary", "tests")}
    assert {target for target, _ in with_ranges.headers} == {f"/{x}.bin{query}" for x in ("a", "moved", "away")}
    away = served(without_ranges, "/b.bin")
    assert len(away) == 2
    assert "secret-canary" not in str(away)


def test_headers_of_requests_go_before_those_of_the_client() -> None:
    """As in fsspec; whatever the case of their names. They are not shown by errors."""
    both = {"client_kwargs": {"headers": {"X-A": "1", "X-B": "1"}}, "headers": {"x-a": "2"}}
    assert http_headers(StorageOptions(both)) == {"X-B": "1", "x-a": "2"}
    assert http_headers(StorageOptions({})) == {}
    for other in ({"block_size": 5}, {"client_kwargs": {"auth": None}}, {"headers": {}, "encoded": True}):
        assert http_headers(StorageOptions(other)) is None
    for wrong in (
        {"headers": ["secret-canary"]},
        {"headers": {"a b": "secret-canary"}},
        {"headers": {"X-A": "secret-canary\r\nX-B: 1"}},
        {"headers": {"X-A": b"secret-canary"}},
        {"headers": {"Range": "secret-canary"}},
    ):
        with pytest.raises(UrlError, match=r"storage_options\['headers'\]") as caught:
            open_store("http://127.0.0.1:9/a", StorageOptions(wrong))
        assert "secret-canary" not in str(caught.value)


def test_other_options_select_fsspec_with_a_warning(with_ranges: Site, caplog: pytest.LogCaptureFixture) -> None:
    """They are not dropped."""
    with_ranges.objects["/a.bin"] = b"0123456789"
    store, path = open_store(with_ranges.url + "/a.bin", StorageOptions({"block_size": 1 << 20}))
    assert store.read(path, 0, 5, None).whole() == b"01234"
    assert "is read by fsspec, more slowly: no translation for an option of StorageOptions(block_size)" in caplog.text


def test_sizes_of_many_urls_are_asked_for_at_once(with_ranges: Site) -> None:
    """By HEAD, in order, a bounded number at a time. One that is refused has no size."""
    urls = [f"{with_ranges.url}/{number:03}.bin" for number in range(300)]
    with_ranges.objects = {url.removeprefix(with_ranges.url): b"x" * 10 for url in urls}
    with_ranges.statuses["/150.bin"] = 405
    with_ranges.waiting = {f"/{number}.bin" for number in range(100, 132)}
    listed = list(ListRemote(IterableWrapper(urls)))
    assert listed == urls
    assert [url.size for url in listed] == [10] * 150 + [None] + [10] * 149
    assert {method for method, _ in with_ranges.requests} == {"HEAD"}
    assert not with_ranges.together.broken
    assert 32 <= with_ranges.most_together <= MAX_AHEAD_BY_HEAD


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_signed_url_whose_head_is_refused_has_a_size(with_ranges: Site, status: int) -> None:
    """That of the first byte's response."""
    with_ranges.refuses_head = status
    with_ranges.objects["/a.tar?sig=1"] = b"12345"
    [url] = ListRemote(IterableWrapper([with_ranges.url + "/a.tar?sig=1"]))
    assert url.size == 5


def test_a_busy_server_says_when_to_ask_for_sizes_again(with_ranges: Site) -> None:
    """In Retry-After, also of HEAD."""
    with_ranges.statuses["/a.tar"], with_ranges.retry_after = 429, "7"
    store, path = opened(with_ranges.url + "/a.tar")
    with pytest.raises(TransientStorageError) as caught:
        store.stat(path)
    assert (caught.value.overloaded, caught.value.retry_after_s) == (True, 7)


@pytest.mark.parametrize("query", ["", "?x=1"])
def test_a_redirect_to_another_host_is_followed(with_ranges: Site, without_ranges: Site, query: str) -> None:
    """For sizes and bytes."""
    without_ranges.objects["/b.bin?sig=1"] = b"0123456789"
    with_ranges.redirects["/a.bin" + query] = without_ranges.url + "/b.bin?sig=1"
    [url] = ListRemote(IterableWrapper([with_ranges.url + "/a.bin" + query]))
    assert url.size == 10
    assert fetch(url, part_bytes=4) == [b"0123456789"]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("more", [{"block_size": 1 << 20}, {"client_kwargs": {"trust_env": False}}])
def test_headers_stay_at_their_host_also_by_fsspec(
    with_ranges: Site, without_ranges: Site, more: dict[str, Any], nested: bool
) -> None:
    """Which other options select. Redirects within the host get them."""
    given = {"Authorization": "secret-canary", "Private-Token": "secret-canary"}
    client = {**more.get("client_kwargs", {}), **({"headers": given} if nested else {})}
    options = StorageOptions({**more, "client_kwargs": client, **({} if nested else {"headers": given})})
    with_ranges.objects["/a.bin"] = without_ranges.objects["/b.bin"] = b"0123456789"
    with_ranges.redirects["/moved.bin"] = with_ranges.url + "/a.bin"
    with_ranges.redirects["/away.bin"] = without_ranges.url + "/b.bin"
    store, _ = open_store(with_ranges.url + "/", options)
    assert type(store) is not HttpStore
    for path in ("moved.bin", "away.bin"):
        assert store.read(path, 0, None, None).whole() == b"0123456789"
    assert {headers["private-token"] for headers in served(with_ranges, "/a.bin")} == {"secret-canary"}
    away = served(without_ranges, "/b.bin")
    assert away
    assert "secret-canary" not in str(away)


@pytest.mark.parametrize("name", ["auth", "cookies"])
def test_what_a_session_sends_to_every_host_ends_at_a_redirect_to_another(
    with_ranges: Site, without_ranges: Site, name: str
) -> None:
    """aiohttp would send it there too."""
    secret: Any = aiohttp.BasicAuth("me", "secret-canary") if name == "auth" else {"session": "secret-canary"}
    with_ranges.objects["/a.bin"] = without_ranges.objects["/b.bin"] = b"0123456789"
    with_ranges.redirects["/away.bin"] = without_ranges.url + "/b.bin"
    store, _ = open_store(with_ranges.url + "/", StorageOptions({"client_kwargs": {name: secret}}))
    assert store.read("a.bin", 0, None, None).whole() == b"0123456789"
    for attempt in (lambda: store.read("away.bin", 0, None, None), lambda: store.stat("away.bin")):
        with pytest.raises(StorageError, match="to another host") as caught:
            attempt()
        assert "secret-canary" not in str(caught.value)
    assert served(without_ranges, "/b.bin") == []


@pytest.mark.parametrize("host", ["[::1", "[zz]", ":80", "127.0.0.1:8x", "a b"])
def test_a_host_that_is_none_is_an_error_of_the_url(host: str) -> None:
    """Of each way to read it."""
    for query in ("", "?x=1"):
        store, path = open_store(f"http://{host}/a.tar{query}", StorageOptions())
        with pytest.raises(UrlError, match="not an HTTP URL"):
            store.read(path, 0, 10, None)
        with pytest.raises(UrlError, match="not an HTTP URL"):
            store.stat(path)
