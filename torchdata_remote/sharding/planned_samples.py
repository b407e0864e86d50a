"""Read the samples of one planned shard from files, archives or a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..core.arguments import is_pil_image
from ..core.options import FetchOptions, StorageOptions
from ..errors import ShardWriteError
from ..fetch.sample_table import Int64s, Members
from ..fetch.session import FetchSession
from ..fetch.views import RangeCoalescer
from ..formats.sample import KEY, Sample, split_key
from ..formats.split_name import Split
from ..storage import Store, open_store

_IN_FLIGHT = 32
LABEL = "cls"


class Drawn(NamedTuple):
    """A sample with the name of its source: a path, or the number of a dataset's item."""

    source: str
    sample: Sample


class PlannedSamples(Protocol):
    """Samples that are planned and not yet read; pickled for other processes."""

    def draw(self, window_bytes: int) -> Iterator[Drawn]:
        """Yield the samples in order; about twice ``window_bytes`` of them are in memory."""


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
    labels: np.ndarray[Any, np.dtype[np.int32]] | None
    naming: Naming
    options: StorageOptions
    scratch: tuple[str, StorageOptions]

    def draw(self, window_bytes: int) -> Iterator[Drawn]:
        firsts = np.append(0, np.cumsum(self.members.counts))
        windows = _windows(self.members, firsts, window_bytes)
        session = FetchSession(FetchOptions(max_in_flight=_IN_FLIGHT), self.options)
        with _Coalescer(session, *self.scratch) as coalescer:
            ahead = coalescer.start_read(_slice(self.members, firsts, *windows[0]))
            for first, last, after in [*((*now, then) for now, then in pairwise(windows)), (*windows[-1], None)]:
                data = ahead.wait()
                if after is not None:
                    ahead = coalescer.start_read(_slice(self.members, firsts, *after))
                yield from self._samples(firsts, first, last, data)
                del data

    def _samples(self, firsts: Int64s, first: int, last: int, data: list[memoryview]) -> Iterator[Drawn]:
        begin, names = int(firsts[first]), self.members.names
        ends = firsts[first + 1 : last + 1].tolist()
        at = begin
        for index, end in enumerate(ends, first):
            source = names[at]
            sample: Sample = {}
            for member in range(at, end):
                key, extension = self.naming(names[member])
                sample[KEY] = key
                sample[extension] = data[member - begin]
            if self.labels is not None:
                sample[LABEL] = int(self.labels[index])
            at = end
            yield Drawn(source, sample)


def _windows(members: Members, firsts: Int64s, window_bytes: int) -> list[tuple[int, int]]:
    """Split samples into runs ``[first, last)`` of at most ``window_bytes``, with at least one sample each."""
    ends = np.append(0, np.cumsum(members.sizes))[firsts]
    windows, at = [], 0
    while at < len(members.counts):
        last = int(np.searchsorted(ends, ends[at] + window_bytes, side="right")) - 1
        windows.append((at, max(last, at + 1)))
        at = windows[-1][1]
    return windows


def _slice(members: Members, firsts: Int64s, first: int, last: int) -> Members:
    """Return the members of samples ``first`` to ``last`` (exclusive)."""
    within = slice(int(firsts[first]), int(firsts[last]))
    used, objects = np.unique(members.objects[within], return_inverse=True)
    return Members(
        [members.urls[int(index)] for index in used],
        members.names[within],
        objects,
        members.starts[within],
        members.sizes[within],
        members.counts[first:last],
    )


@dataclass(frozen=True)
class DatasetSamples:
    """Items of a map-style dataset.

    Args:
        dataset: ``None`` if the worker already has it (:func:`keep_dataset`).
        indices: of the items, shape ``(num_samples,)``.
    """

    dataset: Any
    indices: Int64s

    def draw(self, window_bytes: int) -> Iterator[Drawn]:
        dataset = _worker_dataset[0] if self.dataset is None else self.dataset
        for index in self.indices.tolist():
            yield Drawn(str(index), sample_of(dataset[index], index))


_worker_dataset: list[Any] = [None]


def keep_dataset(dataset: Any) -> None:
    """Store a dataset in this process, so that it is not pickled with each shard."""
    _worker_dataset[0] = dataset


def sample_of(item: Any, index: int) -> Sample:
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
