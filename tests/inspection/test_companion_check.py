"""The file of keys beside a shard against what the shard holds."""

from __future__ import annotations

import io
import json
import zipfile

import fsspec
import numpy as np
import pytest

from torchdata_remote import index_shards
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.fetch.listing.shard_set import read_shard_set
from torchdata_remote.formats.key_index import dump_keys, key_index, parse_keys
from torchdata_remote.formats.manifest import MANIFEST_NAME
from torchdata_remote.formats.shard_members import read_shard_members
from torchdata_remote.inspection.companion_check import faults_beside
from torchdata_remote.inspection.verification import verify_shards
from torchdata_remote.testing import write_small_shards


@pytest.fixture
def folder(memory_folder: str) -> str:
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=3)
    return memory_folder


def path(url: str) -> str:
    return url.removeprefix("memory:/")


def get(url: str) -> bytes:
    data: bytes = fsspec.filesystem("memory").cat_file(path(url))
    return data


def put(url: str, data: bytes) -> None:
    fsspec.filesystem("memory").pipe(path(url), data)


def faults(folder: str) -> list[tuple[str, str]]:
    return [(fault.url.rpartition("/")[2], fault.what) for fault in verify_shards(folder).faults]


def forget_sums(folder: str) -> None:
    """Make the manifest that of an earlier release."""
    document = json.loads(get(f"{folder}/{MANIFEST_NAME}"))
    for entry in document["shardlist"]:
        del entry["keys_crc32"]
    put(f"{folder}/{MANIFEST_NAME}", json.dumps(document).encode())


def test_missing_keys_are_a_fault_if_the_manifest_has_their_sum(folder: str) -> None:
    """The command that it names repairs it. Earlier releases wrote none, which is no fault."""
    fsspec.filesystem("memory").rm(path(f"{folder}/000001.tar.keys"))
    ((name, what),) = faults(folder)
    assert name == "000001.tar.keys"
    assert what == "the shard has no file of keys. Write it: torchdata-remote manifest --overwrite FOLDER"
    forget_sums(folder)
    assert faults(folder) == []
    index_shards(folder, overwrite=True)
    assert faults(folder) == []
    assert fsspec.filesystem("memory").exists(path(f"{folder}/000001.tar.keys"))


def of_others() -> bytes:
    return dump_keys(key_index([(str(number), [("cls", 512, 1), ("txt", 1536, 1)]) for number in range(3)]))


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is not a file of keys (BadZipFile: File is not a zip file)"),
        (of_others()[:-30], "is not a file of keys (BadZipFile: File is not a zip file)"),
        (of_others(), "does not hold the keys of the samples: it is the file of another shard, or damaged"),
        (bytes(100_000), "has 100,000 bytes, where a file of these 3 keys has "),
    ],
    ids=["empty", "cut", "of another shard", "large"],
)
def test_other_keys_are_a_fault(folder: str, data: bytes, what: str, is_known: bool) -> None:
    """Whether the manifest has their sum or not."""
    put(f"{folder}/000000.tar.keys", data)
    if not is_known:
        forget_sums(folder)
    ((name, found),) = faults(folder)
    assert name == "000000.tar.keys"
    assert found.startswith(what)


def test_keys_that_differ_from_their_sum_are_a_fault(folder: str) -> None:
    """Readers would refuse the file, which is right."""
    url = f"{folder}/000000.tar.keys"
    buffer = io.BytesIO()
    with np.load(io.BytesIO(get(url))) as columns:
        np.savez(buffer, **columns)  # as another program, or another zlib
    put(url, buffer.getvalue())
    assert zipfile.is_zipfile(io.BytesIO(get(url)))
    ((name, what),) = faults(folder)
    assert name == "000000.tar.keys"
    assert what.startswith("has the CRC-32 ")
    forget_sums(folder)
    assert faults(folder) == []


def test_without_a_listing_the_manifest_decides_whether_there_are_keys(folder: str) -> None:
    """A file that it does not name is not asked for."""
    options, retry = StorageOptions(), RetryPolicy()
    expected = read_shard_set(f"{folder}/{MANIFEST_NAME}", options, retry).manifest[0]
    found = read_shard_members(expected.url, [get(expected.url)])
    assert faults_beside(expected, found, {}, options, retry) == []
    assert parse_keys(get(f"{expected.url}.keys")).keys == found.keys.keys
    fsspec.filesystem("memory").rm(path(f"{expected.url}.keys"))
    (fault,) = faults_beside(expected, found, {}, options, retry)
    assert fault.url == f"{expected.url}.keys"
    assert fault.what.startswith("cannot be read: ")
    forget_sums(folder)
    unnamed = read_shard_set(f"{folder}/{MANIFEST_NAME}", options, retry).manifest[0]
    assert faults_beside(unnamed, found, {}, options, retry) == []
