"""Errors of the operating system as errors of this package."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from ...errors import AccessDeniedError, ObjectNotFoundError, StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextlib.contextmanager
def translate_os_errors(path: str) -> Iterator[None]:
    """Convert errors of the operating system in the block; the message names the file.

    Raises:
        StorageError: instead.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise _translated(error, path) from error


def _translated(error: OSError, path: str) -> StorageError:
    reason = error.strerror or type(error).__name__
    if error.errno in _FULL:
        free = ""
        with contextlib.suppress(OSError):
            free = f"; {free_bytes(os.path.dirname(path)):,} bytes are free"
        return StorageError(
            f"{path}: {reason}{free}. Complete parts of large files are kept: free some space and pull again.", url=path
        )
    if error.errno in _REFUSED:
        return AccessDeniedError(f"{path}: {reason}. Check who may read and write there.", url=path)
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return StorageError(
            f"{path}: a link or a file is in the way, and links are not followed. Remove it and try again.", url=path
        )
    if error.errno == errno.ENOENT:
        return ObjectNotFoundError(f"{path}: no such file or folder.", url=path)
    return StorageError(f"{path}: {reason}.", url=path)


def free_bytes(folder: str) -> int:
    """Return the bytes that this process may write on the disk of a folder."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
