"""Inspect a shard by its headers, read by ranged requests or, of a compressed one, as a stream."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from statistics import median
from typing import Any

from ..core.options import RetryPolicy, StorageOptions
from ..core.threads import ordered_map
from ..core.urls import redact
from ..errors import RemoteDataError, ShardReadError
from ..fetch.listing.shard_set import read_if_there
from ..fetch.ranges import OneObject
from ..fetch.read_ahead import FAR_BYTES, LEAST_BYTES, MOST_BYTES, ReadAhead
from ..formats.compression import CompressionLimits, decompressed
from ..formats.error_policy import MemberErrorHandler, Skipped
from ..formats.grouping import samples_of
from ..formats.labels import CLASSES_NAME, load_table
from ..formats.sample import KEY, Sample, split_key
from ..formats.sample_index import index_url, parse_index
from ..formats.tar import MemberHeader, TarOptions, read_member_headers

Headers = Generator[MemberHeader, None, None]
Wanted = Callable[[str, int], bool]
"""Called with a member's name and size: whether its data are read."""

_WRONG_INDEX = "the index beside it is of another shard, or damaged: write it again"
LABEL = "cls"
_MAX_LABEL_BYTES = 64
_ZIP = b"PK\x03\x04", b"PK\x05\x06"
_MIN_INDEXED_BYTES = 512 << 10  # a smaller shard is read faster without its index
_MAX_THREADS = 16
_CHUNKS_PER_THREAD = 4
_CHUNK_BYTES = 4 << 20  # where samples are so small that all bytes are read
_MAX_BINS, _WIDE = 12, 50  # largest size by smallest: beyond this, bins grow by a factor


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
        self._first: ReadAhead | None = ReadAhead(OneObject(url, options, retry))
        head = self._first.head()
        if head[:4] in _ZIP:
            raise ShardReadError(
                f"{self.shown} is a zip, and only tars can be inspected: list it with unzip -l, or read it with "
                "shard_zip_reader().",
                url=self.shown,
            )
        self.url = self._first.reader.version
        self.num_bytes = self.url.size or 0
        self.compression, unread = decompressed([head], url=self.shown, limits=CompressionLimits())
        unread.close()
        self._sent_whole = len(head) > LEAST_BYTES
        self.fetched: Counter[str] = Counter()  # bytes and requests
        self._lock = threading.RLock()
        self._count(self._first.fetched_bytes, self._first.num_requests)

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
            return None, _WRONG_INDEX

    def read(
        self,
        wanted: Wanted,
        start: int = 0,
        stop: int | None = None,
        *,
        first_bytes: int = LEAST_BYTES,
        on_skip: Callable[[str], object] = lambda kind: None,
    ) -> Headers:
        """Read headers; several threads may, of an uncompressed shard. A compressed one is read as a whole.

        Args:
            wanted: decides whose data are read.
            start: offset of a header.
            stop: offset of a later header; ``None`` for the archive's end.
            first_bytes: length of the first request.
            on_skip: as in ``TarOptions``.

        Raises:
            ShardReadError: as ``tar.read_member_batches``, and if a member extends beyond ``stop``.
        """
        windows, whole = None, self.compression is not None
        if start == 0 and stop is None:
            windows, self._first = self._first, None
        if windows is None:
            reader = OneObject(self.url, self._options, self._retry)
            windows = ReadAhead(reader, start=start, stop=stop, first_bytes=first_bytes)
        before = windows.fetched_bytes, windows.num_requests  # these are counted already
        options = TarOptions(
            None if whole else self.num_bytes, start, stop, max_member_bytes=sys.maxsize, on_skip=on_skip
        )
        tar = decompressed(windows, url=self.shown, limits=CompressionLimits())[1] if whole else windows
        try:
            yield from read_member_headers(tar, url=self.shown, options=options, wanted=wanted)
        finally:
            self._count(windows.fetched_bytes - before[0], windows.num_requests - before[1])

    def _count(self, num_bytes: int, num_requests: int) -> None:
        with self._lock:
            self.fetched.update(bytes=num_bytes, requests=num_requests)


def group_headers(headers: Iterable[MemberHeader], **options: Any) -> Iterator[Sample]:
    """Group headers into samples, as readers group members: extension -> header.

    Args:
        headers: in the order of the archive.
        options: as of ``sample_runs``.

    Raises:
        ShardReadError: as ``samples_of``.
    """
    return samples_of((([header.name], [header]) for header in headers), **options)


def is_label(name: str, num_bytes: int) -> bool:
    """Return whether a member is a label that is small enough to be read."""
    return num_bytes <= _MAX_LABEL_BYTES and split_key(name)[1] == LABEL


