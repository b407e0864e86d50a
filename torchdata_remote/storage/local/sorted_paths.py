"""Paths of the files in a local folder, sorted."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import AccessDeniedError
from .names import symlink_error
from .sorted_names import CACHE, LINK, SortedNamesCache


def iter_sorted(
    folder: str, prefix: str, recursive: bool, after: str, cache: SortedNamesCache = CACHE
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
        names = cache.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    base, first = prefix[len(folder) :], ""
    if after.startswith(folder):
        first = after[len(folder) :]
        if recursive and "/" in first:  # the folder that it is in sorts before it
            name = first.partition("/")[0] + "/"
            if name.startswith(base) and next(names.starting_at(name), None) == name:
                yield from iter_sorted(folder + name, folder + name, True, after, cache)
    elif after > folder:
        return
    for name in names.starting_at(max(first, base)):
        path = folder + name
        if not path.startswith(prefix):
            return
        if name.endswith(LINK):
            raise symlink_error(path[:-1])
        if not _is_text(name):
            shown = f"file://{folder}{name!r}"
            raise AccessDeniedError(f"{shown}: this name is not UTF-8. Rename the file.", url=shown)
        if path <= after:
            continue
        if name.endswith("/") and recursive:
            yield from iter_sorted(path, path, True, after, cache)
        else:
            yield path


def _is_text(name: str) -> bool:
    try:
        return name.isascii() or bool(name.encode())
    except UnicodeEncodeError:
        return False
