"""Files of the folder that is pushed. A file that changes after it was listed is an error."""

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
from .os_errors import translate_os_errors

_Stamp = tuple[int, int, int, int]  # size, modification time, inode, device


class LocalFile(NamedTuple):
    """A file: path below the folder, absolute path, size, and a stamp that changes with its content."""

    path: str
    absolute_path: str
    size: int
    stamp: _Stamp


def files_of(folder: str) -> list[LocalFile]:
    """List all files below a folder, sorted by path. Links that stay inside are followed.

    Raises:
        EmptyListingError: if there are none.
        StorageError: for an entry that is neither file nor folder, a link that leads out, or a name that is not allowed
            in a dataset.
    """
    with translate_os_errors(folder):
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise StorageError(f"{folder} is not a folder. Push the folder that contains it.", url=folder)
        root = os.path.realpath(folder)
    files = sorted(_walk(root, root, "", ()))
    if not files:
        raise EmptyListingError(f"{folder}: there are no files to push. Is everything mounted?", url=folder)
    return files


def _walk(root: str, folder: str, below: str, above: tuple[tuple[int, int], ...]) -> Iterator[LocalFile]:
    with translate_os_errors(folder):
        status = os.stat(folder)
        here = status.st_dev, status.st_ino
        if here in above:
            raise StorageError(f"{folder} is a link to a folder above it. Remove it.", url=folder)
        with os.scandir(folder) as found:
            entries = list(found)
    for entry in entries:
        path = below + entry.name
        if entry.is_symlink():
            _require_inside(root, entry.path)
        with translate_os_errors(entry.path):
            status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, entry.path, path + "/", (*above, here))
            continue
        if is_reserved(entry.name):
            continue
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(
                f"{entry.path} is neither a file nor a folder. Move it out of the folder that is pushed.",
                url=entry.path,
            )
        wrong = path_problem(path)
        if wrong is not None:
            raise StorageError(f"{entry.path!r}: a path in a dataset cannot be {path!r}: it {wrong}. Rename it.")
        yield LocalFile(path, entry.path, status.st_size, _stamp(status))


def _require_inside(root: str, link: str) -> None:
    real = os.path.realpath(link)
    if not os.path.exists(real):
        raise StorageError(f"{link} is a link to nowhere. Remove it.", url=link)
    if not real.startswith(root.rstrip("/") + "/") and real != root:
        raise StorageError(f"{link} is a link that leads out of the folder, to {real}. Replace it by a copy.", url=link)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


def read_part(file: LocalFile, start: int, end: int) -> bytes:
    """Read bytes ``start`` to ``end``.

    Raises:
        ObjectChangedError: if the file is not what it was when it was found.
    """
    with translate_os_errors(file.absolute_path), open(file.absolute_path, "rb", buffering=0) as opened:
        _require_same(file, opened.fileno())
        pieces, position = [], opened.seek(start)
        while position < end:
            pieces.append(opened.read(end - position))
            if not pieces[-1]:
                raise _changed(file)
            position += len(pieces[-1])
        _require_same(file, opened.fileno())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def pieces_of(file: LocalFile, start: int, end: int, check: Callable[[], object]) -> Iterator[memoryview]:
    """Read bytes ``start`` to ``end`` in pieces of at most 1 MiB. Each is valid until the next one is read.

    Args:
        file: to read.
        start: first byte.
        end: byte after the last one.
        check: called before each piece; may raise an error to stop.

    Raises:
        ObjectChangedError: if the file is not what it was when it was found.
    """
    buffer = memoryview(bytearray(min(MIB, end - start)))
    with translate_os_errors(file.absolute_path), open(file.absolute_path, "rb", buffering=0) as opened:
        _require_same(file, opened.fileno())
        position = opened.seek(start)
        while position < end:
            check()
            num_bytes = opened.readinto(buffer[: end - position])
            if not num_bytes:
                raise _changed(file)
            position += num_bytes
            if position == end:
                _require_same(file, opened.fileno())
            yield buffer[:num_bytes]


def sha256_of(file: LocalFile, check: Callable[[], object]) -> str:
    """Compute the hexadecimal SHA-256 of a file.

    Args:
        file: to read.
        check: called after each MiB; may raise an error to stop.

    Raises:
        ObjectChangedError: if the file is not what it was when it was found.
    """
    with translate_os_errors(file.absolute_path), open(file.absolute_path, "rb", buffering=0) as opened:
        _require_same(file, opened.fileno())
        digest = hash_rest(opened.fileno(), check)
        _require_same(file, opened.fileno())
        return digest


def hash_rest(descriptor: int, check: Callable[[], object]) -> str:
    """Compute the hexadecimal SHA-256 of an open file from its position; ``check`` may raise an error to stop."""
    digest = hashlib.sha256()
    for piece in read_pieces(descriptor, check):
        digest.update(piece)
    return digest.hexdigest()


def read_pieces(descriptor: int, check: Callable[[], object]) -> Iterator[memoryview]:
    """Read an open file from its position, a MiB at a time. Each piece is valid until the next one is read."""
    buffer = memoryview(bytearray(MIB))
    while num_bytes := os.readv(descriptor, [buffer]):
        check()
        yield buffer[:num_bytes]


def require_unchanged(file: LocalFile) -> None:
    """Require that a file has not changed since it was listed.

    Raises:
        ObjectChangedError: if it has.
    """
    with translate_os_errors(file.absolute_path):
        if _stamp(os.stat(file.absolute_path)) != file.stamp:
            raise _changed(file)


def _require_same(file: LocalFile, descriptor: int) -> None:
    if _stamp(os.fstat(descriptor)) != file.stamp:
        raise _changed(file)


def _changed(file: LocalFile) -> ObjectChangedError:
    return ObjectChangedError(
        f"{file.absolute_path} changed while it was pushed. Push again when no program writes to it.",
        url=file.absolute_path,
    )
