"""Read joined shards: several streams side by side, merged sample by sample, or views as any shard."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from ...core.shard_view import is_view
from ...core.urls import redact
from ...errors import JoinError
from ...formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler
from ...formats.grouping import SampleRun
from ...formats.merged_runs import MergedSet, merged_runs
from ...formats.position import Position, ReadPosition
from ..base.chain import Snapshot
from ..base.input_streams import number_of, streams_of
from ..base.open_shards import OpenShard
from ..base.typed import IterDataPipe
from ..shard_tar_reader import ShardTarReader

Members = Mapping[str, frozenset[str] | None]


class JoinedTarReader(ShardTarReader):
    """Read the samples of joined shards. Streams come in groups, one of each set; a view is one stream.

    The state has the position in each stream of the open shards, and how many streams a shard has.

    Args:
        source_datapipe: ``(url, file_like)`` pairs.
        members: name of each set -> the extensions to select; ``None`` for all.
        on_bad_shard: as of ``shard_tar_reader``.
        on_bad_member: as of ``shard_tar_reader``.
        interleave: as of ``shard_tar_reader``; number of joined shards.
    """

    state_fields = ("open", "next", "streams")

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        members: Members,
        *,
        on_bad_shard: OnBadShard,
        on_bad_member: OnBadMember,
        interleave: int,
    ) -> None:
        super().__init__(source_datapipe, on_bad_shard=on_bad_shard, on_bad_member=on_bad_member, interleave=interleave)
        self._members = dict(members)
        self._num_streams = 1  # of each shard in the current pass

    def _streams(self, state: Any) -> Generator[tuple[str, Any], None, None]:
        if state is None:
            return self._together(streams_of(self.source_datapipe, self._session, None))
        self._num_streams = num_streams = state["streams"]
        again = [
            [number * num_streams + place, at.byte]
            for number, saved in state["open"]
            if saved is not None
            for place, at in enumerate(self._saved_position(saved))
        ]
        streams = {"next": state["next"] * num_streams, "again": again}
        return self._together(streams_of(self.source_datapipe, self._session, streams))

    def _together(self, streams: Generator[tuple[str, Any], None, None]) -> Generator[tuple[str, Any], None, None]:
        """Group the streams of each shard."""
        with closing(streams):
            for first in streams:
                self._num_streams = 1 if is_view(first[0]) else len(self._members)
                group = [first]
                try:
                    group += islice(streams, self._num_streams - 1)
                    assert len(group) == self._num_streams  # joined URLs hold one for each set
                except BaseException:
                    for _, stream in group:
                        stream.close()
                    raise
                yield first[0], JoinedStream(group)

    def _opened(self, url: str, stream: JoinedStream, position: Any) -> OpenShard:
        starts = [Position(one.first_byte) for one in stream.streams] if position is None else position
        tracked: Any = JoinedPosition([ReadPosition(start) for start in starts])
        num_samples = getattr(url, "num_samples", None)
        return OpenShard(stream, tracked, self._shard(stream.shown[0], stream, tracked, num_samples))

    def _saved_position(self, saved: Any) -> Any:
        if None in saved:
            raise JoinError("The shards of this state have different numbers of samples: pass align='keys'.")
        return [Position.from_json(fields) for fields in saved]

    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: Any) -> Iterator[SampleRun]:
        if len(stream.streams) == 1:
            return super().runs_in(url, stream.streams[0], guard, position.of[0])
        parts = zip(self._members.items(), stream.shown, stream.streams, position.of, strict=True)
        return merged_runs(
            [
                MergedSet(name, one, ShardTarReader.runs_in(self, one, opened, guard, at), members)
                for (name, members), one, opened, at in parts
            ]
        )

    def _state(self) -> Any:
        return {**super()._state(), "streams": self._num_streams}

    def snapshots(self) -> Callable[[], Snapshot]:
        take_open = super().snapshots()

        def take() -> Snapshot:
            at, num_streams = take_open(), self._num_streams
            return lambda: {**at(), "streams": num_streams}

        return take


class JoinedStream:
    """The streams of a joined shard.

    Args:
        pairs: URL and stream of each set.
    """

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        self.shown = [redact(url) for url, _ in pairs]  # shards, as samples and errors name them
        self.streams = [stream for _, stream in pairs]
        number = number_of(self.streams[0])
        self.number = None if number is None else number // len(pairs)

    def close(self) -> None:
        """Close all of them."""
        for stream in self.streams:
            stream.close()


class JoinedPosition:
    """The positions in the streams of a joined shard.

    Args:
        of: that of each stream.
    """

    def __init__(self, of: Sequence[ReadPosition]) -> None:
        self.of = of

    def current(self) -> JoinedPosition | None:
        """Return where the next sample begins; ``None`` if the last one was handed out."""
        return None if all(one.ended for one in self.of) else self

    def to_json(self) -> list[Any]:
        """Encode for a saved state."""
        found = [one.current() for one in self.of]
        return [None if at is None else at.to_json() for at in found]
