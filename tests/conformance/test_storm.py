"""A store whose responses are broken: nothing is lost, repeated or altered, and no error is raised."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator

import pytest

import torchdata_remote as tdr
from tests.conformance.folder import Folder, new_folder
from tests.conformance.rows import Row, each
from tests.servers.store_server import StoreServer
from torchdata_remote import RetryPolicy
from torchdata_remote.formats.sample import Sample
from torchdata_remote.testing import Faults, FaultyStore

NUM_SHARDS, SHARD_SAMPLES, NUM_FILES = 12, 20, 100
PATIENT = RetryPolicy(first_wait_s=0.005, max_wait_s=0.05, progress_timeout_s=5)


def samples_of(num_samples: int) -> Iterator[Sample]:
    for index in range(num_samples):
        digest = hashlib.sha256(b"%d" % index).digest()
        yield {"__key__": f"{index:07d}", "bin": digest * (1 + index % 97)}


def digest_of(samples: Iterable[Sample]) -> tuple[int, str]:
    """Number of samples, and one hash over keys and members in any order."""
    lines = sorted(
        hashlib.sha256(sample["__key__"].rpartition("/")[2].encode() + b"\0" + sample["bin"]).digest()
        for sample in samples
    )
    return len(lines), hashlib.sha256(b"".join(lines)).hexdigest()


@pytest.fixture(scope="session")
def data(row: Row, server: StoreServer, place: str, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder of shards and one of loose files with the same samples."""
    folder, local = new_folder(row, server, place), tmp_path_factory.mktemp("storm")
    samples = samples_of(NUM_SHARDS * SHARD_SAMPLES)
    with tdr.ShardWriter(f"{local}/{{shard:04d}}.tar", max_shard_samples=SHARD_SAMPLES) as writer:
        for sample in samples:
            writer.write(sample)
    for path in local.glob("*.tar"):
        folder.put(f"shards/{path.name}", path.read_bytes())
    for sample in samples_of(NUM_FILES):
        folder.put(f"files/{sample['__key__']}.bin", sample["bin"])
    return folder


def read_all(folder: Folder, *, in_order: bool = True) -> None:
    """Read shards and loose files, and compare them with what was written."""
    for name, numbers, expected in (
        ("shards", f"{{0000..{NUM_SHARDS - 1:04d}}}.tar", NUM_SHARDS * SHARD_SAMPLES),
        ("files", f"{{0000000..{NUM_FILES - 1:07d}}}.bin", NUM_FILES),
    ):
        url = f"{folder.url}{name}/{'' if folder.row.lists else numbers}"
        streams = (
            tdr.IterableWrapper([url])
            .list_remote(retry=PATIENT, storage_options=folder.options)
            .async_prefetch(
                max_in_flight=8,
                part_bytes=20_000,
                max_buffer_bytes=640_000,
                retry=PATIENT,
                storage_options=folder.options,
                in_order=in_order,
            )
        )
        samples = streams.shard_tar_reader() if name == "shards" else streams.file_reader()
        assert digest_of(samples) == digest_of(samples_of(expected)), name


def storm(data: Folder, probability: float, seed: int) -> None:
    with FaultyStore(data.server.endpoint_url, Faults.storm(probability), seed=seed) as store:
        read_all(data.through(store.endpoint_url), in_order=seed % 2 == 0)
        broken = sum(store.counts.values()) - store.counts["well"]
        assert broken > probability * store.counts["well"] / 2, store.counts


@each("proxied")
@pytest.mark.parametrize("probability", [0.2, 0.5])
def test_each_sample_comes_once_and_unaltered_through_a_storm(data: Folder, probability: float) -> None:
    """503, 500, resets and early ends, for shards and loose files."""
    storm(data, probability, seed=0)


@each("proxied")
def test_broken_bodies_are_noticed_and_continued(data: Folder) -> None:
    """Cut, reset, of another range or of another object."""
    faults = Faults(
        cut_body=0.05,
        cut_without_length=0.05,
        reset_in_body=0.05,
        short_range=0.05,
        ignored_range=0.05,
        shifted_range=0.05,
        doubled=0.05,
    )
    with FaultyStore(data.server.endpoint_url, faults, seed=1) as store:
        read_all(data.through(store.endpoint_url))
        assert sum(store.counts.values()) > store.counts["well"]


@each("proxied")
@pytest.mark.parametrize("fault", ["slow_down", "too_many_requests"])
def test_a_throttled_request_waits_as_long_as_the_store_says(data: Folder, fault: str) -> None:
    """By ``Retry-After``, which is known of the second response at the latest."""
    name = f"files/{0:07d}.bin"
    with FaultyStore(data.server.endpoint_url, Faults(retry_after_s=1)) as store:
        folder = data.through(store.endpoint_url)
        store.script(fault, fault)  # obstore does not show Retry-After, so the next request is sent without it
        pipe = tdr.IterableWrapper([folder.url + name]).async_prefetch(retry=PATIENT, storage_options=folder.options)
        began_s = time.monotonic()
        [(_, stream)] = pipe
        assert stream.read() == data.get(name)
        assert store.counts[fault] == 2
        if fault == "too_many_requests":
            assert time.monotonic() - began_s >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@each("proxied", "many_seeds")
def test_storms_of_fifty_seeds(data: Folder) -> None:
    """Of 20 and 50 %, on the clouds."""
    for seed in range(50):
        for probability in (0.2, 0.5):
            storm(data, probability, seed)
