"""Samples of shards by number: what the reader of whole shards gives, in any order."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import signal
import tarfile
import threading
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.datasets.stores import (
    AT_ONCE,
    DEADLINE_S,
    PATIENT,
    Plain,
    Together,
    as_they_are,
    only,
    threads_of_ours,
    timed_store,
    until_error,
    wait_for,
)
from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.servers.scripted import Response
from tests.support.shard_places import Place, memory_place
from torchdata_remote import ShardTarReader, ShardWriter, index_shards
from torchdata_remote.datasets import ShardedDataset
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ManifestError,
    ObjectChangedError,
    ObjectNotFoundError,
    ShardReadError,
    StorageError,
    TransientStorageError,
)
from torchdata_remote.fetch.coalesced import GAP_BYTES
from torchdata_remote.formats.sample import Sample
from torchdata_remote.formats.sample_index import dump_index
from torchdata_remote.testing import FaultyStore
from torchdata_remote.testing.faults import Faults

NUM_SAMPLES, SHARD_SAMPLES = 23, 5
INDICES = st.lists(st.integers(-NUM_SAMPLES, NUM_SAMPLES - 1), max_size=40)


def sample_of(number: int) -> Sample:
    """Members of different sizes, empty ones too, and a key that needs a header of its own."""
    key = f"{number % 4}/{'long-' * 30 if number % 7 == 3 else ''}{number:03d}"
    return {"__key__": key, "bin": bytes([number]) * (number * 97 % 1700), "cls": number, "json": {"n": number}}


def write(place: Place, *, ending: str = ".tar", num_samples: int = NUM_SAMPLES, **options: Any) -> Place:
    with ShardWriter(
        place.template(ending), max_shard_samples=SHARD_SAMPLES, storage_options=place.options, **options
    ) as writer:
        for number in range(num_samples):
            writer.write(sample_of(number))
    return place


def read_in_order(place: Place) -> list[Sample]:
    """All samples by the reader of whole shards, in the order of the manifest."""
    root = place.url if "://" in place.url else f"file://{place.url}"
    urls = IterableWrapper([f"{root}index.json"]).list_remote(storage_options=place.options)
    return list(ShardTarReader(urls, storage_options=place.options))


@pytest.fixture
def verse(place: Place) -> Place:
    return write(place)


@pytest.fixture(scope="module")
def in_memory() -> Place:
    return write(memory_place())


@pytest.fixture(scope="module")
def on_s3(moto: S3Server) -> Place:
    return write(Place(f"s3://{moto.new_bucket()}/d/", moto))


def test_samples_equal_those_of_the_sequential_reader(verse: Place) -> None:
    """In any store. Members are bytes that do not keep the batch in memory."""
    samples = read_in_order(verse)
    assert len(samples) == NUM_SAMPLES
    for url in (verse.url, verse.url.rstrip("/"), f"{verse.url}index.json"):
        dataset = ShardedDataset(url, storage_options=verse.options)
        assert len(dataset) == NUM_SAMPLES
        assert dataset.__getitems__(range(NUM_SAMPLES)) == samples
    assert [dataset[number] for number in (7, 0, -1)] == [samples[7], samples[0], samples[-1]]
    assert {type(value) for sample in dataset.__getitems__([3, 4]) for value in sample.values()} == {str, bytes}


@settings(max_examples=60)
@given(indices=INDICES, max_in_flight=st.integers(1, 5))
def test_batch_equals_its_single_samples(in_memory: Place, indices: list[int], max_in_flight: int) -> None:
    """In the requested order, with repetitions; each is a separate dict."""
    samples = read_in_order(in_memory)
    found = ShardedDataset(in_memory.url, max_in_flight=max_in_flight).__getitems__(indices)
    assert found == [samples[index] for index in indices]
    assert len({id(sample) for sample in found}) == len(found)


@settings(max_examples=30)
@given(batches=st.lists(INDICES, max_size=8))
def test_batches_of_any_length_are_yielded_in_order(in_memory: Place, batches: list[list[int]]) -> None:
    """Empty ones too."""
    samples = read_in_order(in_memory)
    found = list(ShardedDataset(in_memory.url).batches(batches))
    assert found == [[samples[index] for index in batch] for batch in batches]


@settings(max_examples=25)
@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.randoms(use_true_random=False))
def test_indices_continue_over_shards_in_manifest_order(counts: list[int], seed: random.Random) -> None:
    """For shards of any length."""
    place = memory_place()
    for shard, count in enumerate(counts):
        with ShardWriter(f"{place.url}{'zyxwv'[shard]}{{shard}}.tar") as writer:
            for number in range(count):
                writer.write(sample_of(10 * shard + number))
        place.delete("index.json")
    index_shards(place.url, overwrite=True)
    samples = read_in_order(place)
    dataset = ShardedDataset(place.url)
    order = seed.sample(range(len(samples)), len(samples))
    assert len(dataset) == sum(counts)
    assert dataset.__getitems__(order) == [samples[index] for index in order]


def test_local_paths_are_accepted(tmp_path: Path) -> None:
    """A ``Path`` too."""
    write(Place(f"{tmp_path}/"))
    assert (
        ShardedDataset(tmp_path)[2]
        == ShardedDataset(tmp_path / "index.json")[2]
        == read_in_order(Place(f"{tmp_path}/"))[2]
    )


@pytest.mark.parametrize("index", [NUM_SAMPLES, -NUM_SAMPLES - 1, 10**30])
def test_index_out_of_range_is_an_error(in_memory: Place, index: int) -> None:
    """An ``IndexError``, also within a batch."""
    dataset = ShardedDataset(in_memory.url)
    for ask in (lambda: dataset[index], lambda: dataset.__getitems__([0, index])):
        with pytest.raises(IndexError, match="ShardedDataset has 23 items"):
            ask()


@pytest.mark.parametrize("index", [True, 1.0, "1", slice(2), None])
def test_index_that_is_no_integer_is_an_error(in_memory: Place, index: Any) -> None:
    """A ``TypeError``; integers of NumPy and torch are accepted."""
    dataset = ShardedDataset(in_memory.url)
    with pytest.raises(TypeError, match="by its index"):
        dataset[index]
    others: list[Any] = [np.int32(3), torch.tensor(3)]
    assert [dataset[other] for other in others] == [dataset[3]] * 2


def test_transforms_run_in_the_order_of_the_batch(in_memory: Place) -> None:
    """In the caller's thread; repeated samples are separate objects."""
    seen: list[Any] = []

    def pop(sample: Sample) -> Any:
        seen.append((sample.pop("cls"), threading.current_thread()))
        return sample["__key__"]

    dataset = ShardedDataset(in_memory.url, transform=pop)
    keys = [sample_of(number)["__key__"] for number in (7, 1, 7)]
    assert dataset.__getitems__([7, 1, 7]) == keys
    assert seen == [(b"%d" % number, threading.current_thread()) for number in (7, 1, 7)]


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_workers_give_the_samples_of_a_plain_dataset(on_s3: Place, num_workers: int) -> None:
    """Batch by batch, in the order of the sampler."""
    check_workers(on_s3, num_workers, "fork")


