"""One pass over the streams of a process, round-robin."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.frameworks.call_stack import raised_here
from ..core.iter_datapipe import IterDataPipe
from ..core.processes.worker_errors import with_own_arguments
from ..core.world import World
from ..errors import RemoteDataError, StateError
from ..pipes.base.chain import all_pipes, load_state, name_of, state_of, take_together, warm_up
from ..pipes.base.datapipe import DataPipe, OtherStateError
from .state.state_format import ENDED, State, check_same_listing, make_state
from .stream_copies import ChainTemplate

# Errors that a value of an unexpected type or out of bounds causes.
_DAMAGE_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def _is_of_the_data(error: Exception) -> bool:
    return isinstance(error, RemoteDataError) and not isinstance(error, OtherStateError)


class Stream:
    """One stream of a pass.

    Args:
        number: among all streams.
        start: its position in the loaded state; ``None`` for the beginning.
    """

    def __init__(self, number: int, start: Any) -> None:
        self.number, self._start = number, start
        self.ended = start == ENDED
        self.num_passed: int = start["passed"] if isinstance(start, Mapping) else 0
        self._chain: IterDataPipe[Any] | None = None
        self._mixture: Any = None  # whose weights may differ from those of the state
        self._known: tuple[int, Any] = -1, None  # the state after so many items

    def open(self, template: ChainTemplate, num_streams: int) -> IterDataPipe[Any]:
        """Copy the chain for this stream, and load its position."""
        chain = template.stream(World(rank=self.number, world_size=num_streams))
        self._mixture = next((pipe for pipe in reversed(all_pipes(chain)) if hasattr(type(pipe), "replay_to")), None)
        if self._start is not None:
            with self._refusing_damage(by_any_pipe=True):
                load_state(chain, self._start["at"])
                if self._mixture is not None:
                    self._mixture.replay_to(self._start.get("replay"))
        return chain

    def warm_up(self, chain: IterDataPipe[Any]) -> Iterator[None]:
        """Warm up the chain: yield after each step, so that several streams can be warmed up concurrently."""
        with self._refusing_damage():
            yield from warm_up(chain)

    def items(self, chain: IterDataPipe[Any]) -> Generator[Any, None, None]:
        """The items from the start position on."""
        with self._refusing_damage():
            for item in chain:
                self._chain = chain
                self.num_passed += 1
                yield item
        self.ended = True

    @contextmanager
    def _refusing_damage(self, *, by_any_pipe: bool = False) -> Iterator[None]:
        """Raise a ``StateError`` if a pipe of this package fails to start at the loaded position.

        Errors of functions of the user, which these pipes call, are not changed.
        """
        try:
            yield
        except _DAMAGE_ERRORS as error:
            has_started = self._start is None or self._chain is not None
            if has_started or _is_of_the_data(error) or not (by_any_pipe or raised_here(error)):
                raise
            cause = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise StateError(
                f"Stream {self.number}: the chain cannot begin at {self._start!r:.300} ({cause}). The state is "
                "damaged: load another one."
            ) from error

    def num_left(self, template: ChainTemplate, num_streams: int) -> int:
        """Count the items from the start position on.

        Raises:
            TypeError: if the chain has no length.
        """
        chain = template.stream(World(rank=self.number, world_size=num_streams))
        if self.ended:
            return 0
        try:
            return len(chain) - self.num_passed
        except TypeError as error:
            raise TypeError(
                f"{name_of(chain)} has no length ({error}). Chain equalize_ranks(), which takes it from the manifest, "
                "or count steps instead of epochs."
            ) from error

    def state(self) -> Any:
        """The position after the last item."""
        if self.ended:
            return ENDED
        if self._chain is None:
            return self._start
        if self._known[0] != self.num_passed:
            state = {"passed": self.num_passed, "at": state_of(self._chain)}
            if self._mixture is not None:
                state["replay"] = self._mixture.replay_point()
            self._known = self.num_passed, state
        return self._known[1]


class EpochRun:
    """One pass over the streams of this process."""

    def __init__(self, template: ChainTemplate, epoch: int, num_streams: int, streams: list[Stream]) -> None:
        self.template, self.epoch, self.num_streams, self._streams = template, epoch, num_streams, streams
        self.listing: list[dict[str, Any]] | None = None
        self._has_started = False
        self._failed: str | None = None

    def has_started(self, epoch: int) -> bool:
        """Whether this is a pass of that epoch, from which items were requested."""
        return self._has_started and self.epoch == epoch

    def is_pending(self, epoch: int) -> bool:
        """Whether this is a pass of that epoch without requests: trainers call ``set_epoch`` after ``iter``."""
        return not self._has_started and self.epoch == epoch

    def items(self, expected_listing: list[Any] | None) -> Iterator[Any]:
        """Yield the items of all streams: always of the stream that has handed out least."""
        self._has_started = True
        try:
            with with_own_arguments():
                yield from self._items(expected_listing)
        except GeneratorExit:  # between two items
            raise
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise

    def _items(self, expected_listing: list[Any] | None) -> Iterator[Any]:
        listings = self.template.listings
        self.listing = self.template.fingerprints()
        if expected_listing is not None:
            advice = "Objects were added, removed or replaced since the state was saved: restore them, or begin anew."
            check_same_listing(expected_listing, self.listing, advice, names=lambda number: listings[number].names())
        streams = [stream for stream in self._streams if not stream.ended]
        chains = [stream.open(self.template, self.num_streams) for stream in streams]
        own = [found for found in all_pipes(self.template.pipe) if isinstance(found, DataPipe)]
        for pipe in own:
            pipe.forget_skipped()
        if len(streams) == 1:
            yield from streams[0].items(chains[0])
        else:
            for _ in take_together(map(Stream.warm_up, streams, chains)):
                pass
            yield from _round_robin(streams, chains)
        for pipe in own:
            pipe.warn_of_skipped()

    def state(self) -> dict[int, Any]:
        """The position of each stream."""
        if self._failed is not None:
            raise StateError(
                f"The pass ended by an error, in the middle of a sample: resume from a state that was saved before it. "
                f"({self._failed})"
            )
        return {stream.number: stream.state() for stream in self._streams}

    def saved(self, chain: Sequence[str]) -> State:
        """The state after the last item: of a chain with this description."""
        return make_state(chain, self.listing, self.epoch, self.num_streams, self.state())


def _round_robin(streams: Sequence[Stream], chains: Sequence[IterDataPipe[Any]]) -> Iterator[Any]:
    """Yield an item of the stream that has handed out least, again and again."""
    waiting = [
        (stream.num_passed, stream.number, stream.items(chain)) for stream, chain in zip(streams, chains, strict=True)
    ]
    heapq.heapify(waiting)
    try:
        while waiting:
            num_passed, number, items = waiting[0]
            for item in items:
                heapq.heapreplace(waiting, (num_passed + 1, number, items))
                yield item
                break
            else:
                heapq.heappop(waiting)
    finally:
        for _, _, items in waiting:
            items.close()


def num_left(template: ChainTemplate, num_streams: int, own: Iterable[int], positions: Mapping[int, Any]) -> int:
    """Count the items that a slot has left.

    Args:
        template: of the chain.
        num_streams: of all slots.
        own: those of the slot.
        positions: at which streams start; the others start at their beginning.

    Raises:
        TypeError: if the chain has no length.
    """
    return sum(Stream(number, positions.get(number)).num_left(template, num_streams) for number in own)


def start_of(number: int, positions: Mapping[int, Any] | None) -> Any:
    """The position at which a stream starts; ``None`` for its beginning.

    Raises:
        StateError: if the stream is not among the positions.
    """
    if positions is None:
        return None
    if number not in positions:
        raise StateError(
            f"The state has no stream {number}: it is of one slot. Merge the states of all ranks by merge_states()."
        )
    return positions[number]
