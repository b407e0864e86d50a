"""Training from each store: written shards come back exactly once, with workers and after a stop anywhere."""

from __future__ import annotations

import collections
import json
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.conformance.folder import Folder, new_folder
from tests.conformance.rows import Row, each
from tests.servers.store_server import StoreServer
from torchdata_remote.testing import write_small_shards

NUM_SHARDS, SHARD_SAMPLES, NUM_FILES = 4, 6, 30


@pytest.fixture(scope="session")
def shards(row: Row, server: StoreServer, place: str, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Shards with a manifest, written by this package if it can write there."""
    folder = new_folder(row, server, place)
    if row.writes:
        target, options = folder.url, folder.options
    else:
        local = tmp_path_factory.mktemp("shards")
        target, options = f"{local}/", {}
    write_small_shards(target, num_shards=NUM_SHARDS, samples_per_shard=SHARD_SAMPLES, storage_options=options)
    if not row.writes:
        for path in local.iterdir():
            folder.put(path.name, path.read_bytes())
    return folder


@pytest.fixture(scope="session")
def files(row: Row, server: StoreServer, place: str) -> Folder:
    """Loose files of two classes."""
    folder = new_folder(row, server, place)
    for number in range(NUM_FILES):
        folder.put(f"{'cat' if number % 2 else 'dog'}/{number:03d}.txt", b"%d," % number * (1 + number % 9))
    return folder


EXPECTED = sorted(f"{index % 10}/{index:06d}" for index in range(NUM_SHARDS * SHARD_SAMPLES))


def chain(shards: Folder, seed: int = 0) -> Any:
    """Shuffled keys of all samples."""
    return tdr.stream_shards(
        f"{shards.url}index.json", seed=seed, interleave=2, shuffle_buffer_size=5, storage_options=shards.options
    ).to_tuple("__key__", "txt")


def keys_of(samples: Any) -> list[str]:
    return sorted(key for key, _ in samples)


@each()
def test_each_sample_of_shards_comes_once_in_a_new_order_each_epoch(shards: Folder) -> None:
    """With its bytes."""
    found = list(chain(shards))
    assert keys_of(found) == EXPECTED
    assert all(text == f"sample {int(key[2:])}\n".encode() * (int(key[2:]) % 7 + 1) for key, text in found)
    assert [key for key, _ in found] != EXPECTED
    assert [key for key, _ in chain(shards, seed=1)] != [key for key, _ in found]


@each("lists")
def test_shards_are_found_by_their_folder(shards: Folder) -> None:
    """Without a manifest, by a pattern."""
    for url, pattern in {shards.url: "00000[0-9].tar", f"{shards.url}*[0-9].tar": None}.items():
        pipe = tdr.stream_shards(url, pattern=pattern, storage_options=shards.options)
        assert sorted(sample["__key__"] for sample in pipe) == EXPECTED


@each("processes")
def test_two_workers_share_the_samples_of_shards(shards: Folder) -> None:
    """By forkserver; a state of their loader continues in one of one process."""
    loader = tdr.stateful_loader(chain(shards), batch_size=3, num_workers=2, collate_fn=list)
    batches = iter(loader)
    head = [sample for batch in islice(batches, 3) for sample in batch]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [sample for batch in batches for sample in batch]
    assert keys_of(head + rest) == EXPECTED
    resumed = tdr.stateful_loader(chain(shards), batch_size=3, collate_fn=list, num_streams=2)
    resumed.load_state_dict(state)
    assert keys_of(head + [sample for batch in resumed for sample in batch]) == EXPECTED


@each()
@settings(max_examples=6)
@given(stops=st.lists(st.integers(0, 12), min_size=1, max_size=3), seed=st.integers(0, 9))
def test_a_chain_resumes_wherever_it_is_stopped(shards: Folder, stops: list[int], seed: int) -> None:
    """After each of several stops the state loads, and each sample comes once in the order of a run without stops."""
    uninterrupted = list(chain(shards, seed))
    found: list[Any] = []
    state = None
    for stop in [*stops, None]:
        data = tdr.Resumable(chain(shards, seed))
        if state is not None:
            data.load_state_dict(state)
            if state["epoch"]:
                break  # all of the epoch was handed out before
        found += islice(data, stop)
        state = json.loads(json.dumps(data.state_dict()))
    assert found == uninterrupted
    assert collections.Counter(key for key, _ in found) == collections.Counter(EXPECTED)


@each("lists")
def test_loose_files_come_once(files: Folder) -> None:
    """As a stream, and as a dataset whose batches are fetched at once."""
    labels = {f"{number:03d}": number % 2 for number in range(NUM_FILES)}
    pipe = tdr.stream_files(files.url, storage_options=files.options).label_from_path(classes=["dog", "cat"])
    found = {sample["__key__"].rpartition("/")[2]: sample["cls"] for sample in pipe}
    assert found == labels
    dataset = tdr.RemoteFiles(files.url, storage_options=files.options)
    assert len(dataset) == NUM_FILES
    every = dataset.__getitems__(list(range(NUM_FILES)))
    assert sorted(str(item) for item in every) == sorted(str(dataset[index]) for index in range(NUM_FILES))