def test_workers_that_are_not_forked_give_the_samples_of_a_plain_dataset(on_s3: Place) -> None:
    """The dataset is pickled for each worker, also after it was read."""
    check_workers(on_s3, 2, "forkserver")


def check_workers(place: Place, num_workers: int, start_method: str) -> None:
    dataset = ShardedDataset(place.url, storage_options=place.options)
    dataset[3]
    order = random.Random(3).choices(range(NUM_SAMPLES), k=30)
    loader = DataLoader(
        dataset,
        batch_size=4,
        sampler=order,
        num_workers=num_workers,
        multiprocessing_context=start_method if num_workers else None,
        collate_fn=as_they_are,
    )
    plain = DataLoader(Plain(read_in_order(place)), batch_size=4, sampler=order, collate_fn=as_they_are)
    assert list(loader) == list(plain)


def test_neighbouring_samples_are_one_request(on_s3: Place, moto: S3Server) -> None:
    """One per shard; an index is read once."""
    with FaultyStore(moto.endpoint_url) as store:
        dataset = ShardedDataset(
            on_s3.url, storage_options={**moto.storage_options, "endpoint_url": store.endpoint_url}
        )

        def gets(batch: list[int]) -> list[str]:
            before = len(store.requests)
            dataset.__getitems__(batch)
            return sorted(one.path.rpartition("/")[2] for one in store.requests[before:])

        assert gets([0, 4, 2, 7, 2]) == ["000000.tar", "000000.tar.idx", "000001.tar", "000001.tar.idx"]
        assert gets([1, 1, 1]) == ["000000.tar"]
        assert gets(list(range(10))) == ["000000.tar", "000001.tar"]
        assert gets([]) == []
        ranges = [one.range for one in store.requests if one.path.endswith(".tar")]
        assert all(range_ is not None for range_ in ranges), "never a whole shard"


