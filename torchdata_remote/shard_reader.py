"""What the readers of shards have in common: streams or URLs, shards by turns, a policy for bad ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from torch.utils.data import IterDataPipe

from .datapipe import DataPipe
from .options import FetchOptions, StorageOptions
from .policies import OnBadShard, ShardGuard, Skipped
from .sample import Sample
from .streams import streams_of
from .turns import by_turns
from .urls import redact


class ShardReader(DataPipe[Sample]):
    """Base of the pipes that read samples from shards; a format is what ``samples_in`` makes of one.

    Args:
        source_datapipe: ``(url, file_like)`` pairs, binary; or bare URLs, which are fetched ahead.
        on_bad_shard: called with the ``ShardReadError`` of a shard.
        interleave: shards that are read at once, a sample of each by turns.
        storage_options: for bare URLs, in fsspec's vocabulary.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        *,
        on_bad_shard: OnBadShard,
        interleave: int,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        if interleave < 1:
            raise ValueError(f"interleave is the number of shards read at once, at least 1; got {interleave}.")
        self.source_datapipe = source_datapipe
        self.skipped = Skipped()
        self._on_bad_shard, self._interleave = on_bad_shard, interleave
        self._storage_options = StorageOptions(storage_options)

    def __iter__(self) -> Iterator[Sample]:
        self.skipped = Skipped()
        fetch = FetchOptions(interleave=self._interleave)
        with closing(streams_of(self.source_datapipe, fetch, self._storage_options)) as streams:
            yield from by_turns((self._shard(str(url), stream) for url, stream in streams), self._interleave)

    def _shard(self, url: str, stream: Any) -> Generator[Sample, None, None]:
        shown = redact(url)
        try:
            with ShardGuard(shown, self._on_bad_shard, self.skipped) as guard:
                yield from self.samples_in(shown, stream, guard)
        finally:
            stream.close()

    @abstractmethod
    def samples_in(self, url: str, stream: Any, guard: ShardGuard) -> Iterator[Sample]:
        """The samples of one shard.

        Args:
            url: as samples and errors may show it.
            stream: binary; whoever calls closes it.
            guard: is entered, and asks the policy about what leaves here.
        """
