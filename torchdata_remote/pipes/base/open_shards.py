"""The shards that a pass reads concurrently, and its progress in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from typing import Any

from ...formats.position import ReadPosition
from ...formats.sample import Sample
from .chain import Snapshot
from .input_streams import number_of, require_number


class OpenShard:
    """A shard that is being read.

    Args:
        stream: its bytes.
        position: of the next sample.
        samples: those that are left.
    """

    def __init__(self, stream: Any, position: ReadPosition, samples: Generator[Sample, None, None]) -> None:
        self._stream, self._position, self._samples = stream, position, samples

    def __iter__(self) -> Iterator[Sample]:
        return self._samples

    def close(self) -> None:
        self._samples.close()
        self._stream.close()  # a generator that was not started does not close it

    def state(self) -> tuple[int | None, Any]:
        position = self._position.current()
        return number_of(self._stream), None if position is None else position.to_json()


class EndedShard:
    """A shard that is exhausted, but still in the queue of the round robin, as a state may have saved it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __iter__(self) -> Iterator[Sample]:
        return iter(())

    def close(self) -> None:
        pass

    def state(self) -> tuple[int | None, Any]:
        return self._number, None


class Progress:
    """Progress of a pass. It is reset where the pipe is pickled."""

    def __init__(self, following: int = 0) -> None:
        self.open: deque[Any] = deque()
        self.latest: int | None = following - 1
        # State of each open shard after the latest sample, if it is asked for after each one
        self._states: deque[Any] | None = None

    def state(self) -> dict[str, Any]:
        return _state_of([shard.state() for shard in self.open], self.latest)

    def followed(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Yield the samples, with a snapshot after each: of all shards, only the one that it is from has moved.

        That shard is the last of ``open`` then; those that are exhausted were the first.
        """
        self._states = states = deque(shard.state() for shard in self.open)
        opened = self.open
        try:
            for sample in samples:
                states.append(opened[-1].state())
                while len(states) > len(opened):
                    states.popleft()
                yield sample
        finally:
            self._states = None

    def snapshot(self) -> Snapshot:
        shards = tuple(self._states) if self._states is not None else tuple(shard.state() for shard in self.open)
        return partial(_state_of, shards, self.latest)

    def __reduce__(self) -> tuple[type[Progress], tuple[()]]:
        return Progress, ()


def _state_of(shards: Iterable[tuple[int | None, Any]], latest: int | None) -> dict[str, Any]:
    opened = [[require_number(number), position] for number, position in shards]
    return {"open": opened, "next": require_number(latest) + 1}
