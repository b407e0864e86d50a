"""``ShardedDataset``: any sample of tar shards by number, by ranged reads at the offsets in their indexes."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.datasets.stores import DEADLINE_S, timed_store
from tests.servers.s3 import S3Server
from tests.support.full_disk import full_disk
from tests.support.shard_places import Place, memory_place, tar_of
from torchdata_remote.errors import EmptyListingError, ManifestError, ObjectNotFoundError, ShardReadError
from torchdata_remote.testing import FaultyStore

NUM_SAMPLES, SHARD_SAMPLES = 23, 5


def sample_of(number: int) -> dict[str, Any]:
    """Members of different sizes, empty ones too, and a key that needs a header of its own."""
    key = f"{number % 4}/{'long-' * 30 if number % 7 == 3 else ''}{number:03d}"
    return {"__key__": key, "bin": bytes([number]) * (number * 97 % 1700), "cls": number, "json": {"n": number}}


def write(place: Place, *, ending: str = ".tar", num_samples: int = NUM_SAMPLES) -> Place:
    with tdr.ShardWriter(
        place.template(ending), max_shard_samples=SHARD_SAMPLES, storage_options=place.options
    ) as writer:
        for number in range(num_samples):
            writer.write(sample_of(number))
    return place


def read_in_order(place: Place) -> list[Any]:
    """All samples by the reader of whole shards, in the order of the manifest."""
    root = place.url if "://" in place.url else f"file://{place.url}"
    return list(tdr.IterableWrapper([f"{root}index.json"]).list_remote().shard_tar_reader())


def offsets_of(place: Place, shard: int = 1) -> list[int]:
    return [offset for (offset,) in struct.iter_unpack("<Q", place.files()[f"{shard:06d}.tar.idx"])]


def dump_index(offsets: list[int]) -> bytes:
    return struct.pack(f"<{len(offsets)}Q", *offsets)


@pytest.fixture(scope="module")
def in_memory() -> Place:
    return write(memory_place())


@pytest.fixture
def place_of_own() -> Place:
    return write(memory_place())


def test_the_manifest_is_named_by_its_folder_or_itself_also_as_a_path(tmp_path: Path) -> None:
    samples = read_in_order(write(Place(f"{tmp_path}/")))
    for url in (tmp_path, f"{tmp_path}", f"{tmp_path}/", tmp_path / "index.json", tmp_path.as_uri()):
        assert tdr.ShardedDataset(url)[2] == samples[2]


def test_members_are_bytes_of_their_own(in_memory: Place) -> None:
    found = tdr.ShardedDataset(in_memory.url).__getitems__([3, 4])
    assert {type(value) for sample in found for value in sample.values()} == {str, bytes}


@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.randoms(use_true_random=False))
def test_numbers_go_on_over_shards_in_the_order_of_the_manifest(counts: list[int], seed: random.Random) -> None:
    place = memory_place()
    for shard, count in enumerate(counts):
        with tdr.ShardWriter(f"{place.url}{'zyxwv'[shard]}{{shard}}.tar") as writer:
            for number in range(count):
                writer.write(sample_of(10 * shard + number))
        place.delete("index.json")
    tdr.index_shards(place.url, overwrite=True)
    samples, dataset = read_in_order(place), tdr.ShardedDataset(place.url)
    order = seed.sample(range(len(samples)), len(samples))
    assert len(dataset) == sum(counts)
    assert dataset.__getitems__(order) == [samples[index] for index in order]


def test_transforms_run_in_the_order_of_the_batch_in_the_callers_thread_on_separate_samples(in_memory: Place) -> None:
    seen: list[Any] = []

    def pop(sample: dict[str, Any]) -> Any:
        seen.append((sample.pop("cls"), threading.current_thread()))
        return sample["__key__"]

    found = tdr.ShardedDataset(in_memory.url, transform=pop).__getitems__([7, 1, 7])
    assert found == [sample_of(number)["__key__"] for number in (7, 1, 7)]
    assert seen == [(b"%d" % number, threading.current_thread()) for number in (7, 1, 7)]


def test_neighbouring_samples_are_one_request_distant_ones_are_several_and_an_index_is_read_once(
    moto: S3Server,
) -> None:
    place = write(Place(f"s3://{moto.new_bucket()}/d/", moto))
    with tdr.ShardWriter(f"{place.url}far/{{shard}}.tar", storage_options=place.options) as writer:
        for number in range(5):
            writer.write({"__key__": f"{number}", "bin": bytes([number]) * (1 << 20)})
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        dataset, far = (tdr.ShardedDataset(url, storage_options=options) for url in (place.url, f"{place.url}far"))
        assert sum(one.path.endswith(".idx") for one in store.requests) == 5 + 1, "when they are built"

        def gets(of: Any, batch: list[int]) -> list[str]:
            before = len(store.requests)
            of.__getitems__(batch)
            return sorted(one.path.rpartition("/")[2] for one in store.requests[before:])

        assert gets(dataset, [0, 4, 2, 7, 2]) == ["000000.tar", "000001.tar"]
        assert gets(dataset, [1, 1, 1]) == ["000000.tar"]
        assert gets(dataset, list(range(10))) == ["000000.tar", "000001.tar"]
        assert gets(dataset, []) == []
        assert gets(far, [4, 0]) == ["0.tar", "0.tar"], "the bytes between them are not fetched"
        assert [sample["bin"][:1] for sample in far.__getitems__([4, 0])] == [b"\4", b"\0"]
        assert all(one.range is not None for one in store.requests if one.path.endswith(".tar")), "never a whole shard"


def large_place(moto: S3Server) -> Place:
    """Two shards of 16 samples of 100 kB."""
    place = Place(f"s3://{moto.new_bucket()}/d/", moto)
    with tdr.ShardWriter(place.template(), max_shard_samples=16, storage_options=place.options) as writer:
        for number in range(32):
            writer.write({"__key__": f"{number}", "bin": random.Random(number).randbytes(100_000)})
    return place


@pytest.mark.parametrize(("cache_bytes", "least_saved"), [(1 << 30, 1), (2 << 20, 0.4)])
def test_blocks_of_shards_are_cached_and_no_more_is_fetched_than_is_stored(
    moto: S3Server, tmp_path: Path, cache_bytes: int, least_saved: float
) -> None:
    place = large_place(moto)
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        seen: list[int] = []
        for epoch in range(4):
            dataset = tdr.ShardedDataset(
                place.url, storage_options=options, cache_dir=str(tmp_path), cache_bytes=cache_bytes
            )
            store.requests.clear()
            for number in random.Random(epoch).sample(range(32), 32):
                assert dataset[number]["bin"] == random.Random(number).randbytes(100_000)
            seen.append(sum(one.path.endswith(".tar") for one in store.requests))
    assert max(seen[1:]) <= (1 - least_saved) * 32
    assert seen[0] < 32


def test_a_damaged_block_and_a_replaced_shard_are_fetched_again(moto: S3Server, tmp_path: Path) -> None:
    place = large_place(moto)
    cache: dict[str, Any] = {"cache_dir": str(tmp_path), "cache_bytes": 1 << 30}

    def read_all() -> list[Any]:
        dataset = tdr.ShardedDataset(place.url, storage_options=place.options, **cache)
        return dataset.__getitems__(list(range(32)))

    expected = read_all()
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > 100_000:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    assert read_all() == expected
    with tdr.ShardWriter(
        place.template(), max_shard_samples=16, storage_options=place.options, overwrite=True
    ) as writer:
        for number in range(32):
            writer.write({"__key__": f"{number}", "bin": random.Random(-number).randbytes(100_000)})
    assert [sample["bin"] for sample in read_all()] == [
        random.Random(-number).randbytes(100_000) for number in range(32)
    ]


def test_on_a_full_disk_blocks_are_read_without_the_cache_until_there_is_room(
    moto: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = large_place(moto)
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        for is_full in (True, False, False):
            dataset = tdr.ShardedDataset(
                place.url, storage_options=options, cache_dir=str(tmp_path), cache_bytes=1 << 30
            )
            store.requests.clear()
            with full_disk(max_bytes=20_000) if is_full else contextlib.nullcontext():
                for number in range(32):
                    assert dataset[number]["bin"] == random.Random(number).randbytes(100_000)
    assert not any(one.path.endswith(".tar") for one in store.requests)
    assert sum("are read without it" in record.getMessage() for record in caplog.records) == 1


def test_who_stops_early_sends_no_request_that_has_not_started(in_memory: Place) -> None:
    first = threading.Event()

    def hold(key: str) -> None:
        if key == "000004.tar":
            first.wait(DEADLINE_S)

    with timed_store(in_memory.files(), hold) as store:
        dataset = tdr.ShardedDataset(store.url, storage_options=store.options, max_in_flight=1)
        batches = dataset.batches([[0], [20], [6], [11]])
        next(batches)
        batches.close()
        first.set()
        assert dataset[16]["cls"] == b"16"
        asked = [key for key in store.asked if key.endswith(".tar")]
    assert asked in (["000000.tar", "000004.tar", "000003.tar"], ["000000.tar", "000003.tar"])


# Indexes and manifests that do not fit


def test_a_shard_without_an_index_is_an_error_that_says_how_to_write_one(place_of_own: Place) -> None:
    kept = place_of_own.files()["000001.tar.idx"]
    place_of_own.delete("000001.tar.idx")
    with pytest.raises(ManifestError, match=r"000001\.tar\.idx is missing.*torchdata-remote manifest --overwrite"):
        tdr.ShardedDataset(place_of_own.url)
    place_of_own.put({"000001.tar.idx": kept})
    assert tdr.ShardedDataset(place_of_own.url)[6]["cls"] == b"6"


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst"])
def test_a_compressed_shard_has_no_index_and_the_error_says_what_to_do(ending: str) -> None:
    place = write(memory_place(), ending=ending)
    with pytest.raises(ManifestError, match=r"A compressed shard has none: write uncompressed tars"):
        tdr.ShardedDataset(place.url)


@pytest.mark.parametrize("wrong", ["of another shard", "cut", "empty"])
def test_an_index_that_does_not_match_its_checksum_is_an_error(place_of_own: Place, wrong: str) -> None:
    offsets = offsets_of(place_of_own)
    data = {
        "of another shard": dump_index(offsets_of(place_of_own, 4)),
        "cut": dump_index(offsets)[:-3],
        "empty": b"",
    }[wrong]
    place_of_own.put({"000001.tar.idx": data})
    with pytest.raises(ManifestError, match=r"000001\.tar\.idx has the CRC-32.*torchdata-remote manifest --overwrite"):
        tdr.ShardedDataset(place_of_own.url)


def test_a_manifest_without_checksums_of_indexes_is_refused_until_it_is_written_again(place_of_own: Place) -> None:
    """As one of another program: such an index may be that of another version, and cut a sample in two."""
    samples, manifest = read_in_order(place_of_own), json.loads(place_of_own.files()["index.json"])
    for entry in manifest["shardlist"]:
        del entry["index_crc32"]
    place_of_own.put({"index.json": json.dumps(manifest).encode()})
    with pytest.raises(ManifestError, match=r"has no checksum in the shard's manifest.*manifest --overwrite"):
        tdr.ShardedDataset(place_of_own.url)
    tdr.index_shards(place_of_own.url, overwrite=True)
    assert tdr.ShardedDataset(place_of_own.url).__getitems__(range(NUM_SAMPLES)) == samples


def test_a_damaged_header_is_an_error_that_names_the_shard(place_of_own: Place) -> None:
    data, at = bytearray(place_of_own.files()["000001.tar"]), offsets_of(place_of_own)[2]
    data[at : at + 100] = b"?" * 100
    place_of_own.put({"000001.tar": bytes(data)})
    dataset = tdr.ShardedDataset(place_of_own.url)
    with pytest.raises(ShardReadError, match=r"000001\.tar"):
        dataset.__getitems__([0, 7])
    assert dataset[8]["cls"] == b"8"


@pytest.mark.parametrize("name", ["", "index.json", "nothing/"])
def test_a_folder_without_a_manifest_is_an_error_when_the_dataset_is_built(place: Place, name: str) -> None:
    place.put({"000000.tar": b"a shard of others"})
    with pytest.raises(ObjectNotFoundError, match="there is no manifest"):
        tdr.ShardedDataset(f"{place.url}{name}", storage_options=place.options)


@pytest.mark.parametrize("data", [b"{}", b"no json", b'{"shardlist": 3}', b"[]"])
def test_what_is_no_manifest_is_an_error_that_names_it(data: bytes) -> None:
    place = memory_place()
    place.put({"index.json": data})
    with pytest.raises((ManifestError, EmptyListingError), match=r"index\.json"):
        tdr.ShardedDataset(place.url)


def test_a_bad_member_is_an_error_or_left_out_and_counted_by_the_policy() -> None:
    place = memory_place()
    place.put({"a.tar": tar_of({"1.txt": b"one", "README": b"bad", "2.txt": b"two"})})
    tdr.index_shards(place.url, on_bad_member=lambda error: None)
    with pytest.raises(tdr.errors.BadMemberError, match="README"):
        tdr.ShardedDataset(place.url).__getitems__([0, 1])
    dataset = tdr.ShardedDataset(place.url, on_bad_member=lambda error: None)
    assert [sample["txt"] for sample in dataset.__getitems__([1, 0])] == [b"two", b"one"]
    assert sum(dataset.skipped.bad_members.values()) == 1
