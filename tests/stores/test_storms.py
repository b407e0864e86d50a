"""A store whose responses are broken: nothing is lost, repeated or altered, and no error is raised."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.servers.azurite import AzuritePlace
from tests.servers.s3 import S3Server
from tests.servers.store_server import StoreServer
from tests.stores.folder import Folder, new_folder
from tests.stores.rows import Row, each
from tests.support import objects
from torchdata_remote.testing import Faults, FaultyStore

NUM_SHARDS, SHARD_SAMPLES, NUM_FILES = 6, 10, 40
PAGE = 1000
OF_BODIES = ["cut_body", "cut_without_length", "reset_in_body", "short_range", "ignored_range", "shifted_range"]
BODIES = Faults(**dict.fromkeys([*OF_BODIES, "doubled"], 0.05))  # type: ignore[arg-type]


def samples_of(num_samples: int) -> Iterator[dict[str, Any]]:
    for index in range(num_samples):
        yield {"__key__": f"{index:07d}", "bin": hashlib.sha256(b"%d" % index).digest() * (1 + index % 97)}


def content_of(samples: Any) -> list[tuple[str, bytes]]:
    return sorted((sample["__key__"].rpartition("/")[2], sample["bin"]) for sample in samples)


@pytest.fixture(scope="session")
def data(row: Row, server: StoreServer, place_of_row: str, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder of shards and one of loose files."""
    folder, local = new_folder(row, server, place_of_row), tmp_path_factory.mktemp("storm")
    with tdr.ShardWriter(f"{local}/{{shard}}.tar", max_shard_samples=SHARD_SAMPLES) as writer:
        for sample in samples_of(NUM_SHARDS * SHARD_SAMPLES):
            writer.write(sample)
    for path in local.glob("*.tar"):
        folder.put(f"shards/{path.name}", path.read_bytes())
    for sample in samples_of(NUM_FILES):
        folder.put(f"files/{sample['__key__']}.bin", sample["bin"])
    return folder


def read_all(folder: Folder, *, in_order: bool) -> None:
    """Read shards and loose files, and compare them with what was written."""
    for name, numbers, expected in (
        ("shards", f"{{0..{NUM_SHARDS - 1}}}.tar", NUM_SHARDS * SHARD_SAMPLES),
        ("files", f"{{0000000..{NUM_FILES - 1:07d}}}.bin", NUM_FILES),
    ):
        url = f"{folder.url}{name}/{'' if folder.row.lists else numbers}"
        urls = tdr.IterableWrapper([url]).list_remote(retry=objects.PATIENT, storage_options=folder.options)
        streams = urls.async_prefetch(
            max_in_flight=8,
            part_bytes=10_000,
            max_buffer_bytes=640_000,
            retry=objects.PATIENT,
            storage_options=folder.options,
            in_order=in_order,
        )
        samples = streams.shard_tar_reader() if name == "shards" else streams.file_reader()
        assert content_of(samples) == content_of(samples_of(expected)), name


@each("proxied", lines=True, transports=True)
@pytest.mark.parametrize("faults", [Faults.storm(0.4), BODIES], ids=["storm", "bodies"])
def test_each_sample_comes_once_and_unaltered_through_a_storm(data: Folder, faults: Faults) -> None:
    """503, 500, resets and early ends; bodies that are cut, of another range, or sent twice."""
    with FaultyStore(data.server.endpoint_url, faults, seed=0) as store:
        read_all(data.through(store.endpoint_url), in_order=faults is BODIES)
        assert sum(store.counts.values()) > 1.1 * store.counts["well"], store.counts


@pytest.mark.parametrize("options", [{}, {"default_fill_cache": False}], ids=["by obstore", "by s3fs"])
def test_a_large_object_is_whole_after_its_responses_were_broken(moto: S3Server, options: dict[str, Any]) -> None:
    """s3fs's own reader waits forever for one of more than 50 MiB, and puts zeros where bytes are missing."""
    bucket, large = moto.new_bucket(), random.Random(1).randbytes(60_000_000)
    moto.client().put_object(Bucket=bucket, Key="large", Body=large)
    with FaultyStore(moto.endpoint_url, BODIES, seed=0) as store:
        broken = {**moto.storage_options, "endpoint_url": store.endpoint_url, **options}
        url = objects.found(f"s3://{bucket}/large", broken, retry=objects.PATIENT)
        data = objects.read(url, broken, retry=objects.PATIENT, part_bytes=2 << 20, max_in_flight=16)
        assert store.counts["well"] < sum(store.counts.values())
    assert hashlib.sha256(data).digest() == hashlib.sha256(large).digest()


@pytest.fixture(scope="session")
def pages(row: Row, server: StoreServer) -> tuple[Folder, list[str]]:
    """A place with more objects than a page, most of them in folders."""
    folder = Folder(row, server, server.new_place(), "")
    num = 0 if isinstance(server, AzuritePlace) or row.name == "datasets" else PAGE
    names = [f"{number % 3}/{number:05d}" if number % 7 else f"{number:05d}" for number in range(num + 30)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: folder.put(name, b""), names))
    return folder, sorted(names)


@each("proxied", "lists", lines=True, transports=True)
def test_a_listing_of_several_pages_is_whole_and_in_order_also_through_a_storm(
    pages: tuple[Folder, list[str]],
) -> None:
    """Each name once, with folders or without; half of the responses are broken."""
    folder, names = pages
    assert folder.listed() == names
    assert folder.listed(recursive=False) == [name for name in names if "/" not in name]
    faults = Faults(slow_down=0.2, internal_error=0.1, reset=0.1, cut_body=0.1, listings=True)
    with FaultyStore(folder.server.endpoint_url, faults, seed=1) as store:
        broken = folder.through(store.endpoint_url)
        while sum(store.counts.values()) - store.counts["well"] < 3:
            assert broken.listed() == names
