"""Names in local folders: which are this package's own, links, and all of them sorted, page by page."""

from __future__ import annotations

import heapq
import os
import sys
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice

from ...core.threads.named_locks import NamedLocks
from ...errors import AccessDeniedError, ObjectNotFoundError

PARTIAL_SUFFIX = ".torchdata_remote-partial"  # of unfinished files, which a killed writer leaves behind
_OURS = ".torchdata_remote"  # prefix of files that belong to no dataset: the state of a pull, uploads of a service
_LINK = "//"  # after the name of a link, as "/" after that of a folder
_SEPARATOR = "\0"  # of the names in a block
_BLOCK_NAMES = 1000
_RUN_NAMES = 10_000  # sorted in one call, which keeps the interpreter's lock
_SELECTED_NAMES = 10_000  # found by one scan of a folder that is not cached
_FOLDER_BYTES = 1000  # of a folder in the cache, without its names
_MAX_BYTES, _MAX_FOLDER_BYTES = 64 << 20, 32 << 20
# Times of files on FAT are multiples of 2 s, and the kernel's clock for files is behind that of programs
_CLOCK_STEP_NS = 3_000_000_000

_NamesFrom = Callable[[str], Iterator[str]]  # the names that are not before one, sorted by code points
_Version = tuple[int, int, int, int]


def is_internal_name(name: str) -> bool:
    """Whether a file or folder of this name is one of this package's own, which are never listed."""
    return name.endswith(PARTIAL_SUFFIX) or name.startswith(_OURS)


def symlink_error(path: str) -> AccessDeniedError:
    """Make the error for a link, where links are not followed."""
    return AccessDeniedError(
        f"file://{path} is a link. Links are not followed in a folder that is served to others. Replace it by the file "
        "itself or a hard link, or mount the folder.",
        url=f"file://{path}",
    )


def broken_link(path: str) -> str:
    """Say where a link leads that leads nowhere, for errors."""
    try:
        return f"a broken link: it leads to {os.readlink(path)!r}, which is not there or leads back to it"
    except OSError:  # one above it, or removed since
        return "a broken link"


def broken_link_error(path: str) -> ObjectNotFoundError:
    """Make the error for a link that leads nowhere, among the objects that were asked for."""
    return ObjectNotFoundError(
        f"file://{path} is {broken_link(path)}. Repair or remove the link, or pass a pattern= that leaves it out.",
        url=f"file://{path}",
    )


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
        self._num_bytes = 0

    def names(self, folder: str) -> _NamesFrom:
        """Return the names in a folder, without those of this package, and without devices and pipes.

        One thread at a time reads a folder into the cache; the others wait for it.

        Raises:
            OSError: if the folder cannot be read.
        """
        with self._readers.held(folder):
            version = _version(folder)
            with self._lock:
                known, names = self._folders.pop(folder, (None, _Sorted([])))
                self._num_bytes -= names.num_bytes if known else 0
            if known != version:
                is_settled = self._clock() - max(version[:2]) >= _CLOCK_STEP_NS
                runs = _read(folder, self._max_folder_bytes) if is_settled else None
                if runs is None:
                    return lambda first: _scan_from(folder, first)
                names = _Sorted(runs)
            if _version(folder) == version:
                self._keep(folder, version, names)
            return names.starting_at

    def _keep(self, folder: str, version: _Version, names: _Sorted) -> None:
        with self._lock:
            self._folders[folder] = version, names
            self._num_bytes += names.num_bytes
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= self._folders.popitem(last=False)[1][1].num_bytes


class _Sorted:
    """Sorted names, joined to blocks of text: a string for each name would take three times the memory.

    Args:
        runs: sorted lists of names.
    """

    def __init__(self, runs: list[list[str]]) -> None:
        names = heapq.merge(*runs)
        blocks = iter(lambda: list(islice(names, _BLOCK_NAMES)), [])
        self._blocks = [_SEPARATOR.join(block) for block in blocks]
        self._first_names = [block.partition(_SEPARATOR)[0] for block in self._blocks]
        self.num_bytes = _FOLDER_BYTES + sum(map(sys.getsizeof, self._blocks))

    def starting_at(self, first: str) -> Iterator[str]:
        number = max(0, bisect_right(self._first_names, first) - 1)
        for block in islice(self._blocks, number, None):
            names = block.split(_SEPARATOR)
            yield from names if names[0] >= first else (name for name in names if name >= first)


def _version(folder: str) -> _Version:
    status = os.stat(folder)
    return status.st_ctime_ns, status.st_mtime_ns, status.st_ino, status.st_dev


def _read(folder: str, max_bytes: int) -> list[list[str]] | None:
    """Read the names in a folder; ``None`` if they have more bytes than allowed.

    They are sorted in short runs, between which other threads run.
    """
    runs: list[list[str]] = []
    names, num_bytes = _scan(folder), 0
    while run := sorted(islice(names, _RUN_NAMES)):
        runs.append(run)
        num_bytes += sum(map(len, run))
        if num_bytes > max_bytes:
            return None
    return runs


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
                yield name + _LINK


def _scan_from(folder: str, first: str) -> Iterator[str]:
    """Yield the names in a folder that is too large for the cache, or changes: it is read for each batch of them."""
    batch = [""] * _SELECTED_NAMES
    while len(batch) == _SELECTED_NAMES:
        try:
            batch = heapq.nsmallest(_SELECTED_NAMES, (name for name in _scan(folder) if name >= first))
        except FileNotFoundError:  # removed meanwhile
            return
        yield from batch
        first = batch[-1] + "\0" if batch else ""  # the least name after the last one


_CACHE = SortedNamesCache()


def iter_sorted(
    folder: str, prefix: str, recursive: bool, after: str, cache: SortedNamesCache = _CACHE
) -> Iterator[str]:
    """Yield the paths of a folder's files that begin with ``prefix`` and sort after ``after``, by code points.

    Folders are listed recursively, or yielded with a slash at the end. Links are not followed.

    Args:
        folder: with a slash at the end.
        prefix: of the paths; begins with the folder.
        recursive: whether to list the folders below it.
        after: a path; a folder that it is in is listed from there, or left out without ``recursive``.
        cache: of the names in folders.

    Raises:
        AccessDeniedError: for a link, and for a name that is not UTF-8.
    """
    try:
        names_from = cache.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    base, first = prefix[len(folder) :], ""
    if after.startswith(folder):
        first = after[len(folder) :]
        if recursive and "/" in first:  # the folder that it is in sorts before it
            name = first.partition("/")[0] + "/"
            if name.startswith(base) and next(names_from(name), None) == name:
                yield from iter_sorted(folder + name, folder + name, True, after, cache)
    elif after > folder:
        return
    for name in names_from(max(first, base)):
        path = folder + name
        if not path.startswith(prefix):
            return
        if name.endswith(_LINK):
            raise symlink_error(path[: -len(_LINK)])
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = f"file://{folder}{name!r}"
            raise AccessDeniedError(f"{shown}: this name is not UTF-8. Rename the file.", url=shown) from None
        if path <= after:
            continue
        if name.endswith("/") and recursive:
            yield from iter_sorted(path, path, True, after, cache)
        else:
            yield path
