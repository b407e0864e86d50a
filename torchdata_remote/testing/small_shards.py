"""All slots of a distributed job, and small sets of shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..core import arguments as check
from ..core.arguments import explained, whole
from ..core.world import World
from ..formats.sample import Sample
from ..writing import ShardWriter


def all_worlds(world_size: int, num_workers: int) -> Iterator[World]:
    """Yield the world of each worker among ``world_size`` ranks of ``num_workers`` workers each.

    >>> [world.slot for world in all_worlds(2, 2)]
    [0, 2, 1, 3]
    """
    for rank in range(world_size):
        for worker in range(num_workers):
            yield World(rank, world_size, worker, num_workers)


@explained
def write_small_shards(
    folder: str,
    *,
    num_shards: int,
    samples_per_shard: int,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Sample]:
    """Write a small set of shards to ``folder``, and return its samples in reading order.

    Sample ``i`` has the members ``cls`` (``i`` modulo 10) and ``txt`` (a line that is different for each).

    >>> [sample["__key__"] for sample in write_small_shards("memory://small", num_shards=2, samples_per_shard=2)]
    ['0/000000', '1/000001', '2/000002', '3/000003']
    """
    num_shards, samples_per_shard = whole("num_shards", num_shards), whole("samples_per_shard", samples_per_shard)
    folder = check.path_or_url("folder", folder, example="memory://small/")
    samples: list[Sample] = []
    template = folder.rstrip("/") + "/{shard:06d}.tar"
    with ShardWriter(
        template, max_shard_samples=samples_per_shard, overwrite=True, storage_options=storage_options
    ) as writer:
        for index in range(num_shards * samples_per_shard):
            sample = {"__key__": f"{index % 10}/{index:06d}", "cls": str(index % 10).encode()}
            sample["txt"] = f"sample {index}\n".encode() * (index % 7 + 1)
            writer.write(sample)
            url = template.format(shard=index // samples_per_shard)
            samples.append({**sample, "__url__": url})
    return samples
