"""Write one planned shard: read its samples from files, archives or a dataset, pack them, and record the result."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..core.arguments import is_pil_image
from ..core.options import MIB, FetchOptions, StorageOptions
from ..errors import RemoteDataError, ShardWriteError
from ..fetch.sample_table import Int64s, Members
from ..fetch.session import FetchSession
from ..fetch.views import CoalescedRead, RangeCoalescer
from ..formats.key_index import companion_urls
from ..formats.manifest import ShardInfo, dump_entry
from ..formats.sample import KEY, Sample, split_key
from ..formats.split_name import Split
from ..storage import Store, open_store
from ..writing import RollingShardWriter, ShardFolder, ShardLimits
from .workers import shared_with_workers

LABEL = "cls"
Transform = Callable[[Sample], Sample | None]
Labels = np.ndarray[Any, np.dtype[np.int32]]

_IN_FLIGHT = 32
_WINDOW_BYTES = 64 * MIB


class Drawn(NamedTuple):
    """A sample with the name of its source: a path, or the number of a dataset's item."""

    source: str
    sample: Sample


@dataclass(frozen=True)
class Naming:
    """How the name of a member becomes key and extension.

    Args:
        num_folders: leading folders that are dropped.
        split: splits the rest.
    """

    num_folders: int = 0
    split: Split = split_key

    def __call__(self, name: str) -> tuple[str, str]:
        """Return key and extension."""
        return self.split(name.split("/", self.num_folders)[self.num_folders] if self.num_folders else name)


class _Coalescer(RangeCoalescer):
    """Reads members, also of temporary objects, whose store has options of its own."""

    def __init__(self, session: FetchSession, scratch_url: str, scratch_options: StorageOptions) -> None:
        super().__init__(session)
        self._scratch_url, self._scratch_options = scratch_url, scratch_options

    def open_store(self, url: str) -> tuple[Store, str]:
        if url.startswith(self._scratch_url):
            return open_store(url, self._scratch_options, self.running.connection)
        return super().open_store(url)


@dataclass(frozen=True)
class FileSamples:
    """Samples whose members are ranges of objects: of files, or of archives.

    Args:
        members: their ranges.
        labels: class numbers, shape ``(num_samples,)``, or ``None`` to leave ``cls`` as it is.
        naming: of the members in shards.
        options: for the source's store.
        scratch: URL prefix of temporary objects, and the options for their store.
    """

    members: Members
    labels: Labels | None
    naming: Naming
    options: StorageOptions
    scratch: tuple[str, StorageOptions]

    def draw(self, window_bytes: int) -> Iterator[Drawn]:
        """Yield the samples in order; about twice ``window_bytes`` of them are in memory."""
        session = FetchSession(FetchOptions(max_in_flight=_IN_FLIGHT), self.options)
        reads: deque[tuple[FileSamples, CoalescedRead]] = deque()
        with _Coalescer(session, *self.scratch) as coalescer:
            for window in self._windows(window_bytes):
                reads.append((window, coalescer.start_read(window.members)))
                if len(reads) > 1:
                    yield from _samples(*reads.popleft())
            yield from _samples(*reads.popleft())

    def _windows(self, window_bytes: int) -> Iterator[FileSamples]:
        """Split the samples into runs of at most ``window_bytes``, with at least one sample each."""
        urls, names, objects, starts, sizes, counts = self.members
        firsts = np.append(0, np.cumsum(counts))
        ends = np.append(0, np.cumsum(sizes))[firsts]
        at = 0
        while at < len(counts):
            last = max(at + 1, int(np.searchsorted(ends, ends[at] + window_bytes, side="right")) - 1)
            within = slice(int(firsts[at]), int(firsts[last]))
            used, places = np.unique(objects[within], return_inverse=True)
            members = Members(
                [urls[index] for index in used.tolist()],
                names[within],
                places,
                starts[within],
                sizes[within],
                counts[at:last],
            )
            labels = None if self.labels is None else self.labels[at:last]
            yield FileSamples(members, labels, self.naming, self.options, self.scratch)
            at = last


def _samples(window: FileSamples, read: CoalescedRead) -> Iterator[Drawn]:
    data, names, naming = read.wait(), window.members.names, window.naming
    labels = None if window.labels is None else window.labels.tolist()
    first = 0
    for number, count in enumerate(window.members.counts.tolist()):
        sample: Sample = {}
        for member in range(first, first + count):
            key, extension = naming(names[member])
            sample[KEY] = key
            sample[extension] = data[member]
        if labels is not None:
            sample[LABEL] = labels[number]
        yield Drawn(names[first], sample)
        first += count


@dataclass(frozen=True)
class DatasetSamples:
    """Items of a map-style dataset.

    Args:
        dataset: ``None`` if it is shared with the workers.
        indices: of the items, shape ``(num_samples,)``.
    """

    dataset: Any
    indices: Int64s

    def draw(self, window_bytes: int) -> Iterator[Drawn]:
        """Yield the samples in order."""
        dataset = shared_with_workers() if self.dataset is None else self.dataset
        for index in self.indices.tolist():
            yield Drawn(str(index), _sample_of(dataset[index], index))


