"""``shuffle_samples``: a block shuffle of samples that flows, and that can be resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from torch.utils.data import IterDataPipe, functional_datapipe

from ..datapipe import StatefulPipe
from ..epochs import SeededPipe
from ..errors import StateError
from ..permutation import permutation
from ..state import begin, load_state, state_of

T = TypeVar("T")


class _Begun:
    """A pass whose first block is being read.

    Args:
        state: with which it begins.
        epoch: of the pass.
    """

    def __init__(self, state: Any, epoch: int) -> None:
        state = state or {"block": 0, "passed": 0, "began": None}
        self.number, self.num_passed, self.block_began = state["block"], state["passed"], state["began"]
        self.epoch = epoch
        self.source: Iterator[Any] = iter(())
        self.block: list[Any] = []
        self.following: list[Any] = []
        self.block_ended: Any = None  # state of the source


@functional_datapipe("shuffle_samples")
class ShuffleSamples(SeededPipe[T], StatefulPipe[T]):
    """Permute samples in blocks, by seed and epoch (functional name: ``shuffle_samples``).

    Block *n* is the samples from ``n * buffer_size`` on, in an order that depends on ``(seed, epoch, n)`` only. While a
    block is handed out, each sample that leaves pulls one of the next block, so that ``buffer_size`` samples are in
    memory and the source flows evenly. The state is the source's state where the block began and how many of it were
    handed out: resuming reads the rest of at most two blocks again. No buffer can mix what lies further apart: let
    ``shuffle_shards`` and ``interleave`` of the readers do that.

    The epoch counts by itself, as that of ``shuffle_shards`` does. Chain it before ``decode_sample``: what waits in
    memory is smaller there.

    Args:
        source_datapipe: samples, or anything.
        buffer_size: samples in a block. With ``Resumable(num_streams=...)`` each stream has its own.
        seed: any int.

    Yields:
        The same items.

    Example:
        >>> pipe = ShuffleSamples(IterableWrapper(range(6)), buffer_size=3, seed=0)
        >>> list(pipe), list(pipe)
        ([2, 1, 0, 3, 5, 4], [0, 1, 2, 4, 3, 5])
    """

    def __init__(self, source_datapipe: IterDataPipe[T], *, buffer_size: int, seed: int = 0) -> None:
        super().__init__(seed)
        if not isinstance(buffer_size, int) or buffer_size < 1:
            raise ValueError(f"buffer_size is a number of samples, at least 1; got {buffer_size!r}.")
        self.source_datapipe = source_datapipe
        self.buffer_size = buffer_size
        self._begun: _Begun | None = None
        self._block, self._num_passed = 0, 0
        self._block_began: Any = None  # state of the source; None for its beginning

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        if state["began"] is not None:
            load_state(self.source_datapipe, state["began"])

    def begin(self) -> Iterator[None]:
        """Read the first block, and of the next one what has been pulled already."""
        self._begun = begun = _Begun(self._take_loaded(), self._epochs.begin())
        yield from begin(self.source_datapipe)
        yield  # other streams get under way before this one waits
        begun.source = iter(self.source_datapipe)
        for item in islice(begun.source, self.buffer_size):
            begun.block.append(item)
            yield
        begun.block_ended = self._state_of_source()
        for item in islice(begun.source, begun.num_passed):
            begun.following.append(item)
            yield

    def __iter__(self) -> Iterator[T]:
        if self._begun is None:
            for _ in self.begin():
                pass
        assert self._begun is not None
        begun, self._begun = self._begun, None
        source, block, following = begun.source, begun.block, begun.following
        number, num_passed = begun.number, begun.num_passed
        began, ended = begun.block_began, begun.block_ended
        while block:
            self._block, self._block_began = number, began
            order = permutation(len(block), self.seed, begun.epoch, number)
            for count, index in enumerate(islice(order, num_passed, None), num_passed + 1):
                for item in source:
                    following.append(item)
                    break
                self._num_passed = count
                yield block[index]
                block[index] = None  # or it would stay in memory until the block's end
            number, num_passed, began = number + 1, 0, ended
            block, following, ended = following, [], self._state_of_source()

    def _state_of_source(self) -> Any:
        try:
            return state_of(self.source_datapipe)
        except StateError as error:
            return error.with_traceback(None)  # which would keep a sample in memory

    def _state(self) -> Any:
        if isinstance(self._block_began, StateError):
            raise self._block_began
        return {"block": self._block, "passed": self._num_passed, "began": self._block_began}

    def order_options(self) -> Mapping[str, Any]:
        return {"buffer_size": self.buffer_size, "seed": self.seed}

    def __len__(self) -> int:
        return len(self.source_datapipe)  # TypeError where it has none, as for torch's pipes
