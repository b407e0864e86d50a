"""Read a shard's headers without most of the data: by ranged requests for a plain tar, else as a stream."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

from ..core.options import FetchOptions, RetryPolicy, StorageOptions
from ..core.retry import ConcurrencyLimit
from ..core.urls import redact
from ..errors import ShardReadError
from ..fetch.listing.shard_set import read_if_there
from ..fetch.ranges import OneObject
from ..fetch.read_ahead import LEAST_BYTES, ReadAhead
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of, stream_objects
from ..formats.compression.decompress import CompressionLimits, decompressed
from ..formats.grouping import samples_of
from ..formats.sample import Sample
from ..formats.sample_index import index_url, parse_index
from ..formats.tar import MemberHeader, TarOptions, read_member_headers

Headers = Generator[MemberHeader, None, None]
Wanted = Callable[[str, int], bool]
"""Called with a member's name and size: whether its data are read."""

WRONG_INDEX = "the index beside it is of another shard, or damaged: write it again"
_NO_LIMIT = sys.maxsize  # skipped data are not kept
_STREAMED = FetchOptions(max_in_flight=4, part_bytes=1 << 20, max_buffer_bytes=8 << 20)
_ZIP = b"PK\x03\x04", b"PK\x05\x06"


class ShardHeaders:
    """The headers of one shard.

    Args:
        url: of the shard.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        ShardReadError: if it is a zip.
        StorageError: if it cannot be read.
    """

    def __init__(self, url: str, options: StorageOptions, retry: RetryPolicy) -> None:
        self._options, self._retry = options, retry
        self.shown = redact(url)
        first_window = ReadAhead(OneObject(url, options, retry))
        head = first_window.head()
        if head[:4] in _ZIP:
            raise ShardReadError(
                f"{self.shown} is a zip, and only tars can be inspected: list it with unzip -l, or read it with "
                "shard_zip_reader().",
                url=self.shown,
            )
        self.url = first_window.reader.version
        self.num_bytes = self.url.size or 0
        self.compression, unread = decompressed([head], url=self.shown, limits=CompressionLimits())
        unread.close()
        self.fetched_bytes, self.num_requests = first_window.fetched_bytes, first_window.num_requests
        self._sent_whole = len(head) > LEAST_BYTES
        self._first: ReadAhead | None = first_window
        self._lock = threading.RLock()

    def read_index(self) -> tuple[list[int] | None, str]:
        """Read the index beside the shard: where samples start and the last one ends; or ``None`` and the reason."""
        if self.compression is not None:
            return None, f"it is compressed by {self.compression}"
        if self._sent_whole:
            return None, "the server ignores ranges and sends the whole object"
        data = read_if_there(index_url(self.url), self._options, self._retry)
        if data is None:
            return None, "there is no index beside it"
        self._count(len(data), 1)
        try:
            return parse_index(data, shard_bytes=self.num_bytes).tolist(), ""
        except ValueError:
            return None, WRONG_INDEX

    def from_start(self, wanted: Wanted, on_skip: Callable[[str], object] = lambda kind: None) -> Headers:
        """Read the headers of all members; a compressed shard is read as a stream.

        Raises:
            ShardReadError: as ``tar.read_member_batches``.
        """
        if self.compression is not None:
            yield from self._streamed(wanted, on_skip)
            return
        windows, self._first = self._first or ReadAhead(OneObject(self.url, self._options, self._retry)), None
        before = windows.fetched_bytes, windows.num_requests  # these are counted already
        options = TarOptions(self.num_bytes, max_member_bytes=_NO_LIMIT, on_skip=on_skip)
        try:
            yield from read_member_headers(windows, url=self.shown, options=options, wanted=wanted)
        finally:
            self._count(windows.fetched_bytes - before[0], windows.num_requests - before[1])

    def _streamed(self, wanted: Wanted, on_skip: Callable[[str], object]) -> Headers:
        options = TarOptions(max_member_bytes=_NO_LIMIT, on_skip=on_skip)
        with closing(stream_objects([self.url], FetchSession(_STREAMED, self._options))) as streams:
            for url, stream in streams:
                with closing(stream):
                    _, tar = decompressed(parts_of(url, stream), url=self.shown, limits=CompressionLimits())
                    with closing(tar):
                        yield from read_member_headers(tar, url=self.shown, options=options, wanted=wanted)
        self._count(self.num_bytes, -(-self.num_bytes // (1 << 20)))

    def between(
        self,
        start: int,
        stop: int | None,
        wanted: Wanted,
        *,
        in_flight: ConcurrencyLimit,
        wait: Callable[[float], None],
        first_bytes: int = LEAST_BYTES,
        on_skip: Callable[[str], object] = lambda kind: None,
    ) -> Headers:
        """Read the headers between two bytes of an uncompressed shard; may run in several threads.

        Args:
            start: offset of a header.
            stop: offset of a later header; ``None`` for the archive's end.
            wanted: decides whose data are read.
            in_flight: shared by the threads.
            wait: sleeps for a number of seconds.
            first_bytes: length of the first window.
            on_skip: as in ``TarOptions``.

        Raises:
            ShardReadError: as ``tar.read_member_batches``, and if a member extends beyond ``stop``.
        """
        reader = OneObject(self.url, self._options, self._retry, in_flight=in_flight, sleep=wait)
        windows = ReadAhead(reader, start=start, stop=stop, first_bytes=first_bytes)
        options = TarOptions(self.num_bytes, start, stop, max_member_bytes=_NO_LIMIT, on_skip=on_skip)
        try:
            yield from read_member_headers(windows, url=self.shown, options=options, wanted=wanted)
        finally:
            self._count(windows.fetched_bytes, windows.num_requests)

    def _count(self, num_bytes: int, num_requests: int) -> None:
        with self._lock:
            self.fetched_bytes += num_bytes
            self.num_requests += num_requests


def group_headers(headers: Iterable[MemberHeader], **options: Any) -> Iterator[Sample]:
    """Group headers into samples, as readers group members: extension -> header.

    Args:
        headers: in the order of the archive.
        options: as of ``sample_runs``.

    Raises:
        ShardReadError: as ``samples_of``.
    """
    return samples_of((([header.name], [header]) for header in headers), **options)
