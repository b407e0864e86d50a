"""One pass over the streams of a process: passes over shares of one chain, by turns."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..core.iter_datapipe import Batcher, Filter, IterableWrapper, IterDataPipe, Mapper
from ..errors import RemoteDataError, StateError
from ..pipes.chain import all_pipes, name_of, sources_of
from ..pipes.datapipe import DataPipe, end_pass, gives_urls, listed_pipes
from ..pipes.env import Env, Marks, Shared
from ..pipes.passes import Pass
from ..pipes.shares import Share, marks_from_json, marks_to_json
from ..pipes.shuffle import shuffles_samples
from ..pipes.slots import length_of
from ..pipes.split import are_indexed
from .listings import Listed
from .loader_options import BatchOptions
from .state.fingerprints import Fingerprint, fingerprint, sorted_names
from .state.state_format import ENDED, Row, State, check_same_listing, make_state

_INSTEAD = {
    "Shuffler": "shuffle_samples(), or shuffle_shards() for URLs",
    "ShardingFilter": "sharding_filter_rank()",
    "UnBatcher": "flat_map(list), or batch() only once",
    "FlatMapper": "flat_map()",
    "ShuffledFlatMapper": "flat_map(), and shuffle_samples()",
    "Cycler": "repeat_epochs()",
    "Repeater": "flat_map() with a function that returns [item] * times; pipes.RepeatEpochs repeats passes",
    "Header": "take()",
    "BucketBatcher": "bucket()",
    "MaxTokenBucketizer": "bucket(max_tokens=...)",
    "Concater": "list_remote() with several sources, or mix()",
    "SampleMultiplexer": "mix()",
    "Multiplexer": "mix()",
    "Zipper": "one chain whose samples have all members",
    "Prefetcher": "async_prefetch()",
    "PinMemory": "stateful_loader(), which pins memory by itself",
    "WriteShards": "a plain DataLoader: writing is not resumed",
}


def check_resumable(pipe: IterDataPipe[Any]) -> None:
    """Check that each pipe of a chain can be resumed.

    Raises:
        StateError: if a pipe cannot; names it and what to use instead.
    """
    for found in all_pipes(pipe):
        if isinstance(found, DataPipe):
            found.require_resumable()
        is_known = isinstance(found, DataPipe | Mapper | Filter | Batcher | IterableWrapper) or gives_urls(found)
        name = name_of(found)
        if name in _INSTEAD or not (is_known or hasattr(type(found), "state_dict")):
            instead = _INSTEAD.get(
                name, "torch's map, filter, batch or collate, or give it state_dict and load_state_dict"
            )
            raise StateError(f"{name} cannot be resumed where it was. Use instead: {instead}.")
        if isinstance(found, IterableWrapper) and isinstance(found.iterable, Iterator):
            raise StateError(
                "IterableWrapper holds an iterator, which can be read once only. Pass a list of its items."
            )


def is_sharded(pipe: IterDataPipe[Any]) -> bool:
    """Whether all listings of a chain are split."""
    if hasattr(type(pipe), "current_world"):
        return True
    sources = list(sources_of(pipe))
    return bool(sources) and all(map(is_sharded, sources))


class Chain:
    """A chain that the streams of this process read in one epoch.

    Args:
        pipe: the last one.
        epoch: of the passes.
        num_streams: that this process reads at the same time.
        listed: what another process has listed, or its error, which :meth:`fingerprints` raises; ``None`` lists here.
        options: of the loader, for pipes that take them.
    """

    def __init__(
        self,
        pipe: IterDataPipe[Any],
        epoch: int,
        num_streams: int = 1,
        listed: Listed | Exception | None = None,
        options: BatchOptions | None = None,
    ) -> None:
        self.pipe, self.epoch, self._listed = pipe, epoch, listed
        self.pipes, listed_here = all_pipes(pipe), listed_pipes(pipe)
        self._unshuffled = [found for found, by_epoch in listed_here if not by_epoch]
        threads, rows = (0, None) if options is None else (options.num_threads or 0, options.rows())
        self.shared = Shared(
            self.pipes, listed_here, num_streams=num_streams, num_threads=threads, rows=rows, is_saved=True
        )
        if isinstance(listed, Listed):
            for found, urls in zip(self._unshuffled, listed.urls, strict=True):
                self.shared.once(id(found), (), lambda urls=urls: urls)  # type: ignore[misc]

    def env(self, share: Share, resumed: Mapping[int, Any] | None = None) -> Env:
        """The environment of a stream."""
        return Env(self.shared, share=share, epoch=(self.epoch,), marks=Marks(resumed))

    def urls(self) -> list[Sequence[Any]]:
        """Each listing, before it is shuffled by epoch: its order determines that of all epochs."""
        return [self.env(Share()).whole(found) for found in self._unshuffled]

    def fingerprints(self) -> list[Fingerprint]:
        """The fingerprint of each listing; lists if nothing was listed before."""
        if isinstance(self._listed, Exception):
            raise self._listed
        if self._listed is not None:
            return self._listed.fingerprints
        is_shuffled = shuffles_samples(self.pipe)
        return [fingerprint(urls, by_samples=is_shuffled and are_indexed(urls)) for urls in self.urls()]

    def names(self, number: int) -> list[str]:
        """The redacted URLs of a listing, in the order of its fingerprint's values."""
        return sorted_names(self.urls()[number])

    def listed(self) -> Listed:
        """The listing for other processes, so that they need not list."""
        return Listed([list(urls) for urls in self.urls()], self.fingerprints())

    def outcome(self) -> Listed | Exception:
        """The listing without fingerprints, or the error that was raised instead, and that the pass then raises."""
        if not isinstance(self._listed, Exception):
            try:
                return Listed([list(urls) for urls in self.urls()], [])
            except RemoteDataError as error:
                self._listed = error
        return self._listed

    def length(self, share: Share) -> int:
        """Count the items of a share.

        Raises:
            TypeError: if the chain has no length.
        """
        try:
            return length_of(self.pipe, self.env(share))
        except TypeError as error:
            raise TypeError(f"{name_of(self.pipe)} has no length: {error}. Count steps instead of epochs.") from error


