"""``shuffle_samples``: a resumable shuffle of samples within a bounded buffer."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, repeat
from math import inf
from typing import Any, TypeVar

from ..core.arguments.amounts import whole, whole_or_none
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.permutation import permutation
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample_size import sample_bytes
from .datapipe import SeededPipe, length_here
from .env import Env
from .passes import END, Pass
from .slots import length_of

T = TypeVar("T")

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


_MOST_READ = 2  # samples that are read for each one that is yielded, until the buffer is full
_MIN_BLOCK = 2  # samples: from blocks of one, however large, the buffer could never fill again


class ShuffleBuffer:
    """The samples of a pass that are in memory, and the place of the pass.

    Args:
        plan: of the pass.
        source: of the samples, at the start of the oldest block in use.
        saved: phase, number of samples handed out in it, and position of the source at the start of the oldest block;
            with a bound on the bytes also the lengths of the blocks.
    """

    def __init__(self, plan: ShufflePlan, source: Pass[Any], saved: Sequence[Any]) -> None:
        self.phase, self.num_passed, start, *lengths = saved
        self._plan, self._pass, self._source = plan, source, iter(source)
        self._saved: list[int] | None = lengths[0] if lengths else None
        # Positions of the source at the start of each block, from block ``phase`` on, and how much of each was read.
        self.block_starts = deque([start], plan.num_phases + 1)
        self.num_read: deque[int] = deque(maxlen=plan.num_phases + 1)
        self._has_ended = False
        # Samples to be yielded in this phase and in each later one, with their sizes.
        self.due: deque[list[Any]] = deque([] for _ in range(plan.num_phases + 1))
        self._num_held, self._bytes_held, self._bytes_read = 0, 0, 0

    def fill(self) -> None:
        """Read the blocks with samples in the first phase, and what was read already of the next block."""
        phase, plan = self.phase, self._plan
        for block in range(phase, phase + plan.num_phases):
            if phase and self._saved is not None:
                self._read(block, self._saved[block - phase])
            else:
                self._read(block, plan.block_size(block), plan.block_bytes(block), plan.first_bytes)
            self.block_starts.append(self._pass.position)
        if self._has_ended and phase == 0:  # the whole input is in memory: yield it as one phase
            self.due[0].extend(held for later in list(self.due)[1:] for held in later)
            for later in list(self.due)[1:]:
                later.clear()
        leaving = self.due[0]
        for index in plan.order(phase, len(leaving))[: self.num_passed]:
            self._num_held, self._bytes_held = self._num_held - 1, self._bytes_held - leaving[index][1]
            leaving[index] = None
        self._read(phase + plan.num_phases, self.num_passed if self._saved is None else self._saved[-1])

    def _read(self, block: int, num_samples: int, max_bytes: float = inf, max_held: float = inf) -> None:
        """Read at most so many samples of a block; fewer if it, or the buffer, reaches its number of bytes."""
        self.num_read.append(0)
        self._bytes_read = 0
        if self._has_ended:
            return
        for target in islice(self._plan.phases(block), num_samples):
            if self._bytes_held >= max_held or (self._bytes_read >= max_bytes and self.num_read[-1] >= _MIN_BLOCK):
                return
            item = next(self._source, END)
            if item is END:
                self._has_ended = True
                return
            size = sample_bytes(item) if self._plan.is_bounded else 0
            self.num_read[-1] += 1
            self._bytes_read += size
            if target >= self.phase:
                self.due[target - self.phase].append((item, size))
                self._num_held, self._bytes_held = self._num_held + 1, self._bytes_held + size
            del item

    def items(self) -> Iterator[Any]:
        """Yield the samples of this phase in their order, and read those of the next block meanwhile."""
        plan, phase, due, source = self._plan, self.phase, self.due, self._source
        block, leaving, num_read = phase + plan.num_phases, due[0], self.num_read[-1]
        targets = islice(plan.phases(block), num_read, None)
        max_samples, max_held, max_bytes = plan.max_samples, plan.max_bytes, plan.block_bytes(block)
        num_held, bytes_held, bytes_read = self._num_held, self._bytes_held, self._bytes_read
        most_read, is_bounded = plan.block_size(block), plan.is_bounded
        for index in islice(plan.order(phase, len(leaving)), self.num_passed, None):
            item, size = leaving[index]
            leaving[index] = None  # releases its memory before the end of the phase
            num_held, bytes_held = num_held - 1, bytes_held - size
            most_held = min(num_held + _MOST_READ, max_samples)
            while num_held < most_held and bytes_held < max_held and num_read < most_read:
                if bytes_read >= max_bytes and num_read >= _MIN_BLOCK:
                    break
                new = next(source, END)
                if new is END:
                    break
                size = sample_bytes(new) if is_bounded else 0
                due[next(targets) - phase].append((new, size))
                num_held, bytes_held, bytes_read = num_held + 1, bytes_held + size, bytes_read + size
                num_read += 1
                del new
            self.num_passed += 1
            self.num_read[-1] = num_read
            yield item
        self._num_held, self._bytes_held, self._bytes_read = num_held, bytes_held, 0

    def next_phase(self) -> None:
        """Start the next phase, in which the next block is read."""
        self.due.popleft()
        self.due.append([])
        self.block_starts.append(self._pass.position)
        self.num_read.append(0)
        self.phase, self.num_passed = self.phase + 1, 0


@functional_datapipe("shuffle_samples")
class ShuffleSamples(SeededPipe[T]):
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

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        *,
        buffer_size: int,
        max_buffer_bytes: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.source_datapipe = pipe_of(source_datapipe, of="shuffle_samples", holds="samples")
        self.buffer_size = whole("buffer_size", buffer_size, of="samples")
        self.max_buffer_bytes = whole_or_none("max_buffer_bytes", max_buffer_bytes)

    def open(self, env: Env) -> Pass[T]:
        plan = ShufflePlan(self.buffer_size, self.max_buffer_bytes, self.seed, *env.seeds)
        return _ShufflePass(plan, env.open(self.source_datapipe))

    def order_options(self) -> Mapping[str, Any]:
        bound = {} if self.max_buffer_bytes is None else {"max_buffer_bytes": self.max_buffer_bytes}
        return {"buffer_size": self.buffer_size, **bound, "seed": self.seed}

    def length(self, env: Env) -> int:
        """Count the samples, as the source does."""
        return length_of(self.source_datapipe, env)

    __len__ = length_here


class _ShufflePass(Pass[T]):
    """The position is that of the source at the start of the oldest block in use, and the place in the phase."""

    def __init__(self, plan: ShufflePlan, source: Pass[T]) -> None:
        super().__init__(source)
        self._plan, self._saved = plan, (0, 0, None)
        self._buffer: ShuffleBuffer | None = None

    def items(self) -> Iterator[T]:
        buffer = ShuffleBuffer(self._plan, self.sources[0], self._saved)
        buffer.fill()
        self._buffer = buffer
        while any(buffer.due):
            yield from buffer.items()
            if not any(islice(buffer.due, 1, None)):  # the position stays that of the last sample
                return
            buffer.next_phase()

    @property
    def position(self) -> Any:
        buffer = self._buffer
        if buffer is None:
            return self._saved
        place = buffer.phase, buffer.num_passed, buffer.block_starts[0]
        return (*place, list(buffer.num_read)) if self._plan.is_bounded else place

    def seek(self, position: Any) -> None:
        self._saved = position
        self.sources[0].resume(position[2])
