"""Memory that all processes of a host share, without a name that could be left behind."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import sys
import weakref
from collections.abc import Mapping
from multiprocessing import context
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
_open: weakref.WeakValueDictionary[_Identity, SharedMemory] = weakref.WeakValueDictionary()  # all of this process
_MAPPING_ONLY: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}  # else it has a descriptor
_log = logging.getLogger("torchdata_remote")


class SharedMemory:
    """An unnamed file, mapped into memory. Forked, forkserver and spawned workers map the same pages.

    It is a file in memory (``memfd_create``), which only Linux has, and which ``/dev/shm`` and its limit of 64 MiB in
    Docker do not concern. The system removes it with the last process that maps it, also after a kill. It is one object
    in each process, however often it was pickled.

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

        It is possible on Linux, unless for nothing or while this process has many others; nor on a host without space,
        or in a process without free descriptors, of which a warning tells.
        """
        if not hasattr(os, "memfd_create") or not num_bytes or len(_open) >= _MAX_CREATED:
            return None
        try:
            with os.fdopen(os.memfd_create("torchdata_remote"), "r+b") as file:
                os.ftruncate(file.fileno(), num_bytes)
                return cls(os.dup(file.fileno()))
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

    def view(self) -> memoryview:
        """Return all bytes, read-only."""
        return memoryview(self._mapping)

    @staticmethod
    def can_be_sent() -> bool:
        """Whether this is called while a process of this host is started."""
        return context.get_spawning_popen() is not None

    def __reduce__(self) -> Any:
        """Send where to find the file, to a process that is being started.

        Raises:
            TypeError: elsewhere. What holds shared memory pickles its contents then.
        """
        if not self.can_be_sent():
            raise TypeError("shared memory is sent to new processes of this host only")
        return _received, (self._identity, os.getpid(), self._descriptor)


def _received(identity: _Identity, sender: int, number: int) -> SharedMemory:
    """Return the memory that was sent: that of this process, or the file by the descriptor of the sender."""
    if (found := _open.get(identity)) is not None:
        return found
    with contextlib.suppress(OSError):
        descriptor = os.open(f"/proc/{sender}/fd/{number}", os.O_RDWR)
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
