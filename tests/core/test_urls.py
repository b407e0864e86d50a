from __future__ import annotations

import copy
import os
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchdata_remote.core.checksums import BLOCK_BYTES, Checksums
from torchdata_remote.core.urls import (
    RemoteUrl,
    join_url,
    object_path,
    redact,
    redact_text,
    split_sample_range,
    split_url,
)
from torchdata_remote.errors import UrlError

PATHS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
BUCKETS = st.text("abcdefghij0123456789.-", min_size=1, max_size=20)


@given(scheme=st.sampled_from(["s3", "gs", "az", "http", "https", "sftp"]), bucket=BUCKETS, path=PATHS)
@example(scheme="s3", bucket="b", path="/a//b/")
@example(scheme="s3", bucket="b", path="100%25 #?*@::")
def test_a_url_splits_into_what_it_was_joined_from(scheme: str, bucket: str, path: str) -> None:
    """Scheme, bucket and path are preserved exactly, for all characters of the key."""
    assert split_url(join_url(scheme, bucket, path)) == (scheme, bucket, path)


@given(path=PATHS.map(lambda path: path.lstrip("/")))
def test_local_and_memory_urls_have_no_bucket(path: str) -> None:
    """The whole rest of such a URL is the path."""
    assert split_url(join_url("memory", "", path)) == ("memory", "", path)
    assert split_url(join_url("file", "", f"/{path}")) == ("file", "", f"/{path}")


def test_scheme_is_in_lower_case_and_aliases_are_one() -> None:
    """``S3://`` is ``s3://``, ``local://`` is ``file://``, and ``memory:///a`` is ``memory://a``."""
    assert split_url("S3://Bucket/Key") == ("s3", "Bucket", "Key")
    assert split_url("local:///data/a") == ("file", "", "/data/a")
    assert split_url("memory:///a/b") == ("memory", "", "a/b")
    assert split_url("s3://b") == split_url("s3://b/") == ("s3", "b", "")


def test_a_bare_local_path_becomes_a_file_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, relative and home paths; a final slash, which marks a folder, is kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert split_url(str(tmp_path / "a")) == ("file", "", str(tmp_path / "a"))
    assert split_url("a/b.tar") == ("file", "", f"{os.getcwd()}/a/b.tar")
    assert split_url("a/") == ("file", "", f"{os.getcwd()}/a/")
    assert split_url("~/a") == ("file", "", f"{tmp_path}/a")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3:///key", "no bucket"),
        ("s3://", "no bucket"),
        ("file://data/a", "absolute"),
        ("", "neither a URL"),
        ("simplecache::s3://b/a", "Pass 's3://b/a'."),
        ("s3://arn:aws:s3:eu-west-1:12:accesspoint/mine/a", "no ARN of an access point"),
        ("abfss://me:pw@account.dfs.core.windows.net/a", "credentials"),
        ("github://org:repo@v1/data/a", "https://raw.githubusercontent.com/ORG/REPOSITORY/REVISION/PATH"),
        ("hf://hf_token@datasets/org/name/a", "credentials"),
        ("s3://b/a\0b", "NUL"),
        ("a\0b", "neither a URL"),
        ("s3://key:pw@b/a", "credentials"),
        ("s3:/b/x", "'s3:/b/x' is no URL; did you mean 's3://b/x'?"),
        ("s3:b/x", "did you mean 's3://b/x'?"),
        ("s3//b/x", "did you mean 's3://b/x'?"),
        ("file:/d/x", "did you mean 'file:///d/x'?"),
        (" s3://b/x", "begins with white space; did you mean 's3://b/x'?"),
        ("s3:///b/x", "Expected s3://bucket/path; did you mean 's3://b/x'?"),
        ("datasets:///d/x", "no host. Expected datasets://host:port/NAME/PATH"),
        ("C:\\data\\x", "is a path of Windows"),
    ],
)
def test_a_url_that_nobody_can_read_is_refused(url: str, says: str) -> None:
    """The error says what is wrong with it."""
    with pytest.raises(UrlError, match=re.escape(says)):
        split_url(url)


