"""Pass bytes from a process to its workers, in an unnamed temporary file."""

from __future__ import annotations

import logging
import os
import struct
import tempfile
import weakref
from multiprocessing import context, reduction
from typing import Any

_HEAD = struct.Struct("<qq")  # number, length
_log = logging.getLogger("torchdata_remote")


class Handover:
    """One unnamed file for all passes of a loader, shared with workers of every start method.

    The system deletes the file when the processes end, also by a signal. A worker for which there are no bytes has to
    make them itself: on Windows, where unnamed files cannot be shared, and if the disk is full.
    """

    def __init__(self) -> None:
        self._fd: int | None = None

    def _keep(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd).atexit = False  # the system closes it at exit

    def store(self, number: int, data: bytes) -> None:
        """Store bytes under a number, for workers; replaces earlier ones."""
        try:
            if self._fd is None and hasattr(os, "pread"):
                with tempfile.TemporaryFile(prefix="torchdata_remote-") as file:
                    self._keep(os.dup(file.fileno()))
            if self._fd is not None:
                self._write(data, _HEAD.size)
                self._write(_HEAD.pack(number, len(data)), 0)
        except OSError as error:
            _log.warning("The listing could not be passed to the workers, which list again: %s", error)
            self.clear()

    def load(self, number: int) -> bytes | None:
        """The bytes under a number; ``None`` if there are none."""
        if self._fd is None:
            return None
        stored, length = _HEAD.unpack(self._read(_HEAD.size, 0).ljust(_HEAD.size, b"\xff"))
        data = self._read(length, _HEAD.size) if stored == number else b""
        return data if stored == number and len(data) == length else None

    def clear(self) -> None:
        """Delete the bytes, when all workers have a copy."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            num_bytes = os.pwrite(self._fd, view, at)  # type: ignore[arg-type]
            view, at = view[num_bytes:], at + num_bytes

    def _read(self, length: int, at: int) -> bytes:
        parts = []
        while length > 0 and (part := os.pread(self._fd, length, at)):  # type: ignore[arg-type]
            parts.append(part)
            length, at = length - len(part), at + len(part)
        return b"".join(parts)

    def __getstate__(self) -> dict[str, Any]:
        """The file, for a worker that is being started; otherwise nothing."""
        is_spawning = self._fd is not None and context.get_spawning_popen() is not None
        return {"file": reduction.DupFd(self._fd) if is_spawning else None}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        if state["file"] is not None:
            self._keep(state["file"].detach())
