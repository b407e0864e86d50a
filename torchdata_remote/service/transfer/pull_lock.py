"""One pull at a time into a folder, of all processes and containers that share it."""

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
except ImportError:  # Windows, for which Target has an error
    fcntl = None  # type: ignore[assignment]

_TELL_AFTER_S, _LOOK_EVERY_S = 1.0, 0.02
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
_log = logging.getLogger("torchdata_remote")


@contextlib.contextmanager
def pull_lock(target: DestinationFolder) -> Iterator[None]:
    """Wait until no other pull is at work in the folder, and keep others waiting in the block.

    The kernel holds the lock (``flock``): whoever is killed has none. The file stays, since one that was removed would
    be another one for whoever waits for it.
    """
    descriptor = _opened(target)
    if descriptor is None:
        yield  # nobody has pulled into a folder that cannot be written to, and nobody will
        return
    try:
        _wait_for(descriptor, target)
        yield
    finally:
        os.close(descriptor)


def _opened(target: DestinationFolder) -> int | None:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with target.at(LOCK_NAME) as (folder, name):
        try:
            return os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o666, dir_fd=folder)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
        try:
            return os.open(name, os.O_RDONLY | flags, dir_fd=folder)  # another user's, or a mount to read from
        except OSError:
            if target.is_writable:
                raise
            return None


def _wait_for(descriptor: int, target: DestinationFolder) -> None:
    kind = fcntl.LOCK_EX if target.is_writable else fcntl.LOCK_SH
    deadline = time.monotonic() + _TELL_AFTER_S
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                return
            time.sleep(_LOOK_EVERY_S)
        _log.warning("%s: another pull is at work there; waiting for its end", target.folder)
        fcntl.flock(descriptor, kind)  # a signal, such as Ctrl-C's, ends the waiting
    except OSError as error:
        raise StorageError(
            f"{target.folder}: the file system has no locks ({error.strerror}), without which two pulls would write "
            "into each other's files. Pull to a local disk.",
            url=target.folder,
        ) from error
