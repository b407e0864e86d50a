"""From source URLs to objects: what a plain model of a store says, on real ones."""

from __future__ import annotations

import fnmatch
import functools
import gc
import json
import re
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.servers.s3 import S3Server
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ManifestError,
    ObjectNotFoundError,
    RemoteDataError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.fetch.listing import choices as listing
from torchdata_remote.fetch.listing.sources import list_source
from torchdata_remote.storage import Entry, Page
from torchdata_remote.storage.listing import pages as _paging
from torchdata_remote.storage.listing.folder import list_folder
from torchdata_remote.testing import write_small_shards

ONE_ATTEMPT = RetryPolicy(max_attempts=1)
SEGMENT = st.sampled_from(["a", "ab", "b", "t-1", "t-02", "x.tar", "y.tar", "a b", "a+b", "%20", "é", "A"])
PATH = st.lists(SEGMENT, min_size=1, max_size=3).map("/".join)


def without_clashes(paths: set[str]) -> set[str]:
    """In a store with folders a path cannot be an object and a folder."""
    return {path for path in paths if not any(other.startswith(path + "/") for other in paths)}


PATHS = st.sets(PATH, min_size=1, max_size=12)


def urls_of(url: str, options: dict[str, Any] | None = None, **more: Any) -> list[RemoteUrl]:
    keywords: dict[str, Any] = {"pattern": None, "recursive": True, "retry": ONE_ATTEMPT, **more}
    return list(list_source(url, options=StorageOptions(options), **keywords))


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
    """What a prefix stands for: the object of that name, and all in the folder of that name."""
    folder = prefix.rstrip("/") + "/" if prefix.strip("/") else ""
    found = [path for path in paths if path.startswith(folder) and (recursive or "/" not in path[len(folder) :])]
    if prefix and not prefix.endswith("/") and prefix in paths:
        found.append(prefix)
    return sorted(found)


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
    st.sampled_from(["*", "?", "a*", "*b", "t-?", "t-*", "*.tar", "[ab]", "[!a]*", "x.tar", "a", "t-[0-9]*"]),
    min_size=1,
    max_size=3,
).map("/".join)


def check_globs(paths: set[str], glob: str, root: str, options: dict[str, Any]) -> None:
    for pattern in (glob, "**/" + glob):
        if re.search(r"[*?\[]", pattern):
            assert below(root + pattern, options, root) == model_glob(paths, pattern)


@given(paths=PATHS.map(without_clashes), source=PATH, recursive=st.booleans(), glob=GLOBS)
def test_prefixes_objects_and_globs_are_listed_sorted(paths: set[str], source: str, recursive: bool, glob: str) -> None:
    """Prefixes with and without a slash; compared with a model."""
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
    """There a key may also be the folder of other keys."""
    bucket, folder = shared_bucket(moto), uuid.uuid4().hex
    put_all(moto, bucket, {f"{folder}/{path}" for path in paths})
    root = f"s3://{bucket}/{folder}/"
    check_against_the_model(paths, source, recursive, root, moto.storage_options)
    check_globs(paths, glob, root, moto.storage_options)


@given(paths=PATHS.map(without_clashes), name=st.sampled_from(["*", "*.tar", "a*", "t-??", "nothing", "é", "**/*b*"]))
def test_a_pattern_matches_base_names_or_paths(paths: set[str], name: str) -> None:
    """A pattern is a glob over base names or, with a slash, over the path below the source."""
    root = f"memory://{uuid.uuid4().hex}/"
    fsspec.filesystem("memory").pipe({f"{root.removeprefix('memory:/')}top/{path}": b"1" for path in paths})
    if "/" in name:
        expected = model_glob(paths, name)
    else:
        expected = sorted(path for path in paths if fnmatch.fnmatchcase(path.rpartition("/")[2], name))
    assert below(root + "top", {}, root + "top/", pattern=name) == expected
    assert below(root + "top/", {}, root + "top/", pattern=name) == expected