@pytest.mark.parametrize(
    "bucket",
    [
        "arn:aws:s3:eu-west-1:123456789012:accesspoint/mine",
        "arn:aws:s3:eu-west-1:123456789012:accesspoint:mine",
        "arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/mine",
        "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap",
        "arn:aws:s3-object-lambda:eu-west-1:123456789012:accesspoint/mine",
        "arn:aws:s3-outposts:eu-west-1:123456789012:outpost/op-1/accesspoint/mine",
    ],
)
@given(path=PATHS)
@example(path="a::s3://b@c/d")
def test_an_access_point_is_a_bucket(bucket: str, path: str) -> None:
    """Its ARN may have a slash, and no region; the rest is the key."""
    assert split_url(join_url("s3", bucket, path)) == ("s3", bucket, path)
    assert split_url(f"s3://{bucket}") == ("s3", bucket, "")


@pytest.mark.parametrize(
    "url",
    [
        "abfss://photos@account.dfs.core.windows.net/a@b",
        "abfs://photos@account.dfs.core.windows.net/a",
        "az://photos@account.blob.core.windows.net/a",
        "hf://datasets/org/name@v1.0/a",
        "hf://gpt2@main/a",
    ],
)
def test_a_name_before_an_at_is_not_taken_for_a_credential(url: str) -> None:
    """A container before its account, and a repository before its revision, are kept and shown."""
    scheme, bucket, path = split_url(url)
    assert join_url(scheme, bucket, path) == redact(url) == url
    assert redact_text(f"cannot read '{url}' now") == f"cannot read '{url}' now"
    assert redact_text(f"{scheme}://me:SECRET@host") == f"{scheme}://host"


@pytest.mark.parametrize("url", ["http://[::1]:80/a", "datasets://[::1]:80/d/a", "s3://b/a::s3://c", "memory://a::b"])
def test_two_colons_in_an_address_or_a_name_are_no_chain(url: str) -> None:
    assert join_url(*split_url(url)) == url


@pytest.mark.parametrize("wrong", [None, 3, b"s3://b/a", Path("a")])
def test_what_is_no_str_is_refused(wrong: object) -> None:
    """The error names the type of the argument."""
    with pytest.raises(UrlError, match=type(wrong).__name__):
        split_url(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "https:///a.tar?X-Amz-Signature=SECRET",
        "https://me:SECRET@host/a",
        "https://host/a\0?X-Amz-Signature=SECRET",
        "s3://me:SECRET@bucket::x/a",
        "simplecache::https://me:SECRET@host/a",
        "simplecache::https://host/a?X-Amz-Signature=SECRET",
        "file://me:SECRET@host/a",
        "s3:/me:SECRET@b/a",
        "s3:///me:SECRET@b/a",
        "https:/host/a?X-Amz-Signature=SECRET",
    ],
)
def test_no_error_shows_the_credentials_of_a_url(url: str) -> None:
    """A URL that is refused is shown without user-info and signature, in message and field."""
    with pytest.raises(UrlError) as caught:
        split_url(url)
    assert "SECRET" not in str(caught.value)
    assert "SECRET" not in str(caught.value.url)


@given(
    scheme=st.sampled_from(["http", "https", "HTTPS"]),
    user=st.sampled_from(["", "me@", "me:SECRET@", "SECRET@"]),
    path=st.sampled_from(["", "/", "/a.tar", "/a@b/c.tar"]),
    query=st.sampled_from(["", "?token=SECRET", "?a=1&X-Amz-Signature=SECRET", "?u=x/y@SECRET"]),
)
def test_redact_takes_user_and_query_and_nothing_else(scheme: str, user: str, path: str, query: str) -> None:
    """Scheme, host and path stay readable."""
    assert redact(f"{scheme}://{user}host:80{path}{query}") == f"{scheme}://host:80{path}"


def test_redact_leaves_other_urls_alone() -> None:
    """A ``?`` or ``@`` in an S3 key or a local path is part of the name."""
    for url in (
        "s3://b/what?.tar",
        "s3://b/me@home.tar",
        "/data/what?.tar",
        "file:///a@b/c",
        "memory://a/b@c",
        "memory://a@b/c",
    ):
        assert redact(url) == url


def test_object_path_is_the_name_of_the_file() -> None:
    """Without scheme, bucket, query of http, and leading slash."""
    assert object_path("s3://b/a/b.jpg") == "a/b.jpg"
    assert object_path("s3://b/what?.jpg") == "what?.jpg"
    assert object_path("https://host/a/b.jpg?token=0/1.png") == "a/b.jpg"
    assert object_path("file:///a/b.jpg") == object_path("/a/b.jpg") == "a/b.jpg"
    assert object_path("memory://a/b.jpg") == "a/b.jpg"


