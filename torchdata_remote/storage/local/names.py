"""A local folder's files in order, for whoever serves them to others."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...errors import AccessDeniedError

PARTIAL_SUFFIX = ".torchdata_remote-partial"  # of files that a killed writer may leave
_OURS = ".torchdata_remote"  # begins the names of what belongs to no data set: the state of a pull, a service's uploads


def is_internal_name(name: str) -> bool:
    """Whether a file or folder of that name belongs to this package."""
    return name.endswith(PARTIAL_SUFFIX) or name.startswith(_OURS)


def iter_sorted(folder: str, prefix: str, recursive: bool, after: str) -> Iterator[str]:
    """Paths of a folder's files that begin with ``prefix`` and come after ``after``, in the order of their characters.

    Folders, with a slash at the end, are entered or named. Links are not followed.

    Raises:
        AccessDeniedError: for a link, and a name that is no text.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted(
                entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "\0" if entry.is_symlink() else "")
                for entry in entries
                if entry.is_symlink() or entry.is_dir() or entry.is_file()  # and no pipe, which would be waited for
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in found:
        path = folder + name
        if not path.startswith(prefix) or is_internal_name(name.rstrip("/")):
            continue
        if name.endswith("\0"):
            raise symlink_error(path[:-1])
        if not _is_text(name):
            shown = f"file://{folder}{name!r}"
            raise AccessDeniedError(f"{shown}: this name is not UTF-8. Rename the file.", url=shown)
        if name.endswith("/") and recursive:
            if path > after or after.startswith(path):
                yield from iter_sorted(path, path, True, after)
        elif path > after and not (name.endswith("/") and after.startswith(path)):
            yield path


def symlink_error(path: str) -> AccessDeniedError:
    """The error for a link where none may be followed."""
    return AccessDeniedError(
        f"file://{path} is a link, and where folders are served to others links are not followed. Put the file itself "
        "there, a hard link, or mount the folder.",
        url=f"file://{path}",
    )


def _is_text(name: str) -> bool:
    try:
        return name.isascii() or bool(name.encode())
    except UnicodeEncodeError:
        return False