def test_folder_never_matches_folder2(s3: S3Server) -> None:
    """A prefix ends at a slash."""
    bucket = s3.new_bucket()
    put_all(s3, bucket, {"folder/a", "folder/sub/b", "folder2/c", "folder.tar", "folder-1/d"})
    client_of(s3).put_object(Bucket=bucket, Key="folder/", Body=b"")
    for source in ("folder", "folder/"):
        listed = urls_of(f"s3://{bucket}/{source}", s3.storage_options)
        assert listed == [f"s3://{bucket}/folder/a", f"s3://{bucket}/folder/sub/b"]
    assert urls_of(f"s3://{bucket}/folder.tar", s3.storage_options) == [f"s3://{bucket}/folder.tar"]
    flat = urls_of(f"s3://{bucket}/folder", s3.storage_options, recursive=False)
    assert flat == [f"s3://{bucket}/folder/a"]


def test_a_key_that_ends_in_a_slash_and_has_bytes_is_listed(s3: S3Server) -> None:
    """It is no marker, and leaving it out would lose it in silence."""
    bucket = s3.new_bucket()
    put_all(s3, bucket, {"folder/data/", "folder/a"})
    listed = urls_of(f"s3://{bucket}/folder", s3.storage_options)
    assert listed == [f"s3://{bucket}/folder/a", f"s3://{bucket}/folder/data/"]


def test_a_name_with_brackets_is_found_as_one_object(s3: S3Server) -> None:
    """A glob that matches nothing is tried as the name that it may be."""
    bucket = s3.new_bucket()
    put_all(s3, bucket, {"a[1].tar", "b1.tar"})
    assert urls_of(f"s3://{bucket}/a[1].tar", s3.storage_options) == [f"s3://{bucket}/a[1].tar"]
    assert urls_of(f"s3://{bucket}/b[1].tar", s3.storage_options) == [f"s3://{bucket}/b1.tar"]


def test_directory_markers_are_skipped(s3: S3Server) -> None:
    """Markers, that end in a slash or are empty and named like the folder, are no data."""
    bucket, client = s3.new_bucket(), client_of(s3)
    for key in ("dir/", "dir/sub/", "dir/sub/deeper/", "dir"):
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    client.put_object(Bucket=bucket, Key="dir/sub/a", Body=b"1")
    for source in ("", "/", "/dir", "/dir/"):
        listed = urls_of(f"s3://{bucket}{source}", s3.storage_options)
        assert [url for url in listed if url != f"s3://{bucket}/dir"] == [f"s3://{bucket}/dir/sub/a"]
    assert urls_of(f"s3://{bucket}/dir", s3.storage_options) == [f"s3://{bucket}/dir/sub/a"]
    client.delete_object(Bucket=bucket, Key="dir/sub/a")
    with pytest.raises(EmptyListingError):
        urls_of(f"s3://{bucket}/dir/sub", s3.storage_options)


def test_a_single_object_is_listed_with_size_and_etag(s3: S3Server) -> None:
    """An object stands for itself, an empty one too, with size and etag."""
    bucket = s3.new_bucket()
    etag = client_of(s3).put_object(Bucket=bucket, Key="a/b.tar", Body=b"123")["ETag"]
    client_of(s3).put_object(Bucket=bucket, Key="a/empty", Body=b"")
    [url] = urls_of(f"s3://{bucket}/a/b.tar", s3.storage_options)
    assert (url, url.size, url.etag) == (f"s3://{bucket}/a/b.tar", 3, etag)
    [url] = urls_of(f"s3://{bucket}/a/empty", s3.storage_options)
    assert (url, url.size) == (f"s3://{bucket}/a/empty", 0)
    for pattern, count in (("*.tar", 1), ("*.jpg", 0)):
        assert len(below(f"s3://{bucket}/a/b.tar", s3.storage_options, "", pattern=pattern)) == count


