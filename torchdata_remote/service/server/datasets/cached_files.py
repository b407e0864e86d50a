"""Open and read local files without waiting for the disk, where the kernel has them in memory (Linux 5.12).

What it does not have, or what is special in any way (missing, a link, another system), is left to a thread.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from functools import cache

_OPENAT2 = 437  # the number of the call on every architecture
_NO_SYMLINKS, _BENEATH, _CACHED = 0x04, 0x08, 0x20  # RESOLVE_... of linux/openat2.h
_HOW = struct.Struct("QQQ")  # flags, mode, resolve
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC if sys.platform == "linux" else 0
_roots: dict[str, tuple[int, tuple[int, int]]] = {}  # of this process, which are few
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC if sys.platform == "linux" else 0


def open_cached(root: str, name: str, path: str) -> int | None:
    """Open the file ``root/name/path`` if that needs no disk; return its descriptor, or ``None``.

    No link below ``root`` is followed, also if one is made at this moment, but for ``root/name``, which may be one.

    Args:
        root: a folder.
        name: of a folder in it.
        path: of a file below that one.
    """
    if ".." in path.split("/"):
        return None
    above = _descriptor_of(root)
    file = _open(f"{name}/{path}", _FILE, _CACHED | _NO_SYMLINKS | _BENEATH, above)
    if file >= 0:
        return file
    if above < 0 or not os.path.islink(f"{root}/{name}"):
        return None
    folder = _open(name, _FOLDER, _CACHED, above)
    if folder < 0:
        return None
    try:
        file = _open(path, _FILE, _CACHED | _NO_SYMLINKS | _BENEATH, folder)
    finally:
        os.close(folder)
    return None if file < 0 else file


def _descriptor_of(root: str) -> int:
    """Return an open descriptor of a folder, the one that has this path now; -1 if that is impossible."""
    try:
        status = os.stat(root)
        identity = (status.st_dev, status.st_ino)
        descriptor, known = _roots.get(root, (-1, None))
        if identity != known:
            opened = os.open(root, _FOLDER)
            if descriptor >= 0:
                os.close(descriptor)
            _roots[root], descriptor = (opened, identity), opened
    except OSError:
        return -1
    return descriptor


def read_cached(descriptor: int, start: int, end: int) -> bytearray | None:
    """Read bytes ``start`` to ``end`` if all of them are in memory; else return ``None``."""
    data = bytearray(end - start)
    try:
        num_bytes = os.preadv(descriptor, [data], start, os.RWF_NOWAIT)
    except (OSError, AttributeError):  # not in memory; a file system or a kernel without it
        return None
    return data if num_bytes == len(data) else None


def _open(path: str, flags: int, resolve: int, folder: int) -> int:
    """Return the descriptor of a path below ``folder``, or -1."""
    call = _system_call()
    if call is None:
        return -1
    return int(call(_OPENAT2, folder, os.fsencode(path), _how(flags, resolve), _HOW.size))


@cache
def _how(flags: int, resolve: int) -> bytes:
    return _HOW.pack(flags, 0, resolve)


@cache
def _system_call() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return None
