"""Faults of all kinds at once: samples are neither lost nor repeated nor altered, and no error is raised."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.faulty_s3 import FaultyS3, faulty
from tests.servers.s3 import S3Server
from torchdata_remote import RetryPolicy, ShardWriter
from torchdata_remote.testing import Faults, FaultyStore

NUM_SHARDS, SHARD_SAMPLES = 20, 50
Sample = dict[str, Any]
PATIENT = RetryPolicy(first_wait_s=0.01, max_wait_s=0.3, progress_timeout_s=1.0)
BUSY = {share: Faults.storm(share) for share in (0.2, 0.5)}
TREACHEROUS = Faults(
    cut_without_length=0.05,
    cut_body=0.05,
    reset_in_body=0.05,
    short_range=0.05,
    ignored_range=0.05,
    shifted_range=0.05,
    other_answer=0.05,
    doubled=0.05,
    stall=0.01,
    stall_in_body=0.01,
    trickle=0.01,
    stall_s=30.0,
    trickle_s=0.05,
)
STORMS = {"busy 20 %": BUSY[0.2], "busy 50 %": BUSY[0.5], "treacherous": TREACHEROUS}


def samples_of(num_samples: int) -> Iterator[Sample]:
    for index in range(num_samples):
        digest = hashlib.sha256(b"%d" % index).digest()
        yield {"__key__": f"{index:07d}", "bin": digest * (1 + index % 97), "cls": b"%d" % (index % 10)}


def digest_of(samples: Iterable[Sample]) -> tuple[int, str]:
    """Number of samples, and one hash over keys and members in any order."""
    lines = sorted(
        hashlib.sha256(b"\0".join([sample["__key__"].encode(), sample["bin"], sample["cls"]])).digest()
        for sample in samples
    )
    return len(lines), hashlib.sha256(b"".join(lines)).hexdigest()


@pytest.fixture(scope="module")
def shards(moto: S3Server) -> tuple[S3Server, str, tuple[int, str]]:
    """A server, a folder of 20 shards x 50 samples, and what they hold."""
    folder = f"s3://{moto.new_bucket()}/shards"
    with ShardWriter(
        folder + "/{shard:06d}.tar", max_shard_samples=SHARD_SAMPLES, storage_options=moto.storage_options
    ) as writer:
        for sample in samples_of(NUM_SHARDS * SHARD_SAMPLES):
            writer.write(sample)
    return moto, folder, digest_of(samples_of(NUM_SHARDS * SHARD_SAMPLES))


def read_through(server: S3Server, folder: str, faults: Faults, seed: int, **options: Any) -> tuple[int, str]:
    with faulty(server, faults, seed=seed) as (broken, store):
        return read_by(broken, store, folder, **options)


def read_by(broken: FaultyS3, store: FaultyStore, folder: str, **options: Any) -> tuple[int, str]:
    pipe = (
        IterableWrapper([folder + "/"])
        .list_remote(pattern="*.tar", retry=PATIENT, storage_options=broken.storage_options)
        .async_prefetch(
            max_in_flight=8,
            part_bytes=40_000,
            max_buffer_bytes=640_000,
            retry=PATIENT,
            storage_options=broken.storage_options,
            **options,
        )
        .shard_tar_reader()
    )
    found = digest_of(pipe)
    assert sum(count for fault, count in store.counts.items() if fault != "well") >= 10, store.counts
    return found


@pytest.mark.parametrize(
    ("storm", "options"),
    [
        ("treacherous", {}),
        ("treacherous", {"in_order": False}),
    ],
    ids=str,
)
def test_each_sample_is_read_exactly_once_and_unaltered_through_a_storm(
    shards: tuple[S3Server, str, tuple[int, str]], storm: str, options: dict[str, Any]
) -> None:
    """20 shards x 50 samples, in order and as objects are complete."""
    server, folder, expected = shards
    assert read_through(server, folder, STORMS[storm], seed=0, **options) == expected


def test_the_cache_is_correct_after_a_storm(shards: tuple[S3Server, str, tuple[int, str]], tmp_path: Any) -> None:
    """After a storm the cache holds what the store holds."""
    server, folder, expected = shards
    options = {"cache_dir": str(tmp_path), "cache_bytes": 1 << 30}
    pipe = IterableWrapper([folder + "/"]).list_remote(pattern="*.tar", storage_options=server.storage_options)
    with faulty(server, TREACHEROUS, seed=4) as (broken, store):
        assert read_by(broken, store, folder, **options) == expected
        store.faults, num_requests = Faults(internal_error=1.0), len(store.requests)
        cached = pipe.async_prefetch(storage_options=broken.storage_options, **options).shard_tar_reader()
        assert digest_of(cached) == expected
        assert len(store.requests) == num_requests


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_storm_of_fifty_seeds(shards: tuple[S3Server, str, tuple[int, str]]) -> None:
    """The same for fifty seeds of each storm."""
    server, folder, expected = shards
    for storm, faults in STORMS.items():
        for seed in range(50):
            assert read_through(server, folder, faults, seed) == expected, (storm, seed)