def test_a_listing_of_several_pages_is_complete_sorted_and_without_repetition(s3: S3Server) -> None:
    """Of a prefix, of globs, and of a prefix within a name."""
    bucket = s3.new_bucket()
    keys = {f"many/{number % 7}/{number:05d}.tar" for number in range(1_100)}
    put_all(s3, bucket, keys | {"many2/x.tar"})
    root = f"s3://{bucket}/"
    assert below(root + "many", s3.storage_options, root) == sorted(keys)
    assert below(root + "many/*/*.tar", s3.storage_options, root) == sorted(keys)
    assert below(root + "many", s3.storage_options, root, pattern="*00.tar") == sorted(
        key for key in keys if key.endswith("00.tar")
    )
    assert [str(url).removeprefix(root) for url in list_folder_of(root + "many/3/00", s3)] == sorted(
        key for key in keys if key.startswith("many/3/00")
    )


def list_folder_of(url: str, server: S3Server) -> Iterator[RemoteUrl]:
    return list_folder(url, recursive=True, options=StorageOptions(server.storage_options), retry=ONE_ATTEMPT)


@given(
    first=st.integers(0, 120),
    count=st.integers(1, 30),
    width=st.integers(0, 6),
    words=st.lists(SEGMENT, min_size=1, max_size=3),
)
def test_a_brace_range_is_expanded_without_a_request(first: int, count: int, width: int, words: list[str]) -> None:
    """A brace range is expanded without asking the store, in its order, as a shell would."""
    low, high = f"{first:0{width}d}", f"{first + count - 1:0{width}d}"
    pads = low.startswith("0") or len(low) == len(high)
    numbers = [f"{number:0{len(low) if pads else 0}d}" for number in range(first, first + count)]
    choice = "{" + ",".join(words) + "}" if len(words) > 1 else words[0]
    nowhere = {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "s"}
    listed = urls_of(f"s3://bucket/{choice}/t-{{{low}..{high}}}.tar", nowhere)
    assert listed == [f"s3://bucket/{word}/t-{number}.tar" for word in words for number in numbers]
    assert all(url.size is None for url in listed)


def test_each_choice_of_a_brace_range_with_a_glob_is_listed(memory_folder: str) -> None:
    """Where a glob is left, each choice is listed."""
    folder = memory_folder.removeprefix("memory:/")
    names = ["train/0.tar", "train/1.tar", "val/0.tar", "test/0.tar", "val/0.jpg"]
    fsspec.filesystem("memory").pipe({f"{folder}/{name}": b"1" for name in names})
    root = memory_folder + "/"
    assert below(root + "{val,train}/*.tar", {}, root) == ["val/0.tar", "train/0.tar", "train/1.tar"]


def test_choices_that_end_in_a_slash_are_listed_as_folders(memory_folder: str) -> None:
    """``{train,val}/`` lists both folders."""
    folder = memory_folder.removeprefix("memory:/")
    names = ["train/0.tar", "train/1.tar", "val/0.tar", "test/0.tar"]
    fsspec.filesystem("memory").pipe({f"{folder}/{name}": b"1" for name in names})
    root = memory_folder + "/"
    assert below(root + "{train,val}/", {}, root) == ["train/0.tar", "train/1.tar", "val/0.tar"]


@pytest.mark.parametrize("url", ["{}/none", "{}/none/", "{}/*.none", "{}/none/**"])
def test_an_empty_listing_is_an_error_with_url_and_pattern(memory_folder: str, url: str) -> None:
    """An empty listing is an error that names URL, pattern and ``recursive``, and is a FileNotFoundError."""
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


def test_empty_bucket_and_no_bucket(s3: S3Server) -> None:
    """An empty bucket is an empty listing; one that does not exist is named as missing."""
    bucket = s3.new_bucket()
    with pytest.raises(EmptyListingError, match=f"s3://{bucket}"):
        urls_of(f"s3://{bucket}", s3.storage_options)
    for source in ("", "/", "/a", "/a/", "/*.tar"):
        with pytest.raises(ObjectNotFoundError, match="no such bucket"):
            urls_of(f"s3://none-{bucket}{source}", s3.storage_options)


