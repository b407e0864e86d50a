"""One transaction with the file of an index: opened, locked, changed and closed. Nothing outlives the transaction.

SQLite's own locks are not used (``nolock``). They belong to a process: closing any descriptor of the file drops them,
and a forked child believes that it holds those of its parent. Instead a descriptor that is opened for this transaction
is locked (``flock``), which excludes other processes, other threads and other caches of this process alike. A
transaction that a killed process left is rolled back by the next one, from SQLite's journal.

Nothing waits for the disk (``synchronous = OFF``): after a crash of the host the index may be damaged.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import struct
import time
from collections.abc import Iterator
from urllib.parse import quote

try:
    import sqlite3
except ImportError:  # Python was built without it
    sqlite3 = None  # type: ignore[assignment]
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from ...core.threads.forks import hold_forks
from .folder import open_own_file

_log = logging.getLogger("torchdata_remote")
_BUSY_S = 2.0  # another process is stopped in a transaction
_MIN_WAIT_S, _MAX_WAIT_S = 0.0005, 0.01
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NOT_DAMAGED = re.compile("locked|readonly|full|unable to open|disk I/O")
has_sqlite = sqlite3 is not None
# Values may be of any type and size
_DAMAGE = (sqlite3.Error if has_sqlite else OSError, TypeError, ValueError, OverflowError, struct.error)


class DamagedIndexError(OSError):
    """The index was damaged, and was removed."""


@contextlib.contextmanager
def index_transaction(path: str, user: int, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """Run a block that other processes see as one step, or not at all if it raises.

    A damaged index is removed, with a warning. On a file system that is read-only it can be read.

    Args:
        path: of the file.
        user: to whom it belongs.
        create: an empty file if it is missing.

    Raises:
        DamagedIndexError: if what the block read is damaged, so that it raised such as ``ValueError``.
        OSError: if the disk is full, the folder was removed, or another process does not end its transaction.
    """
    with _locked(path, user, create) as is_writable:
        try:
            with contextlib.closing(_connect(path, is_writable)) as connection:
                yield connection
                connection.execute("COMMIT")
        except _DAMAGE as error:
            if isinstance(error, sqlite3.Error) and _NOT_DAMAGED.search(str(error)):
                raise OSError(f"{path}: {error}") from error
            if is_writable:
                for end in ("", "-journal", "-wal", "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path + end)
            _log.warning("%s is damaged (%s): the cache starts empty, and objects are fetched again.", path, error)
            raise DamagedIndexError(f"{path} is damaged: {error}") from error


def _connect(path: str, is_writable: bool) -> sqlite3.Connection:
    """Connect, and begin a transaction. If closed before its end, it is rolled back."""
    url = f"file:{quote(os.fsencode(path))}?nolock=1&mode={'rw' if is_writable else 'ro'}"
    connection = sqlite3.connect(url, uri=True, isolation_level=None, check_same_thread=False)
    try:
        for setting in ("journal_mode = TRUNCATE", "synchronous = OFF", "cache_size = -1024"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("BEGIN IMMEDIATE" if is_writable else "BEGIN")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _locked(path: str, user: int, create: bool) -> Iterator[bool]:
    """Lock the file that has this path, and hold forks meanwhile; return whether it can be written to."""
    until, wait_s = time.monotonic() + _BUSY_S, _MIN_WAIT_S
    while True:
        with hold_forks(), contextlib.ExitStack() as stack:
            descriptor, is_writable = _open(path, user, create)
            stack.callback(os.close, descriptor)
            if _lock(descriptor):
                stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # also for a child that was forked nevertheless
                if _is_at(path, descriptor):  # not a damaged one, which another process removed
                    yield is_writable
                    return
        if time.monotonic() > until:
            raise OSError(errno.EAGAIN, "It is locked by another process, which may be stopped", path)
        time.sleep(wait_s)
        wait_s = min(_MAX_WAIT_S, 2 * wait_s)


def _open(path: str, user: int, create: bool) -> tuple[int, bool]:
    try:
        return open_own_file(path, user) if create else os.open(path, os.O_RDWR | _FLAGS), True
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
    return os.open(path, os.O_RDONLY | _FLAGS), False


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
