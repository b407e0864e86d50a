"""Bytes that a process leaves for its workers, in a file without a name."""

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
    """One file for all passes of a loader, which workers of every start method share, and which has no name.

    So nothing is left of it when the processes end, by whatever signal. A worker that does not find what it looks for
    has to make it itself: on Windows, where a file without a name cannot be shared, and where there is no room for it.
    """

    def __init__(self) -> None:
        self._fd: int | None = None

    def _keep(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd).atexit = False  # the process closes it, too

    def leave(self, number: int, data: bytes) -> None:
        """Let workers take this under a number, instead of what was there."""
        try:
            if self._fd is None and hasattr(os, "pread"):
                with tempfile.TemporaryFile(prefix="torchdata_remote-") as file:
                    self._keep(os.dup(file.fileno()))
            if self._fd is not None:
                self._write(data, _HEAD.size)
                self._write(_HEAD.pack(number, len(data)), 0)
        except OSError as error:
            _log.warning("The listing is not handed to workers, which list by themselves: %s", error)
            self.clear()

    def take(self, number: int) -> bytes | None:
        """What was left under a number; ``None`` if that is not there."""
        if self._fd is None:
            return None
        found, length = _HEAD.unpack(self._read(_HEAD.size, 0).ljust(_HEAD.size, b"\xff"))
        data = self._read(length, _HEAD.size) if found == number else b""
        return data if found == number and len(data) == length else None

    def clear(self) -> None:
        """Take back what was left, of which all workers have a copy."""
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
        """For a worker that is being started, the file; elsewhere nothing."""
        is_spawning = self._fd is not None and context.get_spawning_popen() is not None
        return {"file": reduction.DupFd(self._fd) if is_spawning else None}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        if state["file"] is not None:
            self._keep(state["file"].detach())
