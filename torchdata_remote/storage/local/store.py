"""Local files without fsspec: listed by ``scandir``, mapped into memory, published by rename."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from ...core.files import EarlyWriteback, map_file
from ...errors import UrlError
from ..errors import from_status, translate_errors
from ..folder_walk import page_of_names
from ..protocol import Answer, Entry, Page, RangeNotSatisfiableError, single_chunk
from .names import PARTIAL_SUFFIX, is_internal_name, names_in

T = TypeVar("T")
_WITHOUT_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}  # FAT, some FUSE mounts
_NOWHERE = {errno.ENOENT, errno.ELOOP, errno.ENOTDIR}  # of a link: no target, a circle, a target below a file
_MAX_REMOVED = 100  # attempts, while other processes remove the folder before its first file is created
# Without waiting for the writer of a FIFO
_FOR_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
# Begins the names of what this process has not finished, so that a search for leftovers spares it by its name alone:
# the clock of a file server may differ, and that of this machine may be set back.
_PROCESS = f".{secrets.token_hex(4)}-"


def version_of(status: os.stat_result) -> str:
    """Return the etag of a file: its modification time, size and inode."""
    return f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"


def _entry(path: str, status: os.stat_result) -> Entry:
    return Entry(path, status.st_size, version_of(status), status.st_mtime)


def _found(path: str) -> Entry | None:
    try:
        return _entry(path, os.lstat(path))
    except FileNotFoundError:  # removed since it was listed
        return None


def _errors_of(path: str) -> contextlib.AbstractContextManager[None]:
    return translate_errors(f"file://{path}", transient=False)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file for reading. What has no end or waits for a writer is refused."""
    with _errors_of(path):
        descriptor = os.open(path, _FOR_READING)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(path)
            if not stat.S_ISREG(status.st_mode):
                url, kind = f"file://{path}", "a FIFO" if stat.S_ISFIFO(status.st_mode) else "a device"
                raise UrlError(f"{url} is {kind}. Pass the path of a file: copy what it delivers into one.", url=url)
            yield descriptor, status
        finally:
            os.close(descriptor)


class LocalStore:
    """The local filesystem. The etag of a file is its modification time, size and inode.

    A broken link is listed without a size. A pattern may leave it out; otherwise it is an error.
    """

    may_ignore_ranges = False
    maps_files = True

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        folder = prefix[: prefix.rfind("/") + 1]
        with _errors_of(folder):
            return Page(list(_walk(folder, recursive, set())) if os.path.isdir(folder) else [], None)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        with _errors_of(prefix):
            return page_of_names(names_in, _found, prefix, after, recursive=recursive, limit=limit)

    # Files

    def find(self, path: str) -> Entry | None:
        return self.stat(path) if os.path.isfile(path) else None

    def stat(self, path: str) -> Entry:
        with _errors_of(path):
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(path)
            return _entry(path, status)

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        with _opened(path) as (descriptor, status):
            size, version = status.st_size, version_of(status)
            if etag is not None and etag != version:
                raise from_status(412, "", f"file://{path}")
            if start and start >= size:
                raise RangeNotSatisfiableError(f"file://{path} ends at byte {size:,}.", url=f"file://{path}")
            stop = size if end is None else min(end, size)
            return Answer(start, stop, size, version, single_chunk(map_file(descriptor, start, stop)))

    def create(self, path: str, *, overwrite: bool) -> LocalWriter:
        with _errors_of(path):
            folder, name = os.path.split(path)
            if not name:
                raise UrlError(f"file://{path} names a folder, not a file.", url=f"file://{path}")
            file = _in_folder(folder, lambda: open(_aside(folder), "xb", buffering=1 << 20))  # noqa: SIM115
            return LocalWriter(path, file, overwrite)

    def delete(self, path: str) -> None:
        with _errors_of(path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    # Leftovers

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        folder = Path(prefix[: prefix.rfind("/") + 1])
        with _errors_of(prefix):
            for path in folder.glob(f".*{PARTIAL_SUFFIX}"):  # the name of the object is not in it
                path.unlink(missing_ok=True)


def _walk(folder: str, recursive: bool, above: set[tuple[int, int]]) -> Iterator[Entry]:
    """Yield the files of a folder. A link to a folder is followed, unless that is being listed already."""
    here = os.stat(folder)
    if (here.st_dev, here.st_ino) in above:
        return
    above = above | {(here.st_dev, here.st_ino)}
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_internal_name(entry.name):
                continue
            path = folder + entry.name
            try:
                status = entry.stat()
            except OSError as error:
                if error.errno not in _NOWHERE:
                    raise
                if entry.is_symlink():  # else it was removed since
                    yield Entry(path, None, None)
                continue
            if stat.S_ISREG(status.st_mode):
                yield _entry(path, status)
            elif recursive and stat.S_ISDIR(status.st_mode):
                yield from _walk(path + "/", recursive, above)


def _in_folder(folder: str, create: Callable[[], T]) -> T:
    """Create a file in a folder, which is made if it is missing, also while other processes remove it."""
    for _ in range(_MAX_REMOVED):
        with contextlib.suppress(FileNotFoundError):
            return create()
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.makedirs(folder, exist_ok=True)
    return create()


def _aside(folder: str) -> str:
    """Return a new name of what this process has not finished."""
    return f"{folder}/{_PROCESS}{secrets.token_hex(16)}{PARTIAL_SUFFIX}"


def _sync_folder(path: str) -> None:
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
        file: the temporary file, on the same filesystem.
        overwrite: whether an existing file is replaced.
    """

    def __init__(self, path: str, file: BinaryIO, overwrite: bool) -> None:
        self._path, self._file, self._overwrite = path, file, overwrite
        self._writeback = EarlyWriteback(file.fileno())

    def write(self, data: bytes) -> None:
        with _errors_of(self._path):
            self._file.write(data)
            self._writeback.wrote(len(data))

    def commit(self) -> None:
        with _errors_of(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            try:
                if self._overwrite:
                    os.replace(self._file.name, self._path)
                else:
                    os.link(self._file.name, self._path)  # fails if the file exists, unlike a rename
                    os.unlink(self._file.name)
            except OSError as error:
                if self._overwrite or error.errno not in _WITHOUT_LINKS:
                    raise
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL))
                os.replace(self._file.name, self._path)
            _sync_folder(os.path.dirname(self._path))

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file.name)
