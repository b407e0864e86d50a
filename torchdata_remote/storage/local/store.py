"""Local files without fsspec: listed by ``scandir``, mapped into memory, published by rename."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator

from ...core.local_view import fill, map_file
from ...errors import UrlError
from ..errors import from_status
from ..protocol import Answer, Entry, Page, RangeNotSatisfiableError, single_chunk
from .names import PARTIAL_SUFFIX, is_internal_name, leads_nowhere
from .sorted_paths import iter_sorted
from .temporary_files import PROCESS, link_in, remove_leftovers_in, temporary_in
from .writer import WITHOUT_LINKS, LocalWriter, errors_of, sync_folder

_FULL = {errno.ENOSPC, errno.EDQUOT}


def version_of(status: os.stat_result) -> str:
    """Return the etag of a file: its modification time, size and inode."""
    return f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"


def _entry(path: str, status: os.stat_result) -> Entry:
    return Entry(path, status.st_size, version_of(status), status.st_mtime)


def _check_is_file(path: str, mode: int) -> None:
    """Refuse what has no end or waits for a writer. Opening a folder reports an error of its own."""
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = "a FIFO" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        url = f"file://{path}"
        raise UrlError(f"{url} is {kind}. Pass the path of a file: copy what it delivers into one.", url=url)


class LocalStore:
    """The local filesystem. The etag of a file is its modification time, size and inode.

    A broken link is listed without a size. A pattern may leave it out; otherwise it is an error.
    """

    may_ignore_ranges = False
    maps_files = True

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        folder = prefix[: prefix.rfind("/") + 1]
        with errors_of(folder):
            if not os.path.isdir(folder):
                return Page([], None)
            return Page(list(self._walk(folder, recursive, set())), None)

    def _walk(self, folder: str, recursive: bool, seen: set[tuple[int, int]]) -> Iterator[Entry]:
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            return  # a link to a folder that is already being listed
        seen = seen | {(status.st_dev, status.st_ino)}
        with os.scandir(folder) as entries:
            for entry in entries:
                path = folder + entry.name
                if is_internal_name(entry.name):
                    continue
                if entry.is_symlink() and leads_nowhere(path):
                    yield Entry(path, None, None)
                elif entry.is_dir():
                    if recursive:
                        yield from self._walk(path + "/", recursive, seen)
                elif entry.is_file():
                    file_status = entry.stat()
                    yield _entry(path, file_status)

    def find(self, path: str) -> Entry | None:
        return self.stat(path) if os.path.isfile(path) else None

    def stat(self, path: str) -> Entry:
        with errors_of(path):
            status = os.stat(path)
            if os.path.isdir(path):
                raise IsADirectoryError(path)
            return _entry(path, status)

    def change_of(self, path: str) -> str:
        """Return the time of the last change of a file, which no program can set back, unlike the one in its etag."""
        with errors_of(path):
            return f"{os.stat(path).st_ctime_ns:x}"

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        with errors_of(path):
            _check_is_file(path, os.stat(path).st_mode)
        with errors_of(path), open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            if etag is not None and etag != version_of(status):
                raise from_status(412, "", f"file://{path}")
            if start and start >= size:
                raise RangeNotSatisfiableError(f"file://{path} ends at byte {size:,}.", url=f"file://{path}")
            stop = size if end is None else min(end, size)
            return Answer(start, stop, size, version_of(status), single_chunk(map_file(file.fileno(), start, stop)))

    def read_into(self, path: str, ranges: Iterable[tuple[int, memoryview]]) -> Entry:
        """Copy many ranges of a file: the first byte of each, and the memory to fill. Return the version that was read.

        A range that exceeds the end of the file is not copied: compare the size of the version.
        """
        with errors_of(path):
            _check_is_file(path, os.stat(path).st_mode)
        with errors_of(path), open(path, "rb", buffering=0) as file:
            descriptor = file.fileno()
            status = os.fstat(descriptor)
            for start, view in ranges:
                if start + len(view) <= status.st_size:
                    fill(view, descriptor, start)
            return _entry(path, status)

    def create(self, path: str, *, overwrite: bool, durable: bool = True, sync_folder: bool = True) -> LocalWriter:
        """Start to write a file. Without ``durable`` it may be missing or incomplete after a crash of the machine.

        Without ``sync_folder`` it may be missing until :meth:`sync_folder` was called, once for many files.
        """
        with errors_of(path):
            folder, name = os.path.split(path)
            if not name:
                raise UrlError(f"file://{path} names a folder, not a file.", url=f"file://{path}")
            descriptor, temporary = temporary_in(folder)
            return LocalWriter(path, descriptor, temporary, overwrite, durable, sync_folder and durable)

    def adopt(self, source: str, path: str, *, overwrite: bool) -> LocalWriter | None:
        """Make a complete file the content of the file at ``path`` too, without a copy; ``None`` across mounts.

        Only trying tells: a link from one mount into another one fails also if both show the same filesystem.
        """
        with errors_of(path):
            try:
                descriptor, temporary = link_in(os.path.dirname(path), source)
            except OSError as error:
                if error.errno != errno.EXDEV and error.errno not in WITHOUT_LINKS:
                    raise
                return None
            return LocalWriter(path, descriptor, temporary, overwrite, durable=True, sync_folder=True)

    def sync_folder(self, path: str) -> None:
        """Wait until the files that were created in a folder are on disk."""
        with errors_of(path):
            sync_folder(path)

    def delete(self, path: str) -> None:
        with errors_of(path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        folder = prefix[: prefix.rfind("/") + 1]
        with errors_of(folder), contextlib.suppress(FileNotFoundError):
            for name in os.listdir(folder):
                if name.startswith(".") and name.endswith(
                    PARTIAL_SUFFIX
                ):  # the name does not contain that of the object
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(folder + name)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        folder = prefix[: prefix.rfind("/") + 1]
        with errors_of(folder):
            found = list(itertools.islice(iter_sorted(folder, prefix, recursive, after), limit + 1))
            next_token = None if len(found) <= limit else found[limit - 1]
            entries = []
            for path in found[:limit]:
                with contextlib.suppress(FileNotFoundError):  # removed since
                    if not path.endswith("/"):
                        entries.append(_entry(path, os.lstat(path)))
        return Page(entries, next_token, [path for path in found[:limit] if path.endswith("/")])

    def has_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_folder(self, path: str) -> None:
        with errors_of(path):
            os.makedirs(os.path.dirname(path.rstrip("/")), exist_ok=True)
            os.mkdir(path)
            sync_folder(os.path.dirname(path.rstrip("/")))

    def remove_folder(self, path: str) -> None:
        with errors_of(path), contextlib.suppress(FileNotFoundError):
            above, name = os.path.split(path.rstrip("/"))
            if os.path.islink(f"{above}/{name}"):
                os.unlink(f"{above}/{name}")
                return
            # Atomic for readers; a killed process leaves a leftover. Nothing is created, since the disk may be full
            aside = f"{above}/{PROCESS}{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
            try:
                os.rename(f"{above}/{name}", aside)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                aside = path  # on some file systems a name needs a block of its own
            sync_folder(above)
            shutil.rmtree(aside)

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        remove_leftovers_in(path, before_s)

    def remove_leftovers_of_others(self, path: str, before_s: float, stopped: Callable[[], bool]) -> None:
        """Remove unfinished writes of other processes, while this one may write; end soon once ``stopped``."""
        remove_leftovers_in(path, before_s, spare_own=True, stopped=stopped)
