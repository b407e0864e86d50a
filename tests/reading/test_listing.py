"""From source URLs to objects: what a plain model of a store says, on real ones."""

from __future__ import annotations

import fnmatch
import functools
import gc
import multiprocessing
import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import fsspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.servers.scripted import Request, Response, scripted
from tests.support import objects
from tests.support.waiting import new_threads, wait_for
from torchdata_remote import RemoteUrl, RetryPolicy
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ObjectNotFoundError,
    StorageError,
)
from torchdata_remote.testing import write_small_shards

END_S = 60
ONE_ATTEMPT = RetryPolicy(max_attempts=1)
SEGMENT = st.sampled_from(["a", "ab", "b", "t-1", "t-02", "x.tar", "y.tar", "a b", "a+b", "%20", "é", "A"])
PATH = st.lists(SEGMENT, min_size=1, max_size=3).map("/".join)


def without_clashes(paths: set[str]) -> set[str]:
    """In a store with folders a path cannot be an object and a folder."""
    return {path for path in paths if not any(other.startswith(path + "/") for other in paths)}


PATHS = st.sets(PATH, min_size=1, max_size=12)


def urls_of(url: str, options: dict[str, Any] | None = None, **more: Any) -> list[RemoteUrl]:
    return list(tdr.IterableWrapper([url]).list_remote(**{"retry": ONE_ATTEMPT, "storage_options": options, **more}))


def below(url: str, options: dict[str, Any], root: str, **more: Any) -> list[str]:
    """What is listed, as paths below ``root``; nothing where the listing is empty."""
    try:
        urls = urls_of(url, options, **more)
    except EmptyListingError as error:
        message = str(error)
        return [] if url in message and ("pattern" in more) == ("pattern=" in message) else [message]
    assert all(listed.startswith(root) for listed in urls)
    return [str(listed).removeprefix(root) for listed in urls]


def model_prefix(paths: set[str], prefix: str, *, recursive: bool = True) -> list[str]:
    """What a prefix stands for: one object if it has an extension; else a folder, or the object of that name."""
    if "." in prefix.rpartition("/")[2]:
        return [prefix]
    folder = prefix.rstrip("/") + "/" if prefix.strip("/") else ""
    found = [path for path in paths if path.startswith(folder) and (recursive or "/" not in path[len(folder) :])]
    return sorted(found) or [prefix] * (prefix in paths)


def model_glob(paths: set[str], glob: str) -> list[str]:
    """A glob matches segment by segment; ``**`` stands for any number of them."""

    def matches(segments: list[str], parts: list[str]) -> bool:
        if not parts:
            return not segments
        if parts[0] == "**":
            return any(matches(segments[skip:], parts[1:]) for skip in range(len(segments) + 1))
        return bool(segments) and fnmatch.fnmatchcase(segments[0], parts[0]) and matches(segments[1:], parts[1:])

    return sorted(path for path in paths if matches(path.split("/"), glob.split("/")))


def check_against_the_model(paths: set[str], source: str, recursive: bool, root: str, options: dict[str, Any]) -> None:
    for slash in ("", "/"):
        expected = model_prefix(paths, source + slash, recursive=recursive)
        assert below(root + source + slash, options, root, recursive=recursive) == expected
    assert below(root, options, root) == sorted(paths)
    assert below(root.rstrip("/"), options, root) == sorted(paths)


GLOBS = st.lists(
    st.sampled_from(["*", "?", "a*", "*b", "t-?", "t-*", "*.tar", "[a-b]", "[!a]*", "x.tar", "a", "a+*", "t-[0-9]*"]),
    min_size=1,
    max_size=3,
).map("/".join)


def check_globs(paths: set[str], glob: str, root: str, options: dict[str, Any]) -> None:
    for pattern in (glob, "**/" + glob, "a/**/" + glob, glob + "/**/*"):
        if re.search(r"[*?\[]", pattern):
            assert below(root + pattern, options, root) == model_glob(paths, pattern)


@given(paths=PATHS.map(without_clashes), source=PATH, recursive=st.booleans(), glob=GLOBS)
def test_prefixes_objects_and_globs_are_listed_sorted(paths: set[str], source: str, recursive: bool, glob: str) -> None:
    root = f"memory://{uuid.uuid4().hex}/"
    fsspec.filesystem("memory").pipe({root.removeprefix("memory:/") + path: b"1" for path in paths})
    check_against_the_model(paths, source, recursive, root, {})
    check_globs(paths, glob, root, {})


@functools.cache
def client_of(server: S3Server) -> Any:
    return server.client()


