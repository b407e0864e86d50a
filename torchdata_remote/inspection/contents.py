"""Inspect a shard by its headers: members, samples, sizes, labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import ConcurrencyLimit
from ..core.threads import ordered_map
from ..errors import RemoteDataError, ShardReadError
from ..fetch.read_ahead import FAR_BYTES, LEAST_BYTES, MOST_BYTES
from ..formats.error_policy import MemberErrorHandler, Skipped
from ..formats.sample import KEY
from ..formats.tar import MemberHeader
from .histograms import Histogram, histogram
from .label_member import LABEL_EXTENSION, decode_label, is_label, is_unread, not_counted
from .pictures import class_name, class_names
from .shard_headers import WRONG_INDEX, ShardHeaders, group_headers

_MIN_INDEXED_BYTES = 512 << 10  # a smaller shard is read faster without its index
_MAX_THREADS = 16
_CHUNKS_PER_THREAD = 4
_CHUNK_BYTES = 4 << 20  # where samples are so small that all bytes are read


class Sizes(NamedTuple):
    """Number and sizes of the members with one extension."""

    num_members: int
    min_bytes: int
    median_bytes: float
    max_bytes: int
    total_bytes: int


@dataclass
class ShardContents:
    """Counts and sizes of a shard's members and samples.

    Args:
        url: without credentials.
        num_bytes: size of the object.
        compression: its name, or ``None``.
        num_members: regular files that belong to samples.
        num_samples: groups of members that share a key.
        passed_over: entries outside samples: ``"directory"``, ``"link"``, ``"device"``, ``"meta"``, ``"macos"`` -> how
            many.
        bad_members: reason why members cannot be part of a sample -> how many. Readers raise for them, unless
            ``on_bad_member`` leaves them out.
        extensions: of members, in the order of their first occurrence.
        labels: content of ``cls`` members of up to 64 bytes -> samples.
        class_names: content of ``cls`` members -> name of the class, by the class table beside the shard.
        folders: last folder of the key -> samples, where no sample has a ``cls`` member.
        sample_bytes: histogram of the bytes of a sample's members together; ``None`` without samples.
        first: key, label, and bytes of each member, of the first samples.
        fetched_bytes: requested from the store for this.
        num_requests: for these bytes.
        notes: such as why the index was not used.
    """

    url: str
    num_bytes: int
    compression: str | None
    num_members: int = 0
    num_samples: int = 0
    passed_over: dict[str, int] = field(default_factory=dict)
    bad_members: dict[str, int] = field(default_factory=dict)
    extensions: dict[str, Sizes] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    class_names: dict[str, str] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)
    sample_bytes: Histogram | None = None
    first: list[dict[str, Any]] = field(default_factory=list)
    fetched_bytes: int = 0
    num_requests: int = 0
    notes: list[str] = field(default_factory=list)


def inspect_shard(url: str, *, num_samples: int = 5, storage_options: Mapping[str, Any] | None = None) -> ShardContents:
    """Inspect a shard by its headers, which are read by ranged requests; the data between them are not.

    With an index beside the shard (``.idx``), samples are inspected in parallel; without one, requests follow the
    headers one by one. A compressed shard is read as a whole.

    Args:
        url: of a tar.
        num_samples: first samples whose keys and sizes are reported.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        ShardReadError: for a shard that is damaged, with the byte, or does not consist of samples; or a zip.
        StorageError: if it cannot be read.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://inspected/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "txt": "moo" * i, "cls": i % 2}) for i in range(3)]
        >>> contents = inspect_shard("memory://inspected/0.tar", num_samples=1)
        >>> contents.num_samples, contents.labels, contents.first
        (3, {'0': 2, '1': 1}, [{'key': '0', 'label': '0', 'bytes': {'cls': 1, 'txt': 0}}])
        >>> contents.extensions["txt"]
        Sizes(num_members=3, min_bytes=0, median_bytes=3, max_bytes=6, total_bytes=9)
    """
    shard = ShardHeaders(url, StorageOptions(storage_options), RetryPolicy())
    counter = _Counter(shard, num_samples)
    _count_all(shard, counter)
    contents = counter.contents()
    if contents.labels:
        try:
            names = class_names(url, storage_options=storage_options)
        except RemoteDataError as error:
            contents.notes.append(f"classes have no names: {error}")
        else:
            named = {label: class_name(label, names) for label in contents.labels}
            contents.class_names = {label: name for label, name in named.items() if name != label}
    return contents


def _count_all(shard: ShardHeaders, counter: _Counter) -> None:
    """Count a shard's samples, by its index if it has one and is large."""
    offsets = None
    if shard.compression is not None:
        counter.notes.append(f"compressed by {shard.compression}: read as a whole")
    elif shard.num_bytes >= _MIN_INDEXED_BYTES:
        offsets, reason = shard.read_index()
        if offsets is None:
            counter.notes.append(f"{reason}; followed the headers one by one")
    if offsets is not None:
        try:
            headers = list(_by_index(shard, offsets, counter.passed_over))
        except ShardReadError:  # of a wrong index or a damaged shard: reading from the start decides which
            counter.passed_over.clear()
        else:
            counter.count(iter(headers))
            if counter.starts[1:] != offsets[1:-1]:
                counter.notes.append(WRONG_INDEX)
            return
    counter.count(shard.from_start(is_label, counter.skip))
    if offsets is not None:
        counter.notes.append(f"{WRONG_INDEX}; followed the headers one by one")