def test_distant_samples_are_separate_requests(moto: S3Server) -> None:
    """The bytes between them are not fetched."""
    place = Place(f"s3://{moto.new_bucket()}/d/", moto)
    with ShardWriter(place.template(), storage_options=place.options) as writer:
        for number in range(5):
            writer.write({"__key__": f"{number}", "bin": bytes([number]) * GAP_BYTES})
    with FaultyStore(moto.endpoint_url) as store:
        dataset = ShardedDataset(
            place.url, storage_options={**moto.storage_options, "endpoint_url": store.endpoint_url}
        )
        assert [sample["bin"] for sample in dataset.__getitems__([4, 0])] == [bytes([n]) * GAP_BYTES for n in (4, 0)]
        assert sum(one.path.endswith(".tar") for one in store.requests) == 2


def timed_shards(place: Place) -> dict[str, bytes]:
    """For a timed store: the manifest names its shards relatively."""
    return place.files()


def test_shards_are_requested_concurrently(in_memory: Place) -> None:
    """The indexes of a batch, then its samples: no request is answered before all of them have arrived."""
    idx, tar = Together(5, ".idx"), Together(5, ".tar")
    with timed_store(timed_shards(in_memory), lambda key: idx(key) or tar(key)) as store:
        dataset = ShardedDataset(store.url, storage_options=store.options, retry=AT_ONCE)
        found = dataset.__getitems__([0, 5, 10, 15, 20])
    assert [sample["cls"] for sample in found] == [b"0", b"5", b"10", b"15", b"20"]


def test_every_sample_is_correct_through_a_storm(on_s3: Place, moto: S3Server) -> None:
    """Transient errors are retried."""
    samples = read_in_order(on_s3)
    with faulty(moto, Faults.storm(0.3), seed=2) as (server, store):
        dataset = ShardedDataset(on_s3.url, storage_options=server.storage_options, retry=PATIENT)
        for seed in range(4):
            order = random.Random(seed).choices(range(NUM_SAMPLES), k=20)
            assert list(dataset.batches([[one] for one in order])) == [[samples[one]] for one in order]
        assert sum(count for fault, count in store.counts.items() if fault != "well") > 5


@pytest.mark.parametrize("fault", ["cut_body", "reset_in_body", "short_range", "shifted_range"])
def test_truncated_responses_are_an_error_after_the_attempts_of_the_policy(
    on_s3: Place, moto: S3Server, fault: str
) -> None:
    """With the URL; the dataset stays usable."""
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        dataset = ShardedDataset(on_s3.url, storage_options=options, retry=AT_ONCE)
        dataset.__getitems__([0, 6])
        store.faults = only(fault)
        with pytest.raises(TransientStorageError, match=r"00000[01]\.tar.*Gave up after 2 attempts"):
            dataset.__getitems__([0, 6])
        store.faults = Faults()
        assert [sample["cls"] for sample in dataset.__getitems__([6, 0])] == [b"6", b"0"]


