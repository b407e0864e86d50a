"""Names in local folders: which are this package's own, links, and all of them sorted, page by page."""

from __future__ import annotations

import heapq
import os
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice

from ...errors import AccessDeniedError, ObjectNotFoundError

PARTIAL_SUFFIX = ".torchdata_remote-partial"  # of unfinished files, which a killed writer leaves behind
_OURS = ".torchdata_remote"  # prefix of files that belong to no dataset: the state of a pull, uploads of a service
_LINK = "//"  # after the name of a link, as "/" after that of a folder
_SURROGATES = re.compile("[\ud800-\udfff]")  # for bytes of a name that are not UTF-8
_RUN_NAMES = 10_000  # sorted in one call, which keeps the interpreter's lock
_SELECTED_NAMES = 10_000  # found by one scan of a folder that is not cached
_MAX_FOLDER_BYTES = 64 << 20  # of its names in the cache, about a million
# Times of files on FAT are multiples of 2 s, and the kernel's clock for files is behind that of programs
_CLOCK_STEP_NS = 3_000_000_000


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


@lru_cache(maxsize=4)
def _sorted_names(folder: str, version: tuple[int, ...]) -> list[str] | None:
    """Read the names in a folder; ``None`` if they have more bytes than are cached.

    They are sorted in short runs, between which other threads run.
    """
    runs: list[list[str]] = []
    names, num_bytes = _scan(folder), 0
    while run := sorted(islice(names, _RUN_NAMES)):
        runs.append(run)
        num_bytes += sum(map(sys.getsizeof, run))
        if num_bytes > _MAX_FOLDER_BYTES:
            return None
    return list(heapq.merge(*runs))


def _names_from(folder: str) -> Callable[[str], Iterator[str]]:
    """Return a function that yields the names in a folder that are not before one, sorted by code points.

    Names are used again while the folder's times, device and inode are the same, so that a listing in many pages reads
    it once. Its change time is set by the kernel only. A folder that changed less than a step of the file system's
    clock ago is read again: another change may have left the same time.
    """
    status = os.stat(folder)
    version = status.st_ctime_ns, status.st_mtime_ns, status.st_ino, status.st_dev
    is_settled = time.time_ns() - max(version[:2]) >= _CLOCK_STEP_NS
    names = _sorted_names(folder, version) if is_settled else None
    if names is None:
        return lambda first: _scan_from(folder, first)
    return lambda first: map(names.__getitem__, range(bisect_left(names, first), len(names)))


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


def iter_sorted(folder: str, prefix: str, recursive: bool, after: str) -> Iterator[str]:
    """Yield the paths of a folder's files that begin with ``prefix`` and sort after ``after``, by code points.

    Folders are listed recursively, or yielded with a slash at the end. Links are not followed.

    Args:
        folder: with a slash at the end.
        prefix: of the paths; begins with the folder.
        recursive: whether to list the folders below it.
        after: a path; a folder that it is in is listed from there, or left out without ``recursive``.

    Raises:
        AccessDeniedError: for a link, and for a name that is not UTF-8.
    """
    try:
        names_from = _names_from(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    base, first = prefix[len(folder) :], ""
    if after.startswith(folder):
        first = after[len(folder) :]
        if recursive and "/" in first:  # the folder that it is in sorts before it
            name = first.partition("/")[0] + "/"
            if name.startswith(base) and next(names_from(name), None) == name:
                yield from iter_sorted(folder + name, folder + name, True, after)
    elif after > folder:
        return
    for name in names_from(max(first, base)):
        path = folder + name
        if not path.startswith(prefix):
            return
        if name.endswith(_LINK):
            raise symlink_error(path[: -len(_LINK)])
        if not name.isascii() and _SURROGATES.search(name):
            shown = f"file://{folder}{name!r}"
            raise AccessDeniedError(f"{shown}: this name is not UTF-8. Rename the file.", url=shown)
        if path <= after:
            continue
        if name.endswith("/") and recursive:
            yield from iter_sorted(path, path, True, after)
        else:
            yield path
