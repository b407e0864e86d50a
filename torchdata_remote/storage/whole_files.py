"""Write files of fsspec's filesystems whole or not at all: under a hidden name beside the file, then renamed."""

from __future__ import annotations

import contextlib
import ftplib  # its class of errors
import io
import uuid
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from .local.names import PARTIAL_SUFFIX

_WEBDAV = "webdav4."


def renames(kind: type) -> bool:
    """Whether a filesystem of this class moves a file in one step; others copy it, and some write in one request."""
    if issubclass(kind, AsyncFileSystem | MemoryFileSystem) or kind.__module__.startswith("huggingface_hub"):
        return False
    moves: Any = getattr(kind, "mv", None)
    return kind.__module__.startswith(_WEBDAV) or moves is not fsspec.AbstractFileSystem.mv


def is_partial(path: str) -> bool:
    """Whether a path is that of a file that was not finished."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(PARTIAL_SUFFIX)


def write_whole(filesystem: Any, path: str, data: bytes, *, overwrite: bool) -> None:
    """Write a file, which appears whole. The unfinished one of a killed process is found by :func:`is_partial`."""
    hidden = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
    try:
        filesystem.pipe_file(hidden, data)
        try:
            _rename(filesystem, hidden, path, overwrite=overwrite)
        except Exception:
            if not overwrite or not filesystem.exists(path):
                raise
            filesystem.rm_file(path)  # a server that does not rename to a file that exists
            _rename(filesystem, hidden, path, overwrite=overwrite)
    except BaseException:
        with contextlib.suppress(Exception):
            filesystem.rm_file(hidden)
        raise


def _rename(filesystem: Any, old: str, new: str, *, overwrite: bool) -> None:
    if type(filesystem).__module__.startswith(_WEBDAV):
        filesystem.client.move(old, new, overwrite=overwrite)  # its `mv` copies
    else:
        filesystem.mv(old, new)


class BufferedWriter:
    """Keeps the bytes in memory, and publishes them in one call.

    Args:
        publish: writes the whole object.
    """

    def __init__(self, publish: Callable[[bytes], None]) -> None:
        self._publish = publish
        self._buffer = io.BytesIO()

    def write(self, data: bytes) -> None:
        self._buffer.write(data)

    def commit(self) -> None:
        self._publish(self._buffer.getvalue())
        self.abort()

    def abort(self) -> None:
        self._buffer = io.BytesIO()


def make_folders(filesystem: Any, folder: str) -> None:
    """Make a folder and those above it. One that another writer has made is no error."""
    try:
        filesystem.makedirs(folder, exist_ok=True)
    except (FileExistsError, ftplib.error_perm):
        filesystem.invalidate_cache()  # fsspec's ftp looks folders up in listings of before
        filesystem.makedirs(folder, exist_ok=True)
