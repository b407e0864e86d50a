"""Lock a folder: one pull at a time, among all processes and containers that share it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator

from ...errors import StorageError
from .destination import DestinationFolder
from .names import LOCK_NAME

try:
    import fcntl
except ImportError:  # Windows, where DestinationFolder raises an error
    fcntl = None  # type: ignore[assignment]

_WARN_AFTER_S, _POLL_S = 1.0, 0.02
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
_log = logging.getLogger("torchdata_remote")


@contextlib.contextmanager
def pull_lock(destination: DestinationFolder) -> Iterator[None]:
    """Wait until no other pull works in the folder, and hold the lock during the block.

    The kernel releases the lock (``flock``) of a killed process. The file stays: after a removal, processes that wait
    for it would hold the lock of another file than those that come later.
    """
    descriptor = _open_lock_file(destination)
    if descriptor is None:
        yield  # a folder that is not writable has no concurrent pull
        return
    try:
        _lock(descriptor, destination)
        yield
    finally:
        os.close(descriptor)


def _open_lock_file(destination: DestinationFolder) -> int | None:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with destination.parent_of(LOCK_NAME) as (folder, name):
        try:
            return os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o666, dir_fd=folder)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
        try:
            return os.open(name, os.O_RDONLY | flags, dir_fd=folder)  # of another user, or on a read-only mount
        except OSError:
            if destination.is_writable:
                raise
            return None


def _lock(descriptor: int, destination: DestinationFolder) -> None:
    kind = fcntl.LOCK_EX if destination.is_writable else fcntl.LOCK_SH
    deadline = time.monotonic() + _WARN_AFTER_S
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                return
            time.sleep(_POLL_S)
        _log.warning("%s: another pull is running there; waiting until it ends", destination.folder)
        fcntl.flock(descriptor, kind)  # interrupted by signals such as Ctrl-C's
    except OSError as error:
        raise StorageError(
            f"{destination.folder}: the file system has no locks ({error.strerror}), without which two pulls could "
            "write the same file. Pull to a local disk.",
            url=destination.folder,
        ) from error
