"""Checksums of blocks: made while writing, compared while reading, whatever the pieces."""

from __future__ import annotations

import itertools
import os
import pickle
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from torchdata_remote import RemoteUrl, RetryPolicy, ShardWriter
from torchdata_remote.core.checksums import BlockCheck, BlockSummer, Checksums
from torchdata_remote.errors import ObjectChangedError, ShardCorruptError

AT_ONCE = RetryPolicy(first_wait_s=0, max_attempts=10)


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(data=st.binary(max_size=200), block_bytes=st.integers(1, 60), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_sums_are_those_of_the_blocks(data: bytes, block_bytes: int, cuts: list[int]) -> None:
    """For bytes in parts of any length, the checksums are zlib's of each block."""
    summer = BlockSummer(block_bytes)
    for piece in in_pieces(data, cuts):
        summer.update(piece)
    blocks = [data[start : start + block_bytes] for start in range(0, len(data), block_bytes)]
    assert summer.checksums() == Checksums(block_bytes, tuple(map(zlib.crc32, blocks)))


@given(
    data=st.binary(min_size=1, max_size=200),
    block_bytes=st.integers(1, 60),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    flipped=st.integers(0, 199),
)
def test_nothing_of_a_damaged_block_is_handed_on(data: bytes, block_bytes: int, cuts: list[int], flipped: int) -> None:
    """Intact blocks are returned whole and in order; of a damaged one only the offset is reported."""
    summer = BlockSummer(block_bytes)
    summer.update(data)
    at = flipped % len(data)
    damaged = bytearray(data)
    damaged[at] ^= 1
    for sent, sound in ((data, len(data)), (bytes(damaged), at // block_bytes * block_bytes)):
        check, got = BlockCheck(summer.checksums(), len(data), 0), b""
        position = 0
        while position < len(sent) and check.damaged_at is None:
            end = min([check.block_end(position), *(cut for cut in cuts if cut > position)])
            got += b"".join(check.take(memoryview(sent)[position:end]))
            position = min(end, len(sent))
        assert got == data[:sound]
        assert check.damaged_at == (None if sent == data else sound)


@pytest.fixture(scope="module")
def shards(moto: S3Server) -> tuple[S3Server, str, list[bytes]]:
    """A server, a folder with shards of several blocks and their manifest, and the members."""
    folder = f"s3://{moto.new_bucket()}/shards"
    images = [os.urandom(900_000) for _ in range(24)]
    with ShardWriter(folder + "/{shard:03d}.tar", max_shard_samples=12, storage_options=moto.storage_options) as writer:
        for index, image in enumerate(images):
            writer.write({"__key__": f"{index:03d}", "bin": image})
    return moto, folder, images


@pytest.mark.parametrize("part_bytes", [1 << 20, 5_000_000, 8 << 20])
def test_flipped_bits_are_mended(shards: tuple[S3Server, str, list[bytes]], part_bytes: int) -> None:
    """From a manifest, a block with a flipped bit is fetched again, and what is read is what was written."""
    server, folder, images = shards
    for seed in range(3):
        with faulty(server, seed=seed) as (broken, store):
            store.script(*["flipped_bit", "cut_body", None] * 20)
            urls = IterableWrapper([folder + "/index.json"]).list_remote(storage_options=server.storage_options)
            assert [url.rpartition("/")[2] for url in urls] == ["000.tar", "001.tar"]
            pipe = urls.async_prefetch(
                max_in_flight=1, part_bytes=part_bytes, retry=AT_ONCE, storage_options=broken.storage_options
            )
            assert [sample["bin"] for sample in pipe.shard_tar_reader()] == images
            assert store.counts["flipped_bit"] > 1


def test_damage_in_the_store_is_an_error(shards: tuple[S3Server, str, list[bytes]]) -> None:
    """A block that is damaged in the store is fetched twice, then an error has its offset."""
    server, folder, _ = shards
    bucket, client = server.new_bucket(), server.client()
    old = folder.removeprefix("s3://").partition("/")[0]
    for name in ("index.json", "000.tar", "001.tar"):
        data = bytearray(client.get_object(Bucket=old, Key=f"shards/{name}")["Body"].read())
        if name == "001.tar":
            data[5_000_000] ^= 64
        client.put_object(Bucket=bucket, Key=f"shards/{name}", Body=bytes(data))
    with faulty(server) as (seen, store):
        pipe = (
            IterableWrapper([f"s3://{bucket}/shards/index.json"])
            .list_remote(storage_options=seen.storage_options)
            .async_prefetch(retry=AT_ONCE, storage_options=seen.storage_options)
            .shard_tar_reader()
        )
        with pytest.raises(ShardCorruptError, match=rf"s3://{bucket}/shards/001\.tar: the block at byte 4,194,304 "):
            list(pipe)
        asked = [str(request.range) for request in store.requests if request.path.endswith("001.tar")]
        spans = [[int(end) for end in span.removeprefix("bytes=").split("-")] for span in asked]
        assert sum(first <= 5_000_000 <= last for first, last in spans) == 2


def test_a_shard_of_another_size_than_in_the_manifest_is_an_error(tmp_path: Path) -> None:
    """A shard of another size than its manifest says is an error."""
    with ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        writer.write({"__key__": "a", "txt": "1"})
    with open(tmp_path / "0.tar", "ab") as shard:
        shard.write(bytes(512))
    pipe = IterableWrapper([f"{tmp_path}/index.json"]).list_remote().async_prefetch(retry=AT_ONCE)
    with pytest.raises(ObjectChangedError):
        list(pipe.shard_tar_reader())


def test_checksums_travel_with_the_url() -> None:
    """A URL from a manifest keeps its checksums when it is pickled, as on its way to a worker."""
    url = RemoteUrl("s3://b/a.tar", 5, None, Checksums(4, (1, 2)))
    assert pickle.loads(pickle.dumps(url)).checksums == Checksums(4, (1, 2))
