"""The folder that is pushed: its files, read as they were when they were found."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...core.options import MIB
from ...errors import EmptyListingError, ObjectChangedError, StorageError
from ...storage.dataset_service.protocol import path_problem
from .names import is_reserved
from .os_errors import faults_at

_Stamp = tuple[int, int, int, int]  # bytes, time of change, inode, device


class LocalFile(NamedTuple):
    """A file: its path below the folder, where it lies, bytes, and what a change would change."""

    path: str
    place: str
    size: int
    stamp: _Stamp


def files_of(folder: str) -> list[LocalFile]:
    """All files below a folder, sorted by path. Links that stay inside are followed.

    Raises:
        EmptyListingError: if there are none.
        StorageError: for what is neither file nor folder, a link that leads out, and names that a data set cannot have.
    """
    with faults_at(folder):
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise StorageError(f"{folder} is not a folder. Push the folder that holds it.", url=folder)
        root = os.path.realpath(folder)
    files = sorted(_walk(root, root, "", ()))
    if not files:
        raise EmptyListingError(f"{folder}: there are no files to push. Is everything mounted?", url=folder)
    return files


def _walk(root: str, folder: str, below: str, above: tuple[tuple[int, int], ...]) -> Iterator[LocalFile]:
    with faults_at(folder):
        status = os.stat(folder)
        here = status.st_dev, status.st_ino
        if here in above:
            raise StorageError(f"{folder} is a link to a folder that it is in. Remove it.", url=folder)
        with os.scandir(folder) as found:
            entries = list(found)
    for entry in entries:
        path = below + entry.name
        if entry.is_symlink():
            _require_inside(root, entry.path)
        with faults_at(entry.path):
            status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, entry.path, path + "/", (*above, here))
            continue
        if is_reserved(entry.name):
            continue
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(
                f"{entry.path} is neither a file nor a folder. Move it out of what is pushed.", url=entry.path
            )
        wrong = path_problem(path)
        if wrong is not None:
            raise StorageError(f"{entry.path!r}: a path in a data set cannot be {path!r}: it {wrong}. Rename it.")
        yield LocalFile(path, entry.path, status.st_size, _stamp(status))


def _require_inside(root: str, link: str) -> None:
    real = os.path.realpath(link)
    if not os.path.exists(real):
        raise StorageError(f"{link} is a link to nowhere. Remove it.", url=link)
    if not real.startswith(root.rstrip("/") + "/") and real != root:
        raise StorageError(
            f"{link} is a link that leads out of the folder, to {real}. Put a copy in its place.", url=link
        )


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


def read_part(file: LocalFile, start: int, end: int) -> bytes:
    """Bytes ``start`` to ``end``.

    Raises:
        ObjectChangedError: if the file is not what it was when it was found.
    """
    with faults_at(file.place), open(file.place, "rb", buffering=0) as opened:
        _require_same(file, opened.fileno())
        pieces, position = [], opened.seek(start)
        while position < end:
            pieces.append(opened.read(end - position))
            if not pieces[-1]:
                raise _changed(file)
            position += len(pieces[-1])
        _require_same(file, opened.fileno())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def sha256_of(file: LocalFile, check: Callable[[], object]) -> str:
    """Of the whole file, in hex.

    Args:
        file: to read.
        check: called now and then; raises to end the reading.

    Raises:
        ObjectChangedError: if the file is not what it was when it was found.
    """
    with faults_at(file.place), open(file.place, "rb", buffering=0) as opened:
        _require_same(file, opened.fileno())
        digest = hash_rest(opened.fileno(), check)
        _require_same(file, opened.fileno())
        return digest


def hash_rest(descriptor: int, check: Callable[[], object]) -> str:
    """SHA-256 in hex of what an open file holds from its position on; ``check`` may raise to end it."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(MIB))
    while num_bytes := os.readv(descriptor, [buffer]):
        check()
        digest.update(buffer[:num_bytes])
    return digest.hexdigest()


def require_unchanged(file: LocalFile) -> None:
    """See that a file is what it was when it was found.

    Raises:
        ObjectChangedError: if it is not.
    """
    with faults_at(file.place):
        if _stamp(os.stat(file.place)) != file.stamp:
            raise _changed(file)


def _require_same(file: LocalFile, descriptor: int) -> None:
    if _stamp(os.fstat(descriptor)) != file.stamp:
        raise _changed(file)


def _changed(file: LocalFile) -> ObjectChangedError:
    return ObjectChangedError(
        f"{file.place} changed while it was pushed. Push again when nobody writes there.", url=file.place
    )
