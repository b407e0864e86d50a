"""What the readers of shards have in common: streams or URLs, shards by turns, a policy for bad ones, a state."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from ...core.iter_datapipe import Filter, IterDataPipe
from ...core.options import FetchOptions, StorageOptions
from ...core.parent_watch import end_worker_with_trainer
from ...core.stats.counters import FETCH, READ, timed
from ...core.urls import redact, split_sample_range
from ...errors import RemoteDataError, StateError
from ...fetch.listing.source_argument import pipe_of
from ...fetch.session import FetchSession
from ...formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler, Skipped, raise_error
from ...formats.position import Position, ReadPosition
from ...formats.sample import Sample
from .chain import all_pipes
from .datapipe import StatefulPipe
from .input_streams import known, number_of, part_refused, streams_of, under_way
from .round_robin import round_robin
from .split_guard import SplitReader, require_split


class _OpenShard:
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
        self._stream.close()  # for those that had not begun

    def state(self) -> list[Any]:
        position = self._position.current()
        return [known(number_of(self._stream)), None if position is None else position.to_json()]


class _EndedShard:
    """One that was read to its end, and whose turn has not come since."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __iter__(self) -> Iterator[Sample]:
        return iter(())

    def close(self) -> None:
        pass

    def state(self) -> list[Any]:
        return [self._number, None]


class _Progress:
    """Where a pass is. A copy of a pipe that is sent to another process begins anew."""

    def __init__(self, following: int = 0) -> None:
        self.open: deque[Any] = deque()
        self.latest: int | None = following - 1

    def state(self) -> dict[str, Any]:
        return {"open": [shard.state() for shard in self.open], "next": known(self.latest) + 1}

    def __reduce__(self) -> tuple[type[_Progress], tuple[()]]:
        return _Progress, ()


class ShardReader(SplitReader[Sample], StatefulPipe[Sample]):
    """Base of the pipes that read samples from shards; a format is what ``samples_in`` makes of one.

    The state names the open shards in the order of their turns, each with the place where its next sample begins, and
    the number of the next shard. What is checked across samples, such as keys that come back, begins anew there.

    Args:
        source_datapipe: ``(url, file_like)`` pairs, binary; or bare URLs, which are fetched ahead.
        on_bad_shard: called with the ``ShardReadError`` of a shard.
        on_bad_member: called with the ``BadMemberError`` of a member.
        interleave: shards that are read at once, a sample of each by turns.
        storage_options: for bare URLs, in fsspec's vocabulary.
    """

    _functional_name = "shard_reader"
    reads_parts = False  # whether a format can begin and end between any two samples

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        *,
        on_bad_shard: OnBadShard,
        interleave: int,
        storage_options: Mapping[str, Any] | None,
        on_bad_member: OnBadMember = raise_error,
    ) -> None:
        if interleave < 1:
            raise ValueError(f"interleave is the number of shards read at once, at least 1; got {interleave}.")
        self.source_datapipe = pipe_of(source_datapipe, of=self._functional_name)
        self.skipped = Skipped()
        for name, policy in {"on_bad_shard": on_bad_shard, "on_bad_member": on_bad_member}.items():
            if not callable(policy):
                raise TypeError(f"{name}={policy!r:.200}: expected a function, such as skip_with_warning.")
        self._on_bad_shard, self._on_bad_member, self._interleave = on_bad_shard, on_bad_member, interleave
        self._engine = FetchSession(FetchOptions(interleave=interleave), StorageOptions(storage_options))
        self._progress = _Progress()
        self._begun: Generator[tuple[str, Any], None, None] | None = None

    def warm_up(self) -> Iterator[None]:
        require_split(self)
        self._begun = under_way(self._streams(self._loaded))
        return iter(())

    def _streams(self, state: Any) -> Generator[tuple[str, Any], None, None]:
        if state is not None:
            again = [[number, Position.from_json(saved).byte] for number, saved in state["open"] if saved is not None]
            state = {"next": state["next"], "again": again}
        return streams_of(self.source_datapipe, self._engine, state)

    def __iter__(self) -> Iterator[Sample]:
        end_worker_with_trainer()
        require_split(self)
        state = self._take_loaded()
        begun, self._begun = self._begun, None
        self.skipped = Skipped()
        self._progress = progress = _Progress(0 if state is None else state["next"])
        with closing(begun or self._streams(state)) as streams:
            try:
                for number, saved in [] if state is None else state["open"]:
                    position = None if saved is None else Position.from_json(saved)
                    progress.open.append(self._opened_again(streams, number, position))
            except BaseException:
                for shard in progress.open:
                    shard.close()
                raise
            samples = round_robin(self._upcoming(streams, progress), self._interleave, progress.open)
            yield from timed(samples, READ, within=FETCH)

    def _upcoming(self, streams: Iterator[tuple[str, Any]], progress: _Progress) -> Iterator[_OpenShard]:
        for url, stream in streams:
            progress.latest = number_of(stream)
            shard = self._opened(url, stream, None)
            try:
                self._require_all_parts()
            except BaseException:
                shard.close()
                raise
            yield shard
        self._require_all_parts()  # where none was left

    def _require_all_parts(self) -> None:
        """Refuse a filter that decides by URLs that it cannot know.

        Raises:
            RemoteDataError: if there is one between this and a split of shards by samples.
        """
        for pipe in all_pipes(self.source_datapipe):
            if isinstance(pipe, Filter) and any(getattr(above, "gives_parts", False) for above in all_pipes(pipe)):
                raise RemoteDataError(
                    "filter() behind sharding_filter_rank() is given URLs such as samples+3-9+s3://b/0.tar+samples+3-9 "
                    "here, of parts of shards, and one that leaves them out would leave out data: put it before "
                    "sharding_filter_rank()."
                )

    def _opened(self, url: str, stream: Any, position: Position | None) -> _OpenShard:
        url, samples = split_sample_range(str(url))
        if samples is not None and not self.reads_parts:
            raise part_refused(url, type(self).__name__)
        start = Position(getattr(stream, "first_byte", 0)) if position is None else position
        tracked = ReadPosition(start)
        return _OpenShard(stream, tracked, self._shard(redact(url), stream, tracked))

    def _opened_again(
        self, streams: Iterator[tuple[str, Any]], number: int, position: Position | None
    ) -> _OpenShard | _EndedShard:
        if position is None:
            return _EndedShard(number)
        url, stream = next(streams, ("", None))
        if stream is None or number_of(stream) != number:
            raise StateError(f"The state tells of shard number {number}, which the chain hands out no longer.")
        return self._opened(url, stream, position)

    def _shard(self, url: str, stream: Any, position: ReadPosition) -> Generator[Sample, None, None]:
        try:
            with ShardErrorHandler(url, self._on_bad_shard, self.skipped, self._on_bad_member) as guard:
                yield from self.samples_in(url, stream, guard, position)
        finally:
            stream.close()

    def _state(self) -> Any:
        return self._progress.state()

    def order_options(self) -> Mapping[str, Any]:
        return {"interleave": self._interleave}

    def prepare_copy(self, num_streams: int) -> None:
        self._engine = self._engine.for_lanes(num_streams)

    @abstractmethod
    def samples_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> Iterator[Sample]:
        """The samples of one shard.

        Args:
            url: as samples and errors may show it.
            stream: binary; whoever calls closes it.
            guard: is entered, and asks the policy about what leaves here. Its ``on_bad_member`` is to be asked about
                bad members.
            position: where the stream starts; to be updated to where the next sample begins.
        """
