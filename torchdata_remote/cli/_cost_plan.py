"""The requests of epochs: of all ranks and workers together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..core.options import FetchOptions, StorageOptions
from ..core.shard_view import is_view
from ..core.threads import ordered_map
from ..core.urls import RemoteUrl, split_sample_range
from ..core.world import World
from ..fetch.listing.sources import find_object
from ..fetch.sample_ranges import wanted_bytes
from ..fetch.session import FIRST_BYTES
from ..formats.nested import is_archive_name
from ..pipes import AsyncPrefetch, ListRemote, ShardingFilterRank, ShuffleShards
from ..pipes.chain import all_pipes
from ..pipes.typed import IterableWrapper
from ..storage import GET, Connection, counted_requests, open_store

_MAX_REQUESTS = 16


@dataclass(frozen=True)
class Job:
    """Who reads, how often, and who lists.

    Args:
        epochs: number of passes.
        ranks: of the job.
        workers: of each rank; with 0 the rank reads itself.
        hosts: that the ranks are on, in order; each has one cache.
        listed_by: ``"rank"``, ``"worker"``, or ``"rank-0"``; ``"once"``: each rank, in the first epoch only.
        cache_bytes: bound of the cache of each host; ``None`` for no cache.
        part_bytes: length of parts; ``None`` for the default of the chain.
    """

    epochs: int = 1
    ranks: int = 1
    workers: int = 0
    hosts: int = 1
    listed_by: str = "rank"
    cache_bytes: int | None = None
    part_bytes: int | None = None

    @property
    def num_slots(self) -> int:
        """Number of processes that read."""
        return self.ranks * max(1, self.workers)

    def world(self, slot: int) -> World:
        """Return rank and worker of a slot."""
        workers = max(1, self.workers)
        return World(slot // workers, self.ranks, slot % workers, workers)

    def host(self, slot: int) -> int:
        """Return the host of a slot."""
        return slot // max(1, self.workers) * self.hosts // self.ranks

    @property
    def num_listings(self) -> int:
        """Number of times that the source is listed, in all epochs together."""
        in_an_epoch = {"rank": self.ranks, "worker": self.num_slots, "rank-0": 1, "once": self.ranks}[self.listed_by]
        return in_an_epoch * (1 if self.listed_by == "once" else self.epochs)


@dataclass
class Planned:
    """What a job requests.

    Attributes:
        requests: by kind.
        num_bytes: of the bodies of GETs.
        num_objects: in the listing.
        object_bytes: of all of them.
        num_unknown: objects whose size no request reported: each counts as one GET of no bytes.
        part_bytes: length of parts.
    """

    requests: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0
    num_objects: int = 0
    object_bytes: int = 0
    num_unknown: int = 0
    part_bytes: int = 0


class _Reading:
    """Plans the requests for objects, as ``async_prefetch`` sends them where no response is broken.

    Only the index beside a shard is read, and the borders of samples without its checksum, for a URL with a range of
    samples: the range of bytes has to be known.

    Args:
        fetch: options of the pipe.
        options: for the stores.
        sizes: of objects that the listing does not have, as far as requests told them.
    """

    def __init__(self, fetch: FetchOptions, options: StorageOptions, sizes: Mapping[str, int]) -> None:
        self._fetch, self._options, self._sizes = fetch, options, sizes
        self.part_bytes = fetch.actual_part_bytes()  # of an object that is not a local file
        self._ranges: dict[str, tuple[int, int | None, int, int]] = {}  # of samples, and GETs and bytes of indexes

    def requests_for(self, url: str) -> tuple[int, int]:
        """Return GETs and bytes for an object, or a range of its samples, and for its index.

        An object whose size is unknown counts as one request of no bytes, and selected samples as a request for each
        part of their bytes.
        """
        whole, samples = split_sample_range(url)
        known = whole if isinstance(whole, RemoteUrl) else RemoteUrl(whole)
        size = self._sizes.get(str(whole)) if known.size is None else known.size
        if is_view(whole):
            share = 1.0 if samples is None else (samples[1] - samples[0]) / max(1, known.num_samples or 1)
            num_bytes = int((size or 0) * share)
            return -(-num_bytes // self.part_bytes), num_bytes
        start, stop, gets, num_bytes = self._range_of(whole, samples) if samples else (0, None, 0, 0)
        if size is None:
            return gets + 1, num_bytes
        store, path = open_store(whole, self._options, Connection(self._fetch.backend))
        part_bytes = self._fetch.actual_part_bytes(mapped=store.maps_files)
        block_bytes = 1 if known.checksums is None else known.checksums.block_bytes  # a part is whole blocks
        part_bytes = max(1, part_bytes // block_bytes) * block_bytes
        is_asked = known.size is None or store.may_ignore_ranges
        first_bytes = part_bytes
        if is_asked and not is_archive_name(path):
            first_bytes = min(part_bytes, FIRST_BYTES)  # of small objects fewer, which is still one request
        start -= start % block_bytes
        left = min(size, size if stop is None else stop + -stop % block_bytes) - start
        # An empty object has no ranges: if that is not known, it is requested again as a whole
        more = max(0, -(-(left - first_bytes) // part_bytes)) + (is_asked and size == 0)
        return gets + 1 + more, num_bytes + left

    def _range_of(self, whole: str, samples: tuple[int, int]) -> tuple[int, int | None, int, int]:
        """Find the bytes of samples, by the requests that a reader sends."""
        key = f"{whole} {samples}"
        if key not in self._ranges:
            with counted_requests() as requests:
                start, stop = wanted_bytes(whole, samples, self._options, self._fetch.retry)
            self._ranges[key] = start, stop, requests.sent[GET], requests.num_bytes
        return self._ranges[key]


def plan_job(chain: Any, job: Job) -> Planned:
    """Plan the requests of a job, by listing its source once and reading none of its objects.

    Args:
        chain: of ``stream_shards`` or ``stream_files``.
        job: which reads it.

    Raises:
        RemoteDataError: as the job would raise where it lists and splits.
    """
    pipes: dict[type, Any] = {type(pipe): pipe for pipe in all_pipes(chain)}
    prefetch, lists = pipes[AsyncPrefetch], pipes[ListRemote]
    planned = Planned()
    with counted_requests() as listing:
        urls = list(lists)
    for kind, number in listing.sent.items():
        planned.requests[kind] += number * job.num_listings
    planned.num_bytes += listing.num_bytes * job.num_listings
    sizes = _sizes(lists, urls)
    fetch: FetchOptions = prefetch._options
    if job.part_bytes is not None:
        fetch = replace(fetch, part_bytes=job.part_bytes)
    plan = _Reading(fetch, prefetch._storage_options, sizes)
    planned.part_bytes, planned.num_objects = plan.part_bytes, len(urls)
    known = [sizes.get(str(url)) if url.size is None else url.size for url in urls]
    planned.num_unknown = known.count(None)
    planned.object_bytes = sum(size or 0 for size in known)
    _add_reading(planned, plan, urls, job, pipes.get(ShuffleShards))
    return planned


def _sizes(lists: ListRemote, urls: Sequence[RemoteUrl]) -> dict[str, int]:
    """Look up the sizes that the listing does not have, several at a time."""
    tasks = [partial(find_object, str(url), lists._storage_options, lists._retry) for url in urls if url.size is None]
    found = filter(None, ordered_map(tasks, max_threads=_MAX_REQUESTS))
    return {str(url): url.size for url in found if url.size is not None}


def _add_reading(
    planned: Planned, plan: _Reading, urls: list[RemoteUrl], job: Job, shuffled: ShuffleShards | None
) -> None:
    """Add the requests of all epochs for the bytes of objects."""
    if job.cache_bytes is None and len(urls) >= job.num_slots:
        for whole in urls:  # each is read once in an epoch, by any reader
            _add_object(planned, plan, whole, job.epochs)
        return
    caches = [_Cache(job.cache_bytes or 0) for _ in range(job.hosts)]
    for epoch in range(job.epochs):
        for slot, url in _read_in(urls, job, epoch, shuffled):
            name, samples = split_sample_range(url)
            if job.cache_bytes is None or is_view(name):
                _add_object(planned, plan, url, 1)
                continue
            cache = caches[job.host(slot)]
            if not cache.has(str(name), epoch):
                num_bytes = _add_object(planned, plan, url, 1)
                if samples is None:
                    cache.store(str(name), num_bytes, epoch)
            elif not isinstance(url, RemoteUrl) or url.etag is None:
                planned.requests[GET] += 1  # whether the version in the cache is the current one


def _add_object(planned: Planned, plan: _Reading, url: str, times: int) -> int:
    gets, num_bytes = plan.requests_for(url)
    planned.requests[GET] += gets * times
    planned.num_bytes += num_bytes * times
    return num_bytes


def _read_in(urls: list[RemoteUrl], job: Job, epoch: int, shuffled: ShuffleShards | None) -> Iterator[tuple[int, str]]:
    """Yield the URLs of an epoch, with the slot that reads them, by turns of the slots as far as that is known."""
    source: Any = IterableWrapper(urls, deepcopy=False)
    if shuffled is not None:
        source = ShuffleShards(source, shuffled.seed)
        source.set_epoch(epoch)
    ordered = IterableWrapper(list(source), deepcopy=False)
    for slot in range(job.num_slots):
        share = ShardingFilterRank(ordered, world=job.world(slot))
        share.set_epoch(epoch)
        for url in share:
            yield slot, url


class _Cache:
    """What the cache of a host has: objects stay until they were not read for two epochs.

    Args:
        cache_bytes: bound on their bytes.
    """

    def __init__(self, cache_bytes: int) -> None:
        self._room_bytes = cache_bytes
        self._read: dict[str, tuple[int, int]] = {}  # URL -> bytes, epoch in which it was read last

    def has(self, url: str, epoch: int) -> bool:
        """Whether an object is there; it is read now."""
        if url not in self._read:
            return False
        self._read[url] = self._read[url][0], epoch
        return True

    def store(self, url: str, num_bytes: int, epoch: int) -> None:
        """Store an object, if there is room."""
        if num_bytes > self._room_bytes:
            for name in [name for name, (_, last) in self._read.items() if epoch - last > 2]:
                self._room_bytes += self._read.pop(name)[0]
        if num_bytes <= self._room_bytes:
            self._room_bytes -= num_bytes
            self._read[url] = num_bytes, epoch
