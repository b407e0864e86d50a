"""Names in local folders: which are this package's own, links, and all of them sorted."""

from __future__ import annotations

import os
import time
from functools import lru_cache

from ...errors import AccessDeniedError

PARTIAL_SUFFIX = ".torchdata_remote-partial"  # of unfinished files, which a killed writer leaves behind
_OURS = ".torchdata_remote"  # prefix of files that belong to no dataset: the state of a pull, uploads of a service
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


def names_in(prefix: str) -> list[str]:
    """Return the names in the folder of a prefix, sorted by code points; those of folders end with a slash.

    Names are used again while the folder's times and inode are the same, so that a listing in many pages reads it once.
    Its change time is set by the kernel only. A folder that changed less than a step of the file system's clock ago is
    read again: another change may have left the same time.

    Raises:
        AccessDeniedError: if one is a link, or not UTF-8.
    """
    folder = prefix[: prefix.rfind("/") + 1]
    try:
        status = os.stat(folder)
        version = status.st_ctime_ns, status.st_mtime_ns, status.st_ino, status.st_dev
        is_settled = time.time_ns() - max(version[:2]) >= _CLOCK_STEP_NS
        return (_names_in if is_settled else _names_in.__wrapped__)(folder, version)
    except (FileNotFoundError, NotADirectoryError):
        return []


@lru_cache(maxsize=4)
def _names_in(folder: str, version: tuple[int, ...]) -> list[str]:
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_internal_name(entry.name):
                continue
            if entry.is_symlink():
                raise symlink_error(entry.path)
            if entry.name.encode(errors="ignore").decode() != entry.name:  # bytes of a name that are not UTF-8
                shown = f"file://{folder}{entry.name!r}"
                raise AccessDeniedError(f"{shown}: this name is not UTF-8. Rename the file.", url=shown)
            if entry.is_dir() or entry.is_file():  # there are also pipes, which would block a reader
                names.append(entry.name + "/" * entry.is_dir())
    return sorted(names)
