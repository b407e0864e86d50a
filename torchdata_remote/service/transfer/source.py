"""Files of the folder that is pushed. A file that changes after it was listed is an error."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...errors import EmptyListingError, ObjectChangedError, StorageError
from ...storage import is_internal_name
from ...storage.dataset_service.protocol import path_problem
from .jobs import os_errors, read_pieces

_Stamp = tuple[int, int, int, int]  # size, modification time, inode, device


class LocalFile(NamedTuple):
    """A file: path below the folder, absolute path, size, and a stamp that changes with its content."""

    path: str
    absolute_path: str
    size: int
    stamp: _Stamp

    def pieces(self, check: Callable[[], object], start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """Read bytes ``start`` to ``end`` in pieces of at most 1 MiB. Each is valid until the next one is read.

        Args:
            check: called before each piece; may raise an error to stop.
            start: first byte.
            end: byte after the last one; ``None`` for the file's.

        Raises:
            ObjectChangedError: if the file is not what it was when it was found.
        """
        left = (self.size if end is None else end) - start
        with os_errors(self.absolute_path), open(self.absolute_path, "rb", buffering=0) as opened:
            self._require_same(os.fstat(opened.fileno()))
            opened.seek(start)
            with contextlib.closing(read_pieces(opened.fileno(), left)) as pieces:  # type: ignore[type-var]
                for piece in pieces:
                    check()
                    left -= len(piece)
                    if not left:
                        self._require_same(os.fstat(opened.fileno()))
                    yield piece
            if left:
                raise self._changed()

    def sha256(self, check: Callable[[], object]) -> str:
        """Compute the hexadecimal SHA-256. Raises as :meth:`pieces`."""
        digest = hashlib.sha256()
        for piece in self.pieces(check):
            digest.update(piece)
        return digest.hexdigest()

    def require_unchanged(self) -> None:
        """Require that the file has not changed since it was listed.

        Raises:
            ObjectChangedError: if it has.
        """
        with os_errors(self.absolute_path):
            self._require_same(os.stat(self.absolute_path))

    def _require_same(self, status: os.stat_result) -> None:
        if _stamp(status) != self.stamp:
            raise self._changed()

    def _changed(self) -> ObjectChangedError:
        what = "changed while it was pushed. Push again when no program writes to it"
        return ObjectChangedError(f"{self.absolute_path} {what}.", url=self.absolute_path)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


def files_of(folder: str) -> list[LocalFile]:
    """List all files below a folder, sorted by path. Links that stay inside are followed.

    Raises:
        EmptyListingError: if there are none.
        StorageError: for an entry that is neither file nor folder, a link that leads out, or a name that is not allowed
            in a dataset.
    """
    with os_errors(folder):
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise StorageError(f"{folder} is not a folder. Push the folder that contains it.", url=folder)
    root = os.path.realpath(folder)
    files = sorted(_walk(root, root, "", ()))
    if not files:
        raise EmptyListingError(f"{folder}: there are no files to push. Is everything mounted?", url=folder)
    return files


def _walk(root: str, folder: str, below: str, above: tuple[tuple[int, int], ...]) -> Iterator[LocalFile]:
    with os_errors(folder):
        status = os.stat(folder)
        here = status.st_dev, status.st_ino
        if here in above:
            raise StorageError(f"{folder} is a link to a folder above it. Remove it.", url=folder)
        with os.scandir(folder) as found:
            entries = list(found)
    for entry in entries:
        path = below + entry.name
        if entry.is_symlink():
            real = os.path.realpath(entry.path)
            if not os.path.exists(real):
                raise StorageError(f"{entry.path} is a link to nowhere. Remove it.", url=entry.path)
            if not f"{real}/".startswith(root.rstrip("/") + "/"):
                what = f"is a link that leads out of the folder, to {real}. Replace it by a copy"
                raise StorageError(f"{entry.path} {what}.", url=entry.path)
        with os_errors(entry.path):
            status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, entry.path, path + "/", (*above, here))
        elif is_internal_name(entry.name):
            continue
        elif not stat.S_ISREG(status.st_mode):
            what = "is neither a file nor a folder. Move it out of the folder that is pushed"
            raise StorageError(f"{entry.path} {what}.", url=entry.path)
        elif (wrong := path_problem(path)) is not None:
            raise StorageError(f"{entry.path!r}: a path in a dataset cannot be {path!r}: it {wrong}. Rename it.")
        else:
            yield LocalFile(path, entry.path, status.st_size, _stamp(status))
