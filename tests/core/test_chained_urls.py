"""Chained URLs of fsspec are refused wherever a URL is taken, with the call that does the same."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import torchdata_remote as tdr
from torchdata_remote.cli import main
from torchdata_remote.core.chained_urls import without_chain
from torchdata_remote.core.urls import redact, split_url
from torchdata_remote.errors import UrlError

CHAINS = {
    "simplecache::s3://b/k": "simplecache:: of fsspec is not read. Pass 's3://b/k'. To keep what is read on local "
    "disk, pass cache_dir: tdr.stream_shards('s3://b/k', cache_dir='/local/disk')",
    "filecache::https://me:SECRET@h/k?token=SECRET": "tdr.stream_shards('https://h/k', cache_dir='/local/disk')",
    "blockcache::/data/x.tar": "Pass '/data/x.tar'.",
    "zip://a.txt::s3://b/x.zip": "Pass 's3://b/x.zip' and chain a reader: tdr.IterableWrapper(['s3://b/x.zip'])"
    ".list_remote().async_prefetch().shard_zip_reader()",
    "zip://d/a.txt::s3://b/x.zip": ".shard_zip_reader()",
    "zip://a::simplecache::s3://b/x.zip": ".async_prefetch(cache_dir='/local/disk').shard_zip_reader()",
    "tar://::s3://b/x.tar.gz": ".async_prefetch().shard_tar_reader()",
    "zip://a::tar://b.zip::s3://c/d": "Open it by fsspec and pass the streams",
    "dask::s3://b/k": "Open it by fsspec and pass the streams",
    "reference::s3://b/k": "Open it by fsspec and pass the streams",
    "hdfs://x::s3://b/k": "Open it by fsspec and pass the streams",
    "simplecache::": "Open it by fsspec and pass the streams",
}


@pytest.mark.parametrize("url", CHAINS)
def test_a_chained_url_is_refused_with_the_call_that_replaces_it(url: str) -> None:
    """Without the credentials in it."""
    with pytest.raises(UrlError, match=re.escape(CHAINS[url])) as caught:
        split_url(url)
    assert "SECRET" not in f"{caught.value}{caught.value.url}"


@pytest.mark.parametrize("url", ["s3://b/a::b", "a::b", "C::/x", "/data/a::s3://b", "http://[::1]/a"])
def test_other_urls_and_paths_are_not_chained(url: str) -> None:
    assert without_chain(url, redact) == ""


def test_a_local_file_of_such_a_name_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dask::a").write_bytes(b"1")
    assert split_url("dask::a") == ("file", "", f"{tmp_path}/dask::a")


USES: dict[str, Callable[[str], object]] = {
    "stream_shards": lambda url: list(tdr.stream_shards(url + "*.tar")),
    "stream_files": lambda url: list(tdr.stream_files(url)),
    "list_remote": lambda url: list(tdr.IterableWrapper([url + "{0..3}.tar"]).list_remote()),
    "async_prefetch": lambda url: list(tdr.IterableWrapper([url]).async_prefetch()),
    "ShardWriter": lambda url: tdr.ShardWriter(url + "{shard}.tar"),
    "RemoteFiles": tdr.RemoteFiles,
    "RemoteImageFolder": tdr.RemoteImageFolder,
    "ShardedDataset": lambda url: tdr.ShardedDataset(url + "*.tar"),
    "index_shards": lambda url: tdr.index_shards(url + "*.tar"),
    "shard_dataset, source": lambda url: tdr.shard_dataset(url, "memory://x/{shard}.tar"),
    "shard_dataset, target": lambda url: tdr.shard_dataset("memory://x/", url + "{shard}.tar"),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_chained_url_names_the_replacement(use: str) -> None:
    """Sources, writers and datasets."""
    with pytest.raises(UrlError, match=r"simplecache:: of fsspec is not read. Pass 's3://b/k/"):
        USES[use]("simplecache::s3://b/k/")


@pytest.mark.parametrize(
    "command", [["ls"], ["inspect"], ["verify"], ["manifest"], ["bench"], ["shard", "memory://x/{shard}.tar"]]
)
def test_every_command_names_the_replacement(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of a traceback."""
    assert main([command[0], "simplecache::s3://b/k/*.tar", *command[1:]]) > 0
    assert "simplecache:: of fsspec is not read. Pass 's3://b/k/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("zip://a.zip", "names no archive. Pass the URL of the archive itself, and chain a reader: .*shard_zip_reader"),
        (
            "tar://a/b.tar",
            "names no archive. Pass the URL of the archive itself, and chain a reader: .*shard_tar_reader",
        ),
        ("simplecache://b/k", "Pass the URL of the object in its store, and cache_dir="),
        ("simplecache://", "Pass the URL of the object in its store, and cache_dir="),
        ("zip://", "it names no archive"),
        ("tar:///a.tar", "it names no archive"),
        ("reference://", "it names nothing to read from"),
        ("reference://a/b", "names nothing to read from. Open it by fsspec"),
    ],
)
def test_a_file_system_that_is_given_nothing_to_read_from_is_refused(url: str, says: str) -> None:
    """Instead of an empty listing, or an error of its constructor."""
    with pytest.raises(UrlError, match=says):
        list(tdr.stream_files(url))


def test_an_archive_that_an_option_names_is_read_by_fsspec(tmp_path: Path) -> None:
    """One member is one file."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("d/1.txt", "one")
        archive.writestr("d/2.txt", "two")
    pipe = tdr.stream_files("zip://d/", shuffle=False, storage_options={"fo": str(tmp_path / "a.zip")})
    assert [sample["txt"] for sample in pipe] == [b"one", b"two"]
