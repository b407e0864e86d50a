"""The folder of a cache, which may be in one of other users: use only files of this user."""

from __future__ import annotations

import contextlib
import os
import re
import stat

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MOUNTS = "/proc/self/mountinfo"  # Linux
_FORMAT, STATE = "v3", "state"  # folder and file
_SHARED_BY_HOSTS = re.compile(
    "afs|beegfs|ceph|cifs|gfs2|glusterfs|gpfs|lustre|nfs4?|ocfs2|orangefs|smb3|smbfs|wekafs|"
    r"fuse\.(blobfuse2?|ceph|cephfs|gcsfuse|glusterfs|goofys|juicefs|mount-s3|rclone|s3fs|sshfs)"
)
_SHARED_BY_GUESTS = re.compile("9p|virtiofs")  # also the root of one virtual machine
_used: set[str] = set()  # folders that this process has used as a cache


class SharedFolderError(OSError):
    """A folder is on a file system that hosts may share."""


def format_folder(folder: str) -> str:
    """Return the folder of the objects."""
    return os.path.join(folder, _FORMAT)


def was_used(folder: str) -> bool:
    """Whether a folder was used as a cache before, by this process or another one."""
    return folder in _used or os.path.lexists(os.path.join(format_folder(folder), STATE))


def mark_used(folder: str) -> None:
    """Remember that a folder was used."""
    _used.add(folder)


def network_file_system(folder: str, mounts: str = _MOUNTS) -> str | None:
    """Return the type of the file system of a folder, if several hosts can share it: their locks cannot be relied on.

    Args:
        folder: must exist.
        mounts: the kernel's list of mounts; where there is none, nothing is known.
    """
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(" ") for line in file]
    except OSError:
        return None
    # Octal escapes: of space, tab, line feed and backslash
    places = {re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line[4]): line for line in lines}
    path = os.path.realpath(folder)
    while path not in places and path != "/":
        path = os.path.dirname(path)
    found = places.get(path)
    kind = "" if found is None else found[found.index("-") + 1]
    is_shared = _SHARED_BY_HOSTS.fullmatch(kind) or (path != "/" and _SHARED_BY_GUESTS.fullmatch(kind))
    return kind if is_shared else None


def make_own_folder(path: str, user: int) -> None:
    """Create a folder if it does not exist.

    Raises:
        PermissionError: if the path is something else, such as a link, or a folder of another user, or one that others
            may write to.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user:
        raise PermissionError(f"{path} is not a folder of user {user}. Remove it, or choose another cache_dir.")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise PermissionError(f"{path} is writable by other users. Remove it, or choose another cache_dir.")


def is_own_file(status: os.stat_result, user: int) -> bool:
    """Whether it is a regular file that only this user can have written."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == user and not status.st_mode & _WRITABLE_BY_OTHERS


def open_own_file(path: str, user: int) -> int:
    """Open a file that only this user can have written; create it, or replace anything else, if needed.

    Raises:
        OSError: if the path cannot be replaced, such as a folder.
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
