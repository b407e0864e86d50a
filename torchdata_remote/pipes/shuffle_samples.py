"""``shuffle_samples``: a resumable shuffle of samples within a bounded buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from ..core.arguments.amounts import whole, whole_or_none
from ..core.frameworks.collating import check_item
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..errors import StateError
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample import describe_item
from .base.chain import Snapshot, load_state, state_of, warm_up
from .base.datapipe import StatefulPipe
from .base.epochs import SeededPipe
from .base.shuffle_buffer import ShuffleBuffer
from .base.shuffle_plan import ShufflePlan

T = TypeVar("T")


@functional_datapipe("shuffle_samples")
class ShuffleSamples(SeededPipe[T], StatefulPipe[T]):
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

    needs_source_state = True
    state_fields = ("phase", "passed", "began")

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
        self._warm: ShuffleBuffer | None = None
        self._phase, self._num_passed = 0, 0
        self._oldest_start: Any = None  # state of the source; None for its start
        self._blocks_read: list[int] = []  # lengths of the blocks in use
        self._num_read = 0  # of the next block

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        if state["began"] is not None:
            load_state(self.source_datapipe, state["began"])

    def warm_up(self) -> Iterator[None]:
        """Read the blocks with samples in the first phase, and the samples of the next block that were read already."""
        state = self._take_loaded()
        # The position also before the first sample: a shuffle after this one may ask for it without reading any
        start = state or {"phase": 0, "passed": 0, "began": None}
        self._phase, self._num_passed, self._oldest_start = start["phase"], start["passed"], start["began"]
        *self._blocks_read, self._num_read = start.get("read") or [0]
        plan = ShufflePlan(self.buffer_size, self.max_buffer_bytes, self.seed, self._epochs.next_epoch())
        self._warm = buffer = ShuffleBuffer(plan, self._state_of_source, state)
        yield from warm_up(self.source_datapipe)
        yield  # lets other streams send their requests before this one blocks
        yield from buffer.fill(iter(self.source_datapipe))

    def forget_start(self) -> None:
        super().forget_start()
        self._warm = None

    def __iter__(self) -> Iterator[T]:
        if self._warm is None:
            for _ in self.warm_up():
                pass
        assert self._warm is not None
        buffer, self._warm = self._warm, None
        is_first = True
        while any(buffer.due):
            *self._blocks_read, _ = buffer.num_read
            self._phase, self._oldest_start = buffer.phase, buffer.block_starts[0]
            for item in buffer.items():
                self._num_passed, self._num_read = buffer.num_passed, buffer.num_read[-1]
                if is_first:
                    is_first = False
                    check_item(self, item, where=describe_item(item))
                yield item
            buffer.next_phase()

    def _state_of_source(self) -> Any:
        try:
            return state_of(self.source_datapipe)
        except StateError as error:
            return error.with_traceback(None)  # its frames would keep a sample in memory

    def _state(self) -> Any:
        return self._state_at(self._phase, self._num_passed, self._oldest_start, self._blocks_read, self._num_read)

    def _state_at(self, phase: int, num_passed: int, began: Any, blocks_read: list[int], num_read: int) -> Any:
        if isinstance(began, StateError):
            raise began
        state = {"phase": phase, "passed": num_passed, "began": began}
        return state if self.max_buffer_bytes is None else {**state, "read": [*blocks_read, num_read]}

    def snapshots(self) -> Callable[[], Snapshot]:
        return lambda: partial(
            self._state_at, self._phase, self._num_passed, self._oldest_start, self._blocks_read, self._num_read
        )

    def order_options(self) -> Mapping[str, Any]:
        bound = {} if self.max_buffer_bytes is None else {"max_buffer_bytes": self.max_buffer_bytes}
        return {"buffer_size": self.buffer_size, **bound, "seed": self.seed}

    def __len__(self) -> int:
        return len(self.source_datapipe)  # TypeError where it has none, as for torch's pipes
