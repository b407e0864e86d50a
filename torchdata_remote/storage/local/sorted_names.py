"""Sorted names in local folders, cached so that a listing in many pages reads each folder once."""

from __future__ import annotations

import heapq
import os
import sys
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol

from ...core.threads.named_locks import NamedLocks
from .names import is_internal_name

LINK = "\0"  # after the name of a link, as "/" after that of a folder
_SEPARATOR = "\0/"  # which no name contains or begins or ends in part, in the order of these two characters
_BLOCK_NAMES = 1000
_RUN_NAMES = 10_000  # sorted in one call, which keeps the interpreter's lock
_SELECTED_NAMES = 10_000  # found by one scan of a folder that is not cached
_FOLDER_BYTES = 1000  # of a folder in the cache, without its names
_MAX_BYTES, _MAX_FOLDER_BYTES = 64 << 20, 32 << 20
# Times of files on FAT are multiples of 2 s, and the kernel's clock for files is behind that of programs
_CLOCK_STEP_NS = 3_000_000_000

_Version = tuple[int, int, int, int]


class Names(Protocol):
    """The names in a folder, those of folders with a slash at the end."""

    def starting_at(self, first: str) -> Iterator[str]:
        """Yield the names that are not before ``first``, sorted by code points."""


class SortedNamesCache:
    """Caches the sorted names of folders that have not changed for some seconds.

    The names of a folder are used again while its times, device and inode are the same. Its change time is set by the
    kernel only. So a folder that changed less than a step of the file system's clock before it was read is read again:
    another change may have left the same time.

    Args:
        max_bytes: of all names.
        max_folder_bytes: of the names in one folder. Those in a larger one are not cached, nor all in memory at once.
        clock: nanoseconds since 1970.
    """

    def __init__(
        self,
        max_bytes: int = _MAX_BYTES,
        max_folder_bytes: int = _MAX_FOLDER_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._max_bytes, self._max_folder_bytes, self._clock = max_bytes, max_folder_bytes, clock
        self._lock, self._readers = threading.RLock(), NamedLocks()
        self._folders: OrderedDict[str, tuple[_Version, _Sorted]] = OrderedDict()  # least recently used first
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._folders)

    def names(self, folder: str) -> Names:
        """Return the names in a folder, without those of this package, and without devices and pipes.

        One thread at a time reads a folder into the cache; the others wait for it.

        Raises:
            OSError: if the folder cannot be read.
        """
        with self._readers.held(folder):
            version = _version(folder)
            with self._lock:
                cached = self._folders.get(folder)
                if cached is not None and cached[0] == version:
                    self._folders.move_to_end(folder)
                    return cached[1]
            self._replace(folder, None)
            if self._clock() - max(version[:2]) < _CLOCK_STEP_NS:
                return _Scanned(folder)
            names = _read(folder, self._max_folder_bytes)
            if names is None:
                return _Scanned(folder)
            if _version(folder) == version:
                self._replace(folder, (version, names))
            return names

    def _replace(self, folder: str, new: tuple[_Version, _Sorted] | None) -> None:
        with self._lock:
            old = self._folders.pop(folder, None)
            self.num_bytes -= 0 if old is None else old[1].num_bytes
            if new is None:
                return
            self._folders[folder] = new
            self.num_bytes += new[1].num_bytes
            while self.num_bytes > self._max_bytes:
                _, (_, dropped) = self._folders.popitem(last=False)
                self.num_bytes -= dropped.num_bytes


def _version(folder: str) -> _Version:
    status = os.stat(folder)
    return status.st_ctime_ns, status.st_mtime_ns, status.st_ino, status.st_dev


def _read(folder: str, max_bytes: int) -> _Sorted | None:
    """Read and sort the names in a folder; ``None`` if they have more bytes than allowed.

    They are sorted in short runs, between which other threads run.
    """
    runs: list[list[str]] = []
    names, num_bytes = _scan(folder), 0
    while run := sorted(islice(names, _RUN_NAMES)):
        runs.append(run)
        num_bytes += sum(map(len, run))
        if num_bytes > max_bytes:
            return None
    return _Sorted(heapq.merge(*runs))


def _scan(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if is_internal_name(name):
                continue
            if entry.is_file(follow_symlinks=False):
                yield name
            elif entry.is_dir(follow_symlinks=False):
                yield name + "/"
            elif entry.is_symlink():  # there are also pipes, which would block a reader
                yield name + LINK


class _Sorted:
    """Sorted names, joined to blocks of text: a string for each name would take three times the memory.

    Args:
        names: sorted.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._first_names: list[str] = []  # of each block
        self._blocks: list[str] = []
        names = iter(names)
        while block := list(islice(names, _BLOCK_NAMES)):
            self._first_names.append(block[0])
            self._blocks.append(_SEPARATOR.join(block))
        self.num_bytes = _FOLDER_BYTES + sum(map(sys.getsizeof, self._blocks))

    def starting_at(self, first: str) -> Iterator[str]:
        number = max(0, bisect_right(self._first_names, first) - 1)
        for block in islice(self._blocks, number, None):
            names = block.split(_SEPARATOR)
            yield from names if names[0] >= first else (name for name in names if name >= first)


class _Scanned:
    """The names in a folder that is too large for the cache, or changes, read again for each batch of them.

    Args:
        folder: its path.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def starting_at(self, first: str) -> Iterator[str]:
        batch = [""] * _SELECTED_NAMES
        while len(batch) == _SELECTED_NAMES:
            try:
                batch = heapq.nsmallest(_SELECTED_NAMES, (name for name in _scan(self._folder) if name >= first))
            except FileNotFoundError:  # removed meanwhile
                return
            yield from batch
            first = batch[-1] + "\0" if batch else ""  # the least name after the last one


CACHE = SortedNamesCache()
"""The cache of this process."""
