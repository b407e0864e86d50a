"""One order of all items, divided over the ranks step by step: each item once, as many batches in each rank."""

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
    """Where a pass begins in its epoch.

    Args:
        items_done: by all ranks together.
        batches_done: by each rank, with whatever number of ranks they were made.
        moved: first item and number of those that were moved to the end of the order; ``None`` before that is decided.
    """

    items_done: int = 0
    batches_done: int = 0
    moved: tuple[int, int] | None = None


@dataclass(frozen=True)
class SplitOrder:
    """The batches of one pass of one rank.

    Step by step, all ranks together take the next ``world_size * batch_size`` items of one order. So a state is one
    number, the same in all ranks, and what is left of an epoch can be divided over any number of ranks.

    The items of the last step, or the last two, are divided so that each rank has at least one: every item is read
    once, and every rank has as many batches. Only where a batch is one item this can be impossible.

    Args:
        num_items: of the dataset.
        world: this rank's place.
        batch_size: of one rank.
        epoch: from 0.
        seed: of the order; ``None`` is the dataset's own.
        drop_last: leave out a last step that is not full.
        equalize: what makes the number of items divisible by that of ranks; ``None`` leaves it.
        start: where the pass begins.

    Raises:
        UnsplitError: if some ranks would have fewer batches than others.
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
        """Batches of the epoch: those done before the pass, and those of the pass."""
        return self.start.batches_done + len(self.ends)

    def num_left(self) -> int:
        """Batches of the pass."""
        return len(self.ends)

    def num_in_epoch(self) -> int:
        """Batches of a whole epoch of so many ranks."""
        return len(replace(self, start=Start()).ends)

    def _num_repeated(self) -> int:
        if self.equalize is not EqualizeMode.REPEAT:
            return 0
        return -(self.num_items - self.start.items_done) % self.world.world_size

    def _step_sizes(self) -> Int64s:
        """Items of all ranks in each step."""
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
                    "Pass equalize='drop' to leave out fewer items than there are ranks, other ones in each epoch, or "
                    "equalize='repeat' to read as few twice."
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
        """This rank's batches of the pass, as numbers of items."""
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
            places = np.arange(first, first + count) % num_items
            order = np.concatenate([np.delete(order, places), order[places]])
        num_repeated = self._num_repeated()
        if num_repeated:
            again = (self.epoch * num_repeated + np.arange(num_repeated)) % num_items
            order = np.concatenate([order, order[again]])
        return order

    def state(self, num_batches: int) -> dict[str, Any]:
        """Where all ranks are after so many batches of the pass: plain JSON."""
        items_done = int(self.ends[num_batches - 1]) if num_batches else self.start.items_done
        return {
            "items_done": min(items_done, self.num_items),
            "batches_done": self.start.batches_done + num_batches,
            "moved": list(self.moved),
        }


def refuse_generator(generator: object, num_ranks: int) -> None:
    """Refuse to divide an order that depends on each rank's generator.

    Raises:
        UnsplitError: if there is one.
    """
    if generator is not None:
        raise UnsplitError(
            f"PrefetchingLoader: {num_ranks} ranks shuffle by a generator, whose order may differ from rank to rank. "
            "Pass seed= instead; or a sampler, if each rank is to have its own order."
        )
