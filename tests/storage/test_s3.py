"""S3 as a store: every promise holds against each server."""

from __future__ import annotations

from tests.servers.s3 import S3Server
from torchdata_remote.options import StorageOptions
from torchdata_remote.storage import open_store


def test_reads_back_what_was_written(s3: S3Server, bucket: str) -> None:
    """Bytes, size and etag of an object are what was written."""
    store, path = open_store(f"s3://{bucket}/a/b.bin", StorageOptions(s3.storage_options))
    pending = store.create(path, overwrite=False)
    pending.write(b"0123456789")
    pending.commit()
    blob = store.read(path, 2, 5, None)
    assert bytes(blob.data) == b"234"
    assert blob.total_bytes == 10
    assert store.stat(path).size == 10
    assert blob.etag == store.stat(path).etag