@functools.cache
def shared_bucket(server: S3Server) -> str:
    return server.new_bucket()


def put_all(server: S3Server, bucket: str, paths: set[str]) -> None:
    client = client_of(server)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: client.put_object(Bucket=bucket, Key=path, Body=b"1"), paths))


@settings(max_examples=25)
@given(paths=PATHS, source=PATH, recursive=st.booleans(), glob=GLOBS)
def test_prefixes_objects_and_globs_are_listed_sorted_in_s3(
    moto: S3Server, paths: set[str], source: str, recursive: bool, glob: str
) -> None:
    bucket, folder = shared_bucket(moto), uuid.uuid4().hex
    put_all(moto, bucket, {f"{folder}/{path}" for path in paths})
    root = f"s3://{bucket}/{folder}/"
    check_against_the_model(paths, source, recursive, root, moto.storage_options)
    check_globs(paths, glob, root, moto.storage_options)


@given(paths=PATHS.map(without_clashes), name=st.sampled_from(["*", "*.tar", "a*", "t-??", "nothing", "é", "**/*b*"]))
def test_a_pattern_matches_base_names_or_paths(paths: set[str], name: str) -> None:
    root = f"memory://{uuid.uuid4().hex}/"
    fsspec.filesystem("memory").pipe({f"{root.removeprefix('memory:/')}top/{path}": b"1" for path in paths})
    if "/" in name:
        expected = model_glob(paths, name)
    else:
        expected = sorted(path for path in paths if fnmatch.fnmatchcase(path.rpartition("/")[2], name))
    assert below(root + "top", {}, root + "top/", pattern=name) == expected
    assert below(root + "top/", {}, root + "top/", pattern=name) == expected


def test_a_key_that_ends_in_a_slash_and_has_bytes_is_an_error_where_it_is_read(moto: S3Server) -> None:
    """obstore lists it without the slash."""
    bucket = moto.new_bucket()
    put_all(moto, bucket, {"folder/data/", "folder/a"})
    listed = urls_of(f"s3://{bucket}/folder", moto.storage_options)
    assert listed == [f"s3://{bucket}/folder/a", f"s3://{bucket}/folder/data"]
    with pytest.raises(ObjectNotFoundError):
        objects.read(listed[1], moto.storage_options)


def test_directory_markers_are_skipped(moto: S3Server) -> None:
    bucket, client = moto.new_bucket(), client_of(moto)
    for key in ("dir/", "dir/sub/", "dir/sub/deeper/", "dir"):
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    client.put_object(Bucket=bucket, Key="dir/sub/a", Body=b"1")
    for source in ("", "/", "/dir", "/dir/"):
        listed = urls_of(f"s3://{bucket}{source}", moto.storage_options)
        assert [url for url in listed if url != f"s3://{bucket}/dir"] == [f"s3://{bucket}/dir/sub/a"]
    assert urls_of(f"s3://{bucket}/dir", moto.storage_options) == [f"s3://{bucket}/dir/sub/a"]
    client.delete_object(Bucket=bucket, Key="dir/sub/a")
    with pytest.raises(EmptyListingError):
        urls_of(f"s3://{bucket}/dir/sub", moto.storage_options)


@pytest.mark.parametrize("url", ["{}/none", "{}/none/", "{}/*.none", "{}/none/**"])
def test_an_empty_listing_is_an_error_with_url_and_pattern(memory_folder: str, url: str) -> None:
    fsspec.filesystem("memory").pipe(memory_folder.removeprefix("memory:/") + "/a.tar", b"1")
    source = url.format(memory_folder)
    with pytest.raises(EmptyListingError, match=re.escape(source)) as caught:
        urls_of(source)
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.url == source
    with pytest.raises(EmptyListingError, match=re.escape("pattern='*.jpg'")):
        urls_of(memory_folder, pattern="*.jpg")
    with pytest.raises(EmptyListingError, match="recursive=False"):
        urls_of(source, recursive=False)


# --- pages of a server that a test writes


class Pages:
    """A server of S3 that lists page by page from a script, of keys or of a status."""

    def __init__(self, answers: dict[str, list[Any]]) -> None:
        self.answers, self.asked, self.gate = answers, list[str](), threading.Event()
        self.gate.set()

    def respond(self, request: Request) -> Response:
        query = dict(parse_qsl(urlsplit(request.target).query, keep_blank_values=True))
        if "list-type" not in query:
            return Response.of_error(404, "NoSuchKey")
        token = query.get("continuation-token", "")
        self.asked.append(token)
        if token:
            self.gate.wait(END_S)
        answers = self.answers[token]
        # The last page stays: after a fault the pages of a chunk are requested again
        answer = answers.pop(0) if isinstance(answers[0], int) or len(answers) > 1 else answers[0]
        return Response.of_error(answer, "Fault") if isinstance(answer, int) else xml_page(*answer)

    def listed(self, **more: Any) -> list[RemoteUrl]:
        with scripted(self.respond) as server:
            return urls_of(
                "s3://bkt/", options_of(server.url), retry=RetryPolicy(max_attempts=5, first_wait_s=0), **more
            )


