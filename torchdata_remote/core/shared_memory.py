"""Memory that all processes of a host share, without a name that could be left behind."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import tempfile
import weakref
from multiprocessing import context, reduction
from typing import Any

_MAX_SENT = 64  # descriptors that a new process gets from here; a fork server passes 256 in all
_sent: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # number of them, by process that is starting
_log = logging.getLogger("torchdata_remote")


class SharedMemory:
    """An unnamed file, mapped into memory. Forked, forkserver and spawned workers map the same pages.

    On Linux it is a file in memory (``memfd_create``), which ``/dev/shm`` and its limit of 64 MiB in Docker do not
    concern; elsewhere, or if that fails, a deleted file of the temporary folder. The system removes it with the last
    process that maps it, also after a kill.

    Args:
        descriptor: of the file; owned by this object.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mapping: mmap.mmap | None = None
        weakref.finalize(self, _close, descriptor).atexit = False  # the system closes it at exit

    @classmethod
    def create(cls, num_bytes: int) -> SharedMemory | None:
        """Create memory of this size, all zero and not used before it is written; ``None`` if that is not possible.

        It is not possible on Windows, for nothing, and on a host without space: a warning says so.
        """
        if not hasattr(os, "pwrite") or not num_bytes:
            return None
        try:
            memory = cls(_unnamed_file())
            os.ftruncate(memory._descriptor, num_bytes)
        except OSError as error:
            _log.warning("No memory can be shared with workers, which get copies: %s", error)
            return None
        return memory

    def write(self, data: Any, at: int) -> bool:
        """Copy bytes to a place; returns whether there was space for them."""
        view = memoryview(data).cast("B")
        try:
            while view:
                num_bytes = os.pwrite(self._descriptor, view[: 1 << 30], at)
                view, at = view[num_bytes:], at + num_bytes
        except OSError as error:
            _log.warning("No memory can be shared with workers, which get copies: %s", error)
            return False
        return True

    def read(self, num_bytes: int, at: int) -> bytes:
        """Return bytes from a place as they are now. What another process wrote before them can be seen after this."""
        return os.pread(self._descriptor, num_bytes, at)

    def view(self) -> memoryview:
        """Return all bytes, read-only."""
        if self._mapping is None:
            self._mapping = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        return memoryview(self._mapping)

    @staticmethod
    def can_be_sent() -> bool:
        """Whether this is called while a process is started that can get the descriptor of a file."""
        starting = context.get_spawning_popen()
        return starting is not None and hasattr(reduction, "DupFd") and _sent.get(starting, 0) < _MAX_SENT

    def __reduce__(self) -> Any:
        """Send the descriptor to a process that is being started.

        Raises:
            TypeError: elsewhere. What holds shared memory pickles its contents then.
        """
        starting = context.get_spawning_popen()
        if starting is None:
            raise TypeError("shared memory is sent to new processes of this host only")
        _sent[starting] = _sent.get(starting, 0) + 1
        return _received, (reduction.DupFd(self._descriptor),)


def _received(duplicate: Any) -> SharedMemory:
    return SharedMemory(duplicate.detach())


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):  # Linux
        with contextlib.suppress(OSError):  # a sandbox may refuse it
            return os.memfd_create("torchdata_remote")
    with tempfile.TemporaryFile(prefix="torchdata_remote-") as file:
        return os.dup(file.fileno())


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
