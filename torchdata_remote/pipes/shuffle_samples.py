"""``shuffle_samples``: a resumable shuffle of samples within a bounded buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from ..core.arguments.amounts import whole
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.permutation import permutation
from ..errors import StateError
from ..fetch.listing.source_argument import pipe_of
from .base.chain import load_state, state_of, warm_up
from .base.datapipe import StatefulPipe
from .base.epochs import SeededPipe

T = TypeVar("T")

_MAX_PHASES = 8


class _Plan:
    """Which samples are yielded in which phase: pure arithmetic, without samples.

    Samples are read in blocks. A block is yielded in equal groups over ``num_phases`` phases, and a phase consists of
    groups of as many blocks: block n is yielded in the phases n - num_phases + 1 to n. One block is read per phase.
    There is no phase before 0, so the first blocks are smaller.

    Args:
        buffer_size: maximum number of samples in memory.
        *seeds: what determines the order.
    """

    def __init__(self, buffer_size: int, *seeds: int) -> None:
        self.num_phases = max(n for n in range(1, _MAX_PHASES + 1) if n == 1 or n * (n + 1) <= 2 * buffer_size)
        self._group_size = 2 * buffer_size // (self.num_phases * (self.num_phases + 1))
        self._seeds = seeds

    def phases(self, block: int) -> list[int]:
        """Return the phase in which each sample of a block is yielded, in the order in which they are read."""
        first = max(0, block - self.num_phases + 1)
        phases = [phase for phase in range(first, block + 1) for _ in range(self._group_size)]
        return [phases[index] for index in permutation(len(phases), *self._seeds, block)]

    def order(self, phase: int, num_samples: int) -> list[int]:
        """Return the order in which the samples of a phase are yielded."""
        return permutation(num_samples, *self._seeds, phase, "leave")


class _WarmPass:
    """A pass that is warmed up: its first blocks are read.

    Args:
        plan: of the pass.
        state: from which it resumes.
    """

    def __init__(self, plan: _Plan, state: Any) -> None:
        state = state or {"phase": 0, "passed": 0, "began": None}
        self.plan = plan
        self.phase, self.num_passed = state["phase"], state["passed"]
        # States of the source at the start of each block, from block ``phase`` on.
        self.block_starts = deque([state["began"]], plan.num_phases + 1)
        self.source: Iterator[Any] = iter(())
        # Samples to be yielded in this phase and in each later one.
        self.due: deque[list[Any]] = deque([] for _ in range(plan.num_phases + 1))


@functional_datapipe("shuffle_samples")
class ShuffleSamples(SeededPipe[T], StatefulPipe[T]):
    """Shuffle samples within a buffer, by seed and epoch (functional name: ``shuffle_samples``).

    Samples are read in blocks of 2/9 of the buffer. Each sample is yielded in one of the eight phases after its block,
    drawn by ``(seed, epoch, block)``, and the samples of a phase are shuffled again. So neighbours in the output are
    drawn uniformly from a window of almost two buffers, and no sample moves by more than a buffer in either direction.
    One sample is read for each one that is yielded, so the source is consumed at an even rate.

    The state consists of the state of the source at the start of the oldest block in use, the phase, and the number of
    samples yielded in it; resuming reads at most two buffers again. A buffer cannot mix samples that are further apart:
    use ``shuffle_shards`` and ``interleave`` of the readers for that.

    Epochs are counted as by ``shuffle_shards``. Chain it before ``decode_sample``, where samples take less memory.

    Args:
        source_datapipe: samples, or anything.
        buffer_size: number of samples in memory. With ``Resumable(num_streams=...)`` each stream has its own buffer.
        seed: any int.

    Yields:
        The same items.

    Example:
        >>> pipe = ShuffleSamples(IterableWrapper(range(6)), buffer_size=3, seed=0)
        >>> list(pipe), list(pipe)
        ([0, 1, 4, 2, 3, 5], [0, 2, 4, 1, 3, 5])
    """

    needs_source_state = True
    state_fields = ("phase", "passed", "began")

    def __init__(self, source_datapipe: IterDataPipe[T], *, buffer_size: int, seed: int = 0) -> None:
        super().__init__(seed)
        self.source_datapipe = pipe_of(source_datapipe, of="shuffle_samples", holds="samples")
        self.buffer_size = whole("buffer_size", buffer_size, of="samples")
        self._warm: _WarmPass | None = None
        self._phase, self._num_passed = 0, 0
        self._oldest_start: Any = None  # state of the source; None for its start

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        if state["began"] is not None:
            load_state(self.source_datapipe, state["began"])

    def warm_up(self) -> Iterator[None]:
        """Read the blocks with samples in the first phase, and the samples of the next block that were read already."""
        state = self._take_loaded()
        self._warm = warm = _WarmPass(_Plan(self.buffer_size, self.seed, self._epochs.next_epoch()), state)
        plan, phase, due = warm.plan, warm.phase, warm.due
        yield from warm_up(self.source_datapipe)
        yield  # lets other streams send their requests before this one blocks
        warm.source = iter(self.source_datapipe)
        ended = False
        for block in range(phase, phase + plan.num_phases):
            phases = plan.phases(block)
            num_read = 0
            for target, item in zip(phases, warm.source):  # noqa: B905  # whichever ends first
                num_read += 1
                if target >= phase:
                    due[target - phase].append(item)
                yield
            ended = ended or num_read < len(phases)
            warm.block_starts.append(self._state_of_source())
        for target, item in zip(plan.phases(phase + plan.num_phases)[: warm.num_passed], warm.source):  # noqa: B905
            due[target - phase].append(item)
            yield
        if ended and phase == 0:  # the whole input is in memory: yield it as one phase
            due[0].extend(item for later in list(due)[1:] for item in later)
            for later in list(due)[1:]:
                later.clear()

    def __iter__(self) -> Iterator[T]:
        if self._warm is None:
            for _ in self.warm_up():
                pass
        assert self._warm is not None
        warm, self._warm = self._warm, None
        plan, source, due, block_starts = warm.plan, warm.source, warm.due, warm.block_starts
        phase, num_passed = warm.phase, warm.num_passed
        while any(due):
            leaving, order = due[0], plan.order(phase, len(due[0]))
            phases = plan.phases(phase + plan.num_phases)  # of the block that is read
            self._phase, self._oldest_start = phase, block_starts[0]
            for count, index in enumerate(islice(order, num_passed, None), num_passed):
                for item in source:
                    due[phases[count] - phase].append(item)
                    break
                self._num_passed = count + 1
                yield leaving[index]
                leaving[index] = None  # releases its memory before the end of the phase
            due.popleft()
            due.append([])
            block_starts.append(self._state_of_source())
            phase, num_passed = phase + 1, 0

    def _state_of_source(self) -> Any:
        try:
            return state_of(self.source_datapipe)
        except StateError as error:
            return error.with_traceback(None)  # its frames would keep a sample in memory

    def _state(self) -> Any:
        if isinstance(self._oldest_start, StateError):
            raise self._oldest_start
        return {"phase": self._phase, "passed": self._num_passed, "began": self._oldest_start}

    def order_options(self) -> Mapping[str, Any]:
        return {"buffer_size": self.buffer_size, "seed": self.seed}

    def __len__(self) -> int:
        return len(self.source_datapipe)  # TypeError where it has none, as for torch's pipes