def options_of(url: str) -> dict[str, Any]:
    return {"endpoint_url": url, "key": "k", "secret": "s", "region": "us-east-1"}


def xml_page(keys: list[str], then: str | None = None) -> Response:
    token = f"<NextContinuationToken>{then}</NextContinuationToken>" if then else ""
    found = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;1&quot;</ETag>"
        "<Size>3</Size></Contents>"
        for key in keys
    )
    body = f"<ListBucketResult><IsTruncated>{str(bool(then)).lower()}</IsTruncated>{found}{token}</ListBucketResult>"
    return Response(200, body.encode(), {"Content-Type": "application/xml"})


def test_a_page_that_fails_is_asked_for_again_and_empty_pages_do_not_end_a_listing() -> None:
    pages = Pages({"": [(["a"], "1")], "1": [500, 503, ([], "2")], "2": [500, (["b"], "3")], "3": [(["c"],)]})
    assert pages.listed() == ["s3://bkt/a", "s3://bkt/b", "s3://bkt/c"]
    assert pages.asked[-4:] == ["", "1", "2", "3"]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_listing_that_runs_in_a_circle_is_an_error(length: int) -> None:
    pages = Pages({"": [(["a"], "1")]})
    for number in range(1, length + 1):
        then = "1" if number == length else str(number + 1)
        pages.answers[str(number)] = [([f"b{turn}{number}"], then) for turn in range(5)]
    with pytest.raises(StorageError, match=r"names itself as the next one|overlap or are not in order"):
        pages.listed()


@pytest.mark.parametrize("again", [["b", "c"], ["a", "c"], ["c", "c"]])
def test_pages_that_overlap_are_an_error(again: list[str]) -> None:
    with pytest.raises(StorageError, match="overlap or are not in order"):
        Pages({"": [(["a", "b"], "1")], "1": [(again,)]}).listed()


@settings(max_examples=15)  # each starts a server
@given(paths=st.lists(st.text("abc", min_size=1, max_size=4), min_size=2, unique=True), cut=st.integers(1, 5))
def test_a_store_that_does_not_sort_is_sorted_here(paths: list[str], cut: int) -> None:
    first = sorted(paths[:-1]) + paths[-1:]
    assume(first != sorted(first))
    pages = Pages({"": [(first, "1")], "1": [(["0" * cut],)]})
    assert pages.listed() == sorted(f"s3://bkt/{path}" for path in [*paths, "0" * cut])


def test_objects_are_handed_out_while_the_next_page_is_requested_and_an_abandoned_listing_ends() -> None:
    first = [f"a{number:03d}" for number in range(1000)]  # a page
    pages, before = (
        Pages({"": [(first, "1")], "1": [(["c"], "2")], "2": [(["d"],)]}),
        set(threading.enumerate()),
    )
    pages.gate.clear()
    with scripted(pages.respond) as server:
        found = iter(tdr.IterableWrapper(["s3://bkt/"]).list_remote(storage_options=options_of(server.url)))
        assert [next(found) for _ in first] == [f"s3://bkt/{key}" for key in first]
        wait_for(lambda: pages.asked == ["", "1"])
        pages.gate.set()
        assert list(found) == ["s3://bkt/c", "s3://bkt/d"]
        found = iter(tdr.IterableWrapper(["s3://bkt/"]).list_remote(storage_options=options_of(server.url)))
        next(found)
        del found
        gc.collect()
    wait_for(lambda: all("process_request" in thread.name for thread in new_threads(before)))  # those of the server


# --- sources that name one object


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
        begin = query.get("start-after", "") if self.keys == sorted(self.keys) else ""
        keys = [key for key in self.keys if key.startswith(query.get("prefix", "")) and key > begin]
        at = int(query.get("continuation-token", -self.num_empty))
        end = at + int(query.get("max-keys", 1000)) if at >= 0 else at + 1
        return xml_page(keys[at:end] if at >= 0 else [], str(end) if end < len(keys) else None)

    def listed(self, *urls: str) -> tuple[list[RemoteUrl], list[str]]:
        """List sources; return the methods of the requests, too."""
        with scripted(self.respond) as server:
            found = list(tdr.IterableWrapper(list(urls)).list_remote(storage_options=options_of(server.url)))
            return found, [request.method for request in server.requests]


