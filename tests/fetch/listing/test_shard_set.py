"""Which shards a URL stands for."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import fsspec
import pytest

from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import EmptyListingError, ManifestError, ObjectNotFoundError
from torchdata_remote.fetch.listing.shard_set import base_name, find_shards, list_objects, read_if_there, read_shard_set
from torchdata_remote.formats.manifest import MANIFEST_NAME
from torchdata_remote.formats.nested import is_archive_name
from torchdata_remote.storage import read_whole
from torchdata_remote.testing import write_small_shards

NONE, RETRY = StorageOptions(), RetryPolicy()
TAR = pack_tar([("a.txt", b"a")])


def put(url: str, data: bytes = TAR) -> None:
    with fsspec.open(url, "wb", auto_mkdir=True) as file:
        file.write(data)


def found(url: str) -> list[tuple[str, int | None, int | None]]:
    shards = find_shards(url, NONE, RETRY).shards
    return [(base_name(one), one.size, one.num_samples) for one in shards]


@pytest.mark.parametrize("name", ["a.tar", "A.TAR", "a.tar.gz", "a.tgz", "a.tar.zst", "a.b.tar.xz", "a.tbz2", "é.tar"])
def test_tars_and_compressed_tars_are_shards(name: str) -> None:
    """Tars and compressed ones."""
    assert is_archive_name(name)


@pytest.mark.parametrize("name", ["a.tar.idx", ".tar", "tar", "index.json", "a.tar.tmp", "atar", "a.tar.gz.part", ""])
def test_objects_beside_shards_are_not_shards(name: str) -> None:
    """Indexes, manifests and other files."""
    assert not is_archive_name(name)


def test_without_a_manifest_the_tars_of_the_folder_are_the_shards(memory_folder: str) -> None:
    """Sorted, without other files and without subfolders."""
    for name in ("b.tar", "a.tar.gz", "notes.txt", "below/c.tar"):
        put(f"{memory_folder}/{name}")
    assert found(memory_folder) == [("a.tar.gz", len(TAR), None), ("b.tar", len(TAR), None)]
    assert found(f"{memory_folder}/*.tar") == [("b.tar", len(TAR), None)]
    assert [name for name, *_ in found(f"{memory_folder}/{{b,z}}.tar")] == ["b.tar", "z.tar"]
    assert find_shards(memory_folder, NONE, RETRY).manifest_url is None


def test_a_manifest_decides_which_objects_are_shards(memory_folder: str) -> None:
    """Whether it or its folder is named: its order and counts, the listing's sizes."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=3)
    put(f"{memory_folder}/000007.tar")
    put(f"{memory_folder}/000001.tar")
    for url in (memory_folder, memory_folder + "/", f"{memory_folder}/{MANIFEST_NAME}"):
        shards = find_shards(url, NONE, RETRY)
        assert [base_name(one) for one in shards.shards] == ["000000.tar", "000001.tar"]
        assert [one.num_samples for one in shards.shards] == [3, 3]
        assert [one.size for one in shards.shards] == [7168, len(TAR)]
        assert [one.num_bytes for one in shards.manifest] == [7168, 7168]
        assert shards.manifest_url == f"{memory_folder}/{MANIFEST_NAME}"
        assert f"{memory_folder}/000007.tar" in shards.folder


def test_a_single_object_is_a_shard_whatever_its_name(memory_folder: str) -> None:
    """It was named, so it is meant."""
    put(f"{memory_folder}/archive")
    assert found(f"{memory_folder}/archive") == [("archive", len(TAR), None)]


def test_a_url_without_shards_is_an_error_with_advice(memory_folder: str) -> None:
    """An empty folder, a folder without shards, a missing manifest."""
    with pytest.raises(EmptyListingError):
        find_shards(memory_folder, NONE, RETRY)
    put(f"{memory_folder}/a.txt")
    put(f"{memory_folder}/b.txt")
    with pytest.raises(EmptyListingError, match=r"none of its 2 objects.*\.tar"):
        find_shards(memory_folder, NONE, RETRY)
    with pytest.raises(ObjectNotFoundError, match="torchdata-remote manifest"):
        read_shard_set(f"{memory_folder}/{MANIFEST_NAME}", NONE, RETRY)
    empty = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": []}
    put(f"{memory_folder}/{MANIFEST_NAME}", json.dumps(empty).encode())
    with pytest.raises(EmptyListingError, match="names no shards"):
        find_shards(memory_folder, NONE, RETRY)
    put(f"{memory_folder}/{MANIFEST_NAME}", b"{}")
    with pytest.raises(ManifestError):
        find_shards(memory_folder, NONE, RETRY)


def test_read_if_there_returns_none_for_a_missing_object(moto: S3Server) -> None:
    """An existing one is read whole."""
    bucket, options = moto.new_bucket(), StorageOptions(moto.storage_options)
    moto.client().put_object(Bucket=bucket, Key="a", Body=b"text")
    assert (
        read_whole(f"s3://{bucket}/a", options, RETRY) == read_if_there(f"s3://{bucket}/a", options, RETRY) == b"text"
    )
    assert read_if_there(f"s3://{bucket}/b", options, RETRY) is None
    with pytest.raises(ObjectNotFoundError):
        read_whole(f"s3://{bucket}/b", options, RETRY)


def test_list_objects_adds_sample_counts_of_manifests(tmp_path: Path) -> None:
    """From the manifest of each folder; another file of that name is ignored."""
    write_small_shards(f"file://{tmp_path}/a", num_shards=2, samples_per_shard=3)
    put(f"file://{tmp_path}/b/0.tar")
    put(f"file://{tmp_path}/b/{MANIFEST_NAME}", b"[]")
    listed = {
        str(one).removeprefix(f"file://{tmp_path}/"): one.num_samples
        for one in list_objects(str(tmp_path), recursive=True)
    }
    assert {name: number for name, number in listed.items() if number is not None} == {
        "a/000000.tar": 3,
        "a/000001.tar": 3,
    }
    assert set(listed) >= {"a/000000.tar.idx", f"a/{MANIFEST_NAME}", "b/0.tar", f"b/{MANIFEST_NAME}"}
    assert [base_name(one) for one in list_objects(f"{tmp_path}/a", pattern="*.idx")] == [
        "000000.tar.idx",
        "000001.tar.idx",
    ]
    (one,) = list_objects(f"{tmp_path}/a/000001.tar")
    assert isinstance(one, RemoteUrl)
    assert one.num_samples == 3
    with pytest.raises(EmptyListingError):
        list(list_objects(f"memory://{uuid.uuid4().hex}"))
