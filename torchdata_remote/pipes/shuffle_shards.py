"""``shuffle_shards``: a new order of URLs each epoch, the same in every process."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterDataPipe, functional_datapipe

from ..datapipe import DataPipe

_forks = 0  # of this process


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_count_fork)


@functional_datapipe("shuffle_shards")
class ShuffleShards(DataPipe[str]):
    """Permute URLs by seed and epoch (functional name: ``shuffle_shards``).

    The order depends on ``(seed, epoch)`` and the listing only; the global random state is neither read nor changed.
    The epoch counts by itself, from 0: each pass is a new one, by ``DataLoader`` with or without persistent workers,
    and by ``DataLoader2``, in all ranks and workers alike. Passes without a loader count for themselves, so that a
    look at the first sample in one rank leaves the ranks together. Holds all URLs in memory.

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

    def __init__(self, source_datapipe: IterDataPipe[str], seed: int = 0) -> None:
        if not isinstance(seed, int):
            raise TypeError(f"seed must be an int, got {type(seed).__name__}: {seed!r}")
        self.source_datapipe = source_datapipe
        self.seed = seed
        self._direct_epoch = -1  # of the last pass that nobody announced
        self._loader_epoch = -1  # of the last pass that a loader announced
        self._announced = False  # and that has not begun
        self._announced_in: int | None = None  # process id
        self._copied = False  # pickled since, or
        self._forks_before = 0  # forked, if there were more since

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch, as ``DistributedSampler.set_epoch`` does.

        Persistent workers hold copies that began before; there the epoch only counts by itself.
        """
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self._direct_epoch = self._loader_epoch = epoch - 1
        self._announced = False

    def set_seed(self, seed: int) -> ShuffleShards:
        """Not for users: torch's loaders call it, with a random number that is not used, when a pass begins.

        ``DataLoader`` with workers calls it on the copy in the main process, which is never iterated and could not
        count passes otherwise, before it starts them and once more after; and on each worker's copy of that.
        """
        if not self._announced:
            self._loader_epoch += 1
            self._announced = True
            self._copied = False
            self._forks_before = _forks
        elif self._announced_in == os.getpid() and (self._copied or _forks != self._forks_before):
            self._announced = False  # the workers have begun it
        self._announced_in = os.getpid()
        return self

    def __getstate__(self) -> Any:
        if IterDataPipe.getstate_hook is None:  # else torch only looks for the pipes in the chain
            self._copied = True
        return super().__getstate__()  # type: ignore[no-untyped-call]  # torch's

    def __iter__(self) -> Iterator[str]:
        if self._announced:
            epoch = self._loader_epoch
        else:
            self._direct_epoch += 1
            epoch = self._direct_epoch
        self._announced = False
        urls = list(self.source_datapipe)
        # Of the module random, seeding with a str and random() are what Python promises not to change.
        draw = random.Random(f"{self.seed}/{epoch}").random
        keys = [draw() for _ in urls]
        for index in sorted(range(len(urls)), key=keys.__getitem__):
            yield urls[index]
