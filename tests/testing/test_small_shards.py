"""Small sets of shards, and the worlds of all workers."""

from __future__ import annotations

import json
import pathlib

from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import World
from torchdata_remote.pipes import ShardTarReader
from torchdata_remote.testing import all_worlds, write_small_shards


@given(world_size=st.integers(1, 5), num_workers=st.integers(1, 5))
def test_all_worlds_has_each_slot_once(world_size: int, num_workers: int) -> None:
    """With the size of the whole job."""
    worlds = list(all_worlds(world_size, num_workers))
    assert len(set(worlds)) == len(worlds) == world_size * num_workers
    assert {(world.world_size, world.num_workers) for world in worlds} == {(world_size, num_workers)}
    assert World(world_size - 1, world_size, num_workers - 1, num_workers) in worlds


@given(num_shards=st.integers(1, 5), samples_per_shard=st.integers(1, 5))
def test_small_shards_are_read_as_returned(num_shards: int, samples_per_shard: int) -> None:
    """In order; all keys and contents differ."""
    folder = f"memory://small-{num_shards}-{samples_per_shard}/"
    written = write_small_shards(folder, num_shards=num_shards, samples_per_shard=samples_per_shard)
    urls = [f"{folder}{shard:06d}.tar" for shard in range(num_shards)]
    assert list(ShardTarReader(IterableWrapper(urls))) == written
    assert len(written) == num_shards * samples_per_shard
    assert len({sample["__key__"] for sample in written}) == len({sample["txt"] for sample in written}) == len(written)


def test_small_shards_replace_earlier_ones(tmp_path: pathlib.Path) -> None:
    """With their manifest."""
    write_small_shards(str(tmp_path), num_shards=4, samples_per_shard=2)
    write_small_shards(f"{tmp_path}/", num_shards=2, samples_per_shard=3)
    shards = [f"00000{number}.tar{ending}" for number in range(2) for ending in ("", ".idx", ".keys")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*shards, "index.json"]
    manifest = json.loads((tmp_path / "index.json").read_text())
    assert [shard["nsamples"] for shard in manifest["shardlist"]] == [3, 3]
