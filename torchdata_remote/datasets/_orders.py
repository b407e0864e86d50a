"""Orders of a ``PrefetchingLoader``: the batches of one rank in a pass, and the position after each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from ..core.partition import EqualizeMode, permutation_array
from ..core.world import World
from ..errors import StateError, UnsplitError
from ._map_style import as_index

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Batches:
    """Batches of a pass.

    Args:
        indices: of items, batch after batch; shape ``(num_items,)``.
        ends: of each batch in them; shape ``(num_batches,)``.
    """

    indices: Int64s
    ends: Int64s

    def __getitem__(self, number: int) -> list[int]:
        start = self.ends[number - 1] if number else 0
        return [int(index) for index in self.indices[start : self.ends[number]]]


@dataclass(frozen=True)
class SplitOrder:
    """One order of all items that ranks split step by step: each item once, equally many batches in each rank.

    In each step all ranks together take the next ``world_size * batch_size`` items. So a state is one number, the same
    in all ranks, and the rest of an epoch can be split over any number of ranks.

    The items of the last one or two steps are split so that each rank has at least one: every item is read once, and
    every rank has the same number of batches. This can be impossible only if a batch is one item.

    Args:
        num_items: of the dataset.
        world: of this rank.
        batch_size: of one rank.
        epoch: from 0.
        seed: of the order; ``None`` is the order of the dataset.
        drop_last: drop a last step that is not full.
        equalize: how the number of items is made divisible by that of ranks; ``None`` does not.
        first: the item with which an order without a seed begins.
        items_done: by all ranks together, before the pass.
        batches_done: by each rank, with any number of ranks.

    Raises:
        UnsplitError: if ranks would have different numbers of batches.
    """

    num_items: int
    world: World
    batch_size: int
    epoch: int
    seed: int | None
    drop_last: bool
    equalize: EqualizeMode | None
    first: int
    items_done: int
    batches_done: int

    def __len__(self) -> int:
        """Number of batches of the pass."""
        return len(self._step_sizes)

    @property
    def _num_repeated(self) -> int:
        is_repeating = self.equalize is EqualizeMode.REPEAT
        return (self.items_done - self.num_items) % self.world.world_size if is_repeating else 0

    @cached_property
    def _step_sizes(self) -> Int64s:
        """Number of items of all ranks in each step."""
        num_left, num_ranks = self.num_items - self.items_done + self._num_repeated, self.world.world_size
        if self.equalize is EqualizeMode.DROP:
            num_left -= num_left % num_ranks
        num_full, rest = divmod(num_left, num_ranks * self.batch_size)
        sizes = np.full(num_full, num_ranks * self.batch_size, np.int64)
        if rest and not self.drop_last:
            sizes = np.append(sizes, rest)
            lacking = max(0, num_ranks - rest)
            if lacking and (self.batch_size == 1 or num_full == 0):
                raise UnsplitError(
                    f"PrefetchingLoader: {num_left:,} items left of {self.num_items:,} in batches of {self.batch_size} "
                    f"give {num_ranks} ranks different numbers of batches, so one would wait at the end of the epoch. "
                    "Pass equalize='drop' to drop up to world_size - 1 items, different ones each epoch, or "
                    "equalize='repeat' to repeat up to as many."
                )
            if lacking:
                sizes[-2:] += [-lacking, lacking]
        return sizes

    def batches(self) -> Batches:
        """Draw this rank's batches of the pass."""
        num_items, rank, num_ranks = self.num_items, self.world.rank, self.world.world_size
        if self.seed is None:
            order = np.roll(np.arange(num_items), -self.first)
        else:
            order = permutation_array(num_items, "items", self.seed, self.epoch)
        repeated = (self.epoch * self._num_repeated + np.arange(self._num_repeated)) % num_items
        order, sizes = np.append(order, order[repeated]), self._step_sizes
        starts = self.items_done + np.cumsum(sizes) - sizes
        firsts, lasts = starts + rank * sizes // num_ranks, starts + (rank + 1) * sizes // num_ranks
        parts = [order[first:last] for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
        return Batches(np.concatenate([order[:0], *parts]), np.cumsum(lasts - firsts))

    def position(self, num_batches: int) -> dict[str, Any]:
        """Return the entries of a state after so many batches of the pass, the same in all ranks."""
        items_done = self.items_done + int(self._step_sizes[:num_batches].sum())
        return {
            "batches_done": self.batches_done + num_batches,
            "items_done": min(items_done, self.num_items),
            "seed": self.seed,
            "first": self.first,
        }


class SamplerOrder:
    """The order of the sampler of a ``DataLoader``, which knows nothing of ranks.

    Args:
        loader: of the sampler.
        epoch: from 0.
        batches_done: of the epoch, before the pass.
        digest: of the order in the state; ``None`` for that of the start of an epoch.
    """

    def __init__(self, loader: DataLoader[Any], epoch: int, batches_done: int, digest: str | None) -> None:
        self._loader, self.epoch, self.batches_done, self._digest = loader, epoch, batches_done, digest

    def __len__(self) -> int:
        """Number of batches of the pass."""
        return len(self._loader) - self.batches_done

    def batches(self) -> Batches:
        """Draw the batches of the pass.

        Raises:
            StateError: if the sampler yields another order than that of the state.
        """
        batches: Iterable[Any] | None = self._loader.batch_sampler
        if batches is None:
            batches = ([index] for index in self._loader.sampler)
        lists = [[as_index(index) for index in batch] for batch in batches]
        indices = np.array([index for batch in lists for index in batch], np.int64)
        ends = np.cumsum(list(map(len, lists)), dtype=np.int64)
        digest = blake2b(ends.tobytes() + indices.tobytes(), digest_size=16).hexdigest()
        if self._digest not in (None, digest):
            raise StateError(
                "PrefetchingLoader: the sampler yields another order than that of the state. Make it "
                "yield the same order again (seed its generator as at the start of the epoch, call its set_epoch); or "
                "pass no sampler but shuffle=True, whose state can be resumed by any number of ranks."
            )
        self._digest, done = digest, int(np.append(0, ends)[self.batches_done])
        return Batches(indices[done:], ends[self.batches_done :] - done)

    def position(self, num_batches: int) -> dict[str, Any]:
        """Return the entries of a state after so many batches of the pass, of this rank only."""
        return {"batches_done": self.batches_done + num_batches, "order": self._digest}
