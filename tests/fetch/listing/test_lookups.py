"""Sources that name one object: how many requests they cost, how many run at once, where errors are raised."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from tests.servers.scripted import Request, Response, scripted
from torchdata_remote import ListRemote, RemoteUrl
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.errors import EmptyListingError, StorageError
from torchdata_remote.fetch.listing import lookups
from torchdata_remote.fetch.listing.lookups import Found, names_one_object, with_lookups
from torchdata_remote.storage import Connection, Entry, open_store
from torchdata_remote.testing import FaultyStore

NUM = 20


def put(moto: S3Server, *keys: str) -> str:
    bucket, client = moto.new_bucket(), moto.client()
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"123")
    return f"s3://{bucket}"


def listed(moto: S3Server, urls: list[str]) -> tuple[list[RemoteUrl], int]:
    """List sources, and count the requests for that."""
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        found = list(ListRemote(IterableWrapper(urls), storage_options=options))
        return found, len(store.requests)


def test_each_object_costs_one_request(moto: S3Server) -> None:
    """Also if it has an index beside it."""
    names = [f"t-{number:02d}.tar" for number in range(NUM)]
    root = put(moto, *names, *(f"{name}.idx" for name in names))
    urls = [f"{root}/{name}" for name in reversed(names)]
    found, num_requests = listed(moto, urls)
    assert (found, num_requests) == (urls, NUM)
    assert {one.size for one in found} == {3}
    assert None not in {one.etag for one in found}


def test_an_object_that_was_listed_costs_none(moto: S3Server) -> None:
    """It keeps what is known of it."""
    one = RemoteUrl(put(moto, "a.tar") + "/a.tar", 3, '"etag"', num_samples=7)
    [found], num_requests = listed(moto, [one])
    assert (found, found.size, found.etag, found.num_samples, num_requests) == (one, 3, '"etag"', 7, 0)


@pytest.mark.parametrize(
    ("beside", "num_requests"),
    [
        (["a/x"], 2),
        (["a-1", "a/x"], 2),
        ([*(f"a-{number}" for number in range(12)), "a/x"], 2),
        ([f"a-{number}" for number in range(12)], 2),  # it may be after the keys that were listed
        ([f"a1{number}" for number in range(12)], 1),
    ],
)
def test_objects_below_an_object_are_found(moto: S3Server, beside: list[str], num_requests: int) -> None:
    """However many others sort between the two."""
    root = put(moto, "a", *beside)
    below = [f"{root}/a/x"] if "a/x" in beside else []
    assert listed(moto, [f"{root}/a"]) == ([f"{root}/a", *below], num_requests)


class Keys:
    """A server that lists keys in the order given, after pages without any."""

    def __init__(self, keys: list[str], num_empty: int = 0, head: Response | None = None) -> None:
        self.keys, self.num_empty, self.head = keys, num_empty, head

    def respond(self, request: Request) -> Response:
        url = urlsplit(request.target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        if "list-type" not in query:
            is_there = url.path.removeprefix("/bkt/") in self.keys
            return self.head or (Response.of_object(request, b"123") if is_there else Response(404))
        keys = [key for key in self.keys if key.startswith(query.get("prefix", ""))]
        at = int(query.get("continuation-token", -self.num_empty))
        end = at + int(query.get("max-keys", 1000)) if at >= 0 else at + 1
        token = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < len(keys) else ""
        found = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;1&quot;</ETag><Size>3</Size></Contents>"
            for key in (keys[at:end] if at >= 0 else [])
        )
        body = f"<ListBucketResult><IsTruncated>{str(bool(token)).lower()}</IsTruncated>{found}{token}"
        return Response(200, f"{body}</ListBucketResult>".encode(), {"Content-Type": "application/xml"})

    def listed(self, url: str) -> tuple[list[RemoteUrl], list[str]]:
        """List a source; return the methods of the requests, too."""
        with scripted(self.respond) as server:
            options = {"endpoint_url": server.url, "key": "k", "secret": "s"}
            found = list(ListRemote(IterableWrapper([url]), storage_options=options))
            return found, [request.method for request in server.requests]

    def store(self, server_url: str) -> Any:
        options = StorageOptions({"endpoint_url": server_url, "key": "k", "secret": "s"})
        return open_store("s3://bkt/", options, Connection(read_timeout_s=20))[0]


BESIDE = [f"d/t.tar.{number}" for number in range(12)]


@pytest.mark.parametrize("keys", [[*BESIDE, "d/t.tar"], [*reversed(BESIDE), "d/t.tar"]])
def test_an_object_is_found_in_whatever_order_a_store_lists(keys: list[str]) -> None:
    """It may come after those that the lookup lists."""
    [found], methods = Keys(keys).listed("s3://bkt/d/t.tar")
    assert (found, found.size, found.etag, methods[:2]) == ("s3://bkt/d/t.tar", 3, '"1"', ["GET", "HEAD"])
    with scripted(Keys(keys).respond) as server:
        assert Keys(keys).store(server.url).find("d/t.tar")[:3] == ("d/t.tar", 3, '"1"')


@pytest.mark.parametrize("status", [403, 404, 405, 501])
def test_a_missing_object_is_missing_whatever_a_store_answers(status: int) -> None:
    """A lookup needs no more permissions than a listing."""
    with pytest.raises(EmptyListingError, match="did you mean"):
        Keys(BESIDE, head=Response(status)).listed("s3://bkt/d/t.tar")


def test_a_folder_of_many_objects_costs_two_requests() -> None:
    """Keys below it show that no object of that name is listed later."""
    found, methods = Keys([f"d/{number:02d}" for number in range(12)]).listed("s3://bkt/d")
    assert (len(found), methods) == (12, ["GET", "GET"])


@pytest.mark.parametrize("num_empty", [1, 3])
def test_an_object_is_found_behind_empty_pages(num_empty: int) -> None:
    """A store may send them before others, as where many objects were deleted."""
    keys = Keys(["d/t.tar"], num_empty)
    [found], methods = keys.listed("s3://bkt/d/t.tar")
    assert (found, found.size, methods) == ("s3://bkt/d/t.tar", 3, ["GET"] * (num_empty + 1))
    with scripted(keys.respond) as server:
        store = keys.store(server.url)
        assert store.find("d/t.tar").path == "d/t.tar"
        assert [one.path for one in store.list_after("d/", recursive=False, after="", limit=9).entries] == ["d/t.tar"]
        assert store.has_folder("d/")


def test_empty_pages_that_repeat_are_an_error() -> None:
    """A lookup ends."""
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>1</NextContinuationToken>"
    keys = Keys([])
    with scripted(lambda request: Response(200, page + b"</ListBucketResult>")) as server:
        store = keys.store(server.url)
        with pytest.raises(StorageError, match="repeats page"):
            store.find("a")
        with pytest.raises(StorageError, match="repeats page"):
            store.list_after("", recursive=True, after="", limit=9)


def test_a_missing_object_is_an_error_in_its_place(moto: S3Server) -> None:
    """The objects before it were yielded."""
    root = put(moto, "0", "1", "2", "4")
    pipe = ListRemote(
        IterableWrapper([f"{root}/{number}" for number in range(5)]), storage_options=moto.storage_options
    )
    found = iter(pipe)
    assert [next(found) for _ in range(3)] == [f"{root}/{number}" for number in range(3)]
    with pytest.raises(EmptyListingError, match=f"{root}/3"):
        next(found)


def looked_up(urls: Iterator[str]) -> Iterator[str]:
    for url, lookup in with_lookups(urls, StorageOptions(None), RetryPolicy()):
        yield url if lookup is None else str(lookup().entry)


def test_several_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order; the source is read a bounded number of URLs ahead."""
    together = threading.Barrier(2)
    urls = [f"s3://b/{number}" for number in range(1 + 12)]
    read: list[str] = []

    def find(url: str, *_: object) -> Found:
        together.wait(20)
        return Found(Entry(url, 3, None), may_be_folder=False)

    monkeypatch.setattr(lookups, "find_named", find)
    monkeypatch.setattr(lookups, "MAX_AHEAD", 6)
    found = []
    for one in looked_up(read.append(url) or url for url in urls):  # type: ignore[func-returns-value]
        found.append(one)
        assert len(read) <= len(found) + 5
    assert found == [urls[0], *(str(Entry(url, 3, None)) for url in urls[1:])]