def _sample_of(item: Any, index: int) -> Sample:
    """Convert an item of a dataset to a sample; its key is its number, unless it has one.

    Args:
        item: a dict of members by extension, or ``(image, label)``. An image is a ``PIL.Image`` (becomes PNG), bytes,
            ``str``, an array or a tensor (become ``npy``).
        index: of the item.

    Raises:
        ShardWriteError: for anything else.
    """
    key = f"{index:09d}"
    if isinstance(item, Mapping):
        return {KEY: key, **{name: _number(value) for name, value in item.items()}}
    if not (isinstance(item, Sequence) and not isinstance(item, str | bytes) and len(item) == 2):
        raise ShardWriteError(
            f"Item {index} of the dataset is a {type(item).__name__}; expected (image, label), or a dict of members by "
            'extension such as {"jpg": b"...", "cls": 3}.'
        )
    image, label = item
    if is_pil_image(image):
        return {KEY: key, "png": image, LABEL: _number(label)}
    if isinstance(image, bytes | bytearray | memoryview):
        return {KEY: key, "bin": image, LABEL: _number(label)}
    if isinstance(image, str):
        return {KEY: key, "txt": image, LABEL: _number(label)}
    if hasattr(image, "__array__"):
        return {KEY: key, "npy": np.asarray(image), LABEL: _number(label)}
    raise ShardWriteError(
        f"Item {index} of the dataset begins with a {type(image).__name__}; expected a PIL.Image, an array, a tensor, "
        "bytes or str. For other types, let the dataset return dicts."
    )


def _number(value: Any) -> Any:
    """Unwrap NumPy numbers, and tensors and arrays of one number."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


@dataclass(frozen=True)
class ShardOptions:
    """Options that all shards of a job share.

    Args:
        folder: of the shards, which is claimed.
        first_number: of the first shard.
        num_tasks: planned shards.
        limits: of a shard.
        transform: maps a sample to another one, or to ``None`` to leave it out.
        provenance: whether the records say where each sample is.
        records: prefix of the names of the records of finished tasks.
    """

    folder: ShardFolder
    first_number: int
    num_tasks: int
    limits: ShardLimits
    transform: Transform | None
    provenance: bool
    records: str = ""

    def record(self, number: int) -> str:
        """Return the name of the record of a task: a line of JSON, then the provenance of its samples."""
        return f"{self.records}{number:06d}"


@dataclass(frozen=True)
class ShardTask:
    """One planned shard.

    Args:
        number: among the planned shards, from 0.
        samples: to write into it.
        options: of all shards.
    """

    number: int
    samples: FileSamples | DatasetSamples
    options: ShardOptions


Written = tuple[int, list[ShardInfo]]
"""The number of a task, and its shards; none if the transform left out all samples."""


def write_shard(task: ShardTask) -> Written:
    """Write a planned shard, and the record that it is finished.

    If sizes were not known before, the samples may exceed the limits: then the rest goes into shards numbered after the
    planned ones, in the same way in every run.
    """
    return _start_shard(task)()


def write_here(tasks: Iterator[ShardTask]) -> Generator[Written, None, None]:
    """Write shards in this process; a shard is finished in the background while the next one is packed."""
    pending: list[Callable[[], Written]] = []
    try:
        for task in tasks:
            pending.append(_start_shard(task))
            if len(pending) > 1:
                yield pending.pop(0)()
        while pending:
            yield pending.pop(0)()
    finally:
        for finish in pending:
            with contextlib.suppress(Exception):  # the error that led here is the one to report
                finish()


def _start_shard(task: ShardTask) -> Callable[[], Written]:
    """As :func:`write_shard`, but return a function that waits for the end of the upload."""
    options, folder = task.options, task.options.folder
    writer = RollingShardWriter(
        folder,
        lambda index: folder.template.url(options.first_number + task.number + index * options.num_tasks),
        options.limits,
        overwrite=True,
    )
    sources: dict[str, dict[str, Any]] = {}
    try:
        for source, sample in transformed(task.samples, options):
            writer.add(sample)
            if options.provenance:
                url, position = writer.last_position()
                name = url.rpartition("/")[2]
                sources[source] = {"class": _class_of(sample), "targetFile": name, "position": position}
        writer.end()
    except BaseException:
        writer.abort()
        raise

    def finish() -> Written:
        shards = writer.result()
        urls = [url for shard in shards for url in (shard.url, *companion_urls(shard.url))]
        versions = {name: folder.version(name) for name in (url.rpartition("/")[2] for url in urls)}
        record = {"shardlist": [dump_entry(shard) for shard in shards], "versions": versions}
        folder.require_claim()
        folder.publish(options.record(task.number), f"{json.dumps(record)}\n{json.dumps(sources)}".encode())
        return task.number, shards

    return finish


def _class_of(sample: Sample) -> int | None:
    """Return the class number of a sample; ``None`` if it has none."""
    label = sample.get(LABEL)
    text = bytes(label).decode("utf-8", "replace") if isinstance(label, bytes | memoryview) else str(label)
    return int(text) if text.isascii() and text.isdigit() else None


def transformed(samples: FileSamples | DatasetSamples, options: ShardOptions) -> Iterator[Drawn]:
    """Yield samples as they will be written; the transform gets members as ``bytes``."""
    transform, window_bytes = options.transform, options.limits.max_shard_bytes // 4
    with closing(samples.draw(min(_WINDOW_BYTES, max(MIB, window_bytes)))) as source:  # type: ignore[type-var]
        if transform is None:
            yield from source
            return
        for name, sample in source:
            whole = {key: bytes(value) if isinstance(value, memoryview) else value for key, value in sample.items()}
            try:
                result = transform(whole)
            except RemoteDataError:
                raise
            except Exception as error:
                raise ShardWriteError(f"transform failed for {name!r}: {type(error).__name__}: {error}") from error
            if result is not None:
                yield Drawn(name, result)
