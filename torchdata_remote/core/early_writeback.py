"""Write files to disk before all of a file is there, or many files at once."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from functools import cache
from typing import Any

_STEP_BYTES = 8 << 20


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
