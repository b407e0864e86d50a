"""Write samples into consecutive shards; a shard is finished in the background while the next one is packed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial

from ..core.arguments import whole
from ..core.options import StorageOptions
from ..core.urls import redact
from ..errors import ShardWriteError
from ..formats.compression.compress import is_compressed
from ..formats.limits import MAX_DECOMPRESSED_BYTES, MAX_MEMBER_BYTES
from ..formats.manifest import ShardInfo
from ..formats.sample import Sample
from ..formats.tar import END_OF_ARCHIVE
from ..storage import open_store, publish
from .packed_sample import pack_sample
from .shard_builder import ShardBuilder


class SeriesState(Enum):
    """Whether samples can be added; the value is used in errors."""

    OPEN = "is open"
    ENDED = "is closed"
    ABORTED = "was aborted or has failed"


class RollingShardWriter:
    """Splits samples into shards within exact limits, each with its index and its keys.

    Args:
        url_of: the URL of each shard, by its number from 0.
        max_shard_bytes: limit of a shard's tar in bytes, before it is compressed; a single sample may be larger.
        max_shard_samples: limit of samples in a shard.
        max_member_bytes: limit of a member.
        overwrite: replace existing objects. Otherwise one is an error.
        options: for the store.
        before_first: called before the first shard is opened.

    Raises:
        ValueError: for limits that are not positive.
    """

    def __init__(
        self,
        url_of: Callable[[int], str],
        *,
        max_shard_bytes: int,
        max_shard_samples: int,
        max_member_bytes: int = MAX_MEMBER_BYTES,
        overwrite: bool,
        options: StorageOptions,
        before_first: Callable[[], object] = lambda: None,
    ) -> None:
        max_shard_bytes = whole("max_shard_bytes", max_shard_bytes)
        max_shard_samples = whole("max_shard_samples", max_shard_samples)
        self._url_of, self._overwrite, self._options, self._before_first = url_of, overwrite, options, before_first
        if is_compressed(url_of(0)):
            max_shard_bytes = min(max_shard_bytes, MAX_DECOMPRESSED_BYTES)
        self._max_bytes, self._max_samples = max_shard_bytes - len(END_OF_ARCHIVE), max_shard_samples
        self._max_member_bytes = whole("max_member_bytes", max_member_bytes)
        self.shards: list[ShardInfo] = []  # published ones
        self._open: ShardBuilder | None = None
        self._finishing: ShardBuilder | None = None  # the previous one
        self._num_begun = 0
        self.state = SeriesState.OPEN

    @property
    def is_empty(self) -> bool:
        """Whether no sample was added."""
        return self._num_begun == 0

    def last_position(self) -> tuple[str, int]:
        """Return the shard URL of the sample added last, and its first byte in the tar."""
        assert self._open is not None
        return self._open.url, self._open.offsets[-1]

    def add(self, sample: Sample) -> ShardInfo | None:
        """Add a sample, with the result and the errors of ``ShardWriter.write``."""
        if self.state is not SeriesState.OPEN:
            raise ShardWriteError(f"{redact(self._url_of(0))}: this writer {self.state.value}; make a new one.")
        packed = pack_sample(sample, self._max_member_bytes)
        shard = self._open
        if shard is not None:
            if shard.num_bytes + packed.num_bytes > self._max_bytes or len(shard.offsets) >= self._max_samples:
                shard = None
            else:
                shard.check_key(packed.key)
        try:
            finished = None
            if self._finishing is not None and (shard is None or self._finishing.upload.settled):
                finished = self._settle(self._finishing)
            if shard is None:
                shard = self._next_shard()
            shard.add(packed)
        except BaseException:  # how much of the shard was written is unknown, so it cannot be continued
            self.abort()
            raise
        return finished

    def _next_shard(self) -> ShardBuilder:
        if self._open is not None:
            self._end(self._open)
        elif self._num_begun == 0:
            self._before_first()
        url = self._url_of(self._num_begun)
        store, path = open_store(url, self._options)
        self._open = ShardBuilder(url, store.create(path, overwrite=self._overwrite))
        self._num_begun += 1
        return self._open

    def _end(self, shard: ShardBuilder) -> None:
        """Finish the open shard, its index and its keys in the background."""
        shard.end(partial(_publish_beside, self._options, self._overwrite))
        self._finishing, self._open = shard, None

    def _settle(self, shard: ShardBuilder) -> ShardInfo:
        """Wait until the previous shard is published."""
        info = shard.result()
        self._finishing = None
        self.shards.append(info)
        return info

    def end(self) -> None:
        """End the last shard in the background, after waiting for the previous one. No sample can be added any more."""
        self.state = SeriesState.ENDED
        try:
            if self._open is not None:
                if self._finishing is not None:
                    self._settle(self._finishing)
                self._end(self._open)
        except BaseException:
            self.abort()
            raise

    def result(self) -> list[ShardInfo]:
        """After :meth:`end`: wait for the last shard and return all of them, in order.

        Raises:
            RemoteDataError: if it could not be written.
        """
        try:
            if self._finishing is not None:
                self._settle(self._finishing)
        except BaseException:
            self.abort()
            raise
        return self.shards

    def abort(self, timeout_s: float | None = None) -> None:
        """Drop the open shard, and wait for the previous one.

        Args:
            timeout_s: limit in seconds for each of the two; afterwards they end in the background.
        """
        shard, self._open = self._open, None
        self.state = SeriesState.ABORTED
        if shard is not None:
            shard.upload.abort(timeout_s)
        finishing = self._finishing
        if finishing is not None:
            if timeout_s is not None:
                finishing.upload.abort(timeout_s)  # only waits: it was ended, so it is kept
            if timeout_s is None or finishing.upload.settled:
                with contextlib.suppress(Exception):  # the error that led here is the one to report
                    self._settle(finishing)
            self._finishing = None


def _publish_beside(options: StorageOptions, overwrite: bool, info: ShardInfo, beside: Mapping[str, bytes]) -> None:
    for url, data in beside.items():
        publish(url, data, options, overwrite=overwrite)