class Stream:
    """One stream of a pass.

    Args:
        number: among all streams.
        share: of the data.
        start: its place in the loaded state; ``None`` for the beginning.
    """

    def __init__(self, number: int, share: Share, start: Any = None) -> None:
        self.number, self.share, self._start = number, share, start
        self.ended = start == ENDED
        self.num_passed: int = start["passed"] if isinstance(start, Mapping) else 0
        self._env: Env | None = None
        self.pass_: Pass[Any] | None = None
        self._has_items = False

    def open(self, chain: Chain) -> Pass[Any]:
        """Make the pass over the share, from the place in the state on."""
        resumed = marks_from_json(self._start["marks"]) if isinstance(self._start, Mapping) else {}
        self._env = chain.env(self.share, resumed)
        self.pass_ = self._env.open(chain.pipe)
        if self._start is not None:
            self.pass_.resume(self._start["at"])
        return self.pass_

    def count(self) -> int:
        """Count an item that is handed out."""
        self._has_items = True
        self.num_passed += 1
        return self.num_passed

    def row(self) -> Row:
        """The place after the last item, for a state."""
        return self.captured()()

    def captured(self) -> Callable[[], Row]:
        """Capture the place after the last item; the returned function makes the row of it."""
        if self._has_items and not self.ended and self.pass_ is not None and self._env is not None:
            return partial(self._row, (self.num_passed, self.pass_.position, self._env.marks.now()))
        return partial(self._row, ENDED if self.ended else self._start)

    def _row(self, place: Any) -> Row:
        if isinstance(place, tuple):
            passed, at, marks = place
            place = {"passed": passed, "at": at, "marks": marks_to_json(marks)}
        return [self.number, place, *([self.share.to_json()] if self.share.cuts else [])]


class EpochRun:
    """One pass over the streams of this process."""

    def __init__(self, chain: Chain, num_streams: int, streams: list[Stream]) -> None:
        self.chain, self.epoch, self.num_streams, self._streams = chain, chain.epoch, num_streams, streams
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
            yield from self._items(expected_listing)
        except GeneratorExit:  # between two items
            raise
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise

    def _items(self, expected_listing: list[Any] | None) -> Iterator[Any]:
        chain = self.chain
        self.listing = chain.fingerprints()
        if expected_listing is not None:
            advice = "Objects were added, removed or replaced since the state was saved: restore them, or begin anew."
            check_same_listing(expected_listing, self.listing, advice, names=chain.names)
        waiting: list[tuple[int, int, Iterator[Any], Stream]] = []
        try:
            waiting.extend(
                (stream.num_passed, stream.number, iter(stream.open(chain)), stream)
                for stream in self._streams
                if not stream.ended
            )
            for *_, stream in waiting if len(waiting) > 1 else ():
                assert stream.pass_ is not None
                stream.pass_.start()
            heapq.heapify(waiting)
            while waiting:
                _, number, items, stream = waiting[0]
                for item in items:
                    passed = stream.count()
                    yield item
                    del item
                    if len(waiting) > 1:
                        heapq.heapreplace(waiting, (passed, number, items, stream))
                        break
                else:
                    stream.ended = True
                    heapq.heappop(waiting)
            end_pass(chain.shared)
        finally:
            for stream in self._streams:
                if stream.pass_ is not None:
                    stream.pass_.close()

    def capture(self, chain: Sequence[str]) -> Callable[[], State]:
        """Capture where all streams are, at little cost; the returned function makes the state of it.

        Args:
            chain: its description.

        Raises:
            StateError: after an error.
        """
        if self._failed is not None:
            raise StateError(
                f"The pass ended by an error, in the middle of a sample: resume from a state that was saved before it. "
                f"({self._failed})"
            )
        rows = [stream.captured() for stream in self._streams]
        return partial(self._state, chain, self.listing, rows)

    def _state(self, chain: Sequence[str], listing: Any, rows: Sequence[Callable[[], Row]]) -> State:
        return make_state(chain, listing, self.epoch, self.num_streams, [row() for row in rows])
