"""``shuffle_samples``: a resumable shuffle of samples within a bounded buffer."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, repeat
from math import inf
from typing import Any, TypeVar

from ..core.arguments import seed_of, whole, whole_or_none
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.partition import permutation
from ..formats.sample_size import sample_bytes
from .chain import all_pipes
from .env import Env
from .passes import END, Pass
from .shares import Path
from .threaded import OneForOne

T = TypeVar("T")

_MAX_PHASES = 8
# Groups of a block that is bounded in bytes are drawn as it is read, because its length is not known before
_DRAWN_GROUP = 8
# The first samples leave when this part of the bytes is read, and the buffer fills while they do
_FIRST_FILL = 0.25
_MOST_READ = 2  # samples that are read for each one that is yielded, until the buffer is full
_MIN_BLOCK = 2  # samples: from blocks of one, however large, the buffer could never fill again


@functional_datapipe("shuffle_samples")
class ShuffleSamples(OneForOne[T]):
    """Shuffle samples within a buffer, by seed and epoch (functional name: ``shuffle_samples``).

    Samples are read in blocks of 2/9 of the buffer. Each sample is yielded in one of the eight phases after its block,
    drawn by ``(seed, epoch, block)``, and the samples of a phase are shuffled again. So neighbours in the output are
    drawn uniformly from a window of almost two buffers, and no sample moves by more than a buffer in either direction.
    One sample is read for each one that is yielded, so the source is consumed at an even rate.

    With ``max_buffer_bytes`` a block also ends where its samples reach 2/9 of the bytes, and no sample is read while
    the buffer is full. The first sample is yielded when a quarter of the bytes is read; then up to two samples are read
    for each one that is yielded, until the buffer is full. The sizes depend on the samples only (content, and 48 bytes
    for each member and 256 for each sample), so the order is the same in every process and after a resume.

    The state consists of the state of the source at the start of the oldest block in use, the phase, the number of
    samples yielded in it and, with ``max_buffer_bytes``, the lengths of nine blocks; resuming reads at most two buffers
    again. A buffer cannot mix samples that are further apart: use ``shuffle_shards`` and ``interleave`` of the readers
    for that.

    Epochs are counted as by ``shuffle_shards``. Chain it before ``decode_sample``, where samples take less memory.

    Args:
        source_datapipe: samples, or anything.
        buffer_size: maximum number of samples in memory. With ``Resumable(num_streams=...)`` each stream has its own
            buffer.
        max_buffer_bytes: bound on the bytes of the samples in memory, also of each stream; the sample that reaches it
            is still read. ``None`` for no bound. Counted is the content of bytes, text, arrays, tensors, ``io.BytesIO``
            and PIL images, also in dicts, lists, tuples, sets and dataclasses. Not counted is what other objects hold,
            nor the array of which an array is a view: chain the shuffle before such samples are made, or copy views.
        seed: any int.

    Yields:
        The same items.

    Example:
        >>> pipe = ShuffleSamples(IterableWrapper(range(6)), buffer_size=3, seed=0)
        >>> list(pipe), list(pipe)
        ([0, 1, 4, 2, 3, 5], [0, 2, 4, 1, 3, 5])
    """

    uses_epoch = True
    order_names = "buffer_size", "max_buffer_bytes", "seed"

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        *,
        buffer_size: int,
        max_buffer_bytes: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(source_datapipe, "samples")
        self.seed = seed_of(seed)
        self.buffer_size = whole("buffer_size", buffer_size, of="samples")
        self.max_buffer_bytes = whole_or_none("max_buffer_bytes", max_buffer_bytes)

    def open(self, env: Env) -> Pass[T]:
        return _ShufflePass(self, replace(env, is_shuffled=True).open(self.source_datapipe), env.seeds)

    def length(self, env: Env) -> int:
        """Count the samples, as the source does."""
        return super().length(replace(env, is_shuffled=True))


def shuffles_samples(pipe: IterDataPipe[Any]) -> bool:
    """Whether a chain shuffles what it has read, and not only URLs."""
    return any(
        isinstance(found, ShuffleSamples)
        and any(getattr(type(above), "reads_data", False) for above in all_pipes(found))
        for found in all_pipes(pipe)
    )


class _ShufflePass(Pass[T]):
    """Samples are read in blocks, and each block is yielded in equal groups over several phases.

    A phase consists of groups of as many blocks: block n is yielded in the phases n - num_phases + 1 to n. One block is
    read per phase. There is no phase before 0, so the first blocks are smaller. Blocks that reach their share of the
    bytes are shorter.

    The position has the phase, the number of samples yielded in it, and the position of the source at the start of the
    oldest block in use; with a bound on the bytes also the lengths of the blocks.
    """

    def __init__(self, pipe: ShuffleSamples[T], source: Pass[T], seeds: Path) -> None:
        super().__init__(source)
        size, self._seeds = min(pipe.buffer_size, sys.maxsize), (pipe.seed, *seeds)
        self._num_phases = max(n for n in range(1, _MAX_PHASES + 1) if n == 1 or n * (n + 1) <= 2 * size)
        num_groups = self._num_phases * (self._num_phases + 1) // 2
        self._group_size = self._drawn_group = size // num_groups
        self._max_samples = self._group_size * num_groups
        self._max_bytes: float = inf
        self._is_bounded = pipe.max_buffer_bytes is not None
        if pipe.max_buffer_bytes is not None:
            self._max_bytes, self._drawn_group = pipe.max_buffer_bytes, min(self._group_size, _DRAWN_GROUP)
        self._group_bytes = self._max_bytes / num_groups
        self._phase = self._num_passed = 0
        # Positions of the source at the start of each block, from block ``phase`` on, and how much of each was read
        self._starts: deque[Any] = deque([None], self._num_phases + 1)
        self._num_read: deque[int] = deque(maxlen=self._num_phases + 1)
        # Samples to be yielded in this phase and in each later one, with their sizes
        self._due: deque[list[Any]] = deque([] for _ in range(self._num_phases + 1))
        self._num_held = self._bytes_held = 0
        self._has_ended = False

    @property
    def position(self) -> Any:
        place = self._phase, self._num_passed, self._starts[0]
        return (*place, list(self._num_read)) if self._is_bounded else place

    def seek(self, position: Any) -> None:
        self._phase, self._num_passed, start, *lengths = position
        self._starts[0] = start
        self._num_read.extend(lengths[0] if lengths else ())
        self.sources[0].resume(start)

    def _num_groups(self, block: int) -> int:
        return min(block + 1, self._num_phases)

    def _block_bytes(self, block: int) -> float:
        """Return the number of bytes at which a block is complete."""
        return self._group_bytes * self._num_groups(block) * (_FIRST_FILL if block < self._num_phases else 1)

    def _targets(self, block: int) -> Iterator[int]:
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

    def items(self) -> Iterator[T]:
        source, due = iter(self.sources[0]), self._due
        self._fill(source)
        while any(due):
            yield from self._phase_items(source)
            if not any(islice(due, 1, None)):  # the position stays that of the last sample
                return
            due.popleft()
            due.append([])
            self._starts.append(self.sources[0].position)
            self._num_read.append(0)
            self._phase, self._num_passed = self._phase + 1, 0

    def _fill(self, source: Iterator[T]) -> None:
        """Read the blocks with samples in the first phase, and what was read already of the next block."""
        phase, due, lengths = self._phase, self._due, list(self._num_read)
        self._num_read.clear()
        for block in range(phase, phase + self._num_phases):
            if phase and lengths:
                self._read(source, block, lengths[block - phase])
            else:
                size = self._group_size * self._num_groups(block)
                self._read(source, block, size, self._block_bytes(block), self._max_bytes * _FIRST_FILL)
            self._starts.append(self.sources[0].position)
        if self._has_ended and phase == 0:  # the whole input is in memory: yield it as one phase
            due[0].extend(held for later in islice(due, 1, None) for held in later)
            for later in islice(due, 1, None):
                later.clear()
        for index in self._order()[: self._num_passed]:
            self._num_held, self._bytes_held = self._num_held - 1, self._bytes_held - due[0][index][1]
            due[0][index] = None
        self._read(source, phase + self._num_phases, lengths[-1] if lengths else self._num_passed)

    def _order(self) -> list[int]:
        """The order in which the samples of this phase are yielded."""
        return permutation(len(self._due[0]), *self._seeds, self._phase, "leave")

    def _read(
        self, source: Iterator[T], block: int, num_samples: int, max_bytes: float = inf, max_held: float = inf
    ) -> None:
        """Read at most so many samples of a block; fewer if it, or the buffer, reaches its number of bytes."""
        self._num_read.append(0)
        self._bytes_read = 0
        if self._has_ended:
            return
        for target in islice(self._targets(block), num_samples):
            if self._bytes_held >= max_held or (self._bytes_read >= max_bytes and self._num_read[-1] >= _MIN_BLOCK):
                return
            item = next(source, END)
            if item is END:
                self._has_ended = True
                return
            size = sample_bytes(item) if self._is_bounded else 0
            self._num_read[-1] += 1
            self._bytes_read += size
            if target >= self._phase:
                self._due[target - self._phase].append((item, size))
                self._num_held, self._bytes_held = self._num_held + 1, self._bytes_held + size
            del item

    def _phase_items(self, source: Iterator[T]) -> Iterator[T]:
        """Yield the samples of this phase in their order, and read those of the next block meanwhile."""
        phase, due, lengths = self._phase, self._due, self._num_read
        block, leaving, num_read = phase + self._num_phases, due[0], lengths[-1]
        targets = islice(self._targets(block), num_read, None)
        max_samples, max_held, max_bytes = self._max_samples, self._max_bytes, self._block_bytes(block)
        num_held, bytes_held, bytes_read = self._num_held, self._bytes_held, self._bytes_read
        most_read, is_bounded = self._group_size * self._num_phases, self._is_bounded
        for index in islice(self._order(), self._num_passed, None):
            item, size = leaving[index]
            leaving[index] = None  # releases its memory before the end of the phase
            num_held, bytes_held = num_held - 1, bytes_held - size
            most_held = min(num_held + _MOST_READ, max_samples)
            while num_held < most_held and bytes_held < max_held and num_read < most_read:
                if bytes_read >= max_bytes and num_read >= _MIN_BLOCK:
                    break
                new: Any = next(source, END)
                if new is END:
                    break
                size = sample_bytes(new) if is_bounded else 0
                due[next(targets) - phase].append((new, size))
                num_held, bytes_held, bytes_read = num_held + 1, bytes_held + size, bytes_read + size
                num_read += 1
                del new
            self._num_passed += 1
            lengths[-1] = num_read
            yield item
        self._num_held, self._bytes_held, self._bytes_read = num_held, bytes_held, 0
