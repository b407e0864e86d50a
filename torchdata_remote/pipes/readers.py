"""Base of the shard readers: input, interleaving, error policy and position."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from ..core import arguments as check
from ..core.arguments import whole
from ..core.iter_datapipe import Filter, IterDataPipe
from ..core.options import FetchOptions, StorageOptions
from ..core.stats import FETCH, READ, timed, timed_runs
from ..core.urls import LineRange, VirtualUrl, redact, split_sample_range
from ..errors import RemoteDataError, StateError
from ..fetch.jumps import stream_by_jumps
from ..fetch.streams import stream_objects
from ..formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler, raise_error
from ..formats.grouping import SampleRun
from ..formats.position import Position, ReadPosition
from ..formats.sample import Sample
from .chain import all_pipes, functional_name, splits_of
from .datapipe import SourcePipe
from .env import Env
from .passes import Pass
from .streams import AsyncPrefetch, InputPass, UrlsAhead, number_of, refuse_part


class StreamReader(SourcePipe[Sample]):
    """Base of the pipes that read samples from streams, or from bare URLs, which they open.

    Args:
        source_datapipe: ``(url, file_like)`` pairs, binary; or bare URLs, which are prefetched.
        options: for bare URLs.
        storage_options: for bare URLs, in fsspec's vocabulary.
    """

    reads_data = True

    def __init__(
        self, source_datapipe: IterDataPipe[Any], options: FetchOptions, storage_options: Mapping[str, Any] | None
    ) -> None:
        super().__init__(source_datapipe)
        self._options, self._storage_options = options, StorageOptions(storage_options)

    def input_of(self, env: Env) -> Pass[tuple[str, Any]]:
        """Make the pass over the streams."""
        session = env.shared.session(self, self._options, self._storage_options)
        opened = stream_by_jumps if env.by_jumps else stream_objects
        return InputPass(UrlsAhead(self, env), lambda urls, state: opened(urls, session, state))


class ShardReader(StreamReader):
    """Base of the pipes that read samples from shards. A subclass has a pass with ``runs_in`` for its format.

    Args:
        source_datapipe: as of ``StreamReader``.
        on_bad_shard: called with the ``ShardReadError`` of a shard.
        on_bad_member: called with the ``BadMemberError`` of a member.
        interleave: number of shards that are read concurrently, one sample of each in turn.
        storage_options: for bare URLs, in fsspec's vocabulary.
        **options: further ones for bare URLs.
    """

    order_names: Sequence[str] = ("interleave",)

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        *,
        on_bad_shard: OnBadShard,
        interleave: int,
        storage_options: Mapping[str, Any] | None,
        on_bad_member: OnBadMember = raise_error,
        **options: Any,
    ) -> None:
        self.interleave = whole("interleave", interleave)
        super().__init__(source_datapipe, FetchOptions(interleave=self.interleave, **options), storage_options)
        self.on_bad_shard = check.function("on_bad_shard", on_bad_shard, example="tdr.skip_with_warning")
        self.on_bad_member = check.function("on_bad_member", on_bad_member, example="tdr.skip_with_warning")

    @property
    def is_counted(self) -> bool:
        """Whether it yields as many samples as a manifest counts."""
        return self.on_bad_shard is raise_error and self.on_bad_member is raise_error

    def env_of_split(self, env: Env) -> Env:
        """The environment in which shards are split: by samples, if these are shuffled, and no user meets the parts."""
        return replace(env, by_samples=env.is_shuffled and self._split() is not None)

    def length(self, env: Env) -> int:
        """Count the samples of the share of a stream.

        Raises:
            TypeError: if they are not known before they are read.
        """
        split = self._split()
        if env.share is None or split is None:
            raise TypeError(f"{functional_name(type(self))} is counted by loaders, right behind sharding_filter_rank()")
        if not self.is_counted:
            raise TypeError(f"{functional_name(type(self))} may yield other samples than the manifest counts")
        num_samples: int = split.open(self.env_of_split(env)).count()
        return num_samples

    def _split(self) -> Any:
        """The pipe that splits the shards, if only ``async_prefetch`` is between."""
        pipe = self.source_datapipe
        while isinstance(pipe, AsyncPrefetch):
            pipe = pipe.source_datapipe
        return pipe if hasattr(type(pipe), "current_world") else None


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
        super().__init__(pipe.input_of(pipe.env_of_split(env)))
        self.pipe, self._env, self.skipped = pipe, env, env.shared.skipped(pipe)
        self._open: deque[Any] = deque()
        self._next: int | None = 0  # number of the shard that is opened next
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
        self._next, places = position
        self._places.extend(places)
        self._num_known = 0
        again = [[number, self.first_byte(place)] for number, place in places if place is not None]
        self.sources[0].seek({"next": self._next, "again": again})

    def first_byte(self, place: Any) -> Any:
        """Where a shard is opened to continue at a place: the first field of it."""
        return place[0]

    @property
    def position(self) -> Any:
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
        return self._next, tuple(places)

    def items(self) -> Iterator[Sample]:
        opened = self._open
        with closing(iter(self.sources[0])) as streams:  # type: ignore[type-var]  # a generator
            try:
                for number, place in self._places:
                    opened.append(self._opened_again(streams, number, place))
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
            number = number_of(stream)
            self._next = None if number is None else number + 1
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
        if any(isinstance(pipe, Filter) and splits_of(pipe) for pipe in all_pipes(self.pipe.source_datapipe)):
            raise RemoteDataError(
                "filter() after sharding_filter_rank() gets parts of shards here, such as 'part of s3://b/0.tar "
                "(samples 3 to 9)', and would drop data: put it before sharding_filter_rank()."
            )

    def opened(self, url: str, stream: Any, place: Any) -> OpenShard:
        """Open a shard, at a place of a saved position or at its beginning."""
        num_samples: int | None = getattr(url, "num_samples", None)
        if isinstance(url, LineRange) or (isinstance(url, VirtualUrl) and not self.reads_parts):
            refuse_part(url, type(self.pipe).__name__)
        url, _ = split_sample_range(url)
        start = Position(getattr(stream, "first_byte", 0)) if place is None else Position.from_json(place)
        tracked = ReadPosition(start)
        return OpenShard(number_of(stream), stream, self.samples_of(redact(url), stream, tracked, num_samples), tracked)

    def _opened_again(self, streams: Iterator[tuple[str, Any]], number: int, place: Any) -> OpenShard:
        if place is None:
            ended = (sample for sample in "")  # a generator, which can be closed
            return OpenShard(number, ended, ended)
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
    """A shard that is being read, or one that is exhausted, but still in the queue of turns.

    Args:
        number: of its stream.
        stream: its bytes.
        samples: those that are left.
        position: of the next sample; ``None`` for no more.
    """

    def __init__(self, number: int | None, stream: Any, samples: Any, position: Any = None) -> None:
        self._number, self._stream, self._samples, self._position = number, stream, samples, position

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    def close(self) -> None:
        self._samples.close()
        self._stream.close()  # a generator that was not started does not close it

    def place(self) -> tuple[int | None, Any]:
        position = self._position and self._position.current()
        return self._number, position and position.to_json()


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
