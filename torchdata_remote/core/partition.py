"""Who reads which samples: arithmetic over the counts that a manifest tells, without a list of samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class EqualizeMode(str, Enum):
    """How shares become equally long. Each compares equal to its name as a ``str``."""

    DROP = "drop"
    """Fewer samples than there are slots are left out, others in each epoch."""
    REPEAT = "repeat"
    """Fewer samples than there are slots are read twice, others in each epoch."""


class Piece(NamedTuple):
    """Samples ``first`` to before ``last`` of a shard, which is a number in the epoch's order."""

    shard: int
    first: int
    last: int


class SamplePartition:
    """The samples of an epoch in their order, as pieces of shards.

    Args:
        shards: shape (num_pieces,), numbers of shards.
        firsts: shape (num_pieces,), first sample of each piece.
        lasts: shape (num_pieces,), the one after its last sample.
    """

    def __init__(self, shards: Ints, firsts: Ints, lasts: Ints) -> None:
        some = lasts > firsts
        self._shards, self._firsts, self._lasts = shards[some], firsts[some], lasts[some]
        self._ends = np.cumsum(self._lasts - self._firsts)

    @staticmethod
    def of(counts: Sequence[int] | Ints) -> SamplePartition:
        """All samples of shards that hold so many each."""
        lasts = np.asarray(counts, np.int64)
        return SamplePartition(np.arange(len(lasts)), np.zeros_like(lasts), lasts)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def between(self, start: int, stop: int) -> Iterator[Piece]:
        """The pieces that make up the samples ``start`` to before ``stop`` of this order."""
        index = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            shard, first, last = int(self._shards[index]), int(self._firsts[index]), int(self._lasts[index])
            end = int(self._ends[index])
            first = last - (end - start)
            yield Piece(shard, first, min(last, first + stop - start))
            start, index = end, index + 1

    def share(self, slot: int, num_slots: int) -> Iterator[Piece]:
        """One of ``num_slots`` shares, which differ by one sample at the most."""
        return self.between(slot * len(self) // num_slots, (slot + 1) * len(self) // num_slots)

    def equalized(self, num_slots: int, epoch: int, mode: EqualizeMode, listed: Ints) -> SamplePartition:
        """An order whose length ``num_slots`` divides.

        What is left out or repeated is a window that moves on by its own length with each epoch, over the shards as
        they lie in the listing and not in the epoch's order. Repeated samples come at the end.

        Args:
            num_slots: number of shares.
            epoch: from 0.
            mode: what is done with the rest of the division.
            listed: shape (num_shards,), the shards in the listing's order. Each is one piece of this order, or none.
        """
        num_samples = len(self)
        if num_samples < num_slots and mode is EqualizeMode.DROP:
            return SamplePartition.of([])
        rest = num_samples % num_slots if mode is EqualizeMode.DROP else -num_samples % num_slots
        if not rest:
            return self
        laps, rest = divmod(rest, num_samples)
        counts = np.zeros(len(listed), np.int64)
        counts[self._shards] = self._lasts
        starts_of_shards = np.empty_like(counts)
        starts_of_shards[listed] = np.cumsum(counts[listed]) - counts[listed]
        starts = starts_of_shards[self._shards]
        window = epoch * rest % num_samples
        intervals = [(window, min(window + rest, num_samples)), (0, max(0, window + rest - num_samples))]
        if mode is EqualizeMode.DROP:
            return self._without(intervals, starts)
        repeated = [self] * laps + [self._only(start, stop, starts) for start, stop in intervals]
        columns = [(order._shards, order._firsts, order._lasts) for order in [self, *repeated]]
        return SamplePartition(*(np.concatenate(column) for column in zip(*columns, strict=True)))

    def _cut(self, start: int, stop: int, starts: Ints) -> tuple[Ints, Ints]:
        """Where in each shard an interval of the listing begins and ends."""
        return (
            np.clip(start - starts, self._firsts, self._lasts),
            np.clip(stop - starts, self._firsts, self._lasts),
        )

    def _only(self, start: int, stop: int, starts: Ints) -> SamplePartition:
        return SamplePartition(self._shards, *self._cut(start, stop, starts))

    def _without(self, intervals: list[tuple[int, int]], starts: Ints) -> SamplePartition:
        order = self
        for start, stop in intervals:
            low, high = order._cut(start, stop, starts)
            begin = np.stack([order._firsts, high], axis=1).ravel()
            end = np.stack([low, order._lasts], axis=1).ravel()
            kept = end > begin
            starts = np.repeat(starts, 2)[kept]
            order = SamplePartition(np.repeat(order._shards, 2), begin, end)
        return order