def label_of(sample: Mapping[str, Any]) -> str | None:
    """Return a sample's label; ``None`` if it has none or its data were not read."""
    header: MemberHeader | None = sample.get(LABEL)
    if header is None or header.data is None:
        return None
    return header.data.decode("utf-8", "backslashreplace").strip()


class SampleCounts:
    """Counts of samples, whose headers were read.

    Attributes:
        samples: ``"all"`` that were counted, and ``"unread"`` whose ``cls`` member is too large to be a label.
        labels: content of ``cls`` members of up to 64 bytes -> samples.
        folders: last folder of the key -> samples; keys without a folder are not counted.
        members: extension -> samples, in the order of their first occurrence.
    """

    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self.folders: Counter[str] = Counter()
        self.members: Counter[str] = Counter()

    def count(self, sample: Sample) -> None:
        """Count a sample."""
        label = label_of(sample)
        self.samples.update(all=1, unread=label is None and LABEL in sample)
        self.labels.update([] if label is None else [label])
        self.folders.update(filter(None, [str(sample[KEY]).rpartition("/")[0].rpartition("/")[2]]))
        self.members.update(name for name, one in sample.items() if isinstance(one, MemberHeader))

    def add(self, other: SampleCounts) -> None:
        """Add what was counted elsewhere."""
        for name, counted in vars(other).items():
            getattr(self, name).update(counted)


def notes_of(counts: SampleCounts) -> list[str]:
    """Say which labels are not among the classes."""
    unread = f"{counts.samples['unread']:,} of {counts.samples['all']:,} samples have a {LABEL} member"
    text = f"{unread} of more than {_MAX_LABEL_BYTES} bytes: they are not counted in the classes"
    return [text] if counts.samples["unread"] else []


def class_name(label: str, names: Mapping[str, str]) -> str:
    """Return the name of a class number, or the label itself if it has none.

    Example:
        >>> class_name("01", {"1": "kit fox"}), class_name("dog", {})
        ('kit fox', 'dog')
    """
    return names.get(label.lstrip("0") or "0", label)


