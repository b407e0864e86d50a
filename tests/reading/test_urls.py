"""What a URL may be, what is said of one that nobody can read, and what ``RemoteUrl`` keeps."""

from __future__ import annotations

import copy
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.scripted_store import store_of
from torchdata_remote.errors import UrlError


def opened(url: Any) -> list[bytes]:
    return [stream.read() for _, stream in tdr.IterableWrapper([url]).async_prefetch()]


PATHS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(path=PATHS.map(lambda path: path.strip("/") or "a"))
def test_a_name_of_any_characters_is_read_from_the_memory_and_from_other_stores(path: str) -> None:
    fsspec.filesystem("memory").pipe({f"/any/{path}": b"1"})
    try:
        assert opened(f"memory://any/{path}") == opened(f"memory:///any/{path}") == [b"1"]
    finally:
        fsspec.filesystem("memory").rm("/any", recursive=True)


def test_schemes_are_read_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    for url in (f"{tmp_path}/a", f"file://{tmp_path}/a", f"FILE://{tmp_path}/a", f"local://{tmp_path}/a"):
        assert opened(url) == [b"1"]
    with store_of({"a": b"2"}) as store:
        assert opened(f"{store.url.replace('scripted', 'Scripted')}a") == [b"2"]


def test_local_paths_may_be_relative_and_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "s3:").mkdir()
    for name in ("a/b.tar", "s3:/b", "dask::a"):
        (tmp_path / name).write_bytes(b"1")
    for path in ("a/b.tar", "~/a/b.tar", "s3:/b", "dask::a", tmp_path / "a" / "b.tar"):
        assert opened(path) == [b"1"], "a path that exists is no mistake, although it looks like a URL"
    assert list(tdr.IterableWrapper(["a/"]).list_remote()) == [f"file://{os.getcwd()}/a/b.tar"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3:///key", "no bucket"),
        ("s3://", "no bucket"),
        ("file://data/a", "absolute"),
        ("", "neither a URL"),
        ("s3://arn:aws:s3:eu-west-1:12:accesspoint/mine/a", "no ARN of an access point"),
        ("abfss://me:SECRET@account.dfs.core.windows.net/a", "credentials"),
        ("hf://hf_SECRET@datasets/org/name/a", "credentials"),
        ("s3://b/a\0b", "NUL"),
        ("a\0b", "neither a URL"),
        ("s3://key:SECRET@b/a", "credentials"),
        ("s3://AKIA:SEC/SECRET@bucket/key", "credentials"),
        ("s3:/b/x", "'s3:/b' is no URL. Write scheme://bucket/path"),
        ("s3:b/x", "no URL"),
        ("s3//b/x", "no URL"),
        ("file:/d/x", "no URL"),
        (" s3://b/x", "no URL"),
        ("s3:///b/x", "Expected s3://bucket/path"),
        ("datasets:///d/x", "no host. Expected datasets://host/path"),
        ("nope://bucket/a", "nope"),
        ("https:///a.tar?X-Amz-Signature=SECRET", "no host"),
        ("https://me:SECRET@host/a", "credentials"),
        ("https://host/a\0?X-Amz-Signature=SECRET", "NUL"),
        ("file://me:SECRET@host/a", "absolute"),
        ("s3:/me:SECRET@b/a", "no URL"),
        ("s3:///me:SECRET@b/a", "s3"),
        ("https:/host/a?X-Amz-Signature=SECRET", "no URL"),
    ],
)
def test_a_url_that_nobody_can_read_is_refused_with_what_is_wrong_and_without_its_secrets(url: str, says: str) -> None:
    with pytest.raises(UrlError, match=re.escape(says)) as caught:
        opened(url)
    assert "SECRET" not in f"{caught.value} {caught.value.url}"


@pytest.mark.parametrize("wrong", [None, 3, b"s3://b/a", ["s3://b/a"]])
def test_what_is_no_text_is_refused_by_its_type(wrong: object) -> None:
    with pytest.raises(UrlError, match="None" if wrong is None else type(wrong).__name__):
        opened(wrong)


@given(
    size=st.none() | st.integers(0),
    etag=st.none() | st.text(),
    num_samples=st.none() | st.integers(0, 99),
    md5=st.none() | st.just("ab"),
)
def test_a_remote_url_is_a_text_that_keeps_what_is_known_of_its_object(
    size: int | None, etag: str | None, num_samples: int | None, md5: str | None
) -> None:
    url = tdr.RemoteUrl("s3://b/a.tar", size, etag, num_samples=num_samples, md5=md5)
    for again in (url, pickle.loads(pickle.dumps(url)), copy.copy(url), copy.deepcopy(url)):
        assert type(again) is tdr.RemoteUrl
        assert (again, again.size, again.etag) == ("s3://b/a.tar", size, etag)
        assert (again.num_samples, again.md5) == (num_samples, md5)
    assert hash(url) == hash("s3://b/a.tar")
    assert type(str(url)) is str


# --- chained URLs of fsspec

CHAINS = [
    "simplecache::s3://b/k", "filecache::https://me:SECRET@h/k?token=SECRET", "blockcache::/data/x.tar",
    "zip://a.txt::s3://b/x.zip", "zip://a::simplecache::s3://b/x.zip", "tar://::s3://b/x.tar.gz", "dask::s3://b/k",
    "reference::s3://b/k", "simplecache::",
]  # fmt: skip


@pytest.mark.parametrize("url", CHAINS)
def test_a_chained_url_is_refused_with_what_replaces_it(url: str) -> None:
    with pytest.raises(UrlError, match=r"chains of fsspec are not read.*shard_zip_reader.*cache_dir=") as caught:
        list(tdr.stream_files(url))
    assert "SECRET" not in f"{caught.value}{caught.value.url}"


def test_an_archive_that_an_option_names_is_read_by_fsspec(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("d/1.txt", "one")
        archive.writestr("d/2.txt", "two")
    pipe = tdr.stream_files("zip://d/", shuffle=False, storage_options={"fo": str(tmp_path / "a.zip")})
    assert [sample["txt"] for sample in pipe] == [b"one", b"two"]