@given(size=st.none() | st.integers(0), etag=st.none() | st.text())
def test_a_remote_url_keeps_size_and_etag(size: int | None, etag: str | None) -> None:
    """It goes to worker processes by pickle and loses nothing; else it is a str like any other."""
    url = RemoteUrl("s3://b/a.tar", size, etag)
    for again in (pickle.loads(pickle.dumps(url)), copy.copy(url), copy.deepcopy(url)):
        assert type(again) is RemoteUrl
        assert (again, again.size, again.etag) == ("s3://b/a.tar", size, etag)
    assert url == "s3://b/a.tar"
    assert hash(url) == hash("s3://b/a.tar")
    assert type(str(url)) is str
    assert RemoteUrl("s3://b/a.tar").size is None


CHECKSUMS = Checksums(BLOCK_BYTES, (1, 2))


@given(num_samples=st.none() | st.integers(0, 99), checksums=st.sampled_from([None, CHECKSUMS]))
def test_a_remote_url_keeps_the_metadata_of_the_manifest(num_samples: int | None, checksums: Checksums | None) -> None:
    """By pickle and by copy, as worker processes and streams get it."""
    url = RemoteUrl("s3://b/a.tar", 7, None, checksums, num_samples, "ab", 1, 2)
    for again in (pickle.loads(pickle.dumps(url)), copy.copy(url), copy.deepcopy(url)):
        assert type(again) is RemoteUrl
        assert (again.num_samples, again.checksums) == (num_samples, checksums)
        assert (again.md5, again.index_crc32, again.keys_crc32) == ("ab", 1, 2)


@given(ends=st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted), num_samples=st.none() | st.integers(1, 9))
def test_a_sample_range_is_part_of_the_url(ends: list[int], num_samples: int | None) -> None:
    """It knows what is known of the whole, and leads back to it, as a bare str too; all of it is the whole."""
    first, last = ends
    url = RemoteUrl("s3://b/a.tar", 7, "tag", CHECKSUMS, num_samples)
    part = url.part(first, last)
    if (first, last) == (0, num_samples):
        assert part is url
        return
    assert part == f"samples+{first}-{last}+s3://b/a.tar+samples+{first}-{last}"
    whole, samples = split_sample_range(part)
    assert samples == (first, last)
    for same in (part, whole):
        assert isinstance(same, RemoteUrl)
        assert (same.size, same.etag, same.checksums, same.num_samples) == (7, "tag", CHECKSUMS, num_samples)
    assert whole == url
    assert split_sample_range(str(part)) == ("s3://b/a.tar", (first, last))
    assert split_sample_range(url) == (url, None)


@given(
    store=st.sampled_from(["s3://b/", "file:///data/", "memory://", "https://host/"]),
    key=st.text(min_size=1, max_size=9),
    end=st.sampled_from(["#samples=3-9", "+samples+3-9", "?samples=3-9"]),
)
def test_no_object_of_a_store_is_taken_for_a_part(store: str, key: str, end: str) -> None:
    """Keys may hold any characters, so a key never says that only some samples are meant."""
    for url in (f"{store}{key}{end}", f"{store}samples+3-9+s3://{key}{end}"):
        assert split_sample_range(url) == (url, None)
        assert split_sample_range(RemoteUrl(url, 7).part(1, 2)) == (url, (1, 2))


@pytest.mark.parametrize("end", ["", "?signature=0", "+samples+3-8", "+samples+3-9/"])
def test_a_sample_range_url_without_its_end_is_an_error(end: str) -> None:
    """It would be read whole otherwise, by each of its readers."""
    with pytest.raises(UrlError, match=r"samples 3 to 9 of a shard.*before sharding_filter_rank"):
        split_sample_range(f"samples+3-9+s3://b/0.tar{end}")


def test_a_secret_with_a_slash_is_not_shown() -> None:
    """User-info whose secret holds a slash looks like a bucket and a path."""
    with pytest.raises(UrlError) as caught:
        split_url("s3://AKIA:SEC/RET@bucket/key")
    assert "SEC" not in str(caught.value)
    assert "RET" not in str(caught.value)


def test_a_path_that_exists_is_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it looks like a URL with one slash."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "b").touch()
    assert split_url("s3:/b") == ("file", "", f"{tmp_path}/s3:/b")
