"""Write a local file: a temporary one, renamed when it is complete and on disk."""

from __future__ import annotations

import contextlib
import errno
import os

from ...core.early_writeback import EarlyWriteback
from ..errors import from_os, translate_errors

WITHOUT_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}  # FAT, some FUSE mounts


def errors_of(path: str) -> contextlib.AbstractContextManager[None]:
    """Raise errors of the operating system about a file as this package's errors."""
    return translate_errors(from_os, f"file://{path}", transient=False)


def sync_folder(path: str) -> None:
    """Flush the renames in a folder to disk."""
    if os.name == "nt":  # Windows cannot open folders
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class LocalWriter:
    """A temporary file, renamed when it is complete and on disk.

    Args:
        path: of the file.
        descriptor: of the temporary file.
        temporary: its path, on the same filesystem.
        overwrite: whether an existing file is replaced.
        durable: whether the bytes are on disk before the file is renamed.
        sync_folder: whether the rename is on disk when ``commit`` returns.
    """

    def __init__(
        self, path: str, descriptor: int, temporary: str, overwrite: bool, durable: bool, sync_folder: bool
    ) -> None:
        self._path, self._temporary = path, temporary
        self._overwrite, self._durable, self._sync_folder = overwrite, durable, sync_folder
        self._file = os.fdopen(descriptor, "wb", buffering=1 << 20)
        self._writeback = EarlyWriteback(descriptor) if durable else None

    def write(self, data: bytes) -> None:
        with errors_of(self._path):
            self._file.write(data)
            if self._writeback is not None:
                self._writeback.wrote(len(data))

    def rename_to(self, name: str) -> None:
        """Publish the file under another name in the same folder."""
        self._path = os.path.join(os.path.dirname(self._path), name)

    def commit(self) -> None:
        with errors_of(self._path):
            self._file.flush()
            if self._durable:
                os.fsync(self._file.fileno())
            self._file.close()
            if self._overwrite:
                os.replace(self._temporary, self._path)
            else:
                self._publish_new()
            if self._sync_folder:
                sync_folder(os.path.dirname(self._path))

    def _publish_new(self) -> None:
        """Publish by a hard link, which fails if the file exists, unlike a rename."""
        try:
            os.link(self._temporary, self._path)
        except OSError as error:
            if error.errno not in WITHOUT_LINKS:
                raise
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL))
            os.replace(self._temporary, self._path)
        else:
            os.unlink(self._temporary)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)
