"""Read the footers of tables, and keep them: a file of many row groups is opened once for each of them."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from ...core.concurrency_limit import ConcurrencyLimit
from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.threads.ordered_map import ordered_map
from ...core.urls import RemoteUrl, redact
from ...formats.tables import Footer, read_footer
from ...storage import Connection, WithoutObstore, open_store
from ..coalesced import GAP_BYTES
from ..ranges import RangeRequest, RangeSource, read_range

_CACHE_BYTES = 64 << 20
_MAX_MERGED_BYTES = 8 << 20
_REQUESTS_PER_FILE = 4  # at once, for the heads of record batches

Sleep = Callable[[float], object]


class ObjectRanges:
    """Reads ranges of one object, with retries, in the calling thread.

    Args:
        url: of the object.
        options: for the store.
        retry: policy for transient faults.
        in_flight: delays requests when the store asks for fewer.
        sleep: waits for a number of seconds; raises to stop waiting.
        by_obstore: whether obstore may be used, after which a process cannot be forked.
    """

    def __init__(
        self,
        url: str,
        options: StorageOptions,
        retry: RetryPolicy,
        in_flight: ConcurrencyLimit,
        sleep: Sleep,
        *,
        by_obstore: bool = True,
    ) -> None:
        self._store, self._path = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
        self._ranges: RangeSource = self._store if by_obstore else WithoutObstore(self._store)
        self._retry, self._in_flight, self._sleep = retry, in_flight, sleep
        self.identity = options.identity()  # who reads, at which server
        self.url = url if isinstance(url, RemoteUrl) and url.size is not None else self._looked_up(url)

    def _looked_up(self, url: str) -> RemoteUrl:
        entry = call_with_retries(lambda: self._store.stat(self._path), self._retry, url=url, sleep=self._sleep)
        return RemoteUrl(url, entry.size, entry.etag)

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` (exclusive).

        Raises:
            StorageError: for faults that retries did not solve.
        """
        if start >= stop:
            return b""
        request = RangeRequest(str(self.url), self._path, start, stop, self.url.size, self.url.etag)
        pieces = read_range(
            self._ranges,
            request,
            self._retry,
            in_flight=self._in_flight,
            sleep=self._sleep,
        )
        with closing(pieces):
            return b"".join(pieces)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges. Close ones are one request, and a few requests run at once.

        Raises:
            StorageError: for faults that retries did not solve.
        """
        order = sorted(range(len(ranges)), key=ranges.__getitem__)
        groups: list[list[int]] = []
        for index in order:
            start, stop = ranges[index]
            is_close = groups and start - ranges[groups[-1][-1]][1] <= GAP_BYTES
            if is_close and stop - ranges[groups[-1][0]][0] <= _MAX_MERGED_BYTES:
                groups[-1].append(index)
                continue
            groups.append([index])
        found = [b""] * len(ranges)
        borders = [(ranges[group[0]][0], max(ranges[index][1] for index in group)) for group in groups]
        tasks = [lambda sleep, border=border: self.read(*border) for border in borders]
        with closing(ordered_map(tasks, max_threads=_REQUESTS_PER_FILE)) as merged:
            for group, (first, _), data in zip(groups, borders, merged, strict=True):
                for index in group:
                    start, stop = ranges[index]
                    found[index] = data[start - first : stop - first]
        return found


_Key = tuple[str, int | None, str, str]


class FooterCache:
    """The footers that were used last.

    Only those of objects whose version the store has given (etag) are kept.

    Args:
        max_bytes: of all of them.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._footers: OrderedDict[_Key, Footer] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: _Key) -> Footer | None:
        """Return a footer, or ``None``."""
        with self._lock:
            footer = self._footers.get(key)
            if footer is not None:
                self._footers.move_to_end(key)
            return footer

    def put(self, key: _Key, footer: Footer) -> None:
        """Keep a footer, and drop those that were not used for longest."""
        with self._lock:
            if key not in self._footers:
                self._footers[key] = footer
                self._num_bytes += footer.memory_bytes
            while self._num_bytes > self._max_bytes:
                _, dropped = self._footers.popitem(last=False)
                self._num_bytes -= dropped.memory_bytes

    def clear(self) -> None:
        """Forget all of them, with a new lock: in a forked child the old one may be held forever."""
        self._lock = threading.RLock()
        self._footers, self._num_bytes = OrderedDict(), 0


footers = FooterCache(_CACHE_BYTES)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=footers.clear)


def footer_of(source: ObjectRanges) -> Footer:
    """Return the footer of a file, which may have been read before.

    Raises:
        StorageError: if it cannot be read.
        ShardReadError: if it is no table.
    """
    url = source.url
    read = partial(read_footer, source, url.size or 0, redact(url))
    if url.etag is None:
        return read()
    key = str(url), url.size, url.etag, source.identity
    footer = footers.get(key)
    if footer is None:
        footer = read()
        footers.put(key, footer)
    return footer