def _by_index(shard: ShardHeaders, offsets: list[int], passed_over: Counter[str]) -> Iterator[MemberHeader]:
    """Read all headers, several chunks of the shard in parallel."""
    num_samples = len(offsets) - 1
    small = offsets[-1] <= num_samples * FAR_BYTES
    max_chunks = -(-offsets[-1] // _CHUNK_BYTES) if small else _MAX_THREADS * _CHUNKS_PER_THREAD
    num_chunks = min(num_samples, max_chunks)
    bounds = [offsets[num_samples * chunk // num_chunks] for chunk in range(num_chunks)]
    in_flight = ConcurrencyLimit(_MAX_THREADS, check=lambda: None)

    def read(start: int, stop: int | None, wait: Any) -> tuple[list[MemberHeader], list[str]]:
        skipped: list[str] = []
        headers = shard.between(
            start,
            stop,
            is_label,
            in_flight=in_flight,
            wait=wait,
            first_bytes=MOST_BYTES if small else LEAST_BYTES,
            on_skip=skipped.append,
        )
        return list(headers), skipped

    chunks = zip(bounds, [*bounds[1:], None], strict=True)
    tasks = (lambda wait, start=start, stop=stop: read(start, stop, wait) for start, stop in chunks)
    for headers, skipped in ordered_map(tasks, max_threads=_MAX_THREADS):
        passed_over.update(skipped)
        yield from headers


class _Counter:
    """Counts the members and samples of a shard.

    Args:
        shard: whose headers are counted.
        num_samples: first samples whose sizes are kept.
    """

    def __init__(self, shard: ShardHeaders, num_samples: int) -> None:
        self._shard, self._num_first = shard, num_samples
        self.notes: list[str] = []
        self.passed_over: Counter[str] = Counter()
        self._bad = Skipped()
        self.starts: list[int] = []  # of samples
        self._sizes: dict[str, list[int]] = {}
        self._labels: Counter[str] = Counter()
        self._num_unread = 0  # labels
        self._folders: Counter[str] = Counter()
        self._sample_bytes: list[int] = []
        self._first: list[dict[str, Any]] = []

    def skip(self, kind: str) -> None:
        """Count an entry that belongs to no sample."""
        self.passed_over[kind] += 1

    def count(self, headers: Iterator[MemberHeader]) -> None:
        """Count all members."""
        on_bad_member = MemberErrorHandler(lambda error: None, self._bad)
        for sample in group_headers(headers, url=self._shard.shown, on_skip=self.skip, on_bad_member=on_bad_member):
            members = {name: header for name, header in sample.items() if isinstance(header, MemberHeader)}
            self.starts.append(next(iter(members.values())).start)
            for extension, header in members.items():
                self._sizes.setdefault(extension, []).append(header.num_bytes)
            label = decode_label(members.get(LABEL_EXTENSION))
            if label is not None:
                self._labels[label] += 1
            self._num_unread += is_unread(members.get(LABEL_EXTENSION))
            folder = str(sample[KEY]).rpartition("/")[0].rpartition("/")[2]
            if folder:
                self._folders[folder] += 1
            sizes = {extension: header.num_bytes for extension, header in members.items()}
            self._sample_bytes.append(sum(sizes.values()))
            if len(self._first) < self._num_first:
                self._first.append({"key": sample[KEY], "label": label, "bytes": sizes})

    def contents(self) -> ShardContents:
        """Return all counts."""
        if self._num_unread:
            self.notes.append(not_counted(self._num_unread, len(self.starts)))
        sizes = {
            extension: Sizes(len(group), min(group), median(group), max(group), sum(group))
            for extension, group in self._sizes.items()
        }
        return ShardContents(
            self._shard.shown,
            self._shard.num_bytes,
            self._shard.compression,
            num_members=sum(group.num_members for group in sizes.values()),
            num_samples=len(self.starts),
            passed_over=dict(self.passed_over),
            bad_members=dict(self._bad.bad_members),
            extensions=sizes,
            labels=dict(self._labels),
            folders={} if self._labels else dict(self._folders),
            sample_bytes=histogram(self._sample_bytes) if self._sample_bytes else None,
            first=self._first,
            fetched_bytes=self._shard.fetched_bytes,
            num_requests=self._shard.num_requests,
            notes=self.notes,
        )
