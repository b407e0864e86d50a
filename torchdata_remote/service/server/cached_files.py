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
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC if sys.platform == "linux" else 0


def open_cached(root: str, name: str, path: str) -> int | None:
    """Open the file ``root/name/path`` if that needs no disk; return its descriptor, or ``None``.

    No link below ``root/name`` is followed, also if one is made at this moment. ``root/name`` itself may be one.

    Args:
        root: a folder.
        name: of a folder in it.
        path: of a file below that one.
    """
    folder = _open(os.path.join(root, name), _FOLDER, _CACHED)
    if folder < 0:
        return None
    try:
        file = _open(path, _FILE, _CACHED | _NO_SYMLINKS | _BENEATH, folder)
    finally:
        os.close(folder)
    return None if file < 0 else file


def read_cached(descriptor: int, start: int, end: int) -> bytearray | None:
    """Read bytes ``start`` to ``end`` if all of them are in memory; else return ``None``."""
    data = bytearray(end - start)
    try:
        num_bytes = os.preadv(descriptor, [data], start, os.RWF_NOWAIT)
    except (OSError, AttributeError):  # not in memory; a file system or a kernel without it
        return None
    return data if num_bytes == len(data) else None


def _open(path: str, flags: int, resolve: int, folder: int = -100) -> int:
    """Return a descriptor, or -1. A relative path is below ``folder``."""
    call = _system_call()
    if call is None:
        return -1
    how = _HOW.pack(flags, 0, resolve)
    return int(call(_OPENAT2, folder, os.fsencode(path), how, len(how)))


@cache
def _system_call() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return None
