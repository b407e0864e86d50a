"""http as a store, against servers that do and do not honour ranges."""

from __future__ import annotations

import contextlib
import email.utils
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
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
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage.registry import RangeNotSatisfiableError, Store, open_store
from torchdata_remote.testing import write_small_shards

ONE_ATTEMPT = RetryPolicy(max_attempts=1)


class Site(ThreadingHTTPServer):
    """Path with query -> bytes, and how the server behaves."""

    daemon_threads = True

    def __init__(self, *, honours_ranges: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.honours_ranges = honours_ranges
        self.chunked = False
        self.refuses_head = False
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
        """A client that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def do_HEAD(self) -> None:
        self.do_GET(with_body=False)

    def do_GET(self, with_body: bool = True) -> None:
        site = self.server
        site.requests.append((self.command, self.path))
        if self.path in site.redirects:
            self._answer(302, b"", with_body, Location=site.redirects[self.path])
        elif self.path in site.statuses or (not with_body and site.refuses_head):
            self._answer(site.statuses.get(self.path, 405), b"sorry", with_body)
        elif self.path not in site.objects:
            self._answer(404, b"not here", with_body)
        else:
            self._object(site.objects[self.path], with_body)

    def _object(self, data: bytes, with_body: bool) -> None:
        headers = {"Last-Modified": email.utils.formatdate(0, usegmt=True)}
        if self.server.honours_ranges:
            headers["ETag"] = self.server.etags.get(self.path, f'"{hash(data):x}"')
            headers["Accept-Ranges"] = "bytes"
            asked = self.headers.get("Range")
            if asked is not None:
                first, last = (int(part) if part else None for part in asked.removeprefix("bytes=").split("-"))
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
        """Say nothing."""


def serve(site: Site) -> Iterator[Site]:
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.shutdown()
        site.server_close()
        thread.join(10)


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.binary(max_size=200), part_bytes=st.integers(1, 210))
def test_any_size_in_any_parts(site: Site, data: bytes, part_bytes: int) -> None:
    """An object comes whole, whatever its size, the part size, and whether the server honours ranges."""
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
def test_urls_are_sent_as_they_are(site: Site, path: str) -> None:
    """The server gets the path and the query as they were written: a signature covers them."""
    site.objects[path] = b"0123456789"
    store, inside = opened(site.url + path)
    assert store.read(inside, 0, 4, None).whole()[:4] == b"0123"
    entry = store.stat(inside)
    assert (entry.path, entry.size) == (inside, 10)
    assert store.find(inside) == entry
    assert {asked for _, asked in site.requests} == {path}


def test_one_request_for_a_small_object(with_ranges: Site) -> None:
    """A small object costs one GET, not HEAD and GET."""
    with_ranges.objects["/a.bin"] = with_ranges.objects["/b.bin?sig=1"] = b"12345"
    assert fetch(with_ranges.url + "/a.bin") == [b"12345"]
    assert with_ranges.requests == [("GET", "/a.bin")]
    with_ranges.requests.clear()
    assert fetch(with_ranges.url + "/b.bin?sig=1") == [b"12345"]
    assert with_ranges.requests == [("GET", "/b.bin?sig=1")]


def test_ranges(with_ranges: Site) -> None:
    """A range is the slice; behind the end is an error; the etag comes along."""
    for path in ("/a.bin", "/a.bin?x=1"):
        with_ranges.objects[path] = b"0123456789"
        store, inside = opened(with_ranges.url + path)
        answer = store.read(inside, 3, 7, None)
        assert (answer.whole(), answer.total_bytes) == (b"3456", 10)
        assert answer.etag == store.stat(inside).etag
        assert answer.etag is not None
        with pytest.raises(RangeNotSatisfiableError):
            store.read(inside, 10, 12, None)


def test_changed_object(with_ranges: Site) -> None:
    """An object that was replaced is an error, not a mixture."""
    for path in ("/a.bin", "/a.bin?x=1"):
        with_ranges.objects[path] = b"0123456789"
        store, inside = opened(with_ranges.url + path)
        etag = store.stat(inside).etag
        with_ranges.objects[path] = b"9876543210"
        with pytest.raises(ObjectChangedError):
            read_once(store, inside, 0, 5, etag)


def test_weak_etags(with_ranges: Site) -> None:
    """A weak etag, which If-Match never matches, does no harm."""
    with_ranges.objects["/a.bin"], with_ranges.etags["/a.bin"] = b"0123456789", 'W/"1"'
    [url] = ListRemote(IterableWrapper([with_ranges.url + "/a.bin"]))
    assert url.etag == 'W/"1"'
    assert fetch(url, part_bytes=3) == [b"0123456789"]


@pytest.mark.parametrize("query", ["", "?sig=secret-canary"])
@pytest.mark.parametrize(
    ("status", "expected"), [(404, ObjectNotFoundError), (403, AccessDeniedError), (401, AccessDeniedError)]
)
def test_refusals(site: Site, query: str, status: int, expected: type[StorageError]) -> None:
    """404 and 403 come as what they are, name the URL without its query, and cost one attempt."""
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
def test_passing_faults(site: Site, query: str, status: int) -> None:
    """Statuses that may pass are TransientStorageErrors."""
    site.statuses["/a.bin" + query] = status
    store, inside = opened(site.url + "/a.bin" + query)
    with pytest.raises(TransientStorageError, match=r"/a\.bin"):
        store.read(inside, 0, 5, None)


@pytest.mark.parametrize("query", ["", "?x=1"])
def test_redirect(site: Site, query: str) -> None:
    """A redirect within the host is followed."""
    site.objects["/b.bin"] = b"0123456789"
    site.redirects["/a.bin" + query] = site.url + "/b.bin"
    assert fetch(site.url + "/a.bin" + query, part_bytes=4) == [b"0123456789"]


def test_redirect_to_a_signed_url_that_fails(site: Site) -> None:
    """The signature in a redirect's target is not shown when that target fails."""
    site.statuses["/b.bin?sig=secret-canary"] = 500
    site.redirects["/a.bin"] = site.url + "/b.bin?sig=secret-canary"
    store, inside = opened(site.url + "/a.bin")
    with pytest.raises(TransientStorageError) as caught:
        store.read(inside, 0, 5, None)
    assert "secret-canary" not in str(caught.value)


def test_listing_is_an_error(site: Site) -> None:
    """A folder of a web server cannot be listed: the error says what to do instead."""
    for url in (site.url, site.url + "/", site.url + "/dir/"):
        with pytest.raises(UrlError, match="brace range"):
            list(ListRemote(IterableWrapper([url])))


def test_writing_is_an_error(site: Site) -> None:
    """Nothing can be written or removed."""
    store, inside = opened(site.url + "/a.bin")
    with pytest.raises(UrlError):
        store.create(inside, overwrite=True)
    with pytest.raises(UrlError):
        store.delete(inside)


def test_one_object_is_found(site: Site) -> None:
    """One URL stands for itself, with its size; one that is not there is an empty listing."""
    site.objects["/a.tar"] = b"12345"
    [url] = ListRemote(IterableWrapper([site.url + "/a.tar"]), pattern="*.tar")
    assert (url, url.size) == (site.url + "/a.tar", 5)
    with pytest.raises(EmptyListingError, match=r"/b\.tar"):
        list(ListRemote(IterableWrapper([site.url + "/b.tar"])))


def test_pattern_does_not_see_the_query(site: Site) -> None:
    """A pattern is matched with the object's name: the query of a signed URL is no part of it."""
    site.objects["/a.tar?sig=a/b"] = b"12345"
    for source in (site.url + "/a.tar?sig=a/b", site.url + "/{a,b}.tar?sig=a/b"):
        urls = list(ListRemote(IterableWrapper([source]), pattern="*.tar"))
        assert urls[0] == site.url + "/a.tar?sig=a/b"


def test_head_may_be_refused(with_ranges: Site) -> None:
    """A server that takes no HEAD, or whose signed URL is for GET alone, can be listed and read."""
    with_ranges.refuses_head = True
    for path in ("/a.tar", "/b.tar?sig=1"):
        with_ranges.objects[path] = b"12345"
        urls = list(ListRemote(IterableWrapper([with_ranges.url + path])))
        assert fetch(*urls) == [b"12345"]


def test_length_not_told(without_ranges: Site) -> None:
    """A server that does not tell the length is read all the same, or refused at once; never retried for minutes."""
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
def test_body_cut_short(site: Site, query: str, chunked: bool) -> None:
    """A connection that breaks before the end of the body is a fault that may pass, and never a shorter object."""
    site.cuts_bodies, site.chunked = True, chunked
    site.objects["/a.bin" + query] = bytes(1000)
    store, inside = opened(site.url + "/a.bin" + query)
    with pytest.raises(TransientStorageError, match=r"/a\.bin"):
        read_once(store, inside, 0, 600)
    with pytest.raises(TransientStorageError):
        fetch(site.url + "/a.bin" + query)


@pytest.mark.ceph
def test_presigned_url(ceph: S3Server) -> None:
    """A URL that S3 signed for GET alone, and so denies to HEAD, can be listed, matched and read."""
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


def test_shards_over_http(site: Site, memory_folder: str) -> None:
    """A brace range of shards, or a manifest, trains from a plain web server."""
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
def test_another_size_than_was_listed(site: Site, size: int, query: str) -> None:
    """An object that is shorter or longer than the listing said is an error, also where ranges are ignored."""
    site.objects["/a.bin" + query] = b"0123456789"
    with pytest.raises(ObjectChangedError, match=rf"has 10 bytes, where {size} were listed"):
        fetch(RemoteUrl(site.url + "/a.bin" + query, size), part_bytes=4)


def test_queries_do_not_show_in_tracebacks() -> None:
    """What a transport says of a signed URL is not kept beside the error, where a traceback would print it."""
    url = "http://127.0.0.1:9/a.bin?X-Amz-Signature=canary"
    for backend in (Backend.AUTOMATIC, Backend.FSSPEC):
        [(_, stream)] = stream_objects(
            [url], FetchSession(FetchOptions(retry=RetryPolicy(max_attempts=1), backend=backend), StorageOptions())
        )
        with pytest.raises(StorageError) as caught:
            stream.read()
        assert "canary" not in "".join(traceback.format_exception(caught.value))