@pytest.mark.parametrize("glob", ["[z-a].tar", "[", "a[", "[]", "[!]", "[a", "***", "*[*", "?["])
def test_an_invalid_glob_is_literal_or_refused(memory_folder: str, glob: str) -> None:
    """By an error of this package."""
    fsspec.filesystem("memory").pipe(memory_folder.removeprefix("memory:/") + "/a.tar", b"1")
    with pytest.raises(RemoteDataError):  # noqa: PT012  # some match after all
        urls_of(f"{memory_folder}/{glob}")
        raise EmptyListingError("matched")


@pytest.mark.parametrize("url", ["memory://a/{3..1}.tar", "s3://{a,b", "nope://a/{0..2}/*"])
def test_invalid_sources_are_refused_before_listing(url: str) -> None:
    """A descending range and an unknown scheme."""
    with pytest.raises((UrlError, AccessDeniedError)):
        urls_of(url)


class Pages:
    """A store that answers page by page from a script."""

    may_ignore_ranges = False
    maps_files = False

    def __init__(self, answers: dict[str | None, list[Page | Exception]]) -> None:
        self.answers, self.asked = answers, list[str | None]()

    def list_page(self, prefix: str, *, recursive: bool, token: str | None) -> Page:
        self.asked.append(token)
        answer = self.answers[token].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def page(*paths: str, then: str | None = None) -> Page:
    return Page([Entry(path, 1, None) for path in paths], then)


def list_pages(monkeypatch: pytest.MonkeyPatch, pages: Pages) -> list[str]:
    for module in (listing, _paging):
        monkeypatch.setattr(module, "open_store", lambda url, options, connection: (pages, ""))
    return list(urls_of("s3://b/", retry=RetryPolicy(max_attempts=3, first_wait_s=0)))


