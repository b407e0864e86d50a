"""The samples that a shuffle holds, and what it reads for those that it yields."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import Any

from ...formats.sample_size import sample_bytes
from .shuffle_plan import ShufflePlan

_END: Any = object()
_MOST_READ = 2  # samples that are read for each one that is yielded, until the buffer is full
_MIN_BLOCK = 2  # samples: from blocks of one, however large, the buffer could never fill again


class ShuffleBuffer:
    """The samples of a pass that are in memory, and the place of the pass.

    Args:
        plan: of the pass.
        state_of_source: returns the state of the source.
        state: from which the pass resumes.
    """

    def __init__(self, plan: ShufflePlan, state_of_source: Callable[[], Any], state: Any) -> None:
        state = state or {"phase": 0, "passed": 0, "began": None}
        self._plan, self._state_of_source = plan, state_of_source
        self.phase, self.num_passed = state["phase"], state["passed"]
        self._saved: list[int] | None = state.get("read")
        # States of the source at the start of each block, from block ``phase`` on, and how much of each block was read.
        self.block_starts = deque([state["began"]], plan.num_phases + 1)
        self.num_read: deque[int] = deque(maxlen=plan.num_phases + 1)
        self._source: Iterator[Any] = iter(())
        self._has_ended = False
        # Samples to be yielded in this phase and in each later one, with their sizes.
        self.due: deque[list[Any]] = deque([] for _ in range(plan.num_phases + 1))
        self._num_held, self._bytes_held, self._bytes_read = 0, 0, 0

    def fill(self, source: Iterator[Any]) -> Iterator[None]:
        """Read the blocks with samples in the first phase, and what was read already of the next block.

        Yields after each sample.
        """
        self._source = source
        phase, plan = self.phase, self._plan
        for block in range(phase, phase + plan.num_phases):
            if phase and self._saved is not None:
                yield from self._read(block, self._saved[block - phase])
            else:
                yield from self._read(block, plan.block_size(block), plan.block_bytes(block), plan.first_bytes)
            self.block_starts.append(self._state_of_source())
        if self._has_ended and phase == 0:  # the whole input is in memory: yield it as one phase
            self.due[0].extend(held for later in list(self.due)[1:] for held in later)
            for later in list(self.due)[1:]:
                later.clear()
        leaving = self.due[0]
        for index in plan.order(phase, len(leaving))[: self.num_passed]:
            self._num_held, self._bytes_held = self._num_held - 1, self._bytes_held - leaving[index][1]
            leaving[index] = None
        yield from self._read(phase + plan.num_phases, self.num_passed if self._saved is None else self._saved[-1])

    def _read(self, block: int, num_samples: int, max_bytes: float = inf, max_held: float = inf) -> Iterator[None]:
        """Read at most so many samples of a block; fewer if it, or the buffer, reaches its number of bytes."""
        self.num_read.append(0)
        self._bytes_read = 0
        if self._has_ended:
            return
        for target in islice(self._plan.phases(block), num_samples):
            if self._bytes_held >= max_held or (self._bytes_read >= max_bytes and self.num_read[-1] >= _MIN_BLOCK):
                return
            item = next(self._source, _END)
            if item is _END:
                self._has_ended = True
                return
            size = sample_bytes(item) if self._plan.is_bounded else 0
            self.num_read[-1] += 1
            self._bytes_read += size
            if target >= self.phase:
                self.due[target - self.phase].append((item, size))
                self._num_held, self._bytes_held = self._num_held + 1, self._bytes_held + size
            del item
            yield

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
                new = next(source, _END)
                if new is _END:
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
        self.block_starts.append(self._state_of_source())
        self.num_read.append(0)
        self.phase, self.num_passed = self.phase + 1, 0
