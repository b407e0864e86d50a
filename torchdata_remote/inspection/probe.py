"""What lies in a dataset's folder, and in some of its shards, seen within bounds of time and bytes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl, join_url, redact, split_url
from ..errors import RemoteDataError, ShardReadError
from ..fetch.read_ahead import FAR_BYTES, LEAST_BYTES
from ..formats.grouping import samples_of
from ..formats.manifest import MANIFEST_NAME, load_manifest
from ..formats.sample import KEY, Sample, split_key
from ..formats.tar import MemberHeader
from ..storage.listing.folder import list_folder
from ..storage.registry import read_whole
from .shard_headers import ShardHeads

BRIEFLY = RetryPolicy(deadline_s=5.0, progress_timeout_s=5.0)  # somebody waits for the page
_MAX_LABEL_BYTES = 64
_HEADER_BYTES = 512
_MAX_MANIFESTS, _MAX_MANIFEST_BYTES = 16, 16 << 20


class Budget:
    """Seconds and bytes that may still be used; shared by threads.

    Args:
        max_s: seconds from now.
        max_bytes: that may be asked of the store.
        clock: seconds that only grow.

    Example:
        >>> budget = Budget(max_s=60.0, max_bytes=10)
        >>> budget.take(6), budget.take(6), budget.take(1), budget.cut
        (True, False, False, True)
    """

    def __init__(self, *, max_s: float, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._deadline_s = clock, clock() + max_s
        self._left_bytes = max_bytes
        self._lock = threading.RLock()
        self.cut = False  # whether something was refused

    def take(self, num_bytes: int) -> bool:
        """Use so many bytes, if they and the time are there; after the first refusal nothing is."""
        with self._lock:
            self._left_bytes -= num_bytes
            if self._left_bytes < 0 or self._clock() > self._deadline_s:
                self.cut, self._left_bytes = True, -1
            return not self.cut


@dataclass(frozen=True)
class Folder:
    """The files of a dataset.

    Args:
        url: of the folder, with a slash at its end.
        files: sorted by path.
        complete: whether these are all.
    """

    url: str
    files: list[RemoteUrl]
    complete: bool

    def path(self, file: str) -> str:
        """A file's path below the folder."""
        return str(file)[len(self.url) :]


def list_dataset(root_url: str, options: StorageOptions, *, max_files: int) -> Folder:
    """The files of a dataset, the first ``max_files`` of them by path.

    Raises:
        StorageError: if the folder cannot be listed.
    """
    url = join_url(*split_url(root_url if root_url.endswith("/") else root_url + "/"))
    files = list(islice(list_folder(url, recursive=True, options=options, retry=BRIEFLY), max_files + 1))
    return Folder(url, files[:max_files], len(files) <= max_files)


@dataclass
class ShardLook:
    """What was seen of a shard.

    Args:
        num_samples: that were seen.
        to_the_end: whether these are all.
        labels: content of ``cls`` members -> samples.
        folders: last folder of the key -> samples; of keys without one, nothing.
        extensions: of members -> samples.
        problem: why it cannot be read; empty if it can.
    """

    num_samples: int = 0
    to_the_end: bool = False
    labels: Counter[str] = field(default_factory=Counter)
    folders: Counter[str] = field(default_factory=Counter)
    extensions: Counter[str] = field(default_factory=Counter)
    problem: str = ""

    def count(self, sample: Sample) -> None:
        """Take one more."""
        self.num_samples += 1
        folder = str(sample[KEY]).rpartition("/")[0].rpartition("/")[2]
        if folder:
            self.folders[folder] += 1
        label = text_of(sample.get("cls"))
        if label is not None:
            self.labels[label] += 1
        self.extensions.update(name for name in sample if not name.startswith("__"))


def look_into(url: RemoteUrl, options: StorageOptions, budget: Budget) -> ShardLook:
    """Go through a shard from its beginning, by headers, until its end or the budget's.

    What it costs is taken from the budget beforehand: of a member what reading it or jumping over it needs, of a
    compressed one all of it. So no more than about twice the budget's bytes are asked for.
    """
    look, cut = ShardLook(), False
    try:
        shard = ShardHeads(url, options, BRIEFLY)
        with closing(shard.from_the_start(is_small_label)) as heads:
            last: Sample | None = None
            affordable = _Affordable(heads, budget, whole=shard.compression is not None)
            try:
                for sample in samples_in(affordable, shard.shown):
                    if last is not None:
                        look.count(last)
                    last = sample
            finally:
                cut = affordable.cut
            if last is not None and not cut:  # else some of its members may not have been seen
                look.count(last)
    except RemoteDataError as error:
        if not (cut and isinstance(error, ShardReadError)):  # "not a single sample", when none was looked at
            look.problem = str(error)
    look.to_the_end = not cut and not look.problem
    return look


class _Affordable:
    """Heads while the budget lasts."""

    def __init__(self, heads: Iterable[MemberHeader], budget: Budget, *, whole: bool) -> None:
        self._heads, self._budget, self._whole = heads, budget, whole
        self.cut = False

    def __iter__(self) -> Iterator[MemberHeader]:
        for head in self._heads:
            passing = (
                head.num_bytes
                if self._whole
                else min(head.num_bytes, FAR_BYTES) + LEAST_BYTES * (head.num_bytes > FAR_BYTES)
            )
            if not self._budget.take(_HEADER_BYTES + passing):
                self.cut = True
                return
            yield head


def samples_by_manifests(folder: Folder, options: StorageOptions, budget: Budget) -> dict[str, int]:
    """URL of each shard that a manifest names -> its samples; 16 manifests are read at most."""
    found: dict[str, int] = {}
    manifests = [file for file in folder.files if file.endswith("/" + MANIFEST_NAME)]
    for url in manifests[:_MAX_MANIFESTS]:
        size = _MAX_MANIFEST_BYTES if url.size is None else url.size
        if size <= _MAX_MANIFEST_BYTES and budget.take(size):
            with suppress(RemoteDataError):  # other things may be called index.json
                found |= {one.url: one.num_samples for one in load_manifest(read_whole(url, options, BRIEFLY), url)}
    return found


def samples_in(heads: Iterable[MemberHeader], shown: str) -> Generator[Sample, None, None]:
    """Heads by samples: extension -> head.

    Raises:
        ShardReadError: as ``samples_of``.
    """
    runs = (([head.name], [head]) for head in heads)
    yield from samples_of(runs, url=shown)  # type: ignore[arg-type]  # any values


def is_small_label(name: str, num_bytes: int) -> bool:
    """Whether a member may be read for its label."""
    return num_bytes <= _MAX_LABEL_BYTES and split_key(name)[1] == "cls"


def text_of(head: Any) -> str | None:
    """What a label says; ``None`` if it was not read."""
    if not isinstance(head, MemberHeader) or head.data is None:
        return None
    return head.data.decode("utf-8", "backslashreplace").strip()


def spread(items: list[Any], num: int) -> list[Any]:
    """So many of them, from all over the list, in its order.

    Example:
        >>> spread(list(range(10)), 3)
        [0, 3, 6]
        >>> spread([1, 2], 3)
        [1, 2]
    """
    if num >= len(items):
        return list(items)
    return [items[number * len(items) // num] for number in range(num)]


def without_place(message: str, folder: Folder) -> str:
    """An error's text that does not tell users where on the server their files lie."""
    return message.replace(redact(folder.url), "").replace(folder.url, "")
