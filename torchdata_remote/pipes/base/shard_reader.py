"""Base of the shard readers: input, interleaving, error policy and state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, ClassVar

from ...core.arguments import check
from ...core.arguments.amounts import whole
from ...core.frameworks.collating import check_item
from ...core.iter_datapipe import Filter, IterDataPipe
from ...core.options import FetchOptions, StorageOptions
from ...core.processes.parent_watch import end_worker_with_trainer
from ...core.stats.counters import FETCH, READ
from ...core.stats.timing import timed, timed_runs
from ...core.urls import redact, split_sample_range
from ...errors import RemoteDataError, StateError
from ...fetch.listing.source_argument import pipe_of
from ...fetch.session import FetchSession
from ...fetch.streams import stream_objects
from ...formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler, Skipped, raise_error
from ...formats.grouping import SampleRun
from ...formats.position import Position, ReadPosition
from ...formats.sample import Sample, describe_item
from .chain import Snapshot, all_pipes
from .datapipe import StatefulPipe
from .input_streams import Opened, number_of, open_first, refuse_part, streams_of
from .open_shards import EndedShard, OpenShard, Progress
from .round_robin import round_robin
from .split_guard import SplitReader, require_split


class ShardReader(SplitReader[Sample], StatefulPipe[Sample]):
    """Base of the pipes that read samples from shards. A subclass implements ``runs_in`` for its format.

    The state consists of the open shards in the order of the round robin, each with the position of its next sample,
    and the number of the next shard. Checks across samples, such as that of repeated keys, restart at these positions.

    Args:
        source_datapipe: ``(url, file_like)`` pairs, binary; or bare URLs, which are prefetched.
        on_bad_shard: called with the ``ShardReadError`` of a shard.
        on_bad_member: called with the ``BadMemberError`` of a member.
        interleave: number of shards that are read concurrently, one sample of each in turn.
        storage_options: for bare URLs, in fsspec's vocabulary.
    """

    _functional_name = "shard_reader"
    state_fields: ClassVar[tuple[str, ...]] = ("open", "next")
    reads_parts = False
    """Whether the format can be read from any sample to any other one."""

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        *,
        on_bad_shard: OnBadShard,
        interleave: int,
        storage_options: Mapping[str, Any] | None,
        on_bad_member: OnBadMember = raise_error,
    ) -> None:
        interleave = whole("interleave", interleave)
        self.source_datapipe = pipe_of(source_datapipe, of=self._functional_name)
        self._skipped: Skipped = Skipped()
        for name, policy in {"on_bad_shard": on_bad_shard, "on_bad_member": on_bad_member}.items():
            check.function(name, policy, example="tdr.skip_with_warning")
        self._on_bad_shard, self._on_bad_member, self._interleave = on_bad_shard, on_bad_member, interleave
        self._session = FetchSession(FetchOptions(interleave=interleave), StorageOptions(storage_options))
        self._open_urls: Opened = stream_objects
        self._progress = Progress()
        self._is_followed = False  # whether the state is asked for after each sample
        self._warmed_up: Generator[tuple[str, Any], None, None] | None = None

    def warm_up(self) -> Iterator[None]:
        require_split(self)
        self._warmed_up = open_first(self._streams(self._loaded))
        return iter(())

    def _streams(self, state: Any) -> Generator[tuple[str, Any], None, None]:
        if state is not None:
            again = [[number, Position.from_json(saved).byte] for number, saved in state["open"] if saved is not None]
            state = {"next": state["next"], "again": again}
        return streams_of(self.source_datapipe, self._session, state, self._open_urls)

    def forget_start(self) -> None:
        super().forget_start()
        if self._warmed_up is not None:
            self._warmed_up.close()
            self._warmed_up = None

    def __iter__(self) -> Iterator[Sample]:
        end_worker_with_trainer()
        require_split(self)
        state = self._take_loaded()
        warmed_up, self._warmed_up = self._warmed_up, None
        self.forget_skipped()
        self._progress = progress = Progress(0 if state is None else state["next"])
        with closing(warmed_up or self._streams(state)) as streams:
            try:
                for number, saved in [] if state is None else state["open"]:
                    position = None if saved is None else self._saved_position(saved)
                    progress.open.append(self._opened_again(streams, number, position))
            except BaseException:
                for shard in progress.open:
                    shard.close()
                raise
            with closing(timed(streams, READ, within=FETCH)) as opened:
                shards = self._upcoming(opened, progress)
                with closing(round_robin(shards, self._interleave, progress.open)) as samples:
                    handed_out = progress.followed(samples) if self._is_followed else samples
                    for sample in handed_out:
                        check_item(self, sample, where=describe_item(sample))
                        yield sample
                        break
                    yield from handed_out

    def _upcoming(self, streams: Iterator[tuple[str, Any]], progress: Progress) -> Iterator[OpenShard]:
        for url, stream in streams:
            progress.latest = number_of(stream)
            shard = self._opened(url, stream, None)
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
        for pipe in all_pipes(self.source_datapipe):
            if isinstance(pipe, Filter) and any(getattr(above, "gives_parts", False) for above in all_pipes(pipe)):
                raise RemoteDataError(
                    "filter() after sharding_filter_rank() gets parts of shards here, such as 'part of s3://b/0.tar "
                    "(samples 3 to 9)', and would drop data: put it before sharding_filter_rank()."
                )

    def _opened(self, url: str, stream: Any, position: Position | None) -> OpenShard:
        num_samples: int | None = getattr(url, "num_samples", None)
        url, samples = split_sample_range(url)
        if not self.reads_parts:
            refuse_part(url, samples, type(self).__name__)
        start = Position(getattr(stream, "first_byte", 0)) if position is None else position
        tracked = ReadPosition(start)
        return OpenShard(stream, tracked, self._shard(redact(url), stream, tracked, num_samples))

    def _opened_again(
        self, streams: Iterator[tuple[str, Any]], number: int, position: Position | None
    ) -> OpenShard | EndedShard:
        if position is None:
            return EndedShard(number)
        url, stream = next(streams, ("", None))
        if stream is None or number_of(stream) != number:
            raise StateError(
                f"The state has shard number {number}, which the chain no longer yields: restore the objects."
            )
        return self._opened(url, stream, position)

    def _saved_position(self, saved: Any) -> Any:
        """Decode the position of an open shard."""
        return Position.from_json(saved)

    def _shard(
        self, url: str, stream: Any, position: ReadPosition, num_samples: int | None = None
    ) -> Generator[Sample, None, None]:
        policies = self._on_bad_shard, self._skipped, self._on_bad_member
        try:
            with ShardErrorHandler(url, *policies, num_samples) as guard:
                for run in timed_runs(self.runs_in(url, stream, guard, position), READ, within=FETCH):
                    yield from run
        finally:
            stream.close()

    def _state(self) -> Any:
        return self._progress.state()

    def snapshots(self) -> Callable[[], Snapshot]:
        self._is_followed = True
        return lambda: self._progress.snapshot()

    def order_options(self) -> Mapping[str, Any]:
        return {"interleave": self._interleave}

    def prepare_copy(self, num_streams: int) -> None:
        self._session = self._session.for_lanes(num_streams)

    @abstractmethod
    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> Iterator[SampleRun]:
        """Read the samples of one shard, in runs as those of ``formats.grouping.sample_runs``.

        Args:
            url: without credentials, for samples and errors.
            stream: binary; the caller closes it.
            guard: handles the errors that are raised here by the policy. Pass its ``on_bad_member`` the bad members.
            position: where the stream starts. Update it to where the next sample starts.
        """
