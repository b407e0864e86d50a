"""``ShardedDataset``: the samples of tar shards as a map-style dataset."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..core import arguments as check
from ..core.arguments import explained
from ..core.options import Backend, RetryPolicy
from ..core.shared_memory import SharedMemory
from ..core.threads import ordered_map
from ..core.urls import RemoteUrl, redact
from ..errors import ShardReadError
from ..fetch.listing.patterns import literal_url
from ..fetch.listing.shard_set import base_name, read_shard_set, require_size
from ..fetch.listing.source_argument import url_of
from ..fetch.listing.url_table import StringColumn
from ..fetch.sample_ranges import read_offsets
from ..fetch.sample_table import Int64s, Members
from ..fetch.views import CoalescedRead, RangeCoalescer
from ..formats.error_policy import MemberErrorHandler, OnBadMember, raise_error
from ..formats.grouping import samples_of
from ..formats.manifest import MANIFEST_NAME
from ..formats.sample import Sample, ignored_kind, split_key
from ..formats.sample_index import ENTRY_BYTES, Offsets
from ..formats.tar import BLOCK, END_OF_ARCHIVE, TarOptions, first_name, read_member_batches
from ._map_style import MapStyle, until_error

_BATCHES_AHEAD = 4
_BORDER_BYTES = 3 * BLOCK  # after a sample: the next header, and a header that extends it


class _Offsets:
    """The indexes of all shards, one after the other: zero, until one is read. Workers of a host read each once.

    Args:
        num_entries: of all indexes. Memory for them is taken when they are written.
        memory: of the process that starts this one.
    """

    def __init__(self, num_entries: int, memory: SharedMemory | None = None) -> None:
        self._memory = memory or SharedMemory.create(num_entries * ENTRY_BYTES)
        self._written = set[int]()  # last entries of indexes that are known to be in the memory
        self.entries: Offsets = np.zeros(num_entries, np.uint64)
        if self._memory is not None:
            self.entries = np.frombuffer(self._memory.view(), np.uint64)

    def has(self, last: int) -> bool:
        """Whether an index was written, by this process or another one, from its last entry, which is never 0."""
        if self._memory is None:
            return bool(self.entries[last])
        # Read by a call of the system, which orders it after the writing of the entries before
        if last not in self._written and any(self._memory.read(ENTRY_BYTES, last * ENTRY_BYTES)):
            self._written.add(last)
        return last in self._written

    def write(self, last: int, offsets: Offsets) -> None:
        """Write an index whose last entry has this number."""
        first, memory = last + 1 - len(offsets), self._memory
        if memory is not None:
            if memory.write(offsets[:-1], first * ENTRY_BYTES) and memory.write(offsets[-1:], last * ENTRY_BYTES):
                return
            self._memory, self.entries = None, np.array(self.entries)
        self.entries[first : last + 1] = offsets

    def __reduce__(self) -> Any:
        return _Offsets, (len(self.entries), self._memory if SharedMemory.can_be_sent() else None)


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
        self._on_bad_member = check.function("on_bad_member", on_bad_member, example="tdr.skip_with_warning")
        super().__init__(storage_options, max_in_flight, cache_dir, cache_bytes, retry, backend)
        source = literal_url(url_of(manifest_url, of="ShardedDataset"))
        if base_name(source) != MANIFEST_NAME:
            source = f"{source.rstrip('/')}/{MANIFEST_NAME}"
        found = read_shard_set(source, self._session.storage_options, self._session.options.retry)
        for shard, entry in zip(found.shards, found.manifest, strict=True):
            require_size(shard, shard.size, entry.num_bytes)
        self._shards = found.shards
        self._ends = np.cumsum([shard.num_samples or 0 for shard in found.shards])  # of samples, up to each shard
        self._is_summed = np.array([shard.index_crc32 is not None for shard in found.shards])
        self._offsets = _Offsets(int(self._ends[-1]) + len(found.shards))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def names_digest(self) -> str:
        """Digest of the names and numbers of samples of the shards, in the order of the items."""
        return StringColumn(f"{base_name(shard)} {shard.num_samples}" for shard in self._shards).digest()

    def _items(self, batches: Iterator[Sequence[int]]) -> Generator[list[Any], None, None]:
        self._session.keep()
        ahead, errors, held_bytes = deque[_PendingBatch](), list[Exception](), 0
        with RangeCoalescer(self._session) as coalescer:
            requested = until_error((self._request(batch, coalescer) for batch in batches), errors)
            try:
                while True:
                    while not ahead or (
                        len(ahead) < _BATCHES_AHEAD and held_bytes < self._session.options.max_buffer_bytes
                    ):
                        if (pending := next(requested, None)) is None:
                            break
                        ahead.append(pending)
                        held_bytes += pending.read.num_bytes
                    if not ahead:
                        break
                    items = self._finish(ahead[0])
                    held_bytes -= ahead.popleft().read.num_bytes
                    yield items
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
        last_entries = self._ends[used] + used  # each index has one entry more than its shard has samples
        self._read_indexes(used.tolist(), last_entries.tolist())
        entries, at = self._offsets.entries, samples + shards
        starts, ends, lasts = (entries[i].astype(np.int64) for i in (at, at + 1, last_entries[objects]))
        # Read after a sample, to validate an index whose checksum is not in the manifest
        borders = np.where(self._is_summed[shards], 0, np.minimum(_BORDER_BYTES, lasts - ends))
        urls = [self._shards[shard] for shard in used]
        members = Members(urls, [], objects, starts, ends - starts + borders, np.ones(len(samples), np.int64))
        return _PendingBatch(
            samples, positions, ends - starts, [urls[at] for at in objects], coalescer.start_read(members)
        )

    def _read_indexes(self, shards: list[int], last_entries: list[int]) -> None:
        """Read the indexes that no process of the host has read yet, concurrently."""
        missing = {shard: last for shard, last in zip(shards, last_entries, strict=True) if not self._offsets.has(last)}
        tasks = (partial(self._read_index, shard) for shard in missing)
        found = ordered_map(tasks, max_threads=min(len(missing), self._session.options.max_in_flight) or 1)
        for last, offsets in zip(missing.values(), found, strict=True):
            self._offsets.write(last, offsets)

    def _read_index(self, shard: int, wait: object) -> Offsets:
        return read_offsets(self._shards[shard], self._session.storage_options, self._session.options.retry)

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
