"""Memory that all processes of a host share, without a name that could be left behind."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Mapping
from multiprocessing import context, reduction
from typing import Any

import numpy as np

from ..errors import WorkerStartError

_Identity = tuple[int, int]  # device and inode
Column = np.ndarray[Any, Any]
_Layout = list[tuple[str, str, int, int]]  # name, dtype, first byte and length of each column
_ALIGNMENT = 64
_MIN_SHARED_BYTES = 64 << 10
"""A smaller table is sent as content: a copy takes less than what a process needs for a mapping."""

_MAX_CREATED = 32  # files that a process holds open for its tables; each takes up to two descriptors
_MAX_SENT = 64  # descriptors that a new process gets from here; a fork server passes 256 in all
_open: weakref.WeakValueDictionary[_Identity, SharedMemory] = weakref.WeakValueDictionary()  # all of this process
_sent: weakref.WeakKeyDictionary[Any, dict[_Identity, tuple[SharedMemory, Any]]] = weakref.WeakKeyDictionary()
"""What a process that is starting, or runs, was sent: it may open it late, and from several pickles."""
_MAPPING_ONLY: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}  # else it has a descriptor
_log = logging.getLogger("torchdata_remote")


class SharedMemory:
    """An unnamed file, mapped into memory. Forked, forkserver and spawned workers map the same pages.

    On Linux it is a file in memory (``memfd_create``), which ``/dev/shm`` and its limit of 64 MiB in Docker do not
    concern; elsewhere, or if that fails, a deleted file of the temporary folder. The system removes it with the last
    process that maps it, also after a kill. It is one object in each process, however often it was pickled.

    Args:
        descriptor: of the file, which is not empty; owned by this object.

    Raises:
        OSError: if it cannot be mapped.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, _close, descriptor).atexit = False  # the system closes it at exit
        self._mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ, **_MAPPING_ONLY)
        self._identity = _identity(descriptor)
        _open[self._identity] = self

    @classmethod
    def create(cls, num_bytes: int) -> SharedMemory | None:
        """Create memory of this size, all zero and not used before it is written; ``None`` if that is not possible.

        It is not possible on Windows, for nothing, and while this process has many others; nor on a host without space,
        or in a process without free descriptors, of which a warning tells.
        """
        if not hasattr(os, "pwrite") or not num_bytes or len(_open) >= _MAX_CREATED:
            return None
        try:
            return cls(_unnamed_file(num_bytes))
        except OSError as error:
            _log.warning("No memory can be shared with workers, which get copies: %s", error)
            return None

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
        return memoryview(self._mapping)

    @staticmethod
    def can_be_sent() -> bool:
        """Whether this is called while a process is started that can get the descriptor of a file."""
        starting = context.get_spawning_popen()
        return starting is not None and hasattr(reduction, "DupFd") and len(_sent.get(starting, ())) < _MAX_SENT

    def __reduce__(self) -> Any:
        """Send the descriptor to a process that is being started, once, and where to find the file otherwise.

        Raises:
            TypeError: elsewhere. What holds shared memory pickles its contents then.
        """
        starting = context.get_spawning_popen()
        if starting is None:
            raise TypeError("shared memory is sent to new processes of this host only")
        sent = _sent.setdefault(starting, {})
        if self._identity not in sent:  # a descriptor that is registered twice is refused, and would be closed twice
            sent[self._identity] = self, reduction.DupFd(self._descriptor)
        return _received, (self._identity, sent[self._identity][1], os.getpid(), self._descriptor)


def _received(identity: _Identity, inherited: Any, sender: int, number: int) -> SharedMemory:
    """Return the memory that was sent, by the descriptor of this process, or that of the sender.

    A wrapper may keep the bytes of a pickle and send them to a second process, which has inherited other descriptors.
    """
    found = _open.get(identity)
    if found is not None:
        return found
    with contextlib.suppress(OSError, LookupError, TypeError):  # another process has inherited it
        descriptor = inherited.detach()
        if _identity(descriptor) == identity:
            return SharedMemory(descriptor)
    with contextlib.suppress(OSError):
        descriptor = os.open(f"/proc/{sender}/fd/{number}", os.O_RDWR)  # Linux
        if _identity(descriptor) == identity:
            return SharedMemory(descriptor)
        os.close(descriptor)
    raise WorkerStartError(
        f"A table that was pickled for a new process has been closed by process {sender}, which has pickled it, or "
        "cannot be opened from here. Pickle it for each process, or keep the dataset until the processes have started."
    )


def _identity(descriptor: int) -> _Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _unnamed_file(num_bytes: int) -> int:
    descriptor = _memory_file()
    try:
        os.ftruncate(descriptor, num_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):  # Linux
        with contextlib.suppress(OSError):  # a sandbox may refuse it
            return os.memfd_create("torchdata_remote")
    with tempfile.TemporaryFile(prefix="torchdata_remote-") as file:
        return os.dup(file.fileno())


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


class SharedColumns:
    """Read-only columns by name, in :class:`SharedMemory` if they are large and it can be created.

    Forked workers have the memory of their parent, and the pickle for a process that is being started holds its
    descriptor. Any other pickle, such as one to a file or for another host, and that of a small table, holds the
    columns.

    Args:
        columns: one-dimensional arrays.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns, self._layout = dict(columns), _Layout()
        self._memory: SharedMemory | None = None
        num_bytes = 0
        for name, column in columns.items():
            self._layout.append((name, column.dtype.str, num_bytes, len(column)))
            num_bytes += column.nbytes + -column.nbytes % _ALIGNMENT
        memory = SharedMemory.create(num_bytes) if num_bytes >= _MIN_SHARED_BYTES else None
        if memory is not None and all(
            memory.write(np.ascontiguousarray(columns[name]), start) for name, _, start, _ in self._layout
        ):
            self._map(memory)

    def _map(self, memory: SharedMemory) -> None:
        self._memory, view = memory, memory.view()
        self.columns = {
            name: np.frombuffer(view, np.dtype(kind), length, start) for name, kind, start, length in self._layout
        }

    def __reduce__(self) -> Any:
        if self._memory is not None and SharedMemory.can_be_sent():
            return _mapped, (self._memory, self._layout)
        return SharedColumns, ({name: np.ascontiguousarray(column) for name, column in self.columns.items()},)


def _mapped(memory: SharedMemory, layout: _Layout) -> SharedColumns:
    columns = SharedColumns({})
    columns._layout = layout
    columns._map(memory)
    return columns
