"""What is in a shard: members, samples, sizes, labels; seen from its headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import RetryPolicy, StorageOptions
from ..core.threads.ordered_map import ordered_map
from ..errors import ShardReadError
from ..fetch.read_ahead import FAR_BYTES, LEAST_BYTES, MOST_BYTES
from ..formats.error_policy import MemberErrorHandler, Skipped
from ..formats.grouping import samples_of
from ..formats.sample import KEY, split_key
from ..formats.tar import MemberHeader
from .shard_headers import NOT_ITS_INDEX, ShardHeads

_MAX_LABEL_BYTES = 64
_WORTH_AN_INDEX_BYTES = 512 << 10  # a smaller shard is read sooner without
_MAX_THREADS = 16
_CHUNKS_PER_THREAD = 4
_CHUNK_BYTES = 4 << 20  # of samples so small that all is read


class Sizes(NamedTuple):
    """Of the members with one extension: how many, and their bytes."""

    num_members: int
    min_bytes: int
    median_bytes: float
    max_bytes: int
    total_bytes: int


@dataclass
class ShardContents:
    """What is in a shard.

    Args:
        url: without credentials.
        num_bytes: size of the object.
        compression: its name, or ``None``.
        num_members: regular files that belong to samples.
        num_samples: groups of them that share a key.
        passed_over: what belongs to no sample: ``"directory"``, ``"link"``, ``"device"``, ``"meta"`` -> how many.
        bad_members: why members cannot be part of a sample -> how many. Readers raise for them, unless
            ``on_bad_member`` says otherwise.
        extensions: of members, in the order in which they first came.
        labels: content of ``cls`` members of up to 64 bytes -> how many samples have it.
        first: key, and bytes of each member, of the first samples.
        fetched_bytes: that were asked of the store for this.
        num_requests: by which they came.
        notes: what else there is to say.
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
    first: list[dict[str, Any]] = field(default_factory=list)
    fetched_bytes: int = 0
    num_requests: int = 0
    notes: list[str] = field(default_factory=list)


def inspect_shard(url: str, *, num_samples: int = 5, storage_options: Mapping[str, Any] | None = None) -> ShardContents:
    """Look at a shard by its headers, which ranged requests bring; what lies between them is not read.

    An index beside it (``.idx``) lets samples be looked at in parallel. Without one, requests go from header to header.
    A compressed shard is read as a whole.

    Args:
        url: of a tar.
        num_samples: of which keys and sizes are told.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        ShardReadError: for a shard that is damaged, with the byte, or not made of samples; or a zip.
        StorageError: if it cannot be read.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://seen/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "txt": "moo" * i, "cls": i % 2}) for i in range(3)]
        >>> contents = inspect_shard("memory://seen/0.tar", num_samples=1)
        >>> contents.num_samples, contents.labels, contents.first
        (3, {'0': 2, '1': 1}, [{'key': '0', 'bytes': {'cls': 1, 'txt': 0}}])
        >>> contents.extensions["txt"]
        Sizes(num_members=3, min_bytes=0, median_bytes=3, max_bytes=6, total_bytes=9)
    """
    options, retry = StorageOptions(storage_options), RetryPolicy()
    shard = ShardHeads(url, options, retry)
    tally = _Tally(shard, num_samples)
    offsets = None
    if shard.compression is not None:
        tally.notes.append(f"compressed by {shard.compression}: read as a whole")
    elif shard.num_bytes >= _WORTH_AN_INDEX_BYTES:
        offsets, why_not = shard.read_index()
        if offsets is None:
            tally.notes.append(f"{why_not}; went from header to header")
    if offsets is not None:
        try:
            heads = list(_by_index(shard, offsets, tally.passed_over))
        except ShardReadError:  # is it the shard or the index? Going through it will tell
            tally.passed_over.clear()
        else:
            tally.count(iter(heads))
            if tally.starts[1:] != offsets[1:-1]:
                tally.notes.append(NOT_ITS_INDEX)
            return tally.contents()
    tally.count(shard.from_the_start(_is_small_label, tally.skip))
    if offsets is not None:
        tally.notes.append(f"{NOT_ITS_INDEX}; went from header to header")
    return tally.contents()


