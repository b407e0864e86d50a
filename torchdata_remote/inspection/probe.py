"""List a dataset's folder and probe some of its shards, within bounds of time and bytes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl, join_url, redact, split_url
from ..errors import RemoteDataError, ShardReadError
from ..fetch.read_ahead import FAR_BYTES, LEAST_BYTES
from ..formats.manifest import MANIFEST_NAME, load_manifest
from ..formats.sample import KEY, Sample, paths_of_macos
from ..formats.tar import MemberHeader
from ..storage import list_folder, read_whole
from .label_member import LABEL_EXTENSION, decode_label, is_label, is_unread
from .shard_headers import ShardHeaders, group_headers

MAX_FILES = 200_000
BRIEF_RETRY = RetryPolicy(deadline_s=5.0, progress_timeout_s=5.0)  # a page is waiting for the result
_HEADER_BYTES = 512
_MAX_MANIFESTS, _MAX_MANIFEST_BYTES = 16, 16 << 20


class Budget:
    """Limit of time and of bytes, shared by threads.

    Args:
        max_s: seconds from now.
        max_bytes: to request from the store.
        clock: monotonic, in seconds.

    Example:
        >>> budget = Budget(max_s=60.0, max_bytes=10)
        >>> budget.take(6), budget.take(6), budget.take(1), budget.cut
        (True, False, False, True)
    """

    def __init__(self, *, max_s: float, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._deadline_s = clock, clock() + max_s
        self._remaining_bytes = max_bytes
        self._lock = threading.RLock()
        self.cut = False  # whether a request was refused

    @property
    def remaining_s(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._deadline_s - self._clock())

    def take(self, num_bytes: int) -> bool:
        """Use a number of bytes; returns whether they and the time are left. After one refusal all are refused."""
        with self._lock:
            self._remaining_bytes -= num_bytes
            if self._remaining_bytes < 0 or self._clock() > self._deadline_s:
                self.cut, self._remaining_bytes = True, -1
            return not self.cut


@dataclass(frozen=True)
class Folder:
    """The files of a dataset.

    Args:
        url: of the folder, with a trailing slash.
        files: sorted by path.
        complete: whether these are all files.
        num_of_macos: files that macOS added, which are not among them.
    """

    url: str
    files: list[RemoteUrl]
    complete: bool
    num_of_macos: int = 0

    def path(self, file: str) -> str:
        """Return a file's path below the folder."""
        return str(file)[len(self.url) :]


def list_dataset(
    root_url: str, options: StorageOptions, *, max_files: int, files: Iterable[RemoteUrl] | None = None
) -> Folder:
    """List the files of a dataset, at most the first ``max_files`` by path.

    Args:
        root_url: the dataset's folder.
        options: for the store.
        max_files: limit of the listing.
        files: the listing itself, from a caller that does not follow links; ``None`` lists the folder.

    Raises:
        StorageError: if the folder cannot be listed.
    """
    url = join_url(*split_url(root_url if root_url.endswith("/") else root_url + "/"))
    if files is None:
        files = list_folder(url, recursive=True, options=options, retry=BRIEF_RETRY)
    listed = list(islice(files, max_files + 1))
    of_macos = paths_of_macos(listed, len(url))
    found = [file for file in listed[:max_files] if file not in of_macos]
    return Folder(url, found, len(listed) <= max_files, len(of_macos))


@dataclass
class ShardProbe:
    """Counts of a shard's samples, or of its first ones.

    Args:
        num_samples: samples that were counted.
        complete: whether these are all samples.
        labels: content of ``cls`` members -> samples.
        num_unread: samples whose ``cls`` member is too large to be a label.
        folders: last folder of the key -> samples; keys without a folder are not counted.
        extensions: of members -> samples.
        problem: why the shard cannot be read; empty if it can.
    """

    num_samples: int = 0
    complete: bool = False
    labels: Counter[str] = field(default_factory=Counter)
    num_unread: int = 0
    folders: Counter[str] = field(default_factory=Counter)
    extensions: Counter[str] = field(default_factory=Counter)
    problem: str = ""

    def count(self, sample: Sample) -> None:
        """Count a sample."""
        self.num_samples += 1
        folder = str(sample[KEY]).rpartition("/")[0].rpartition("/")[2]
        if folder:
            self.folders[folder] += 1
        label = decode_label(sample.get(LABEL_EXTENSION))
        if label is not None:
            self.labels[label] += 1
        self.num_unread += is_unread(sample.get(LABEL_EXTENSION))
        self.extensions.update(name for name in sample if not name.startswith("__"))


def probe_shard(url: RemoteUrl, options: StorageOptions, budget: Budget) -> ShardProbe:
    """Count a shard's samples from its headers, until its end or until the budget is used up.

    The budget is charged beforehand: for a member what reading or skipping it needs, in a compressed shard all of it.
    So at most about twice the budget's bytes are requested.
    """
    probe, cut = ShardProbe(), False
    try:
        shard = ShardHeaders(url, options, BRIEF_RETRY)
        with closing(shard.from_start(is_label)) as headers:
            last: Sample | None = None
            affordable = _Affordable(headers, budget, whole=shard.compression is not None)
            try:
                for sample in group_headers(affordable, url=shard.shown):
                    if last is not None:
                        probe.count(last)
                    last = sample
            finally:
                cut = affordable.cut
            if last is not None and not cut:  # else some of its members may be missing
                probe.count(last)
    except RemoteDataError as error:
        if not (cut and isinstance(error, ShardReadError)):  # "without a single sample", when no header was affordable
            probe.problem = str(error)
    probe.complete = not cut and not probe.problem
    return probe


class _Affordable:
    """Headers, until the budget is used up."""

    def __init__(self, headers: Iterable[MemberHeader], budget: Budget, *, whole: bool) -> None:
        self._headers, self._budget, self._whole = headers, budget, whole
        self.cut = False

    def __iter__(self) -> Iterator[MemberHeader]:
        for header in self._headers:
            data_bytes = (
                header.num_bytes
                if self._whole
                else min(header.num_bytes, FAR_BYTES) + LEAST_BYTES * (header.num_bytes > FAR_BYTES)
            )
            if not self._budget.take(_HEADER_BYTES + data_bytes):
                self.cut = True
                return
            yield header


def samples_by_manifests(folder: Folder, options: StorageOptions, budget: Budget) -> dict[str, int]:
    """Read up to 16 manifests: URL of each shard that they name -> its samples."""
    found: dict[str, int] = {}
    manifests = [file for file in folder.files if file.endswith("/" + MANIFEST_NAME)]
    for url in manifests[:_MAX_MANIFESTS]:
        size = _MAX_MANIFEST_BYTES if url.size is None else url.size
        if size <= _MAX_MANIFEST_BYTES and budget.take(size):
            with suppress(RemoteDataError):  # other files may be named index.json
                data = read_whole(url, options, BRIEF_RETRY, etag=url.etag)
                found |= {one.url: one.num_samples for one in load_manifest(data, url)}
    return found


def evenly_spaced(items: list[Any], num: int) -> list[Any]:
    """Choose up to ``num`` items at even distances, in order.

    Example:
        >>> evenly_spaced(list(range(10)), 3)
        [0, 3, 6]
        >>> evenly_spaced([1, 2], 3)
        [1, 2]
    """
    if num >= len(items):
        return list(items)
    return [items[number * len(items) // num] for number in range(num)]


def without_root(message: str, folder: Folder) -> str:
    """Remove the server's own folder from an error message that users see."""
    return message.replace(redact(folder.url), "").replace(folder.url, "")
