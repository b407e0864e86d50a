"""A selection by a table and a snapshot of it, on a real S3 server: requests, etags, and options of the store."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.support.requested_bytes import requested_bytes
from torchdata_remote import IterableWrapper
from torchdata_remote.errors import ObjectChangedError
from torchdata_remote.testing import FaultyStore


def test_a_subset_on_s3(moto: S3Server) -> None:
    """Only selected bytes are requested; the snapshot needs no table; a shard that is replaced is an error."""
    bucket, client = moto.new_bucket(), moto.client()
    keys = [f"{at:03d}" for at in range(40)]
    template = f"s3://{bucket}/d/{{shard}}.tar"
    with tdr.ShardWriter(template, max_shard_samples=20, storage_options=moto.storage_options) as writer:
        for at, key in enumerate(keys):
            writer.write({"__key__": key, "bin": bytes([at]) * 300_000, "cls": at})
    table = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"__key__": keys, "at": range(40)}), table)
    client.put_object(Bucket=bucket, Key="keys.parquet", Body=table.getvalue())

    with FaultyStore(moto.storage_options["endpoint_url"]) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        urls = IterableWrapper([f"s3://{bucket}/d/index.json"]).list_remote(storage_options=options)
        chosen = urls.select(keys=f"s3://{bucket}/keys.parquet", where=pc.field("at") >= 37, storage_options=options)
        read = {one["__key__"]: one["bin"] for one in chosen.shard_tar_reader(storage_options=options)}
        assert read == {f"{at:03d}": bytes([at]) * 300_000 for at in range(37, 40)}
        assert requested_bytes(store, ".tar") < 1_100_000
        labels = urls.select(members="cls", storage_options=options)
        snapshot = tdr.write_snapshot(f"s3://{bucket}/train.snapshot.json", chosen, storage_options=options)
        assert snapshot.num_samples == 3
        assert [one["cls"] for one in labels.shard_tar_reader(storage_options=options)] == [
            b"%d" % at for at in range(40)
        ]

    options = moto.storage_options
    pipe = tdr.stream_shards(snapshot.url, storage_options=options)
    assert sorted(one["__key__"] for one in pipe) == sorted(read)
    shard = client.get_object(Bucket=bucket, Key="d/1.tar")["Body"].read()
    client.put_object(Bucket=bucket, Key="d/1.tar", Body=shard[:600] + b"x" + shard[601:])
    with pytest.raises(ObjectChangedError, match=r"d/1\.tar"):
        list(tdr.stream_shards(snapshot.url, storage_options=options))