def test_deleted_shard_is_an_error(verse: Place) -> None:
    """With the URL, after the batches before; other shards can be read."""
    samples = read_in_order(verse)
    dataset = ShardedDataset(verse.url, storage_options=verse.options, retry=AT_ONCE)
    verse.delete("000002.tar")
    batches = dataset.batches([[0, 1], [6, 20], [3, 11], [4]])
    assert [next(batches), next(batches)] == [[samples[0], samples[1]], [samples[6], samples[20]]]
    with pytest.raises(ObjectNotFoundError, match=r"000002\.tar"):
        next(batches)
    assert dataset[9] == samples[9]


def test_index_that_cuts_a_sample_is_an_error(tmp_path: Path) -> None:
    """Without a checksum of the index too; other samples can be read."""
    place = write(Place(f"{tmp_path}/"))
    manifest = json.loads((tmp_path / "index.json").read_bytes())
    for entry in manifest["shardlist"]:
        del entry["index_crc32"]
    (tmp_path / "index.json").write_text(json.dumps(manifest))
    samples = read_in_order(place)
    assert ShardedDataset(place.url).__getitems__(range(NUM_SAMPLES)) == samples
    index = tmp_path / "000000.tar.idx"
    offsets = np.frombuffer(index.read_bytes(), "<u8")
    with tarfile.open(tmp_path / "000000.tar") as archive:
        members = np.array([member.offset for member in archive], "<u8")
    for border in range(1, SHARD_SAMPLES):
        last_before, second_behind = members[members < offsets[border]][-1], members[members > offsets[border]][0]
        for wrong in (last_before, second_behind):
            changed = offsets.copy()
            changed[border] = wrong
            index.write_bytes(changed.tobytes())
            dataset = ShardedDataset(place.url)
            with pytest.raises(ShardReadError, match=r"000000\.tar: (the index cuts|sample .* samples by its index)"):
                dataset[border - 1]
            untouched = [at for at in range(NUM_SAMPLES) if at not in (border - 1, border)]
            assert dataset.__getitems__(untouched) == [samples[at] for at in untouched]


