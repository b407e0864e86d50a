"""``shuffle_shards``: shuffle URLs each epoch, in the same order in every process."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.permutation import permutation
from ..fetch.listing.source_argument import pipe_of
from .base.epochs import SeededPipe
from .base.slots import require_end


@functional_datapipe("shuffle_shards")
class ShuffleShards(SeededPipe[str]):
    """Permute URLs by seed and epoch (functional name: ``shuffle_shards``).

    The order is determined by ``(seed, epoch)`` and the listing; the global random state is neither read nor changed.
    Each pass is a new epoch, counted from 0, in all ranks and workers alike: under ``DataLoader`` with or without
    persistent workers, and under ``DataLoader2``. Passes of a loader and passes of direct iteration are counted
    separately, so peeking at the first sample on one rank does not desynchronise the ranks. Holds all URLs in memory.

    Args:
        source_datapipe: URLs, in the same order in every process.
        seed: any int.

    Yields:
        str: the same URLs, in a uniformly random order.

    Example:
        >>> pipe = ShuffleShards(IterableWrapper(["a", "b", "c", "d"]), seed=0)
        >>> first, second = list(pipe), list(pipe)
        >>> pipe.set_epoch(0)
        >>> first == list(pipe), first == second, sorted(second)
        (True, False, ['a', 'b', 'c', 'd'])
    """

    gives_urls = True

    def __init__(self, source_datapipe: IterDataPipe[str], seed: int = 0) -> None:
        super().__init__(seed)
        self.source_datapipe = pipe_of(source_datapipe, of="shuffle_shards")
        require_end(self.source_datapipe)

    def __iter__(self) -> Iterator[str]:
        epoch = self._epochs.next_epoch()
        urls = list(self.source_datapipe)
        for index in permutation(len(urls), self.seed, epoch):
            yield urls[index]
