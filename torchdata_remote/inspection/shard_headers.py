"""The members of one shard without most of their data: by ranged requests where it is a plain tar."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import closing

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import FetchOptions, RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl, redact
from ..errors import ShardReadError
from ..fetch.listing.shard_set import read_if_there
from ..fetch.read_ahead import LEAST_BYTES, ReadAhead
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of, stream_objects
from ..formats.compression.decompress import CompressionLimits, decompressed
from ..formats.sample_index import index_url, parse_index
from ..formats.tar import MemberHeader, TarOptions, read_member_headers

Heads = Generator[MemberHeader, None, None]
Wanted = Callable[[str, int], bool]

NOT_ITS_INDEX = "the index beside it is of another shard, or damaged: write it again"
_NO_LIMIT = sys.maxsize  # nothing is held of what is passed over
_STREAMED = FetchOptions(max_in_flight=4, part_bytes=1 << 20, max_buffer_bytes=8 << 20)
_ZIP = b"PK\x03\x04", b"PK\x05\x06"


class ShardHeads:
    """One shard, looked at from head to head.

    Args:
        url: of the shard.
        options: for the store.
        retry: what is done about faults that may pass.

    Raises:
        ShardReadError: if it is a zip.
        StorageError: if it cannot be read.
    """

    def __init__(self, url: str, options: StorageOptions, retry: RetryPolicy) -> None:
        self._options, self._retry = options, retry
        self.shown = redact(url)
        windows = ReadAhead(url, options, retry=retry)
        head = windows.head()
        if head[:4] in _ZIP:
            raise ShardReadError(
                f"{self.shown} is a zip, of which this looks at none: list it by unzip -l, or read it by "
                "shard_zip_reader().",
                url=self.shown,
            )
        self.num_bytes = windows.find_num_bytes()
        etag = url.etag if isinstance(url, RemoteUrl) else None
        self.url = RemoteUrl(str(url), self.num_bytes, etag)
        self.compression, nothing = decompressed([head], url=self.shown, limits=CompressionLimits())
        nothing.close()
        self.fetched_bytes, self.num_requests = windows.fetched_bytes, windows.num_requests
        self._sent_whole = len(head) > LEAST_BYTES
        self._first: ReadAhead | None = windows
        self._lock = threading.RLock()

    def read_index(self) -> tuple[list[int] | None, str]:
        """Where samples begin and the last one ends, as the index beside the shard says; or ``None`` and why not."""
        if self.compression is not None:
            return None, f"it is compressed by {self.compression}"
        if self._sent_whole:
            return None, "the server ignores ranges and sends it whole"
        data = read_if_there(index_url(self.url), self._options, self._retry)
        if data is None:
            return None, "there is no index beside it"
        self._count(len(data), 1)
        try:
            return parse_index(data, shard_bytes=self.num_bytes).tolist(), ""
        except ValueError:
            return None, NOT_ITS_INDEX

    def from_the_start(self, wanted: Wanted, on_skip: Callable[[str], object] = lambda kind: None) -> Heads:
        """All members; of one that is compressed the bytes come as a stream.

        Raises:
            ShardReadError: as ``tar.read_members``.
        """
        if self.compression is not None:
            yield from self._streamed(wanted, on_skip)
            return
        windows, self._first = self._first or ReadAhead(self.url, self._options, retry=self._retry), None
        before = windows.fetched_bytes, windows.num_requests  # which are counted already
        options = TarOptions(self.num_bytes, max_member_bytes=_NO_LIMIT, on_skip=on_skip)
        try:
            yield from read_member_headers(windows, url=self.shown, options=options, wanted=wanted)
        finally:
            self._count(windows.fetched_bytes - before[0], windows.num_requests - before[1])

    def _streamed(self, wanted: Wanted, on_skip: Callable[[str], object]) -> Heads:
        options = TarOptions(max_member_bytes=_NO_LIMIT, on_skip=on_skip)
        with closing(stream_objects([self.url], FetchSession(_STREAMED, self._options))) as streams:
            for url, stream in streams:
                with closing(stream):
                    _, bare = decompressed(parts_of(url, stream), url=self.shown, limits=CompressionLimits())
                    with closing(bare):
                        yield from read_member_headers(bare, url=self.shown, options=options, wanted=wanted)
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
    ) -> Heads:
        """The members between two bytes of a shard that is not compressed; may run in several threads.

        Args:
            start: where a header begins.
            stop: where another one begins; ``None`` for the archive's end.
            wanted: whether the data of a member of that name and size are to be taken.
            in_flight: shared by the threads.
            wait: waits for so many seconds.
            first_bytes: length of the first window.
            on_skip: as in ``TarOptions``.

        Raises:
            ShardReadError: as ``tar.read_members``, and if a member leads over ``stop``.
        """
        windows = ReadAhead(
            self.url,
            self._options,
            retry=self._retry,
            start=start,
            stop=stop,
            first_bytes=first_bytes,
            in_flight=in_flight,
            sleep=wait,
        )
        options = TarOptions(self.num_bytes, start, stop, max_member_bytes=_NO_LIMIT, on_skip=on_skip)
        try:
            yield from read_member_headers(windows, url=self.shown, options=options, wanted=wanted)
        finally:
            self._count(windows.fetched_bytes, windows.num_requests)

    def _count(self, num_bytes: int, num_requests: int) -> None:
        with self._lock:
            self.fetched_bytes += num_bytes
            self.num_requests += num_requests