def test_a_slow_source_is_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its URLs are listed as they come."""
    monkeypatch.setattr(lookups, "_QUICK_S", -1.0)
    read: list[str] = []
    urls = (read.append(url) or url for url in ["s3://b/0", "s3://b/1", "s3://b/2"])  # type: ignore[func-returns-value]
    for number, (_, lookup) in enumerate(with_lookups(urls, StorageOptions(None), RetryPolicy()), 1):
        assert (len(read), lookup) == (number, None)


def test_an_error_of_the_source_comes_after_its_urls() -> None:
    """It does not overtake those that are waiting."""

    def source() -> Iterator[str]:
        yield from ("/a", "/b", "/c")
        raise OSError("unplugged")

    found = looked_up(source())
    assert [next(found) for _ in range(3)] == ["/a", "/b", "/c"]
    with pytest.raises(OSError, match="unplugged"):
        next(found)


def test_patterns_folders_and_local_files_are_not_looked_up() -> None:
    """Nor is what was listed before, or cannot be a URL."""
    listed_before = RemoteUrl("s3://b/a.tar", 3)
    others = [
        "s3://b/*.tar",
        "s3://b/a/",
        "s3://b",
        "s3://b/{a,b}.tar",
        "s3://b/index.json",
        "/data/a.tar",
        "file:///a",
    ]
    refused = ["s3://b/{1..9..2}", "s3:///a", "nothing://"]
    assert not any(map(names_one_object, [listed_before, *others, *refused]))
    assert all(map(names_one_object, ["s3://b/a.tar", RemoteUrl("s3://b/*"), "http://h/a*.tar?b=1", "memory://b/a"]))
