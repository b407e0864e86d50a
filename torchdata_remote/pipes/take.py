"""``take``: the first items of a chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ..core.arguments.amounts import whole
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..fetch.listing.source_argument import pipe_of
from .base.chain import load_state, warm_up
from .base.counted import CountedPipe
from .base.datapipe import StatefulPipe
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

    ``repeat_epochs().take(n)`` gives each rank exactly its share, whatever pipes between the two do, and has a length.
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
        self._share, self._is_warm = 0, False

    def load_state_dict(self, state: Any) -> None:
        # The source is loaded when it is read: a state that it does not use would be that of its next pass
        StatefulPipe.load_state_dict(self, state)

    def warm_up(self) -> Iterator[None]:
        state = self._loaded
        self._begin()
        world = place_among_readers(self.source_datapipe)
        require_shares(self.number, world, of="take")
        self._share, self._is_warm = share_of(self.number, world), True
        if self._num_passed >= self._share:
            return iter(())
        if state is not None:
            load_state(self.source_datapipe, state["at"])
        return warm_up(self.source_datapipe)

    def forget_start(self) -> None:
        super().forget_start()
        self._is_warm = False

    def __iter__(self) -> Iterator[T]:
        if not self._is_warm:
            for _ in self.warm_up():
                pass
        self._is_warm, share = False, self._share
        if self._num_passed >= share:
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
        share = share_of(self.number, world)
        return share if is_endless(self.source_datapipe) else min(share, len(self.source_datapipe))
