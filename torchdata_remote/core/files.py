"""Local files: complete ones replace others, large ranges are mapped, and files reach the disk early or together."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import secrets
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

from ..errors import RemoteDataError

_MAX_TRIES = 100
MAP_FROM_BYTES = 4 << 20  # below it a copy is as fast, and leaves no descriptor open
_STEP_BYTES = 8 << 20


def make_new_file(folder: str, prefix: str, suffix: str) -> tuple[int, str]:
    """Create a file under a new name, with the permissions that ``open`` would give it.

    ``tempfile.mkstemp`` creates files that only their owner can read, and correcting that afterwards needs the umask,
    which cannot be read without setting it for all threads of the process.

    Returns:
        tuple: descriptor, for reading and writing, and path.

    Raises:
        OSError: if it cannot be created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    for _ in range(_MAX_TRIES):
        path = os.path.join(folder, prefix + secrets.token_hex(8) + suffix)
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666), path
    raise FileExistsError(f"{folder}: {_MAX_TRIES} random names with the prefix {prefix!r} exist already.")


@contextlib.contextmanager
def replaced(path: str) -> Iterator[str]:
    """Yield the path of a new file, which takes the place of ``path`` when the block ends, and is removed if it fails.

    What is no regular file, such as ``/dev/stdout``, is written itself.

    Raises:
        OSError: if the new file cannot be created or renamed.
    """
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        yield target
        return
    handle, partial = make_new_file(os.path.dirname(target), ".tmp-", os.path.splitext(target)[1])
    os.close(handle)
    try:
        yield partial
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def require_replaceable(path: str) -> None:
    """Raise unless :func:`replaced` can write a file; to be called before long work.

    Raises:
        RemoteDataError: if its folder does not exist, or no file can be created there.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise RemoteDataError(f"{path}: the folder {folder} does not exist. Create it, or write elsewhere.")
    if not os.access(folder, os.W_OK) or os.path.isdir(target):
        raise RemoteDataError(f"{path}: no file can be written there. Write elsewhere.")


def map_file(descriptor: int, start: int, end: int) -> memoryview:
    """Return bytes ``start`` to ``end`` (exclusive) of a file, read-only. The descriptor may be closed afterwards.

    A mapping shares the memory of the page cache, without a copy. If the file is truncated in place while the view is
    in use, the process gets SIGBUS; a file that is replaced by a rename is safe.

    Raises:
        EOFError: if the file ends before ``end``.
    """
    length = end - start
    if length >= MAP_FROM_BYTES:
        # macOS and Windows have none
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)
        aligned = start - start % mmap.ALLOCATIONGRANULARITY
        try:
            mapping = mmap.mmap(descriptor, end - aligned, offset=aligned, access=mmap.ACCESS_READ)
        except ValueError as error:  # longer than the file
            raise EOFError(f"the file ends before byte {end:,}") from error
        return memoryview(mapping)[start - aligned :]
    view = memoryview(bytearray(length))
    fill(view, descriptor, start)
    return view.toreadonly()


def fill(view: memoryview, descriptor: int, start: int) -> None:
    """Copy bytes from ``start`` on of a file into memory.

    Raises:
        EOFError: if the file ends before the memory is full.
    """
    done, length = 0, len(view)
    while done < length:
        count = _read_into(descriptor, view[done:] if done else view, start + done)
        if not count:
            raise EOFError(f"the file ends before byte {start + length:,}")
        done += count


def _read_into(descriptor: int, view: memoryview, position: int) -> int:
    """Read into a view at once; return the number of bytes. Threads may share the descriptor, except on Windows."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], position)
    # macOS has no preadv; on Windows the position belongs to the descriptor
    if hasattr(os, "pread"):
        data = os.pread(descriptor, len(view), position)
    else:
        os.lseek(descriptor, position, os.SEEK_SET)
        data = os.read(descriptor, len(view))
    view[: len(data)] = data
    return len(data)


class EarlyWriteback:
    """Lets the kernel write a growing file to disk meanwhile, so that the sync at its end has less to wait for.

    Linux starts to write what ``POSIX_FADV_DONTNEED`` names, without waiting for it. Elsewhere this does nothing.

    Args:
        descriptor: of the file.
        start: first byte that is written.
    """

    def __init__(self, descriptor: int, start: int = 0) -> None:
        self._descriptor, self._start, self._end = descriptor, start, start

    def wrote(self, num_bytes: int) -> None:
        """Note that the next bytes were passed to the kernel."""
        self._end += num_bytes
        if self._end - self._start >= _STEP_BYTES and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, self._start, self._end - self._start, os.POSIX_FADV_DONTNEED)
            self._start = self._end


class SharedSync:
    """Waits until all that was written to a file system is on disk: a sync of each small file takes ten times as long.

    Threads that wait for the same moment share one call.
    """

    def __init__(self) -> None:
        self._tickets, self._synced, self._syncing = itertools.count(1), 0, threading.RLock()

    def wait(self, descriptor: int) -> bool:
        """Wait; return whether the system can do that.

        Args:
            descriptor: of a folder or a file in the file system.
        """
        sync, ticket = _system_sync(), next(self._tickets)
        with self._syncing:
            if sync is not None and self._synced < ticket:
                covered = next(self._tickets)  # all tickets before it are of what has been written by now
                if int(sync(descriptor)) != 0:
                    return False
                self._synced = covered
        return sync is not None


@cache
def _system_sync() -> Any:
    try:
        return ctypes.CDLL(None).syncfs
    except (OSError, AttributeError):  # not Linux
        return None
