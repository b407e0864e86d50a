"""``take``: the first items of a chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ..core.arguments.amounts import whole
from ..core.frameworks.loader_length import length_for_caller
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..fetch.listing.source_argument import pipe_of
from .base.counted import CountedPipe
from .base.slots import is_endless, place_among_readers, require_shares, share_of

T = TypeVar("T")


@functional_datapipe("take")
class Take(CountedPipe[T]):
    """Yield the first ``number`` items of a pass, of all ranks together (functional name: ``take``).

    After ``sharding_filter_rank``, each reader hands out its share of the number: the first items of its own part of
    the data. Shares differ by one at most, and by nothing if the number is divisible by that of readers. Readers are
    ranks x workers, or the streams of a loader: with ``num_streams`` the samples are the same in any number of ranks
    and workers. Before ``sharding_filter_rank``, or without it, the items are the first ``number`` of the chain, for
    every process: ``list_remote().take(8)`` are eight shards. Nothing is read after the last item.

    ``repeat().take(n)`` gives each rank exactly its share, whatever pipes between the two do, and has a length.
    After a source that ends, it is shorter where that has fewer.

    Args:
        source_datapipe: any items.
        number: of items, of all ranks together. After ``batch``, ``pack`` or ``bucket`` batches are counted.

    Yields:
        The same items.

    Raises:
        EmptyShareError: in each reader, if there are more readers than items to take.

    Example:
        >>> list(Take(IterableWrapper("abcd"), 3))
        ['a', 'b', 'c']
    """

    changes_count = True

    def __init__(self, source_datapipe: IterDataPipe[T], number: int) -> None:
        super().__init__(pipe_of(source_datapipe, of="take", holds="items"))
        self.number = whole("number", number, of="items")
        self.is_endless = False

    def __iter__(self) -> Iterator[T]:
        world = place_among_readers(self.source_datapipe)
        require_shares(self.number, world, of="take")
        share = share_of(self.number, world)
        if self._begin() >= share:
            return
        for item in self.source_datapipe:
            self._num_passed += 1
            yield item
            if self._num_passed >= share:
                return

    def equal_counts(self, num_streams: int) -> bool | None:
        if self.number % num_streams:
            return False
        return True if is_endless(self.source_datapipe) else None

    def order_options(self) -> Mapping[str, Any]:
        return {"number": self.number}

    def __len__(self) -> int:
        world = place_among_readers(self.source_datapipe)
        if is_endless(self.source_datapipe):
            return length_for_caller(lambda workers: [share_of(self.number, part) for part in world.workers(workers)])
        return min(share_of(self.number, world), len(self.source_datapipe))