def test_replaced_shard_is_an_error(verse: Place) -> None:
    """The index belongs to the listed version."""
    dataset = ShardedDataset(verse.url, storage_options=verse.options, retry=AT_ONCE)
    dataset[0]
    verse.put({"000000.tar": bytes(700) + verse.files()["000000.tar"]})
    with pytest.raises((ObjectChangedError, StorageError, ShardReadError), match=r"000000\.tar"):
        dataset[0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_in_a_loader_are_raised_in_their_batch(in_memory: Place, num_workers: int) -> None:
    """With their own type and the URL."""
    refused = Response.of_error(403, "AccessDenied")
    with timed_store(timed_shards(in_memory), lambda key: refused if key == "000002.tar" else None) as store:
        dataset = ShardedDataset(store.url, storage_options=store.options, retry=AT_ONCE)
        loader = DataLoader(dataset, batch_size=4, num_workers=num_workers, collate_fn=as_they_are)
        found, error = until_error(loader, AccessDeniedError)
        assert "s3://timed/000002.tar" in str(error)
        assert store.asked.count("000002.tar") <= max(1, num_workers), "once by each that wants it"
    assert [len(batch) for batch in found] == [4, 4]


def test_index_out_of_range_is_raised_after_the_batches_before_it(in_memory: Place) -> None:
    """However far ahead samples are fetched; a missing ``.idx`` too."""
    samples = read_in_order(in_memory)
    batches = ShardedDataset(in_memory.url).batches([[0], [1], [99], [2]])
    assert [next(batches), next(batches)] == [[samples[0]], [samples[1]]]
    with pytest.raises(IndexError, match="99"):
        next(batches)
    place = write(memory_place())
    place.delete("000001.tar.idx")
    batches = ShardedDataset(place.url).batches([[0], [10], [6], [2]])
    assert [sample["cls"] for sample in next(batches) + next(batches)] == [b"0", b"10"]
    with pytest.raises(ManifestError, match=r"000001\.tar\.idx is missing"):
        next(batches)


def test_shard_without_an_index_is_an_error(verse: Place) -> None:
    """It says how to write the index, after which the same dataset can be read."""
    dataset = ShardedDataset(verse.url, storage_options=verse.options)
    kept = verse.files()["000003.tar.idx"]
    verse.delete("000003.tar.idx")
    with pytest.raises(ManifestError, match=r"000003\.tar\.idx is missing.*torchdata-remote manifest --overwrite"):
        dataset[16]
    verse.put({"000003.tar.idx": kept})
    assert dataset[16]["cls"] == b"16"


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst"])
def test_compressed_shards_are_an_error(memory_folder: str, ending: str) -> None:
    """They have no offsets: the error says what to do."""
    place = write(Place(f"{memory_folder}/"), ending=ending)
    dataset = ShardedDataset(place.url)
    assert len(dataset) == NUM_SAMPLES
    with pytest.raises(ManifestError, match=r"A compressed shard has none: write uncompressed tars"):
        dataset[0]


def offsets_of(place: Place, shard: int) -> list[int]:
    found: list[int] = np.frombuffer(place.files()[f"{shard:06d}.tar.idx"], "<u8").tolist()
    return found


@pytest.mark.parametrize("wrong", ["other", "short", "long", "cut", "empty", "zeros", "backwards", "uneven", "beyond"])
def test_index_of_another_shard_is_an_error(memory_folder: str, wrong: str) -> None:
    """By its length or its numbers; never another sample."""
    place = write(Place(f"{memory_folder}/"))
    good = offsets_of(place, 1)
    data = {
        "other": dump_index(offsets_of(place, 4)),
        "short": dump_index(good[:-1]),
        "long": dump_index([*good, good[-1] + 512]),
        "cut": dump_index(good)[:-3],
        "empty": b"",
        "zeros": dump_index([0] * len(good)),
        "backwards": dump_index(good[::-1]),
        "uneven": dump_index([good[0], *(one + 1 for one in good[1:])]),
        "beyond": dump_index([*good[:-1], 10**9]),
    }[wrong]
    place.put({"000001.tar.idx": data})
    with pytest.raises(ManifestError, match=r"000001\.tar\.idx.*torchdata-remote manifest --overwrite"):
        ShardedDataset(place.url)[6]


@settings(max_examples=60)
@given(data=st.data())
def test_any_index_gives_the_sample_or_an_error_of_this_package(data: st.DataObject) -> None:
    """For any numbers of a valid form."""
    place = write(memory_place(), num_samples=4)
    good = offsets_of(place, 0)
    cuts = data.draw(st.lists(st.sampled_from(range(0, good[-1] + 1024, 512)), min_size=5, max_size=5).map(sorted))
    place.put({"000000.tar.idx": dump_index(cuts)})
    for number in range(4):
        try:
            sample = ShardedDataset(place.url)[number]
        except (ManifestError, ShardReadError):
            continue
        assert sample["__key__"] in {sample_of(other)["__key__"] for other in range(4)}


def test_index_with_repeated_offsets_is_an_error(memory_folder: str) -> None:
    """It does not belong to the shard."""
    place = write(Place(f"{memory_folder}/"), num_samples=4)
    good = offsets_of(place, 0)
    place.put({"000000.tar.idx": dump_index([good[0], good[2], *(good[2] + 512 * n for n in (1, 2)), good[4]])})
    with pytest.raises(ManifestError, match=r"000000\.tar\.idx has the CRC-32"):
        ShardedDataset(place.url)[0]
    document = json.loads(place.files()["index.json"])
    for shard in document["shardlist"]:
        del shard["index_crc32"]  # as in manifests of others
    place.put({"index.json": json.dumps(document).encode()})
    with pytest.raises(ShardReadError, match=r"000000\.tar: sample 0 is 2 samples by its index"):
        ShardedDataset(place.url)[0]


def test_damaged_header_is_an_error_that_names_the_shard(memory_folder: str) -> None:
    """Where a sample should start."""
    place = write(Place(f"{memory_folder}/"))
    data = bytearray(place.files()["000001.tar"])
    at = offsets_of(place, 1)[2]
    data[at : at + 100] = b"?" * 100
    place.put({"000001.tar": bytes(data)})
    dataset = ShardedDataset(place.url)
    with pytest.raises(ShardReadError, match=r"000001\.tar"):
        dataset.__getitems__([0, 7])
    assert dataset[8]["cls"] == b"8"


@pytest.mark.parametrize("name", ["", "index.json", "nothing/"])
def test_folder_without_a_manifest_is_an_error(place: Place, name: str) -> None:
    """When the dataset is built."""
    place.put({"000000.tar": b"a shard of others"})
    with pytest.raises(ObjectNotFoundError, match="there is no manifest"):
        ShardedDataset(f"{place.url}{name}", storage_options=place.options)


@pytest.mark.parametrize("data", [b"{}", b"no json", b'{"shardlist": 3}', b"[]"])
def test_invalid_manifest_is_an_error(memory_folder: str, data: bytes) -> None:
    """For example an index of loose files under the same name."""
    Place(f"{memory_folder}/").put({"index.json": data})
    with pytest.raises((ManifestError, EmptyListingError), match=r"index\.json"):
        ShardedDataset(memory_folder)


def test_threads_live_as_long_as_the_dataset(on_s3: Place) -> None:
    """They fetch all batches, and end with the dataset."""
    before = threads_of_ours()
    dataset = ShardedDataset(on_s3.url, storage_options=on_s3.options, max_in_flight=4)
    dataset.__getitems__(range(NUM_SAMPLES))
    wait_for(lambda: len(threads_of_ours() - before) <= 4)  # those that read indexes are gone
    first = threads_of_ours() - before
    assert first
    for _ in range(3):
        dataset.__getitems__(range(NUM_SAMPLES))
    batches = dataset.batches([[number] for number in range(NUM_SAMPLES)])
    next(batches)
    batches.close()
    with pytest.raises(IndexError):
        dataset[NUM_SAMPLES]
    assert threads_of_ours() - before == first
    del dataset, batches
    gc.collect()
    wait_for(lambda: not threads_of_ours() - before)


def test_early_break_drops_requests_that_have_not_started(in_memory: Place) -> None:
    """They are not sent."""
    first = threading.Event()

    def hold(key: str) -> None:
        if key == "000004.tar":
            first.wait(DEADLINE_S)

    with timed_store(timed_shards(in_memory), hold) as store:
        dataset = ShardedDataset(store.url, storage_options=store.options, max_in_flight=1)
        batches = dataset.batches([[0], [20], [6], [11]])
        next(batches)
        batches.close()
        first.set()
        assert dataset[16]["cls"] == b"16"
        asked = [key for key in store.asked if key.endswith(".tar")]
    assert asked in (["000000.tar", "000004.tar", "000003.tar"], ["000000.tar", "000003.tar"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_has_its_own_threads(in_memory: Place) -> None:
    """Those of the parent continue."""
    dataset = ShardedDataset(in_memory.url)
    samples = dataset.__getitems__([3, 20])
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            os._exit(7 if dataset.__getitems__([3, 20]) == samples else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert dataset.__getitems__([20, 3]) == samples[::-1]


def test_pickle_is_small(in_memory: Place) -> None:
    """A few hundred bytes per shard and eight per sample."""
    dataset = ShardedDataset(in_memory.url)
    samples = dataset.__getitems__(range(NUM_SAMPLES))
    data = pickle.dumps(dataset)
    assert len(data) < 600 * 5 + 16 * NUM_SAMPLES
    assert pickle.loads(data).__getitems__(range(NUM_SAMPLES)) == samples


def test_shards_of_other_tools_are_read(memory_folder: str) -> None:
    """With the manifest and the indexes that the command line writes for them."""
    place = write(Place(f"{memory_folder}/"))
    samples = read_in_order(place)
    fsspec.filesystem("memory").rm([name for name in place_names(place) if not name.endswith(".tar")])
    index_shards(place.url)
    assert ShardedDataset(place.url).__getitems__([22, 0, 5]) == [samples[22], samples[0], samples[5]]


def place_names(place: Place) -> list[str]:
    return [f"{place.url.removeprefix('memory:/')}{name}" for name in place.files()]
