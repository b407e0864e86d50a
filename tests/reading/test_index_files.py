"""Index files: what a listing found, without another listing, for datasets of files."""

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
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.scripted import Response, scripted
from torchdata_remote.cli import main
from torchdata_remote.errors import ManifestError, ObjectNotFoundError, StorageError, UrlError

Index = str | os.PathLike[str] | Sequence[str]
PART = st.sampled_from(["a", "b.png", "a b", "é", "%20", "[1]", "{x,y}", "..", ".", "~", "http:", "q?x", "\U0001f600"])
PATH = st.lists(PART, min_size=1, max_size=3).map("/".join)
KEYS = ["scratch/train/cat/1.jpg", "scratch/val/dog/2.jpg"]


def read(index: Any, url: str, options: dict[str, Any] | None = None) -> dict[str, str]:
    """URL of each entry, and its path below the folder; no entry is read."""
    paths: list[str] = []
    found = tdr.RemoteImageFolder(
        url,
        index=index,
        storage_options=options,
        classes=lambda path: paths.append(path) or 0,  # type: ignore[func-returns-value]
    )
    assert len(paths) == len(found) == len(found.samples)
    shown = sorted((url for url, _ in found.samples), key=lambda url: url[::-1])
    return dict(zip(shown, sorted(paths, key=lambda path: path[::-1]), strict=True))


def write(url: str, index: object, *more: str) -> int:
    return main(["index", url, "-o", str(index), *more])


def items(dataset: Any) -> list[Any]:
    return [dataset[number] for number in range(len(dataset))]


@given(paths=st.lists(PATH, min_size=1, max_size=8, unique=True), folder=PATH, gzipped=st.booleans())
def test_an_index_returns_any_key(paths: list[str], folder: str, gzipped: bool) -> None:
    # Also keys that look like a URL, a glob, or a parent folder
    keys = [f"{path}/x.jpg" for path in paths]
    data = json.dumps(keys).encode()
    index = f"memory://{uuid.uuid4().hex}/i.json{'.gz' if gzipped else ''}"
    fsspec.filesystem("memory").pipe(index.removeprefix("memory:/"), gzip.compress(data) if gzipped else data)
    for url in ("s3://b/", f"s3://b/{tdr.escape_url(folder)}/"):
        assert sorted(read(index, url)) == sorted(f"s3://b/{key}" for key in keys)
    assert sorted(read(index, "s3://b/").values()) == sorted(keys)


def test_an_index_returns_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    (tmp_path / name).write_bytes(b"1")
    assert write(f"{tmp_path}/", tmp_path / "i.json") == 0
    assert read(tmp_path / "i.json", str(tmp_path)) == {f"file://{tmp_path}/{name}": name}


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
def test_entries_without_a_scheme_are_keys_of_the_store_of_the_folder(
    url: str, urls: list[str], below: list[str]
) -> None:
    assert read(KEYS, url) == dict(zip(urls, below, strict=True))


def test_entries_with_a_scheme_are_urls() -> None:
    entries = ["s3://b/train/1.jpg", "s3://other/train/2.jpg"]
    found = read(entries, "s3://b/train/")
    assert list(found.values()) == ["1.jpg", "train/2.jpg"]
    assert list(found) == entries


def test_an_index_is_a_url_a_path_or_a_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "i.json").write_text(json.dumps(KEYS))
    monkeypatch.chdir(tmp_path)
    indexes: list[Index] = [tmp_path / "i.json", str(tmp_path / "i.json"), f"file://{tmp_path}/i.json", "i.json", KEYS]
    for index in [*indexes, tuple(KEYS)]:
        assert list(read(index, "s3://b/").values()) == KEYS
    with pytest.raises(UrlError):
        read("", "s3://b/")


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
    (b'["a", 3]', "entry 1, 3: "),
    (b'["a", null]', "entry 1, None"),
    (b'["a", ""]', "entry 1"),
    (b'["a", "b\\u0000"]', "entry 1"),
    (b'["a", "b", "a"]', "entry 2, 'a': it names an object for the second time"),
    (gzip.compress(b'["a"]')[:-3], "no JSON"),
    (gzip.compress(b'["a"]')[:-8] + b"\0" * 8, "no JSON"),
    (gzip.compress(b"[" + b" " * (20 << 20) + b'"a"]'), "no JSON"),
]


@pytest.mark.parametrize(("data", "says"), BAD, ids=[f"{number}-{says}" for number, (_, says) in enumerate(BAD)])
def test_anything_but_an_array_of_paths_is_an_error_that_names_the_index(
    memory_folder: str, data: bytes, says: str
) -> None:
    index = f"{memory_folder}/i.json"
    fsspec.filesystem("memory").pipe(index.removeprefix("memory:/"), data)
    for url in ("s3://b/", "/data"):
        with pytest.raises(ManifestError, match=f"^{re.escape(index)}: .*{says}") as caught:
            tdr.RemoteFiles(url, index=index)
        assert caught.value.url == index


@pytest.mark.parametrize(
    "entry",
    ["/etc/passwd", "../a", "a/../../b", "a/..", "..", "file:///etc/passwd", "file:///data/../a", "file:///database/a"],
)
def test_entries_outside_of_a_local_folder_are_refused(entry: str) -> None:
    with pytest.raises(ManifestError, match="entry 1"):
        tdr.RemoteFiles("/data", index=["a", entry])


@pytest.mark.parametrize(
    "entry", ["file:///etc/passwd", "local:///etc/passwd", "memory://x", "gs://c/a", "https://me:pw@h/a", "s3://"]
)
def test_an_index_of_a_bucket_names_no_local_files_and_no_unrelated_store(entry: str) -> None:
    with pytest.raises(ManifestError, match="entry 0") as caught:
        tdr.RemoteFiles("s3://b/", index=[entry])
    assert "pw" not in str(caught.value)


def test_a_missing_index_is_an_error_that_names_it(memory_folder: str) -> None:
    with pytest.raises(ObjectNotFoundError, match=re.escape(memory_folder)):
        tdr.RemoteFiles("s3://b/", index=f"{memory_folder}/i.json")


def test_options_go_to_an_index_of_the_same_kind_of_store_only_and_it_costs_one_get() -> None:
    body = json.dumps(KEYS).encode()
    with scripted(lambda request: Response.of_object(request, body)) as server:
        secret = {"headers": {"Authorization": "Bearer hunter2"}}
        for url in ("s3://b/", "https://b/", "http://b/"):
            assert len(read(f"{server.url}/i.json", url, secret if "http" in url else {"token": "hunter2"})) == 2
        assert server.requests
        for request in server.requests:
            assert "hunter2" not in str(request.headers)
            assert "authorization" not in request.headers
        server.requests.clear()
        options = {"endpoint_url": server.url, "key": "k", "secret": "s", "region": "us-east-1"}
        for url in ("s3://bkt/", "s3a://bkt/"):
            assert len(read("s3://bkt/i.json", url, options)) == 2
        assert [(seen.method, seen.target) for seen in server.requests] == [("GET", "/bkt/i.json")] * 2
    with pytest.raises(StorageError):
        read("s3://bkt/i.json", "https://b/", {**options, "anon": False})