def class_names(shard_url: str, *, storage_options: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Read the class table (``classes.json``) beside a shard: class number, as in ``cls`` members -> name.

    Empty if there is none.

    Raises:
        LabelError: if the file is not a class table.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/foxes/classes.json", b'{"n02119789": {"id": 0, "name": "kit_fox"}}')
        >>> class_names("memory://foxes/0.tar")
        {'0': 'kit_fox'}
    """
    url = shard_url[: shard_url.rindex("/") + 1] + CLASSES_NAME
    data = read_if_there(url, StorageOptions(storage_options), RetryPolicy())
    table = {} if data is None else load_table(data, url)
    return {str(entry["id"]): entry["name"] for entry in table.values()}


@dataclass(frozen=True)
class Sizes:
    """Number and sizes of the members with one extension."""

    num_members: int
    min_bytes: int
    median_bytes: float
    max_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Histogram:
    """How many numbers are in each bin.

    Args:
        edges: bin ``i`` holds the numbers from ``edges[i]`` to ``edges[i + 1] - 1``.
        counts: of each bin.
    """

    edges: list[int]
    counts: list[int]


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
    num_members: int
    num_samples: int
    passed_over: dict[str, int]
    bad_members: dict[str, int]
    extensions: dict[str, Sizes]
    labels: dict[str, int]
    class_names: dict[str, str]
    folders: dict[str, int]
    sample_bytes: Histogram | None
    first: list[dict[str, Any]]
    fetched_bytes: int
    num_requests: int
    notes: list[str]


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
    offsets, notes = None, []
    if shard.compression is not None:
        notes.append(f"compressed by {shard.compression}: read as a whole")
    elif shard.num_bytes >= _MIN_INDEXED_BYTES:
        offsets, reason = shard.read_index()
        notes += [f"{reason}; followed the headers one by one"] * (offsets is None)
    passed_over: list[str] = []
    headers: Iterable[MemberHeader] | None = None
    if offsets is not None:
        try:
            headers = _by_index(shard, offsets, passed_over.append)
        except ShardReadError:  # of a wrong index or a damaged shard: reading from the start decides which
            passed_over = []
            notes.append(f"{_WRONG_INDEX}; followed the headers one by one")
    by_index = headers is not None
    headers = headers or shard.read(is_label, on_skip=passed_over.append)
    counts, skipped, starts = SampleCounts(), Skipped(), []
    sizes: dict[str, list[int]] = {}
    sample_bytes: list[int] = []
    first: list[dict[str, Any]] = []
    on_bad_member = MemberErrorHandler(lambda error: None, skipped)
    for sample in group_headers(headers, url=shard.shown, on_skip=passed_over.append, on_bad_member=on_bad_member):
        counts.count(sample)
        members = {name: one for name, one in sample.items() if isinstance(one, MemberHeader)}
        starts.append(next(iter(members.values())).start)
        own = {name: one.num_bytes for name, one in members.items()}
        for name, num_bytes in own.items():
            sizes.setdefault(name, []).append(num_bytes)
        sample_bytes.append(sum(own.values()))
        if len(first) < num_samples:
            first.append({"key": sample[KEY], "label": label_of(sample), "bytes": own})
    if by_index and offsets is not None and starts[1:] != offsets[1:-1]:
        notes.append(_WRONG_INDEX)
    notes += notes_of(counts)
    table: dict[str, str] = {}
    if counts.labels:
        try:
            table = class_names(url, storage_options=storage_options)
        except RemoteDataError as error:
            notes.append(f"classes have no names: {error}")
    return ShardContents(
        url=shard.shown,
        num_bytes=shard.num_bytes,
        compression=shard.compression,
        num_members=sum(map(len, sizes.values())),
        num_samples=len(starts),
        passed_over=dict(Counter(passed_over)),
        bad_members=dict(skipped.bad_members),
        extensions={
            name: Sizes(len(each), min(each), median(each), max(each), sum(each)) for name, each in sizes.items()
        },
        labels=dict(counts.labels),
        class_names={label: name for label in counts.labels if (name := class_name(label, table)) != label},
        folders={} if counts.labels else dict(counts.folders),
        sample_bytes=histogram(sample_bytes) if sample_bytes else None,
        first=first,
        fetched_bytes=shard.fetched["bytes"],
        num_requests=shard.fetched["requests"],
        notes=notes,
    )


def _by_index(shard: ShardHeaders, offsets: Sequence[int], on_skip: Callable[[str], object]) -> list[MemberHeader]:
    """Read all headers, several chunks of the shard in parallel."""
    num_samples = len(offsets) - 1
    small = offsets[-1] <= num_samples * FAR_BYTES
    max_chunks = -(-offsets[-1] // _CHUNK_BYTES) if small else _MAX_THREADS * _CHUNKS_PER_THREAD
    num_chunks = min(num_samples, max_chunks)
    starts = [offsets[num_samples * chunk // num_chunks] for chunk in range(num_chunks)]
    first_bytes = MOST_BYTES if small else LEAST_BYTES

    def read(start: int, stop: int | None) -> list[MemberHeader]:
        return list(shard.read(is_label, start, stop, first_bytes=first_bytes, on_skip=on_skip))

    tasks = [lambda wait, bounds=bounds: read(*bounds) for bounds in zip(starts, [*starts[1:], None], strict=True)]
    return list(chain.from_iterable(ordered_map(tasks, max_threads=_MAX_THREADS)))


def ordered_classes(counts: Mapping[str, int]) -> dict[str, int]:
    """Sort classes by their number; by name if one of them is not a number.

    Example:
        >>> list(ordered_classes({"10": 3, "9": 4})), list(ordered_classes({"b": 1, "1": 2}))
        (['9', '10'], ['1', 'b'])
    """
    numbers = all(label.isascii() and label.isdigit() for label in counts)
    return dict(sorted(counts.items(), key=lambda item: (int(item[0]) if numbers else 0, item[0])))


def histogram(numbers: Sequence[int]) -> Histogram:
    """Count numbers in at most 12 bins of equal width; in bins that grow, if they differ by more than 50 times.

    Args:
        numbers: none of them negative; at least one.

    Example:
        >>> histogram([1_010, 1_250, 1_280, 1_390])
        Histogram(edges=[1000, 1050, 1100, 1150, 1200, 1250, 1300, 1350, 1400], counts=[1, 0, 0, 0, 0, 2, 0, 1])
        >>> histogram([0, 9, 700]).edges
        [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
        >>> histogram([7, 7])
        Histogram(edges=[7, 8], counts=[2])
    """
    least, most = min(numbers), max(numbers)
    if most > _WIDE * max(1, least):  # bins grow by a power of two; zero has one of its own
        growing = ([0, *(2 ** (power * n) for n in range(most.bit_length() + 1))] for power in count(1))
        candidates: Iterator[list[int]] = growing
    else:
        widths = (digit * 10**power for power in count() for digit in (1, 2, 5))
        candidates = (
            list(range(least - least % width, most + width + 1, width))
            for width in widths
            if most // width - least // width < _MAX_BINS
        )
    for edges in candidates:
        used = edges[bisect_right(edges, least) - 1 : bisect_right(edges, most) + 1]
        if len(used) - 1 <= _MAX_BINS:
            break
    counts = [0] * (len(used) - 1)
    for number in numbers:
        counts[bisect_right(used, number) - 1] += 1
    return Histogram(used, counts)
