"""Base of the shard readers: input, interleaving, error policy and position."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, TypeVar

from ..core.arguments import check
from ..core.arguments.amounts import whole
from ..core.iter_datapipe import Filter, IterDataPipe
from ..core.options import FetchOptions, StorageOptions
from ..core.stats.counters import FETCH, READ
from ..core.stats.timing import timed, timed_runs
from ..core.urls import redact, split_sample_range
from ..errors import RemoteDataError, StateError
from ..fetch.listing.source_argument import pipe_of
from ..fetch.session import FetchSession
from ..fetch.streams import stream_objects
from ..formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler, raise_error
from ..formats.grouping import SampleRun
from ..formats.position import Position, ReadPosition
from ..formats.sample import Sample
from .chain import all_pipes, functional_name
from .datapipe import DataPipe
from .env import Env
from .passes import Pass
from .streams import InputPass, Opened, UrlsAhead, number_of, refuse_part

T = TypeVar("T")


class ShardReader(DataPipe[Sample]):
    """Base of the pipes that read samples from shards. A subclass has a pass with ``runs_in`` for its format.

    Args:
        source_datapipe: ``(url, file_like)`` pairs, binary; or bare URLs, which are prefetched.
        on_bad_shard: called with the ``ShardReadError`` of a shard.
        on_bad_member: called with the ``BadMemberError`` of a member.
        interleave: number of shards that are read concurrently, one sample of each in turn.
        storage_options: for bare URLs, in fsspec's vocabulary.
    """

    reads_data = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        *,
        on_bad_shard: OnBadShard,
        interleave: int,
        storage_options: Mapping[str, Any] | None,
        on_bad_member: OnBadMember = raise_error,
    ) -> None:
        super().__init__()
        self.interleave = whole("interleave", interleave)
        self.source_datapipe = pipe_of(source_datapipe, of=functional_name(type(self)))
        for name, policy in {"on_bad_shard": on_bad_shard, "on_bad_member": on_bad_member}.items():
            check.function(name, policy, example="tdr.skip_with_warning")
        self.on_bad_shard, self.on_bad_member = on_bad_shard, on_bad_member
        self._options, self._storage_options = FetchOptions(interleave=self.interleave), StorageOptions(storage_options)

    def input_of(self, env: Env) -> Pass[tuple[str, Any]]:
        """Make the pass over the streams of shards."""
        session = env.shared.session(self, self._options, self._storage_options)
        return InputPass(UrlsAhead(self, env), self.opener_of(session, env))

    def opener_of(self, session: FetchSession, env: Env) -> Opened:
        """Return the function that opens bare URLs."""
        return lambda urls, state: stream_objects(urls, session, state)

    def order_options(self) -> Mapping[str, Any]:
        return {"interleave": self.interleave}


class ShardPass(Pass[Sample]):
    """Samples of shards.

    The position has the open shards in the order of their turns, each with the place of its next sample, and the number
    of the next shard. Checks across samples, such as that of repeated keys, restart there.

    Args:
        pipe: that reads.
        env: of the pass.
    """

    reads_parts = False
    """Whether the format can be read from any sample to any other one."""

    def __init__(self, pipe: Any, env: Env) -> None:
        super().__init__(pipe.input_of(env))
        self.pipe, self._env, self.skipped = pipe, env, env.shared.skipped(pipe)
        self._saved: Any = None
        self._open: deque[Any] = deque()
        self._latest: int | None = -1  # number of the last shard that was opened
        self._num_passed = 0
        # Places of the open shards after so many samples: asked for after each one, only one shard has moved
        self._places: deque[Any] = deque()
        self._num_known: int | None = None

    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> Iterator[SampleRun]:
        """Read the samples of one shard, in runs as those of ``formats.grouping.sample_runs``.

        Args:
            url: without credentials, for samples and errors.
            stream: binary; the caller closes it.
            guard: handles the errors that are raised here by the policy. Pass its ``on_bad_member`` the bad members.
            position: where the stream starts. Update it to where the next sample starts.
        """
        raise NotImplementedError

    def seek(self, position: Any) -> None:
        following, opened = position
        self._saved, self._latest = opened, following - 1
        again = [[number, self.first_byte(place)] for number, place in opened if place is not None]
        self.sources[0].seek({"next": following, "again": again})

    def first_byte(self, place: Any) -> int:
        """Where a shard is opened to continue at a place."""
        return Position.from_json(place).byte

    @property
    def position(self) -> Any:
        if self._saved is not None and not self._open:
            return self._latest + 1, self._saved  # type: ignore[operator]  # before the first sample
        opened, places = self._open, self._places
        num_since = None if self._num_known is None else self._num_passed - self._num_known
        if num_since == 1:  # the last one has moved; those that are exhausted were the first
            places.append(opened[-1].place())
            while len(places) > len(opened):
                places.popleft()
        elif num_since != 0:
            places.clear()
            places.extend(shard.place() for shard in opened)
        self._num_known = self._num_passed
        return self._latest + 1 if self._latest is not None else None, tuple(places)

    def items(self) -> Iterator[Sample]:
        saved, opened = self._saved, self._open
        with closing(iter(self.sources[0])) as streams:  # type: ignore[type-var]  # a generator
            try:
                for number, place in saved or ():
                    opened.append(_EndedShard(number) if place is None else self._opened_again(streams, number, place))
                self._saved = None
            except BaseException:
                for shard in opened:
                    shard.close()
                raise
            with (
                closing(timed(streams, READ, within=FETCH)) as streams_of_pass,
                closing(_by_turns(self._upcoming(streams_of_pass), self.pipe.interleave, opened)) as samples,
            ):
                for self._num_passed, sample in enumerate(samples, 1):
                    yield sample
            self._num_known = None  # nothing is open

    def _upcoming(self, streams: Iterator[tuple[str, Any]]) -> Iterator[OpenShard]:
        for url, stream in streams:
            self._latest = number_of(stream)
            shard = self.opened(url, stream, None)
            try:
                self._require_all_parts()
            except BaseException:
                shard.close()
                raise
            yield shard
        self._require_all_parts()  # also where the filter dropped all URLs

    def _require_all_parts(self) -> None:
        """Refuse a filter on URLs of parts of shards, which users do not know.

        Raises:
            RemoteDataError: if there is a filter between this pipe and a split of shards by samples.
        """
        if not any(getattr(pass_, "gives_parts", False) for _, pass_ in self._env.marks.passes.values()):
            return
        for pipe in all_pipes(self.pipe.source_datapipe):
            if isinstance(pipe, Filter) and any(hasattr(type(above), "current_world") for above in all_pipes(pipe)):
                raise RemoteDataError(
                    "filter() after sharding_filter_rank() gets parts of shards here, such as 'part of s3://b/0.tar "
                    "(samples 3 to 9)', and would drop data: put it before sharding_filter_rank()."
                )

    def opened(self, url: str, stream: Any, place: Any) -> OpenShard:
        """Open a shard, at a place of a saved position or at its beginning."""
        num_samples: int | None = getattr(url, "num_samples", None)
        url, samples = split_sample_range(url)
        if not self.reads_parts:
            refuse_part(url, samples, type(self.pipe).__name__)
        start = Position(getattr(stream, "first_byte", 0)) if place is None else Position.from_json(place)
        tracked = ReadPosition(start)
        return OpenShard(stream, tracked, self.samples_of(redact(url), stream, tracked, num_samples))

    def _opened_again(self, streams: Iterator[tuple[str, Any]], number: int, place: Any) -> OpenShard:
        url, stream = next(streams, ("", None))
        if stream is None or number_of(stream) != number:
            raise StateError(
                f"The state has shard number {number}, which the chain no longer yields: restore the objects."
            )
        return self.opened(url, stream, place)

    def samples_of(
        self, url: str, stream: Any, position: Any, num_samples: int | None
    ) -> Generator[Sample, None, None]:
        """Yield the samples of a shard, by the policies for bad ones."""
        policies = self.pipe.on_bad_shard, self.skipped, self.pipe.on_bad_member
        try:
            with ShardErrorHandler(url, *policies, num_samples) as guard:
                for run in timed_runs(self.runs_in(url, stream, guard, position), READ, within=FETCH):
                    yield from run
        finally:
            stream.close()


class OpenShard:
    """A shard that is being read.

    Args:
        stream: its bytes.
        position: of the next sample.
        samples: those that are left.
    """

    def __init__(self, stream: Any, position: Any, samples: Generator[Sample, None, None]) -> None:
        self._stream, self._position, self._samples = stream, position, samples

    def __iter__(self) -> Iterator[Sample]:
        return self._samples

    def close(self) -> None:
        self._samples.close()
        self._stream.close()  # a generator that was not started does not close it

    def place(self) -> tuple[int | None, Any]:
        position = self._position.current()
        return number_of(self._stream), None if position is None else position.to_json()


class _EndedShard:
    """A shard that is exhausted, but still in the queue of turns, as a state may have saved it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __iter__(self) -> Iterator[Sample]:
        return iter(())

    def close(self) -> None:
        pass

    def place(self) -> tuple[int | None, Any]:
        return self._number, None


def _by_turns(sources: Iterable[Any], num_open: int, waiting: deque[Any]) -> Generator[Any, None, None]:
    """Interleave ``num_open`` shards, one sample of each in turn; the next shard replaces one that is exhausted.

    The order is determined by the lengths of the shards alone. A shard is taken from ``sources`` when its turn comes,
    and all open ones are closed with this generator.

    Args:
        sources: taken one after the other.
        num_open: the number of shards that are open at the same time, at most.
        waiting: the shards that are open already, next in turn first. While a sample is being handled by the consumer,
            it holds all open ones, also those that are exhausted.
    """
    upcoming = iter(sources)
    try:
        while True:
            source = next(upcoming, None) if len(waiting) < num_open else None
            if source is None:
                if not waiting:
                    return
                source = waiting.popleft()
            if num_open == 1:
                waiting.append(source)
                yield from source
                waiting.pop()
                continue
            for item in source:
                waiting.append(source)
                yield item
                break
    finally:
        for source in waiting:
            source.close()
