"""The keys of small shards, as a chain that is shuffled and split."""

from __future__ import annotations

from typing import Any

from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import World


def key_of(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def shuffled_keys(folder: str, world: World | None = None, interleave: int = 1) -> Any:
    urls = IterableWrapper([folder]).list_remote(pattern="*.tar").shuffle_shards(seed=2)
    return urls.sharding_filter_rank(world=world).shard_tar_reader(interleave=interleave).map(key_of)
