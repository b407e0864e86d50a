"""One pass over the streams that a process carries: an item of each by turns."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.frameworks.call_stack import raised_here
from ..core.iter_datapipe import IterDataPipe
from ..core.world import World
from ..errors import RemoteDataError, StateError
from ..pipes.base.chain import load_state, state_of, take_together, warm_up
from .state.state_format import ENDED, check_same_listing
from .stream_copies import ChainTemplate

# What comes of a value of another kind than expected, and of a number out of bounds.
_OF_DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class Stream:
    """One stream of a pass.

    Args:
        number: among all streams.
        at: where it begins, as a state tells it.
    """

    def __init__(self, number: int, at: Any) -> None:
        self.number, self._at = number, at
        self.ended = at == ENDED
        self.num_passed: int = at["passed"] if isinstance(at, Mapping) else 0
        self._chain: IterDataPipe[Any] | None = None

    def open(self, template: ChainTemplate, num_streams: int) -> IterDataPipe[Any]:
        """The chain that reads it."""
        chain = template.stream(World(rank=self.number, world_size=num_streams))
        if self._at is not None:
            with self._refusing_damage(by_any_pipe=True):
                load_state(chain, self._at["at"])
        return chain

    def begin(self, chain: IterDataPipe[Any]) -> Iterator[None]:
        """Bring what its first item needs, in steps."""
        with self._refusing_damage():
            yield from warm_up(chain)

    def items(self, chain: IterDataPipe[Any]) -> Generator[Any, None, None]:
        """Its items, from where it begins."""
        with self._refusing_damage():
            for item in chain:
                self._chain = chain
                self.num_passed += 1
                yield item
        self.ended = True

    @contextmanager
    def _refusing_damage(self, *, by_any_pipe: bool = False) -> Iterator[None]:
        """Raise a ``StateError`` where a chain cannot begin with the place, as the error of one of our pipes shows.

        A function of the user is called by our pipes, too: its errors are raised as they are.
        """
        try:
            yield
        except _OF_DAMAGE as error:
            has_begun = self._at is None or self._chain is not None
            if has_begun or isinstance(error, RemoteDataError) or not (by_any_pipe or raised_here(error)):
                raise
            what = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise StateError(
                f"Stream {self.number}: the chain cannot begin at {self._at!r:.300} ({what}). The state is damaged: "
                "load another one."
            ) from error

    def num_left(self, template: ChainTemplate, num_streams: int) -> int:
        """How many items it has from where it begins.

        Raises:
            TypeError: if the chain does not tell its length.
        """
        chain = template.stream(World(rank=self.number, world_size=num_streams))
        return 0 if self.ended else len(chain) - self.num_passed

    def state(self) -> Any:
        """Where it is."""
        if self.ended:
            return ENDED
        return self._at if self._chain is None else {"passed": self.num_passed, "at": state_of(self._chain)}


class EpochRun:
    """One pass over the streams of this process."""

    def __init__(self, template: ChainTemplate, epoch: int, num_streams: int, streams: list[Stream]) -> None:
        self._template, self.epoch, self.num_streams, self._streams = template, epoch, num_streams, streams
        self.listing: list[dict[str, Any]] | None = None
        self._has_begun = False
        self._failed: str | None = None

    def has_begun_epoch(self, epoch: int) -> bool:
        """Whether it is of this epoch and was asked for items."""
        return self._has_begun and self.epoch == epoch

    def is_about_to_begin(self, epoch: int) -> bool:
        """Whether it is of this epoch and was not asked for items: trainers announce an epoch after it was begun."""
        return not self._has_begun and self.epoch == epoch

    def items(self, expected_listing: list[Any] | None) -> Iterator[Any]:
        """The items of all streams, by turns: always of the one that has handed out least."""
        self._has_begun = True
        try:
            listings = self._template.listings
            self.listing = self._template.fingerprints()
            if expected_listing is not None:
                advice = (
                    "Objects were added, removed or replaced since the state was saved: restore them, or begin anew."
                )
                is_old = any("digest" in listing for listing in expected_listing)
                here = [listing.digest() for listing in listings] if is_old else self.listing
                check_same_listing(expected_listing, here, advice, names=lambda number: listings[number].names())
            streams = [stream for stream in self._streams if not stream.ended]
            chains = [stream.open(self._template, self.num_streams) for stream in streams]
            if len(streams) == 1:
                yield from streams[0].items(chains[0])
            else:
                for _ in take_together(map(Stream.begin, streams, chains)):
                    pass
                yield from _by_turns(streams, chains)
        except GeneratorExit:  # where an item was handed out
            raise
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise

    def state(self) -> dict[int, Any]:
        """Where each stream is."""
        if self._failed is not None:
            raise StateError(
                f"The pass ended by an error, in the middle of a sample: go on from a state that was saved before it. "
                f"({self._failed})"
            )
        return {stream.number: stream.state() for stream in self._streams}


def _by_turns(streams: Sequence[Stream], chains: Sequence[IterDataPipe[Any]]) -> Iterator[Any]:
    """An item of each stream by turns: always of the one that has handed out least."""
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


def place_of(number: int, places: Mapping[int, Any] | None) -> Any:
    """Where a stream begins; ``None`` for its beginning.

    Raises:
        StateError: if it is not among the places.
    """
    if places is None:
        return None
    if number not in places:
        raise StateError(
            f"The state has no stream {number}: it is of one slot. Merge the states of all ranks by merge_states()."
        )
    return places[number]
