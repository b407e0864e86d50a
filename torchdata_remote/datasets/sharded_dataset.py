"""``ShardedDataset``: the samples of tar shards as a map-style dataset."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.arguments import check
from ..core.arguments.calls import explained
from ..core.options import Backend, FetchOptions, RetryPolicy, StorageOptions, policy_of
from ..core.threads.ordered_map import Task, ordered_map
from ..core.urls import RemoteUrl, redact
from ..errors import ShardReadError
from ..fetch.listing.patterns import literal_url
from ..fetch.listing.shard_set import base_name, read_shard_set, require_size
from ..fetch.listing.source_argument import url_of
from ..fetch.listing.url_table import StringColumn
from ..fetch.sample_ranges import read_offsets
from ..fetch.sample_table import Int64s, Members
from ..fetch.session import FetchSession
from ..fetch.views import CoalescedRead, RangeCoalescer
from ..formats.error_policy import MemberErrorHandler, OnBadMember, Skipped, raise_error
from ..formats.grouping import samples_of
from ..formats.manifest import MANIFEST_NAME
from ..formats.sample import Sample, ignored_kind, split_key
from ..formats.sample_index import Offsets
from ..formats.tar import BLOCK, END_OF_ARCHIVE, TarOptions, first_name, read_member_batches
from ._map_style import MapStyle
from ._shard_table import ShardOffsets, ShardTable

_BATCHES_AHEAD = 4
_BORDER_BYTES = 3 * BLOCK  # after a sample: the next header, and a header that extends it


class _PendingBatch(NamedTuple):
    """A batch that is being fetched: its samples, each once, and their positions in the batch."""

    samples: Int64s
    positions: Int64s
    sizes: Int64s
    urls: list[RemoteUrl]
    read: CoalescedRead


@explained
class ShardedDataset(MapStyle[Any]):
    """The samples of tar shards as a map-style dataset: ``[i] -> sample``, by ranged reads at the offsets in ``.idx``.

    torch's ``DataLoader`` requests complete batches. Their samples are fetched concurrently, neighbours by one request.
    Reading complete shards is the faster way to train, because it does not need a request per sample: use this class
    for random access and for custom orders.

    Args:
        manifest_url: of the manifest ``index.json``, or of its folder.
        transform: called with each sample in the order of the batch, in the caller's thread; returns the item.
        on_bad_member: called with the ``BadMemberError`` of a member that cannot be part of a sample, such as
            ``README``; raises, or returns to skip that member. ``skipped.bad_members`` counts these, in the process
            that reads.
        storage_options: for the store, in fsspec's vocabulary.
        max_in_flight: maximum number of concurrent requests per worker.
        cache_dir: local folder in which blocks of the shards, of 256 KiB, are cached for later epochs; requires
            ``cache_bytes``.
        cache_bytes: bound on the size of the cache, which all processes of the host share.
        retry: policy for transient errors.
        backend: library that transfers the bytes.

    Raises:
        ManifestError: for a shard without an index, such as a compressed one, or with the index of another shard.
        ObjectChangedError: for a shard of another size than the manifest says.
        ShardReadError: for bytes that are not the sample of the index. The data of members are not verified against the
            checksums in the manifest, which cover blocks of 4 MiB.
        StorageError: for an object that cannot be read, with the URL.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://verse/{shard}.tar", max_shard_samples=2, overwrite=True) as writer:
        ...     for word in "the", "quick", "fox":
        ...         _ = writer.write({"__key__": word, "txt": word.upper()})
        >>> verse = ShardedDataset("memory://verse/")
        >>> len(verse), verse[-1]
        (3, {'__key__': 'fox', '__url__': 'memory://verse/1.tar', 'txt': b'FOX'})
    """

    def __init__(
        self,
        manifest_url: str | os.PathLike[str],
        *,
        transform: Callable[[Sample], Any] | None = None,
        on_bad_member: OnBadMember = raise_error,
        storage_options: Mapping[str, Any] | None = None,
        max_in_flight: int = 64,
        cache_dir: str | None = None,
        cache_bytes: int | None = None,
        retry: RetryPolicy | None = None,
        backend: Backend = Backend.AUTOMATIC,
    ) -> None:
        self.transform = check.function_or_none("transform", transform, example="lambda sample: sample['jpg']")
        self.skipped = Skipped()
        self._on_bad_member = check.function("on_bad_member", on_bad_member, example="tdr.skip_with_warning")
        options = FetchOptions(
            max_in_flight=max_in_flight,
            retry=policy_of(retry),
            backend=backend,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )
        self._session = FetchSession(options, StorageOptions(storage_options))
        source = literal_url(url_of(manifest_url, of="ShardedDataset"))
        if base_name(source) != MANIFEST_NAME:
            source = f"{source.rstrip('/')}/{MANIFEST_NAME}"
        found = read_shard_set(source, self._session.storage_options, options.retry)
        for shard, entry in zip(found.shards, found.manifest, strict=True):
            require_size(shard, shard.size, entry.num_bytes)
        self._shards = ShardTable(found.shards)
        self._ends = np.cumsum(self._shards.counts)  # number of samples up to each shard
        self._offsets = ShardOffsets(self._shards.counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def names_digest(self) -> str:
        """Digest of the names and numbers of samples of the shards, in the order of the items."""
        return StringColumn(f"{base_name(shard)} {shard.num_samples}" for shard in self._shards).digest()

    def _items(self, batches: Iterable[Sequence[int]]) -> Generator[list[Any], None, None]:
        self._session.keep()
        options = self._session.options
        source, ahead, held_bytes = iter(batches), deque[_PendingBatch](), 0
        ended: Exception | None = None
        with RangeCoalescer(self._session) as coalescer:
            try:
                while True:
                    while ended is None and (
                        not ahead or (len(ahead) < _BATCHES_AHEAD and held_bytes < options.max_buffer_bytes)
                    ):
                        try:
                            ahead.append(self._request(next(source), coalescer))
                            held_bytes += ahead[-1].read.num_bytes
                        except Exception as error:  # noqa: BLE001, PERF203  # raised after the batches before it
                            ended = error
                    if ahead:
                        items = self._finish(ahead[0])
                        held_bytes -= ahead.popleft().read.num_bytes
                        yield items
                    elif isinstance(ended, StopIteration):
                        return
                    elif ended is not None:
                        raise ended
            finally:
                for pending in ahead:
                    pending.read.cancel()  # requests that have not started are dropped

    def _request(self, batch: Sequence[int], coalescer: RangeCoalescer) -> _PendingBatch:
        """Request the samples of a batch."""
        samples, positions = np.unique(np.array(batch, np.int64), return_inverse=True)
        shards = np.searchsorted(self._ends, samples, side="right")
        used, objects = np.unique(shards, return_inverse=True)
        self._read_indexes(used.tolist())
        within = samples - np.concatenate([[0], self._ends])[shards]
        pairs = list(zip(shards.tolist(), within.tolist(), strict=True))
        starts = np.array([self._offsets[shard][at] for shard, at in pairs], np.int64)
        ends = np.array([self._offsets[shard][at + 1] for shard, at in pairs], np.int64)
        borders = np.array([self._border_bytes(shard, at) for shard, at in pairs], np.int64)
        urls = [self._shards[shard] for shard in used]
        members = Members(urls, [], objects, starts, ends - starts + borders, np.ones(len(samples), np.int64))
        sample_urls = [self._shards[shard] for shard in shards]
        return _PendingBatch(samples, positions, ends - starts, sample_urls, coalescer.start_read(members))

    def _border_bytes(self, shard: int, at: int) -> int:
        """Number of bytes to read after a sample, to validate an index whose checksum is not in the manifest."""
        if self._shards[shard].index_crc32 is not None:
            return 0
        return min(_BORDER_BYTES, int(self._offsets[shard][-1] - self._offsets[shard][at + 1]))

    def _read_indexes(self, shards: Sequence[int]) -> None:
        """Read the indexes that are not in memory yet, concurrently."""
        missing = [shard for shard in shards if shard not in self._offsets]
        tasks = [self._read_index(shard) for shard in missing]
        found = ordered_map(tasks, max_threads=min(len(missing), self._session.options.max_in_flight) or 1)
        for shard, offsets in zip(missing, found, strict=True):
            self._offsets[shard] = offsets

    def _read_index(self, shard: int) -> Task[Offsets]:
        options, retry = self._session.storage_options, self._session.options.retry
        return lambda wait: read_offsets(self._shards[shard], options, retry)

    def _finish(self, pending: _PendingBatch) -> list[Any]:
        data = pending.read.wait()
        return [
            self._item(data[index], int(pending.sizes[index]), pending.urls[index], pending.samples[index])
            for index in pending.positions.tolist()
        ]

    def _item(self, data: memoryview, num_bytes: int, url: RemoteUrl, number: int) -> Any:
        shown = redact(url)
        runs = read_member_batches([data[:num_bytes], END_OF_ARCHIVE], url=shown, options=TarOptions())
        handler = MemberErrorHandler(self._on_bad_member, self.skipped)
        sample, *more = samples_of(runs, url=shown, on_skip=self.skipped.count_member, on_bad_member=handler)
        if more:
            raise ShardReadError(
                f"{shown}: sample {number:,} is {1 + len(more)} samples by its index. Write the index again: "
                "torchdata-remote manifest --overwrite FOLDER.",
                url=shown,
            )
        if num_bytes < len(data) and _key_at(data[num_bytes:], shown) == sample["__key__"]:
            raise ShardReadError(
                f"{shown}: the index cuts sample {number:,}, {sample['__key__']!r:.200}, in two. Write the index "
                "again: torchdata-remote manifest --overwrite FOLDER.",
                url=shown,
            )
        return sample if self.transform is None else self.transform(sample)


def _key_at(data: memoryview, url: str) -> str | None:
    """Return the key of the sample that starts here; ``None`` if its name is incomplete."""
    try:
        name = first_name([data], url=url)[0]
    except ShardReadError:
        return None
    return None if name is None or ignored_kind(name) is not None else split_key(name.removeprefix("./"))[0]
