"""States that were saved by the first version still load, and resume at the same item.

``python -m tests.loaders.state.test_saved_states`` prints such a file. It is for states of a new kind only: what is in
the file already has to keep loading.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import torchdata_remote as tdr
from torchdata_remote.errors import StateError

FILE = Path(__file__).with_name("saved_states.json")
STOPS = (1, 4)  # batches


def write_datasets() -> None:
    store = fsspec.filesystem("memory")
    for folder in ("/old", "/other", "/files"):  # other tests use such names, too
        if store.exists(folder):
            store.rm(folder, recursive=True)
    with tdr.ShardWriter("memory://old/{shard:03d}.tar", max_shard_samples=5, overwrite=True) as writer:
        for i in range(60):
            writer.write({"__key__": f"{'cat' if i % 2 else 'dog'}/{i:03d}", "txt": f"photo {i}"})
    with tdr.ShardWriter("memory://other/{shard:03d}.tar", max_shard_samples=4, overwrite=True) as writer:
        for i in range(20):
            writer.write({"__key__": f"o{i:03d}", "txt": f"other {i}"})
    for i in range(20):
        with fsspec.open(f"memory://files/{i:03d}.bin", "wb") as file:
            file.write(bytes([i]) * 10)


def interleaved() -> Any:
    urls = tdr.IterableWrapper(["memory://old/"]).list_remote(pattern="*.tar").shuffle_shards(seed=0)
    pipe = urls.sharding_filter_rank().async_prefetch(interleave=2).shard_tar_reader(interleave=2)
    return tdr.stateful_loader(
        pipe.shuffle_samples(buffer_size=7, seed=3).to_tuple("__key__"), batch_size=4, num_streams=2
    )


def plain() -> Any:
    return tdr.stateful_loader(
        tdr.stream_shards("memory://old/", shuffle="shards", seed=1).to_tuple("__key__"), batch_size=4
    )


def manifest() -> Any:
    pipe: Any = tdr.stream_shards("memory://old/index.json", shuffle="shards", seed=1)
    return tdr.stateful_loader(
        pipe.shuffle_samples(buffer_size=9, seed=0).to_tuple("__key__"), batch_size=4, num_streams=3
    )


def mixed() -> Any:
    pipe: Any = tdr.mix(
        {
            "a": (tdr.stream_shards("memory://old/index.json", shuffle="shards", seed=0), 2),
            "b": (tdr.stream_shards("memory://other/index.json", shuffle="shards", seed=0), 1),
        },
        seed=0,
    )
    return tdr.stateful_loader(pipe.to_tuple("__key__"), batch_size=4)


def scheduled() -> Any:
    sources = {
        "a": tdr.stream_shards("memory://old/index.json", shuffle="shards", seed=0),
        "b": tdr.stream_shards("memory://other/index.json", shuffle="shards", seed=0),
    }
    pipe: Any = tdr.mix(sources, schedule={0: {"a": 1}, 12: {"a": 1, "b": 2}}, seed=0, stop=40)
    return tdr.stateful_loader(
        pipe.shuffle_samples(buffer_size=7, seed=3).to_tuple("__key__"), batch_size=4, num_streams=2
    )


def files() -> Any:
    return tdr.stateful_loader(tdr.stream_files("memory://files/", seed=0).to_tuple("__key__"), batch_size=4)


def prefetching() -> Any:
    return tdr.PrefetchingLoader(
        tdr.ShardedDataset("memory://old/index.json"),
        batch_size=4,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        collate_fn=lambda samples: [[sample["__key__"] for sample in samples]],
    )


LOADERS = {loader.__name__: loader for loader in (interleaved, plain, manifest, mixed, scheduled, files, prefetching)}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("stop", STOPS)
def test_a_saved_state_resumes_at_the_same_item(name: str, stop: int) -> None:
    """The state and the batches after it are those that the first version wrote down."""
    write_datasets()
    saved = json.loads(FILE.read_text())[f"{name} after {stop}"]
    loader = LOADERS[name]()
    loader.load_state_dict(saved["state"])
    assert [list(batch[0]) for batch in loader] == saved["rest"]


@pytest.mark.parametrize("interleave", [None, 1])
def test_a_state_of_the_order_that_was_the_default_names_the_option_that_restores_it(interleave: int | None) -> None:
    """The first version shuffled shards only."""
    write_datasets()
    saved = json.loads(FILE.read_text())["plain after 1"]
    pipe: Any = tdr.stream_shards("memory://old/", seed=1, interleave=interleave)
    with pytest.raises(StateError, match=r"earlier releases shuffled shards only\. Pass shuffle='shards'"):
        tdr.stateful_loader(pipe.to_tuple("__key__"), batch_size=4).load_state_dict(saved["state"])


def _save() -> None:
    write_datasets()
    saved = {}
    for name, make in LOADERS.items():
        for stop in STOPS:
            loader = make()
            batches = iter(loader)
            for _ in range(stop):
                next(batches)
            state = loader.state_dict()
            saved[f"{name} after {stop}"] = {"state": state, "rest": [list(batch[0]) for batch in batches]}
    json.dump(saved, sys.stdout, separators=(",", ":"), sort_keys=True)


if __name__ == "__main__":
    _save()
