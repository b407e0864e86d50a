"""Versions of objects in URLs: ``s3://bucket/key?versionId=...``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers.s3 import S3Server
from torchdata_remote import IterableWrapper, Resumable, ShardWriter
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import ObjectNotFoundError, UrlError
from torchdata_remote.storage import open_store
from torchdata_remote.storage.s3.store import S3Store

ODD = "notes?versionId=3"


@pytest.fixture
def versioned(s3: S3Server) -> tuple[S3Server, str]:
    """A bucket that keeps versions."""
    bucket = s3.new_bucket()
    s3.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return s3, bucket


def store_of(server: S3Server, bucket: str) -> S3Store:
    store, _ = open_store(f"s3://{bucket}/", StorageOptions(server.storage_options))
    assert isinstance(store, S3Store)
    return store


def put(server: S3Server, bucket: str, key: str, data: bytes) -> str:
    return str(server.client().put_object(Bucket=bucket, Key=key, Body=data)["VersionId"])


def test_each_version_is_read(versioned: tuple[S3Server, str]) -> None:
    """By each transport, also after it was replaced and deleted; its size and etag are found."""
    server, bucket = versioned
    first, second = put(server, bucket, "a", b"one"), put(server, bucket, "a", b"second")
    store = store_of(server, bucket)
    store.delete("a")
    for version, data in ((first, b"one"), (second, b"second")):
        path = f"a?versionId={version}"
        for read in (store.read, store.read_without_obstore):
            answer = read(path, 1, 3, None)
            assert (answer.whole(), answer.total_bytes) == (data[1:3], len(data))
        entry = store.stat(path)
        assert store.find(path) == entry
        assert (entry.path, entry.size, entry.etag) == (path, len(data), answer.etag)
    with pytest.raises(ObjectNotFoundError, match="a: no such object"):
        store.read("a", 0, None, None)


@pytest.mark.parametrize("read", ["read", "read_without_obstore", "stat"])
def test_a_missing_version_is_named(versioned: tuple[S3Server, str], read: str) -> None:
    """With what to do if it is no version, but part of the key."""
    server, bucket = versioned
    put(server, bucket, "a", b"one")
    arguments: tuple[Any, ...] = () if read == "stat" else (0, None, None)
    with pytest.raises(ObjectNotFoundError, match=r"no such (version|object)"):
        getattr(store_of(server, bucket), read)("a?versionId=" + "0" * 32, *arguments)


def test_a_key_that_looks_like_a_version_is_listed_and_read(versioned: tuple[S3Server, str]) -> None:
    """One more mark behind it says that all before is the key; the URL of a listing has it."""
    server, bucket = versioned
    put(server, bucket, ODD, b"odd")
    put(server, bucket, "notes", b"plain")
    urls = list(IterableWrapper([f"s3://{bucket}/"]).list_remote(storage_options=server.storage_options))
    assert urls == [f"s3://{bucket}/notes", f"s3://{bucket}/{ODD}?versionId="]
    store = store_of(server, bucket)
    for read in (store.read, store.read_without_obstore):
        assert read(f"{ODD}?versionId=", 0, None, None).whole() == b"odd"
    store.delete(f"{ODD}?versionId=")
    assert [entry.path for entry in store.list_page("", recursive=True, token=None).entries] == ["notes"]


def test_a_version_is_neither_written_nor_deleted(versioned: tuple[S3Server, str]) -> None:
    """The error says how to write a key of that name."""
    server, bucket = versioned
    version = put(server, bucket, "a", b"one")
    store, path = store_of(server, bucket), f"a?versionId={version}"
    for call in (lambda: store.create(path, overwrite=True), lambda: store.delete(path)):
        with pytest.raises(UrlError, match=r"neither written nor deleted.*add \?versionId= after it"):
            call()


def test_a_pass_over_versions_reads_what_was_there(versioned: tuple[S3Server, str]) -> None:
    """Shards that were replaced since are read as the URL names them, and a saved state goes on with them."""
    server, bucket = versioned
    options = server.storage_options
    folder = f"s3://{bucket}/shards"
    for text in ("old", "new"):
        with ShardWriter(
            folder + "/{shard}.tar", max_shard_samples=2, overwrite=True, storage_options=options
        ) as writer:
            for number in range(4):
                writer.write({"__key__": str(number), "txt": f"{text} {number}"})
    found = server.client().list_object_versions(Bucket=bucket, Prefix="shards/")["Versions"]
    old = sorted((one["Key"], one["VersionId"]) for one in found if one["Key"].endswith(".tar") and not one["IsLatest"])
    urls = [f"s3://{bucket}/{key}?versionId={version}" for key, version in old]

    def chain() -> Any:
        streams = IterableWrapper(urls).async_prefetch(storage_options=options)
        return Resumable(streams.shard_tar_reader())

    assert [sample["txt"] for sample in chain()] == [f"old {number}".encode() for number in range(4)]
    stopped = chain()
    samples = iter(stopped)
    next(samples)
    state = stopped.state_dict()
    resumed = chain()
    resumed.load_state_dict(state)
    assert [sample["txt"] for sample in resumed] == [f"old {number}".encode() for number in range(1, 4)]


def test_a_version_that_says_that_the_object_was_deleted_is_missing(versioned: tuple[S3Server, str]) -> None:
    """AWS answers 405 for such a delete marker."""
    server, bucket = versioned
    client = server.client()
    client.put_object(Bucket=bucket, Key="deleted", Body=b"bytes")
    path = f"deleted?versionId={client.delete_object(Bucket=bucket, Key='deleted')['VersionId']}"
    store: Any = open_store(f"s3://{bucket}", StorageOptions(server.storage_options))[0]
    for attempt in (store.read, store.read_without_obstore):
        with pytest.raises(ObjectNotFoundError):
            attempt(path, 0, None, None)
    with pytest.raises(ObjectNotFoundError):
        store.stat(path)
    assert store.find(path) is None
