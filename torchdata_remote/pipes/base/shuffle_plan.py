"""Which samples a shuffle yields in which phase: pure arithmetic, without samples."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import repeat
from math import inf

from ...core.permutation import permutation

_MAX_PHASES = 8
# Groups of a block that is bounded in bytes are drawn as it is read, because its length is not known before
_DRAWN_GROUP = 8
# The first samples leave when this part of the bytes is read, and the buffer fills while they do
_FIRST_FILL = 0.25


class ShufflePlan:
    """The phases of blocks of samples.

    Samples are read in blocks. A block is yielded in equal groups over ``num_phases`` phases, and a phase consists of
    groups of as many blocks: block n is yielded in the phases n - num_phases + 1 to n. One block is read per phase.
    There is no phase before 0, so the first blocks are smaller.

    Args:
        buffer_size: maximum number of samples in memory.
        max_buffer_bytes: bound on their bytes; ``None`` for none. Blocks that reach their share of it are shorter.
        *seeds: what determines the order.
    """

    def __init__(self, buffer_size: int, max_buffer_bytes: int | None, *seeds: int) -> None:
        buffer_size = min(buffer_size, sys.maxsize)
        self.num_phases = max(n for n in range(1, _MAX_PHASES + 1) if n == 1 or n * (n + 1) <= 2 * buffer_size)
        num_groups = self.num_phases * (self.num_phases + 1) // 2
        self._group_size = buffer_size // num_groups
        self._group_bytes = inf if max_buffer_bytes is None else max_buffer_bytes / num_groups
        self._drawn_group = self._group_size if max_buffer_bytes is None else min(self._group_size, _DRAWN_GROUP)
        self._seeds = seeds
        self.max_samples = self._group_size * num_groups
        self.is_bounded = max_buffer_bytes is not None
        self.max_bytes = inf if max_buffer_bytes is None else max_buffer_bytes
        self.first_bytes = self.max_bytes * _FIRST_FILL

    def _num_groups(self, block: int) -> int:
        return min(block + 1, self.num_phases)

    def block_size(self, block: int) -> int:
        """Return the maximum number of samples of a block."""
        return self._group_size * self._num_groups(block)

    def block_bytes(self, block: int) -> float:
        """Return the number of bytes at which a block is complete."""
        return self._group_bytes * self._num_groups(block) * (_FIRST_FILL if block < self.num_phases else 1)

    def phases(self, block: int) -> Iterator[int]:
        """Return the phase in which each sample of a block is yielded, in the order in which they are read."""
        of_group = range(block + 1 - self._num_groups(block), block + 1)
        if len(of_group) == 1:
            # All samples of a buffer that is larger than the data: nothing is drawn, so a huge number costs nothing
            yield from repeat(of_group[0], self._group_size)
            return
        drawn = [phase for phase in of_group for _ in range(self._drawn_group)]
        num_draws = -(-self._group_size // self._drawn_group)
        for number in range(num_draws):
            key = (block,) if num_draws == 1 else (block, number)
            yield from map(drawn.__getitem__, permutation(len(drawn), *self._seeds, *key))

    def order(self, phase: int, num_samples: int) -> list[int]:
        """Return the order in which the samples of a phase are yielded."""
        return permutation(num_samples, *self._seeds, phase, "leave")
