"""Orders and shares of samples, the same in every process: permutations, and arithmetic over a manifest's counts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_BLOCK = 1024


class EqualizeMode(str, Enum):
    """How shares are made equally long. Each member equals its name as a ``str``."""

    DROP = "drop"
    """Drop up to ``num_slots - 1`` samples, different ones each epoch."""
    REPEAT = "repeat"
    """Read up to ``num_slots - 1`` samples twice, different ones each epoch."""


class Piece(NamedTuple):
    """Samples ``first`` to ``last`` (exclusive) of a shard, which is given by its number."""

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
        nonempty = lasts > firsts
        self._shards, self._firsts, self._lasts = shards[nonempty], firsts[nonempty], lasts[nonempty]
        self._ends = np.cumsum(self._lasts - self._firsts)

    @staticmethod
    def of(counts: Sequence[int] | Ints) -> SamplePartition:
        """Return the partition of all samples, from the number of samples in each shard."""
        lasts = np.asarray(counts, np.int64)
        return SamplePartition(np.arange(len(lasts)), np.zeros_like(lasts), lasts)

    @staticmethod
    def of_pieces(pieces: Sequence[Piece]) -> SamplePartition:
        """Return the partition of some pieces, in their order."""
        columns = np.array(pieces, np.int64).reshape(len(pieces), 3)
        return SamplePartition(columns[:, 0], columns[:, 1], columns[:, 2])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def between(self, start: int, stop: int) -> list[Piece]:
        """Return the pieces that make up samples ``start`` to ``stop`` (exclusive) of this order."""
        if start >= stop:
            return []
        first, last = (int(np.searchsorted(self._ends, at, side="right")) for at in (start, stop - 1))
        firsts, lasts = (column[first : last + 1].copy() for column in (self._firsts, self._lasts))
        firsts[0] = lasts[0] - (int(self._ends[first]) - start)
        lasts[-1] -= int(self._ends[last]) - stop
        return list(map(Piece, self._shards[first : last + 1].tolist(), firsts.tolist(), lasts.tolist()))

    def share(self, slot: int, num_slots: int) -> list[Piece]:
        """Return the pieces of one of ``num_slots`` shares, whose lengths differ by one sample at most."""
        return self.between(slot * len(self) // num_slots, (slot + 1) * len(self) // num_slots)

    def equalized(self, num_slots: int, epoch: int, mode: EqualizeMode, listed: Ints) -> SamplePartition:
        """Return an order whose length is a multiple of ``num_slots``.

        The samples that are dropped or repeated are a window over the shards in the order of the listing, not of the
        epoch. It moves by its own length with each epoch. Repeated samples are appended.

        Args:
            num_slots: number of shares.
            epoch: from 0.
            mode: whether the remainder is dropped or filled up.
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
        """Return where in each piece an interval of the listing starts and stops."""
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
            firsts = np.stack([order._firsts, high], axis=1).ravel()
            lasts = np.stack([low, order._lasts], axis=1).ravel()
            kept = lasts > firsts
            starts = np.repeat(starts, 2)[kept]
            order = SamplePartition(np.repeat(order._shards, 2), firsts, lasts)
        return order


def permutation(length: int, *key: int | str) -> list[int]:
    """Return the numbers below ``length`` in a uniformly random order.

    Args:
        length: number of items.
        *key: what the order depends on, such as seed and epoch.
    """
    draw = _generator(*key).random
    keys = [draw() for _ in range(length)]
    return sorted(range(length), key=keys.__getitem__)


def permutation_array(length: int, *key: int | str) -> Ints:
    """Return another permutation than :func:`permutation`, faster for millions of items; shape ``(length,)``.

    The sort keys are 64-bit numbers of PCG64 (M. O'Neill, 2014), whose raw output is the same in all versions of NumPy.
    """
    seed = blake2b("/".join(map(str, key)).encode(), digest_size=16).digest()
    keys = np.random.PCG64(int.from_bytes(seed, "little")).random_raw(length)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def uniforms(start: int, *key: int | str) -> Iterator[float]:
    """Yield an endless sequence of numbers from 0 to 1, from its item ``start`` on.

    Args:
        start: number of items to skip, in constant time.
        *key: what the numbers depend on.
    """
    block, offset = divmod(start, _BLOCK)
    while True:
        draw = _generator(*key, block).random
        yield from [draw() for _ in range(_BLOCK)][offset:]
        block, offset = block + 1, 0


def _generator(*key: int | str) -> random.Random:
    # Python promises not to change these two of its module random: seeding with a str, and random()
    return random.Random("/".join(map(str, key)))
