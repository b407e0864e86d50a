"""The folder of a cache, which may lie where other users can write: what there belongs to this user."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def private_folder(folder: str) -> tuple[str, int]:
    """The folder in which this user's objects are kept, and whose number files have that this process makes there.

    It is ``folder``, made if it is not there; if that belongs to another user, ``user-NUMBER`` in it, so that users who
    share a folder neither read nor remove each other's objects.

    Raises:
        OSError: if it cannot be made or written to, or something else is in its place.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as probe:  # some file systems give files to another user
        user = os.fstat(probe.fileno()).st_uid
    if os.stat(folder).st_uid != user:
        folder = os.path.join(folder, f"user-{user}")
        make_own_folder(folder, user)
    return folder, user


def make_own_folder(path: str, user: int) -> None:
    """Make a folder if it is not there.

    Raises:
        PermissionError: if something else is there, such as a link, or a folder of another user.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user:
        raise PermissionError(f"{path} is not a folder of user {user}. Remove it, or choose another cache_dir.")


def is_own_file(status: os.stat_result, user: int) -> bool:
    """Whether it is a regular file that this user alone can have written."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == user and not status.st_mode & _WRITABLE_BY_OTHERS


def open_own_file(path: str, user: int) -> int:
    """Open a file of this user alone, made if it is not there, and replace whatever else is there.

    Raises:
        OSError: if that cannot be replaced, such as a folder.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for _ in range(2):
        with contextlib.suppress(OSError):  # a link
            descriptor = os.open(path, flags, 0o600)
            status = os.fstat(descriptor)
            if is_own_file(status, user) and status.st_nlink == 1:
                return descriptor
            os.close(descriptor)
        os.unlink(path)
    return os.open(path, flags | os.O_EXCL, 0o600)