def _is_small_label(name: str, num_bytes: int) -> bool:
    return num_bytes <= _MAX_LABEL_BYTES and split_key(name)[1] == "cls"


def _by_index(shard: ShardHeads, offsets: list[int], passed_over: Counter[str]) -> Iterator[MemberHeader]:
    """All members; several pieces of the shard are gone through at the same time."""
    num_samples = len(offsets) - 1
    small = offsets[-1] <= num_samples * FAR_BYTES
    most = -(-offsets[-1] // _CHUNK_BYTES) if small else _MAX_THREADS * _CHUNKS_PER_THREAD
    num_chunks = min(num_samples, most)
    borders = [offsets[num_samples * chunk // num_chunks] for chunk in range(num_chunks)]
    in_flight = ConcurrencyLimit(_MAX_THREADS, check=lambda: None)

    def look(start: int, stop: int | None, wait: Any) -> tuple[list[MemberHeader], list[str]]:
        skipped: list[str] = []
        heads = shard.between(
            start,
            stop,
            _is_small_label,
            in_flight=in_flight,
            wait=wait,
            first_bytes=MOST_BYTES if small else LEAST_BYTES,
            on_skip=skipped.append,
        )
        return list(heads), skipped

    chunks = zip(borders, [*borders[1:], None], strict=True)
    tasks = (lambda wait, start=start, stop=stop: look(start, stop, wait) for start, stop in chunks)
    for heads, skipped in ordered_map(tasks, max_threads=_MAX_THREADS):
        passed_over.update(skipped)
        yield from heads


class _Tally:
    """Counts what a shard has.

    Args:
        shard: which one.
        num_samples: whose sizes are kept.
    """

    def __init__(self, shard: ShardHeads, num_samples: int) -> None:
        self._shard, self._num_first = shard, num_samples
        self.notes: list[str] = []
        self.passed_over: Counter[str] = Counter()
        self._bad = Skipped()
        self.starts: list[int] = []  # of samples
        self._sizes: dict[str, list[int]] = {}
        self._labels: Counter[str] = Counter()
        self._first: list[dict[str, Any]] = []

    def skip(self, kind: str) -> None:
        """Something belongs to no sample."""
        self.passed_over[kind] += 1

    def count(self, heads: Iterator[MemberHeader]) -> None:
        """Take all members."""
        runs = (([head.name], [head]) for head in heads)
        on_bad_member = MemberErrorHandler(lambda error: None, self._bad)
        for sample in samples_of(
            runs,  # type: ignore[arg-type]  # any values
            url=self._shard.shown,
            on_skip=self.skip,
            on_bad_member=on_bad_member,
        ):
            found = {name: head for name, head in sample.items() if isinstance(head, MemberHeader)}
            self.starts.append(next(iter(found.values())).start)
            for extension, head in found.items():
                self._sizes.setdefault(extension, []).append(head.num_bytes)
            label = found.get("cls")
            if label is not None and label.data is not None:
                self._labels[label.data.decode("utf-8", "backslashreplace").strip()] += 1
            if len(self._first) < self._num_first:
                sizes = {extension: head.num_bytes for extension, head in found.items()}
                self._first.append({"key": sample[KEY], "bytes": sizes})

    def contents(self) -> ShardContents:
        """What was counted."""
        sizes = {
            extension: Sizes(len(one), min(one), median(one), max(one), sum(one))
            for extension, one in self._sizes.items()
        }
        return ShardContents(
            self._shard.shown,
            self._shard.num_bytes,
            self._shard.compression,
            num_members=sum(one.num_members for one in sizes.values()),
            num_samples=len(self.starts),
            passed_over=dict(self.passed_over),
            bad_members=dict(self._bad.bad_members),
            extensions=sizes,
            labels=dict(self._labels),
            first=self._first,
            fetched_bytes=self._shard.fetched_bytes,
            num_requests=self._shard.num_requests,
            notes=self.notes,
        )
