"""Files of the cache, each with one large object or many small ones. An open one is not removed.

A process that has a file open holds a shared lock (``flock``), and removes one only with an exclusive lock. So a file
that is read or written stays, and one of a killed process is recognised.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from .folder import is_own_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
has_locks = fcntl is not None

_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_TRIES, _WAIT_S = 10, 0.002  # to open a pack
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def pack_path(folder: str, number: int) -> str:
    """Return the path of a pack."""
    return os.path.join(folder, f"{number}.pack")


class _Descriptor:
    """Closes a descriptor. An object with ``__del__`` can still be had from a weak reference while that runs."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self) -> None:
        os.close(self._number)


class Pack:
    """An open pack. It is not removed while this object exists.

    Args:
        folder: of all packs.
        number: of this one.
        descriptor: of its file; closed with this object, of which a process has one, by a weak reference.
    """

    def __init__(self, folder: str, number: int, descriptor: int) -> None:
        self.path, self.number, self.descriptor = pack_path(folder, number), number, descriptor
        self._closing = _Descriptor(descriptor)

    def is_removed(self) -> bool:
        """Whether the file has no name any more, so that no other process can read it."""
        return os.fstat(self.descriptor).st_nlink == 0


def _locked(folder: str, number: int, flags: int, lock: int) -> Pack:
    pack = Pack(folder, number, os.open(pack_path(folder, number), _READ | flags, 0o600))
    fcntl.flock(pack.descriptor, lock | fcntl.LOCK_NB)
    return pack


def open_pack(folder: str, number: int, user: int) -> Pack:
    """Open a pack to read it.

    Raises:
        OSError: if it was removed, is being removed, or other users may have written it.
    """
    for _ in range(_TRIES):  # another process looks whether it is in use
        with contextlib.suppress(BlockingIOError):
            pack = _locked(folder, number, 0, fcntl.LOCK_SH)
            break
        time.sleep(_WAIT_S)
    else:
        raise BlockingIOError(errno.EWOULDBLOCK, "It is being removed", pack_path(folder, number))
    if not is_own_file(os.fstat(pack.descriptor), user):
        raise PermissionError(errno.EPERM, "Other users may have written it", pack.path)
    return pack


def create_pack(folder: str, number: int) -> Pack:
    """Create an empty pack, in place of one whose row was never committed.

    Raises:
        OSError: if the folder was removed.
    """
    remove_pack(folder, number)
    return _locked(folder, number, os.O_RDWR | os.O_CREAT | os.O_EXCL, fcntl.LOCK_SH)


def adopt_pack(folder: str, number: int, num_bytes: int, user: int) -> Pack | None:
    """Open a pack that a process left unfinished, cut to ``num_bytes``; ``None`` if a process uses it.

    Raises:
        OSError: if it is missing, shorter, or other users may have written it.
    """
    try:
        pack = _locked(folder, number, os.O_RDWR, fcntl.LOCK_EX)
    except BlockingIOError:
        return None
    status = os.fstat(pack.descriptor)
    if not is_own_file(status, user) or status.st_size < num_bytes:
        raise PermissionError(errno.EPERM, "It is not what this user wrote", pack.path)
    os.ftruncate(pack.descriptor, num_bytes)
    fcntl.flock(pack.descriptor, fcntl.LOCK_SH)
    return pack


def remove_pack(folder: str, number: int) -> bool:
    """Remove a pack; returns whether it is gone. One that is in use stays."""
    return remove_file(pack_path(folder, number))


def remove_file(path: str) -> bool:
    """Remove a file or link that no process uses; returns whether it is gone."""
    try:
        if os.path.islink(path):
            os.unlink(path)
            return True
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:  # a process uses it, or it may not be removed
        return False
    finally:
        os.close(descriptor)
    return True


def allocate(descriptor: int, start: int, num_bytes: int) -> None:
    """Allocate disk space, so that of several objects that do not fit together some are completed.

    Raises:
        OSError: if the disk is full.
    """
    if not num_bytes or not hasattr(os, "posix_fallocate"):  # macOS lacks it
        return
    try:
        os.posix_fallocate(descriptor, start, num_bytes)
    except OSError as error:
        if error.errno in _NO_ROOM:  # else the file system does not support it
            raise