BESIDE = [f"d/t-{number:02d}" for number in range(12)]


@pytest.mark.parametrize("keys", [[*BESIDE, "d/t"], [*reversed(BESIDE), "d/t"]])
def test_an_object_is_found_in_whatever_order_a_store_lists(keys: list[str]) -> None:
    [found], _ = Keys(keys).listed("s3://bkt/d/t")
    assert (found, found.size, found.etag) == ("s3://bkt/d/t", 3, '"1"')


@pytest.mark.parametrize("status", [403, 404, 405, 501])
def test_a_missing_object_is_missing_whatever_a_store_answers(status: int) -> None:
    with pytest.raises(EmptyListingError, match=" has 't-00'"):
        Keys(BESIDE, head=Response(status)).listed("s3://bkt/d/t")


@pytest.mark.parametrize(
    ("keys", "source", "names", "num_requests"),
    [
        (["d/1", "d/2"], "d", ["d/1", "d/2"], 1),
        (["d", "d/1"], "d", ["d/1"], 1),
        (["v1.0/1", "v2.tar"], "v1.0", ["v1.0/1"], 1),
        (["README", "READMORE"], "README", ["README"], 2),
        (["a[1]"], "a[1]", ["a[1]"], 2),
        (["d.tar", "d.tar/1"], "d.tar", ["d.tar"], 0),
        (["d.tar", "d.tar/1"], "d.tar/", ["d.tar/1"], 1),
    ],
)
def test_the_text_of_a_source_says_what_is_requested(
    keys: list[str], source: str, names: list[str], num_requests: int
) -> None:
    found, methods = Keys(keys).listed(f"s3://bkt/{source}")
    assert (found, methods) == ([f"s3://bkt/{name}" for name in names], ["GET"] * num_requests)


def test_an_object_that_was_listed_costs_no_request_and_keeps_what_is_known() -> None:
    one = RemoteUrl("s3://bkt/a[1].tar", 3, '"etag"', num_samples=7)
    nowhere = options_of("http://127.0.0.1:1")
    [found] = tdr.IterableWrapper([one]).list_remote(storage_options=nowhere)
    assert (found, found.size, found.etag, found.num_samples) == (one, 3, '"etag"', 7)


# --- a process that will be forked

MANY = [f"d/{number:04d}" for number in range(3500)]


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "fork")


@pytest.mark.usefixtures("forks")
def test_a_long_listing_of_a_process_that_will_be_forked_is_by_obstore_in_another_process() -> None:
    """Torch forks workers by default, and children cannot use obstore after their parent did."""
    with scripted(Keys(MANY).respond) as server:
        files = tdr.RemoteFiles("s3://bkt/d/", storage_options=options_of(server.url))
        agents = [request.headers["user-agent"] for request in server.requests]
    assert [path for path, _ in (url_and_size(files, number) for number in range(len(files)))] == MANY
    assert {size for _, size in (url_and_size(files, number) for number in (0, 2000, 3499))} == {3}
    assert ["object_store" in agent for agent in agents][:2] == [False, False]
    assert "object_store" in agents[-1]


def url_and_size(files: Any, number: int) -> tuple[str, int | None]:
    url = files._files.urls[number]
    return url.removeprefix("s3://bkt/"), url.size


@pytest.mark.usefixtures("forks")
def test_an_error_of_the_other_process_is_raised_here() -> None:
    def respond(request: Request) -> Response:
        return Response.of_error(403, "No") if "object_store" in request.headers["user-agent"] else answers(request)

    answers = Keys(MANY).respond
    with scripted(respond) as server, pytest.raises(AccessDeniedError, match="s3://bkt/"):
        tdr.RemoteFiles("s3://bkt/d/", storage_options=options_of(server.url))


# --- manifests


def test_a_manifest_is_a_listing(memory_folder: str) -> None:
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=2)
    listed = urls_of(f"{memory_folder}/", pattern="*.tar")
    named = urls_of(f"{memory_folder}/index.json", pattern="*.tar")
    assert named == listed
    assert [url.size for url in named] == [url.size for url in listed]
    assert all(url.checksums is not None and len(url.checksums.crc32s) == 1 for url in named)
    assert urls_of(f"{memory_folder}/index.json", pattern="*1.tar") == [f"{memory_folder}/000001.tar"]
    with pytest.raises(EmptyListingError):
        urls_of(f"{memory_folder}/index.json", pattern="*.zip")
