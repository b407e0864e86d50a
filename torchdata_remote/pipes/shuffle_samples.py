"""``shuffle_samples``: a shuffle of samples that flows, bounded in memory, that can be resumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.permutation import permutation
from ..errors import StateError
from ..fetch.listing.source_argument import pipe_of
from .base.chain import load_state, state_of, warm_up
from .base.datapipe import StatefulPipe
from .base.epochs import SeededPipe

T = TypeVar("T")

_MOST_PHASES = 8


class _Plan:
    """Which samples leave in which phase: arithmetic, without samples.

    Samples come in blocks. A block leaves in equal parts in ``num_phases`` phases, and those of a phase are from as
    many blocks: block n leaves in the phases n - num_phases + 1 to n. While a phase leaves, a block comes in. There
    is no phase before 0, so the first blocks are smaller.

    Args:
        buffer_size: samples that are held at the most.
        *parts: what the order depends on.
    """

    def __init__(self, buffer_size: int, *parts: int) -> None:
        self.num_phases = max(n for n in range(1, _MOST_PHASES + 1) if n == 1 or n * (n + 1) <= 2 * buffer_size)
        self._part = 2 * buffer_size // (self.num_phases * (self.num_phases + 1))
        self._parts = parts

    def phases(self, block: int) -> list[int]:
        """For each sample of a block, in the order in which they come: in which phase it leaves."""
        first = max(0, block - self.num_phases + 1)
        phases = [phase for phase in range(first, block + 1) for _ in range(self._part)]
        return [phases[index] for index in permutation(len(phases), *self._parts, block)]

    def order(self, phase: int, num_samples: int) -> list[int]:
        """In which order the samples of a phase leave."""
        return permutation(num_samples, *self._parts, phase, "leave")


class _Begun:
    """A pass whose first blocks are being read.

    Args:
        plan: of the pass.
        state: with which it begins.
    """

    def __init__(self, plan: _Plan, state: Any) -> None:
        state = state or {"phase": 0, "passed": 0, "began": None}
        self.plan = plan
        self.phase, self.num_passed = state["phase"], state["passed"]
        self.blocks_began = deque([state["began"]], plan.num_phases + 1)  # states of the source, from block phase on
        self.source: Iterator[Any] = iter(())
        self.due: deque[list[Any]] = deque([] for _ in range(plan.num_phases + 1))  # samples of this phase, and later


@functional_datapipe("shuffle_samples")
class ShuffleSamples(SeededPipe[T], StatefulPipe[T]):
    """Shuffle samples within a buffer, by seed and epoch (functional name: ``shuffle_samples``).

    Samples come in blocks, of 2/9 of the buffer. Each leaves in one of the eight phases after its block, drawn by
    ``(seed, epoch, block)``, and the samples of a phase leave in an order of their own: those that lie close together
    were drawn from a window of almost two buffers, in equal parts, and no sample comes more than a buffer earlier or
    later than it would have. Each sample that leaves pulls one, so that the source flows evenly.

    The state is the source's state where the oldest block began that is not used up, the phase, and how many have left
    in it; resuming reads at most two buffers again. No buffer can mix what lies further apart: let ``shuffle_shards``
    and ``interleave`` of the readers do that.

    The epoch counts by itself, as that of ``shuffle_shards`` does. Chain it before ``decode_sample``: what waits in
    memory is smaller there.

    Args:
        source_datapipe: samples, or anything.
        buffer_size: samples in memory. With ``Resumable(num_streams=...)`` each stream has its own.
        seed: any int.

    Yields:
        The same items.

    Example:
        >>> pipe = ShuffleSamples(IterableWrapper(range(6)), buffer_size=3, seed=0)
        >>> list(pipe), list(pipe)
        ([0, 1, 4, 2, 3, 5], [0, 2, 4, 1, 3, 5])
    """

    needs_source_state = True

    def __init__(self, source_datapipe: IterDataPipe[T], *, buffer_size: int, seed: int = 0) -> None:
        super().__init__(seed)
        if not isinstance(buffer_size, int) or buffer_size < 1:
            raise ValueError(f"buffer_size is a number of samples, at least 1; got {buffer_size!r}.")
        self.source_datapipe = pipe_of(source_datapipe, of="shuffle_samples", holds="samples")
        self.buffer_size = buffer_size
        self._begun: _Begun | None = None
        self._phase, self._num_passed = 0, 0
        self._oldest_began: Any = None  # state of the source; None for its beginning

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        if state["began"] is not None:
            load_state(self.source_datapipe, state["began"])

    def warm_up(self) -> Iterator[None]:
        """Read the blocks that have samples in the first phase, and of the next one what has been pulled already."""
        state = self._take_loaded()
        self._begun = begun = _Begun(_Plan(self.buffer_size, self.seed, self._epochs.next_epoch()), state)
        plan, phase, due = begun.plan, begun.phase, begun.due
        yield from warm_up(self.source_datapipe)
        yield  # other streams get under way before this one waits
        begun.source = iter(self.source_datapipe)
        ended = False
        for block in range(phase, phase + plan.num_phases):
            phases = plan.phases(block)
            num_came = 0
            for leaves, item in zip(phases, begun.source):  # noqa: B905  # whichever ends first
                num_came += 1
                if leaves >= phase:
                    due[leaves - phase].append(item)
                yield
            ended = ended or num_came < len(phases)
            begun.blocks_began.append(self._state_of_source())
        for leaves, item in zip(plan.phases(phase + plan.num_phases)[: begun.num_passed], begun.source):  # noqa: B905
            due[leaves - phase].append(item)
            yield
        if ended and phase == 0:  # all there is: no part of it has to leave early
            due[0].extend(item for later in list(due)[1:] for item in later)
            for later in list(due)[1:]:
                later.clear()

    def __iter__(self) -> Iterator[T]:
        if self._begun is None:
            for _ in self.warm_up():
                pass
        assert self._begun is not None
        begun, self._begun = self._begun, None
        plan, source, due, blocks_began = begun.plan, begun.source, begun.due, begun.blocks_began
        phase, num_passed = begun.phase, begun.num_passed
        while any(due):
            leaving, order = due[0], plan.order(phase, len(due[0]))
            phases = plan.phases(phase + plan.num_phases)  # of the block that comes in
            self._phase, self._oldest_began = phase, blocks_began[0]
            for count, index in enumerate(islice(order, num_passed, None), num_passed):
                for item in source:
                    due[phases[count] - phase].append(item)
                    break
                self._num_passed = count + 1
                yield leaving[index]
                leaving[index] = None  # or it would stay in memory until the phase's end
            due.popleft()
            due.append([])
            blocks_began.append(self._state_of_source())
            phase, num_passed = phase + 1, 0

    def _state_of_source(self) -> Any:
        try:
            return state_of(self.source_datapipe)
        except StateError as error:
            return error.with_traceback(None)  # which would keep a sample in memory

    def _state(self) -> Any:
        if isinstance(self._oldest_began, StateError):
            raise self._oldest_began
        return {"phase": self._phase, "passed": self._num_passed, "began": self._oldest_began}

    def order_options(self) -> Mapping[str, Any]:
        return {"buffer_size": self.buffer_size, "seed": self.seed}

    def __len__(self) -> int:
        return len(self.source_datapipe)  # TypeError where it has none, as for torch's pipes