def test_a_page_that_fails_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is repeated, and empty pages do not end the listing."""
    fault = TransientStorageError("try again")
    pages = Pages(
        {
            None: [page("a", then="1")],
            "1": [fault, fault, page(then="2")],
            "2": [fault, page("b", then="3")],
            "3": [page("c")],
        }
    )
    assert list_pages(monkeypatch, pages) == ["s3://b/a", "s3://b/b", "s3://b/c"]
    assert pages.asked == [None, "1", "1", "1", "2", "2", "3"]


def test_a_page_that_fails_for_good_fails_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that cannot be had is an error: a shorter listing never passes for the whole."""
    for fault in (TransientStorageError("never"), AccessDeniedError("denied")):
        pages = Pages({None: [page("a", then="1")], "1": [fault] * 3})
        with pytest.raises(type(fault)):
            list_pages(monkeypatch, pages)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_listing_that_runs_in_a_circle_ends(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """A store that repeats a page's token, at once or later, is an error and no endless loop."""
    pages = Pages({None: [page("a", then="1")]})
    for number in range(1, length + 1):
        then = "1" if number == length else str(number + 1)
        pages.answers[str(number)] = [page(f"b{turn}{number}", then=then) for turn in range(5)]
    with pytest.raises(StorageError, match="repeats page '1'"):
        list_pages(monkeypatch, pages)


def test_keys_are_yielded_while_later_pages_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next page is requested, and its response is not waited for."""
    pages = Pages({None: [page("a", "b", then="1")], "1": [page("c")]})
    asked, answer = threading.Event(), threading.Event()
    honest = pages.list_page

    def slow(prefix: str, *, recursive: bool, token: str | None) -> Page:
        if token == "1":
            asked.set()
            assert answer.wait(20)
        return honest(prefix, recursive=recursive, token=token)

    pages.list_page = slow  # type: ignore[method-assign]
    monkeypatch.setattr(listing, "open_store", lambda url, options, connection: (pages, ""))
    monkeypatch.setattr(_paging, "open_store", lambda url, options, connection: (pages, ""))
    found = list_source(
        "s3://b/", pattern=None, recursive=True, options=StorageOptions(), retry=RetryPolicy(max_attempts=1)
    )
    assert [next(found), next(found)] == ["s3://b/a", "s3://b/b"]
    assert asked.wait(20)
    answer.set()
    assert list(found) == ["s3://b/c"]


@given(paths=st.lists(st.text("abc/", min_size=1, max_size=4), min_size=2, unique=True), cut=st.integers(1, 5))
def test_an_unsorted_listing_is_sorted(paths: list[str], cut: int) -> None:
    """Where the first page is not sorted, as in S3's directory buckets, the listing is sorted here, whole."""
    first = sorted(paths[:-1]) + paths[-1:]
    assume(first != sorted(first))
    pages = Pages({None: [page(*first, then="1")], "1": [page("0" * cut)]})
    with pytest.MonkeyPatch.context() as patch:
        got = list_pages(patch, pages)
    assert got == sorted(f"s3://b/{path}" for path in [*paths, "0" * cut])


def test_overlapping_pages_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated object, or one out of order: others may be missing."""
    for again in ("b", "a"):
        pages = Pages({None: [page("a", "b", then="1")], "1": [page(again, "c")]})
        with pytest.raises(StorageError, match="overlap or are not in order"):
            list_pages(monkeypatch, pages)


def test_a_duplicate_in_a_page_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the store does not sort."""
    for paths in (("d/2", "d/2"), ("d/2", "d/1", "d/2")):
        with pytest.raises(StorageError, match="overlap or are not in order"):
            list_pages(monkeypatch, Pages({None: [page(*paths)]}))


def test_an_abandoned_listing_ends_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first key."""
    before = set(threading.enumerate())
    pages = Pages({None: [page("a", then="1")], "1": [page("b", then="2")], "2": [page("c")]})
    monkeypatch.setattr(listing, "open_store", lambda url, options, connection: (pages, ""))
    monkeypatch.setattr(_paging, "open_store", lambda url, options, connection: (pages, ""))
    found = list_source(
        "s3://b/", pattern=None, recursive=True, options=StorageOptions(), retry=RetryPolicy(max_attempts=1)
    )
    assert next(found) == "s3://b/a"
    del found
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()


def test_a_manifest_is_a_listing(memory_folder: str) -> None:
    """``index.json`` stands for the shards that it names, with their sizes, and brings their checksums along."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=2)
    listed = urls_of(f"{memory_folder}/", pattern="*.tar")
    named = urls_of(f"{memory_folder}/index.json", pattern="*.tar")
    assert named == listed
    assert [url.size for url in named] == [url.size for url in listed]
    assert all(url.checksums is not None and len(url.checksums.crc32s) == 1 for url in named)
    assert urls_of(f"{memory_folder}/index.json", pattern="*1.tar") == [f"{memory_folder}/000001.tar"]
    with pytest.raises(EmptyListingError):
        urls_of(f"{memory_folder}/index.json", pattern="*.zip")


def test_missing_or_invalid_manifests_are_errors(memory_folder: str) -> None:
    """Also a manifest that names objects of another folder."""
    with pytest.raises(ObjectNotFoundError):
        urls_of(f"{memory_folder}/index.json")
    outside = {"url": "../a.tar", "nsamples": 1, "filesize": 1, "md5sum": ""}
    broken = {**outside, "url": "a.tar", "filesize": 9, "crc32": "00000000 00000000", "crc32_block_bytes": 9}
    for content in (b"", b"[]", b"{}", *(json.dumps(manifest_of(entry)).encode() for entry in (outside, broken))):
        fsspec.filesystem("memory").pipe(memory_folder.removeprefix("memory:/") + "/index.json", content)
        with pytest.raises(ManifestError, match=f"{memory_folder}/index.json"):
            urls_of(f"{memory_folder}/index.json")


def manifest_of(entry: dict[str, Any]) -> dict[str, Any]:
    return {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [entry]}
