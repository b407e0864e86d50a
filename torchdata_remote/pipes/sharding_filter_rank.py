"""``sharding_filter_rank``: this reader's share of the shards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from torch.utils.data import IterDataPipe, functional_datapipe
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from ..datapipe import DataPipe
from ..errors import EmptyShareError
from ..world import World, detect_world, world_from_sharding


@functional_datapipe("sharding_filter_rank")
class ShardingFilterRank(DataPipe[str]):
    """Pass on this slot's share of the shard URLs (functional name: ``sharding_filter_rank``).

    URL ``i`` goes to slot ``i % num_slots``, so all slots together read each URL once per epoch. The share is the same
    under ``DataLoader``, ``DataLoader2``, with ``RANK`` and ``WORLD_SIZE`` in the environment, and with an explicit
    ``world``. Shares may differ by one URL.

    Args:
        source_datapipe: shard URLs, in the same order in every process.
        world: this reader's place among all readers. ``None`` asks torch when iteration starts, because DataLoader
            workers do not exist yet when the pipe is built.

    Yields:
        str: shard URLs, unchanged, in source order.

    Raises:
        EmptyShareError: in every slot, before the first URL, if there are fewer URLs than slots.

    Example:
        >>> urls = IterableWrapper([f"s3://photos/{i}.tar" for i in range(5)])
        >>> list(ShardingFilterRank(urls, world=World(rank=1, world_size=2)))
        ['s3://photos/1.tar', 's3://photos/3.tar']
    """

    def __init__(self, source_datapipe: IterDataPipe[str], *, world: World | None = None) -> None:
        self.source_datapipe = source_datapipe
        self._world = world
        self._groups: dict[int, tuple[int, int]] = {}

    def is_shardable(self) -> bool:
        """For torch: this pipe splits the chain."""
        return True

    def apply_sharding(
        self,
        num_of_instances: int,
        instance_id: int,
        sharding_group: SHARDING_PRIORITIES = SHARDING_PRIORITIES.DEFAULT,
    ) -> None:
        """For torch's loaders: where this copy of the chain stands among ``num_of_instances``."""
        if (sharding_group == SHARDING_PRIORITIES.DEFAULT) != (SHARDING_PRIORITIES.DEFAULT in self._groups):
            self._groups = {}  # another loader than before
        self._groups[sharding_group] = num_of_instances, instance_id

    def __iter__(self) -> Iterator[str]:
        world = self._world or world_from_sharding(self._groups, detect_world())
        urls = iter(self.source_datapipe)
        head = list(islice(urls, world.num_slots))
        if len(head) < world.num_slots and world.num_slots > 1:
            raise EmptyShareError(
                f"{len(head)} shards for {world.num_slots} readers ({world.world_size} ranks x {world.num_workers} "
                f"workers): {world.num_slots - len(head)} of them would have nothing to read. Use at most "
                f"{len(head)} readers, or write more and smaller shards (write_shards, max_shard_samples=)."
            )
        yield from islice(chain(head, urls), world.slot, None, world.num_slots)
