"""One order of all items, split over the ranks step by step: each item once, equally many batches in each rank."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.partition import EqualizeMode
from ..core.permutation import permutation_array
from ..core.world import World
from ..errors import UnsplitError

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Start:
    """Start of a pass within its epoch.

    Args:
        items_done: by all ranks together.
        batches_done: by each rank, with any number of ranks.
        moved: first index and number of the items that are moved to the end of the order; ``None`` if undecided.
    """

    items_done: int = 0
    batches_done: int = 0
    moved: tuple[int, int] | None = None


@dataclass(frozen=True)
class SplitOrder:
    """The batches of one pass of one rank.

    In each step all ranks together take the next ``world_size * batch_size`` items of one order. So a state is one
    number, the same in all ranks, and the rest of an epoch can be split over any number of ranks.

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
        start: of the pass.

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
    start: Start = Start()
    moved: tuple[int, int] = field(init=False)
    ends: Int64s = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rest = self.num_items % self.world.world_size if self.equalize is EqualizeMode.DROP else 0
        first = self.epoch * rest % self.num_items if rest else 0
        object.__setattr__(self, "moved", self.start.moved or (first, rest))
        object.__setattr__(self, "ends", self.start.items_done + np.cumsum(self._step_sizes(), dtype=np.int64))

    def __len__(self) -> int:
        """Number of batches of the epoch: those done before the pass, and those of the pass."""
        return self.start.batches_done + len(self.ends)

    def num_left(self) -> int:
        """Number of batches of the pass."""
        return len(self.ends)

    def num_in_epoch(self) -> int:
        """Number of batches of a complete epoch with this number of ranks."""
        return len(replace(self, start=Start()).ends)

    def _num_repeated(self) -> int:
        if self.equalize is not EqualizeMode.REPEAT:
            return 0
        return -(self.num_items - self.start.items_done) % self.world.world_size

    def _step_sizes(self) -> Int64s:
        """Number of items of all ranks in each step."""
        num_left, num_ranks = self.num_items - self.start.items_done, self.world.world_size
        if self.equalize is EqualizeMode.DROP:
            num_left -= num_left % num_ranks
        num_left = max(0, num_left) + self._num_repeated()
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
        elif self.equalize is EqualizeMode.DROP and 0 < self.num_items < num_ranks and not self.start.items_done:
            raise UnsplitError(
                f"PrefetchingLoader: {self.num_items} items for {num_ranks} ranks, so equalize='drop' leaves none. "
                "Pass equalize='repeat', or use fewer ranks."
            )
        return sizes

    def batches(self) -> list[list[int]]:
        """Return this rank's batches of the pass, as indices of items."""
        order = self._order()
        starts = np.concatenate([[self.start.items_done], self.ends[:-1]])
        sizes, rank, num_ranks = self.ends - starts, self.world.rank, self.world.world_size
        firsts, lasts = starts + rank * sizes // num_ranks, starts + (rank + 1) * sizes // num_ranks
        return [order[first:last].tolist() for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]

    def _order(self) -> Int64s:
        num_items = self.num_items
        order = (
            np.arange(num_items) if self.seed is None else permutation_array(num_items, "items", self.seed, self.epoch)
        )
        first, count = self.moved
        if count:
            moved = np.arange(first, first + count) % num_items
            order = np.concatenate([np.delete(order, moved), order[moved]])
        num_repeated = self._num_repeated()
        if num_repeated:
            repeated = (self.epoch * num_repeated + np.arange(num_repeated)) % num_items
            order = np.concatenate([order, order[repeated]])
        return order

    def state(self, num_batches: int) -> dict[str, Any]:
        """Return the position of all ranks after ``num_batches`` of the pass, as plain JSON."""
        items_done = int(self.ends[num_batches - 1]) if num_batches else self.start.items_done
        return {
            "items_done": min(items_done, self.num_items),
            "batches_done": self.start.batches_done + num_batches,
            "moved": list(self.moved),
        }


def refuse_generator(generator: object, num_ranks: int) -> None:
    """Refuse to split an order that is drawn from each rank's generator.

    Raises:
        UnsplitError: if there is a generator.
    """
    if generator is not None:
        raise UnsplitError(
            f"PrefetchingLoader: {num_ranks} ranks shuffle by a generator, whose order may differ between ranks. "
            "Pass seed= instead; or a sampler, if each rank needs its own order."
        )
