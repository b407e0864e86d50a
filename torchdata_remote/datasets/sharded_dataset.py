"""``ShardedDataset``: the samples of tar shards as a map-style dataset."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core import arguments as check
from ..core.arguments import explained
from ..core.options import Backend, RetryPolicy
from ..core.progress import waiting
from ..core.shared_memory import SharedColumns
from ..core.threads import ordered_map
from ..core.urls import redact
from ..fetch.listing.patterns import literal_url
from ..fetch.listing.shard_set import base_name, read_shard_set, require_size
from ..fetch.listing.source_argument import url_of
from ..fetch.listing.url_table import StringColumn
from ..fetch.sample_ranges import read_offsets
from ..fetch.sample_table import Members
from ..fetch.views import CoalescedRead, RangeCoalescer
from ..formats.error_policy import MemberErrorHandler, OnBadMember, raise_error
from ..formats.grouping import samples_of
from ..formats.manifest import MANIFEST_NAME
from ..formats.sample import Sample
from ..formats.tar import END_OF_ARCHIVE, TarOptions, read_member_batches
from .map_style import MapStyle, until_error

_BATCHES_AHEAD = 4


class _PendingBatch(NamedTuple):
    """A batch that is being fetched: the URLs of its samples, each once, and their positions in the batch."""

    urls: list[str]
    positions: list[int]
    read: CoalescedRead


@explained
class ShardedDataset(MapStyle):
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
        ManifestError: for a shard without an index, such as a compressed one, with the index of another shard, or whose
            manifest, of another program, has no checksum of the index: write it again by ``torchdata-remote manifest``.
        ObjectChangedError: for a shard of another size than the manifest says.
        ShardReadError: for bytes that are no sample. The data of members are not verified against the
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
        self._on_bad_member = check.function("on_bad_member", on_bad_member, example="tdr.skip_with_warning")
        super().__init__(storage_options, max_in_flight, cache_dir, cache_bytes, retry, backend)
        source = literal_url(url_of(manifest_url, of="ShardedDataset"))
        if base_name(source) != MANIFEST_NAME:
            source = f"{source.rstrip('/')}/{MANIFEST_NAME}"
        store, retry = self._session.storage_options, self._session.options.retry
        found = read_shard_set(source, store, retry)
        for shard, entry in zip(found.shards, found.manifest, strict=True):
            require_size(shard, shard.size, entry.num_bytes)
        self._shards = found.shards
        self._ends = np.cumsum([shard.num_samples or 0 for shard in found.shards])  # of samples, up to each shard
        tasks = (lambda wait, shard=shard: read_offsets(shard, store, retry) for shard in found.shards)
        with waiting("reading the indexes of the shards"):
            indexes = list(ordered_map(tasks, max_threads=max_in_flight))
        self._offsets = SharedColumns(
            {"offsets": np.concatenate(indexes).astype(np.int64)}
        )  # which workers of a host share
        self.names_digest = StringColumn(f"{base_name(shard)} {shard.num_samples}" for shard in found.shards).digest()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _items(self, batches: Iterator[Sequence[int]]) -> Generator[list[Any], None, None]:
        self._session.keep()
        ahead, errors, most_bytes = deque[_PendingBatch](), list[Exception](), self._session.options.max_buffer_bytes
        with RangeCoalescer(self._session) as coalescer:
            requested = until_error((self._request(batch, coalescer) for batch in batches), errors)
            try:
                while True:
                    held_bytes = sum(pending.read.num_bytes for pending in ahead)
                    is_full = len(ahead) == _BATCHES_AHEAD or held_bytes >= most_bytes
                    if not is_full and (pending := next(requested, None)) is not None:
                        ahead.append(pending)
                    elif ahead:
                        yield self._finish(ahead.popleft())
                    else:
                        break
            finally:
                for pending in ahead:
                    pending.read.cancel()  # requests that have not started are dropped
        if errors:
            raise errors.pop()

    def _request(self, batch: Sequence[int], coalescer: RangeCoalescer) -> _PendingBatch:
        """Request the samples of a batch."""
        samples, positions = np.unique(np.array(batch, np.int64), return_inverse=True)
        shards = np.searchsorted(self._ends, samples, side="right")
        used, objects = np.unique(shards, return_inverse=True)
        urls = [self._shards[shard] for shard in used]
        at = samples + shards  # each index has one entry more than its shard has samples
        offsets = self._offsets.columns["offsets"]
        members = Members(
            urls, [], objects, offsets[at], offsets[at + 1] - offsets[at], np.ones(len(samples), np.int64)
        )
        shown = [redact(urls[index]) for index in objects]
        return _PendingBatch(shown, positions.tolist(), coalescer.start_read(members))

    def _finish(self, pending: _PendingBatch) -> list[Any]:
        data = pending.read.wait()
        return [self._item(data[index], pending.urls[index]) for index in pending.positions]

    def _item(self, data: memoryview, url: str) -> Any:
        runs = read_member_batches([data, END_OF_ARCHIVE], url=url, options=TarOptions())
        handler = MemberErrorHandler(self._on_bad_member, self.skipped)
        [sample] = samples_of(runs, url=url, on_skip=self.skipped.count_member, on_bad_member=handler)
        return sample if self.transform is None else self.transform(sample)
