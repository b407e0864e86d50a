"""Index files: what a listing found, without another listing."""

from __future__ import annotations

import gzip
import json
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.s3 import S3Server
from tests.servers.scripted import Response, scripted
from tests.support.shard_places import Place
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.core.urls import join_url, split_url
from torchdata_remote.errors import (
    EmptyListingError,
    ManifestError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    UrlError,
)
from torchdata_remote.fetch.listing.index_file import read_index, write_index
from torchdata_remote.fetch.listing.sources import list_source
from torchdata_remote.storage import publish, read_whole
from torchdata_remote.testing import FaultyStore

Index = str | os.PathLike[str] | Sequence[str]
RETRY = RetryPolicy(max_attempts=1)
PART = st.sampled_from(["a", "b.jpg", "a b", "é", "%20", "[1]", "{x,y}", "..", ".", "~", "http:", "q?x", "\U0001f600"])
PATH = st.lists(PART, min_size=1, max_size=3).map("/".join)


def read(index: Index, url: str, options: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    found = list(read_index(index, url, options=StorageOptions(options), retry=RETRY))
    assert all((one.size, one.etag) == (None, None) for one, _ in found)
    return [(str(one), path) for one, path in found]


def write(index: str | Path, objects: list[str], url: str, **more: Any) -> int:
    return write_index(index, objects, url, **{"options": StorageOptions(), "retry": RETRY, **more})


def listed(url: str, options: dict[str, Any] | None) -> list[str]:
    return [
        str(one) for one in list_source(url, pattern=None, recursive=True, options=StorageOptions(options), retry=RETRY)
    ]


@pytest.mark.parametrize("name", ["index.json", "index.json.gz"])
def test_a_written_index_returns_the_listed_urls_in_order(place: Place, name: str, tmp_path: Path) -> None:
    """Below the same folder, in any store."""
    options = place.options
    names = ["train/cat/1.jpg", "train/cat/é 2.jpg", "train/dog/1.jpg", "val/cat/1.jpg"]
    for path in names:
        publish(place.url + path, b"1", StorageOptions(options), overwrite=False)
    for index in (f"{tmp_path}/here/{name}", place.url + name):
        for url in (place.url, place.url + "train", place.url + "train/"):
            objects = listed(url, options)
            objects = [one for one in objects if not one.endswith(name)]
            assert write(index, objects, url, options=StorageOptions(options), overwrite=True) == len(objects)
            below = [path for path in names if url == place.url or path.startswith("train/")]
            short = [path if url == place.url else path.removeprefix("train/") for path in below]
            assert read(index, url, options) == list(zip(objects, short, strict=True))


@given(paths=st.lists(PATH, min_size=1, max_size=8, unique=True), folder=PATH, gzipped=st.booleans())
def test_an_index_returns_any_key(paths: list[str], folder: str, gzipped: bool) -> None:
    """Also keys that look like a URL, a glob, or a parent folder."""
    index = f"memory://{uuid.uuid4().hex}/i.json{'.gz' if gzipped else ''}"
    for url in ("s3://b/", f"s3://b/{folder}/", f"s3://b/{folder}"):
        objects = [join_url("s3", "b", path) for path in paths]
        assert write(index, objects, url, overwrite=True) == len(paths)
        found = read(index, url)
        assert [one for one, _ in found] == objects
        if url == "s3://b/":
            assert [path for _, path in found] == paths
    data = read_whole(index, StorageOptions(), RETRY)
    assert (data[:2] == b"\x1f\x8b") is gzipped
    assert len(json.loads(gzip.decompress(data) if gzipped else data)) == len(paths)


def test_an_index_returns_names_that_are_not_utf8(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 in the name of a file survive."""
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    (tmp_path / name).write_bytes(b"1")
    objects = listed(f"{tmp_path}/", {})
    write(tmp_path / "i.json", objects, str(tmp_path))
    assert read(tmp_path / "i.json", str(tmp_path)) == [(f"file://{tmp_path}/{name}", name)]


KEYS = ["scratch/train/cat/1.jpg", "scratch/val/dog/2.jpg"]


@pytest.mark.parametrize(
    ("url", "urls", "below"),
    [
        ("s3://b", [f"s3://b/{key}" for key in KEYS], KEYS),
        ("s3://b/scratch/train", [f"s3://b/{key}" for key in KEYS], ["cat/1.jpg", KEYS[1]]),
        ("s3://b/scratch/*/", [f"s3://b/{key}" for key in KEYS], ["train/cat/1.jpg", "val/dog/2.jpg"]),
        ("s3://b/scratch/{train,val}/", [f"s3://b/{key}" for key in KEYS], ["train/cat/1.jpg", "val/dog/2.jpg"]),
        ("https://h/scratch/?x=1", [f"https://h/{key}" for key in KEYS], ["train/cat/1.jpg", "val/dog/2.jpg"]),
        ("memory://scratch/", [f"memory://{key}" for key in KEYS], ["train/cat/1.jpg", "val/dog/2.jpg"]),
        ("/data", [f"file:///data/{key}" for key in KEYS], KEYS),
        ("file:///data/", [f"file:///data/{key}" for key in KEYS], KEYS),
    ],
)
def test_entries_without_a_scheme_are_keys_of_the_folders_store(url: str, urls: list[str], below: list[str]) -> None:
    """Keys of the bucket, paths on the host, or paths below the local folder; the folder's path is taken off."""
    assert read(KEYS, url) == list(zip(urls, below, strict=True))


def test_entries_with_a_scheme_are_urls() -> None:
    """They are taken as they are; those of the folder's own bucket are below it."""
    entries = ["s3://b/train/1.jpg", "s3://other/train/2.jpg", "https://h/3.jpg?sig=0", "gs://c/4.jpg"]
    found = read(entries, "s3://b/train/")
    assert [url for url, _ in found] == entries
    assert [path for _, path in found] == ["1.jpg", "train/2.jpg", "3.jpg", "4.jpg"]
    assert read(["file:///data/x/1.jpg"], "/data/x") == [("file:///data/x/1.jpg", "1.jpg")]


def test_an_index_is_a_url_a_path_or_a_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL, a path, a ``PathLike``, a list or another sequence."""
    (tmp_path / "i.json").write_text(json.dumps(KEYS))
    monkeypatch.chdir(tmp_path)
    indexes: list[Index] = [tmp_path / "i.json", str(tmp_path / "i.json"), f"file://{tmp_path}/i.json", "i.json", KEYS]
    for index in [*indexes, tuple(KEYS)]:
        assert [path for _, path in read(index, "s3://b/")] == KEYS
    with pytest.raises(ManifestError, match="the bytes given as index"):
        read(b"i.json", "s3://b/")  # type: ignore[arg-type]


def test_reading_an_index_sends_one_get_and_lists_nothing(moto: S3Server) -> None:
    """One GET for the index, and no other request."""
    bucket, options = moto.new_bucket(), StorageOptions(moto.storage_options)
    publish(f"s3://{bucket}/i.json.gz", gzip.compress(json.dumps(KEYS).encode()), options, overwrite=False)
    with FaultyStore(moto.endpoint_url) as store:
        through = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        assert len(read(f"s3://{bucket}/i.json.gz", f"s3://{bucket}/scratch/", through)) == 2
        assert [(seen.method, seen.path.partition("?")[0]) for seen in store.requests] == [
            ("GET", f"/{bucket}/i.json.gz")
        ]


BAD = [
    (b"", "no JSON"),
    (b"[", "no JSON"),
    (b'["a"', "no JSON"),
    (b"[" * 100_000, "no JSON"),
    (b"\xff\xfe\x00", "no JSON"),
    (b'{"a": 1}', "got a dict"),
    (b'"a"', "got a str"),
    (b"null", "got a NoneType"),
    (b"[]", "empty"),
    (b'["a", 3]', r"entry 1 is 3 \(int\)"),
    (b'["a", null]', "entry 1 is None"),
    (b'["a", ["b"]]', "entry 1"),
    (b'["a", ""]', "entry 1"),
    (b'["a", "b\\u0000"]', "entry 1"),
    (b'["a", "b", "a"]', "entry 2, 'a', names an object for the second time"),
    (gzip.compress(b'["a"]')[:-3], "damaged, truncated"),
    (gzip.compress(b'["a"]')[:-8] + b"\0" * 8, "damaged, truncated"),
    (gzip.compress(b"[" + b" " * (20 << 20) + b'"a"]'), "factor of 100"),
]


@pytest.mark.parametrize(("data", "says"), BAD, ids=[f"{number}-{says}" for number, (_, says) in enumerate(BAD)])
def test_anything_but_an_array_of_paths_is_an_error_that_names_the_index(
    memory_folder: str, data: bytes, says: str
) -> None:
    """Before the first URL is returned."""
    index = f"{memory_folder}/i.json"
    fsspec.filesystem("memory").pipe(index.removeprefix("memory:/"), data)
    for url in ("s3://b/", "/data"):
        with pytest.raises(ManifestError, match=f"^{re.escape(index)}: .*{says}") as caught:
            read_index(index, url, options=StorageOptions(), retry=RETRY)
        assert caught.value.url == index


@pytest.mark.parametrize(
    "entry",
    ["/etc/passwd", "../a", "a/../../b", "a/..", "..", "file:///etc/passwd", "file:///data/../a", "file:///database/a"],
)
def test_entries_outside_of_a_local_folder_are_refused(entry: str) -> None:
    """Absolute paths, ways up, and neighbours that begin with the same letters are refused."""
    with pytest.raises(ManifestError, match="entry 1"):
        read(["a", entry], "/data")
    with pytest.raises(ManifestError):
        write("memory://never", [entry if "://" in entry else "file:///etc/passwd"], "/data")


@pytest.mark.parametrize(
    "entry", ["file:///etc/passwd", "local:///etc/passwd", "memory://x", "ssh://h/a", "https://me:pw@h/a", "s3://"]
)
def test_an_index_of_a_bucket_may_not_name_local_files(entry: str) -> None:
    """Nor objects of an unrelated store; no password is shown."""
    with pytest.raises(ManifestError, match="entry 0") as caught:
        read([entry], "s3://b/")
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("entries", [["a", "s3://b/a"], ["s3://c/a", "a", "s3://c/a"], ["s3://b/a", "S3://b/a"]])
def test_an_object_named_twice_is_an_error(entries: list[str]) -> None:
    """Whether it is named by its key or by its URL."""
    with pytest.raises(ManifestError, match="for the second time"):
        read(entries, "s3://b/")
    with pytest.raises(ManifestError, match="for the second time"):
        read(["a", "./a"], "/data")


def test_a_missing_index_is_an_object_not_found_error(memory_folder: str) -> None:
    """Is an object that is not there."""
    with pytest.raises(ObjectNotFoundError, match=re.escape(memory_folder)):
        read(f"{memory_folder}/i.json", "s3://b/")
    with pytest.raises(UrlError):
        read("", "s3://b/")


def test_options_are_not_sent_to_another_kind_of_store_or_host(moto: S3Server) -> None:
    """Only an index in the same kind of store, on the same host, is read with them."""
    body = json.dumps(KEYS).encode()
    with scripted(lambda request: Response.of_object(request, body)) as server:
        secret = {"client_kwargs": {"headers": {"Authorization": "Bearer hunter2"}}, **moto.storage_options}
        for url in ("s3://b/", "https://b/", "http://b/"):
            assert len(read(f"{server.url}/i.json", url, secret)) == 2
        assert server.requests
        for request in server.requests:
            assert "hunter2" not in str(request.headers)
            assert "authorization" not in request.headers
    bucket = moto.new_bucket()
    publish(f"s3://{bucket}/i.json", body, StorageOptions(moto.storage_options), overwrite=False)
    for url in (f"s3://{bucket}/", f"s3a://{bucket}/"):
        assert len(read(f"s3://{bucket}/i.json", url, moto.storage_options)) == 2
    with pytest.raises(StorageError):
        read(f"s3://{bucket}/i.json", "https://b/", moto.storage_options)


def test_an_index_is_published_atomically(place: Place) -> None:
    """An index appears when it is whole; one that is there stays unless it is to be replaced."""
    options = StorageOptions(place.options)
    index = place.url + "i.json"

    def objects() -> Any:
        yield place.url + "a"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_index(index, objects(), place.url, options=options, retry=RETRY)
    with pytest.raises(EmptyListingError):
        listed(place.url, place.options)
    with pytest.raises(EmptyListingError, match="no objects"):
        write(index, [index], place.url, options=options)
    write(index, [place.url + "a"], place.url, options=options)
    before = read_whole(index, options, RETRY)
    with pytest.raises(ObjectExistsError, match="--overwrite"):
        write_index(index, objects(), place.url, options=options, retry=RETRY)
    with pytest.raises(KeyboardInterrupt):
        write_index(index, objects(), place.url, options=options, retry=RETRY, overwrite=True)
    assert read_whole(index, options, RETRY) == before
    write(index, [place.url + "b", index], place.url, options=options, overwrite=True)
    assert [path for _, path in read(index, place.url, place.options)] == ["b"]


@settings(max_examples=10)
@given(num_objects=st.integers(1, 40_000), gzipped=st.booleans())
def test_an_index_of_any_length_is_valid(num_objects: int, gzipped: bool) -> None:
    """Whatever pieces it is written in."""
    index = f"memory://{uuid.uuid4().hex}/i.json{'.gz' if gzipped else ''}"
    objects = [f"s3://b/train/n{number % 1000:08d}/picture-{number:08d}.JPEG" for number in range(num_objects)]
    assert write(index, objects, "s3://b/train/") == num_objects
    found = read(index, "s3://b/train/")
    assert [url for url, _ in found] == objects
    assert found[-1][1] == split_url(objects[-1])[2].removeprefix("train/")
