"""Datasets in a local folder, which one process serves.

A file is written under a temporary name in its own folder, and renamed when it is on disk. A dataset is removed by
renaming its folder: what is being written in it then lacks its temporary file, and never appears, also if another
dataset has the name by then. No link in a dataset is followed; its folder itself may be one, which its owner made.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import os
import re
import secrets
import shutil
import stat
import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import BinaryIO

from ...core.files import EarlyWriteback, SharedSync
from ...core.options import StorageOptions
from ...core.threads import NamedLocks
from ...core.urls import join_url
from ...errors import ObjectChangedError, ServiceError, UrlError
from ...storage import PARTIAL_SUFFIX, LocalStore, Page, symlink_error, translate_errors, version_of
from .problems import Problem, Stopping
from .requests import is_dataset_name, require_dataset_name, require_match
from .root import WORK_FOLDER, File, no_dataset, no_file, removed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LINUX = sys.platform == "linux"
_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_MAX_ATTEMPTS = 100  # at creating a folder, while others remove it since it is empty
_ABOUT = "user.torchdata_remote.sha256"  # an extended attribute: SHA-256, and etag of the version
_ABOUT_VALUE = re.compile(r'([0-9a-f]{64}) ("[^"]*")')


class FolderRoot:
    """A local folder.

    Args:
        url: of the folder.
        folder: its path.

    Raises:
        UrlError: if it cannot be created.

    Attributes:
        locks: of files, by their full paths.
        lives: how often a dataset of a name was removed.
    """

    def __init__(self, url: str, folder: str) -> None:
        self.folder = os.path.realpath(folder).rstrip("/") + "/"
        self.url, self.options = join_url("file", "", self.folder), StorageOptions(None)
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UrlError(f"{url.rstrip('/')} cannot keep datasets: {error}.", url=url) from error
        self.store, self.locks, self.lives = LocalStore(), NamedLocks(), Counter[str]()
        self._began_s, self._lock = math.inf, f"{self.folder}{WORK_FOLDER}serving.lock"
        self.syncs = defaultdict[int, SharedSync](SharedSync)  # of file systems

    def names(self) -> list[str]:
        """Return the names of all datasets, sorted. A link to a folder is a choice of the root's owner."""
        with os.scandir(self.folder) as entries:
            return sorted(entry.name for entry in entries if is_dataset_name(entry.name) and entry.is_dir())

    def dataset(self, name: str) -> FolderDataset:
        """Return a dataset. Raises ``Problem`` 404."""
        folder = f"{self.folder}{require_dataset_name(name)}/"
        if not os.path.isdir(folder):
            raise no_dataset(name)
        return FolderDataset(self, name, folder)

    def open(self, name: str, path: str) -> OpenFile:
        """Open a file. Raises ``Problem`` 404."""
        return self.dataset(name).open(path)

    def open_cached(self, name: str, path: str) -> OpenFile | None:
        """Open a file whose name the kernel has in memory, without the disk; ``None`` for others."""
        folder = f"{self.folder}{require_dataset_name(name)}/"
        descriptor = _open_cached(folder + path)
        return None if descriptor < 0 else FolderDataset(self, name, folder).opened(path, descriptor)

    def create(self, name: str) -> None:
        """Create an empty dataset. Raises ``Problem`` 409."""
        try:
            with translate_errors(self.url, transient=False):
                os.mkdir(self.folder + require_dataset_name(name))
                _sync(self.folder)
        except FileExistsError:
            raise Problem(409, f"The dataset {name!r} exists already.") from None

    def remove(self, name: str) -> None:
        """Remove a dataset with all that is kept for it. Raises ``Problem`` 404."""
        folder = self.dataset(name).folder[:-1]
        self.lives[name] += 1
        with translate_errors(f"file://{folder}", transient=False), contextlib.suppress(FileNotFoundError):
            if os.path.islink(folder):
                os.unlink(folder)
                return
            aside = f"{self.folder}.{secrets.token_hex(16)}{PARTIAL_SUFFIX}"
            try:
                os.rename(folder, aside)
            except OSError:  # on a full disk, where a name needs a block of its own
                aside = folder
            _sync(self.folder)
            shutil.rmtree(aside)

    def free_bytes(self) -> int:
        """Return the free bytes on the disk."""
        return shutil.disk_usage(self.folder).free

    def scratch(self) -> str:
        """Return a folder for unnamed files, on the disk of the datasets."""
        return self.folder + WORK_FOLDER

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Lock the folder in this block, so that unfinished files in it are leftovers, or of this process."""
        if fcntl is None:
            raise ServiceError(f"{self.url}: a local root needs flock, which Windows lacks: serve a bucket.")
        shown = self.folder[:-1]
        try:
            os.makedirs(self.folder + WORK_FOLDER, exist_ok=True)
            opened = open(self._lock, "a")  # noqa: SIM115  # closed by the block below
        except OSError as error:
            advice = "Let the service's user write there, or serve another folder."
            raise ServiceError(f"{shown} cannot be written to: {error}. {advice}", url=self.url) from error
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                advice = "End that one, or serve another folder."
                raise ServiceError(f"{shown} is served by another process. {advice}", url=self.url) from None
            self._began_s = self._now_s()
            yield

    def _now_s(self) -> float:
        """Return the time by the clock of the file system, which may be that of another machine."""
        os.utime(self._lock)
        return os.stat(self._lock).st_mtime

    def clean(self, stopping: Stopping) -> None:
        """Remove what killed services left: unfinished files, and datasets that were being removed."""
        for above, folders, names in stopping.during(os.walk(self.folder)):
            for name in filter(lambda name: name.endswith(PARTIAL_SUFFIX), [*names, *folders]):
                full = os.path.join(above, name)
                with contextlib.suppress(FileNotFoundError):
                    if os.lstat(full).st_mtime < self._began_s:
                        shutil.rmtree(full, ignore_errors=True) if name in folders else os.unlink(full)


class FolderDataset:
    """One life of a dataset: what is written here never appears in a later dataset of the same name.

    Attributes:
        num_readers: calls that are worth to be made at once: none of them waits for a network.
    """

    num_readers = 1

    def __init__(self, root: FolderRoot, name: str, folder: str) -> None:
        self.root, self.name, self.folder, self._life = root, name, folder, root.lives[name]

    @property
    def url(self) -> str:
        """URL of its folder."""
        return join_url("file", "", self.folder)

    def find(self, path: str) -> File | None:
        """Return a file, or ``None``."""
        full = self._without_links(path)
        try:
            status = os.lstat(full)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _file(path, status) if stat.S_ISREG(status.st_mode) else None

    def open(self, path: str, version: File | None = None) -> OpenFile:
        """Open a file, or a version of it that was found before.

        Raises:
            Problem: 404.
            ObjectChangedError: if it is not that version any more.
        """
        opened = self.root.open_cached(self.name, path)
        if opened is None and self.find(path) is not None:  # not what is no file, such as a named pipe
            full = self.folder + path
            with contextlib.suppress(FileNotFoundError), translate_errors(f"file://{full}", transient=False):
                opened = self.opened(path, os.open(full, _READING))
        if version is not None and (opened is None or opened.file.etag != version.etag):
            if opened is not None:
                opened.close()
            raise ObjectChangedError(f"{path} was replaced or removed.", url=self.url, etag=version.etag)
        if opened is None:
            raise no_file(path)
        return opened

    def opened(self, path: str, descriptor: int) -> OpenFile | None:
        """Return an open file; ``None``, and close it, if it is none."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):  # such as a named pipe
            os.close(descriptor)
            return None
        return OpenFile(self, _file(path, status), descriptor)

    def listed(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """List what has a prefix, sorted, after a path; all by full paths."""
        self._without_links(prefix[len(self.folder) :].rpartition("/")[0])
        return self.root.store.list_after(prefix, recursive=recursive, after=after, limit=limit)

    def writer(self, path: str, conditions: Mapping[str, str]) -> LocalFile:
        """Start to write a file.

        Args:
            path: of the file.
            conditions: headers If-Match and If-None-Match. They are compared now, and hold when it is committed.

        Raises:
            Problem: 412, if a condition does not hold; 409, if a folder has its path, or a file the path of one of its
                folders; 404, if the dataset was removed.
        """
        self.require_writable(path)
        self.require_match(path, conditions)
        with translate_errors(f"file://{self.folder}{path}", transient=False):
            return LocalFile(self, path, self._temporary(path), conditions)

    def store(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Store small files, each as a whole: all are on disk, by one sync, before one is visible."""
        writers = list[LocalFile]()
        try:
            for path, data in files:
                writers.append(self.writer(path, {}))
                writers[-1].write(data)
                writers[-1].complete(hashlib.sha256(data).hexdigest())
            self.publish(writers)
        finally:
            for writer in writers:
                writer.abort()

    def publish(self, writers: list[LocalFile]) -> None:
        """Make complete files visible when they are on disk. Raises as :meth:`LocalFile.commit`."""
        try:
            folders = {os.path.dirname(writer.full) for writer in writers}
            # One sync for each file system: folders may be mounts of others
            if len(writers) == 1 or not all(
                map(self._is_synced, {os.stat(one).st_dev: one for one in folders}.items())
            ):
                for writer in writers:
                    _sync(writer.temporary)
            for writer in writers:
                writer.publish()
        except FileNotFoundError:
            raise removed() from None
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):  # removed since, with its files
                _sync(folder)

    def _is_synced(self, place: tuple[int, str]) -> bool:
        """Wait for the disk of a folder; return whether the system can do that."""
        descriptor = os.open(place[1], os.O_RDONLY)
        try:
            return self.root.syncs[place[0]].wait(descriptor)
        finally:
            os.close(descriptor)

    def require_match(self, path: str, conditions: Mapping[str, str]) -> None:
        """Require that the conditions of a request hold. Raises ``Problem`` 412."""
        if "if-match" in conditions or "if-none-match" in conditions:
            found = self.find(path)
            require_match(conditions, found and found.etag)

    def remove(self, path: str) -> None:
        """Remove a file that was found."""
        full = self._without_links(path)
        with translate_errors(f"file://{full}", transient=False):
            os.unlink(full)
        self.remove_empty_above(full)

    def require_writable(self, path: str) -> None:
        """Require that a file could be created at a path. Raises ``Problem`` 403, 404 or 409."""
        full = self._without_links(path)
        if not os.path.isdir(self.folder):
            raise removed()
        for above, _, _ in os.walk(full, topdown=False):  # a folder with no files in it does not exist for clients
            with contextlib.suppress(OSError):
                os.rmdir(above)
        if os.path.isdir(full):
            raise Problem(409, f"{path!r} is a folder. Choose another name, or delete the files in it.")
        above = path
        while above := above.rpartition("/")[0]:
            if os.path.isfile(self.folder + above):
                raise Problem(409, f"{above!r} is a file, so {path!r} cannot be below it.")

    # Digests

    def about(self, file: File) -> File:
        """Return a file with its digest, if that is stored: by file systems with extended attributes."""
        with contextlib.suppress(OSError, AttributeError):  # none there, or another system
            match = _ABOUT_VALUE.fullmatch(os.getxattr(self.folder + file.path, _ABOUT).decode("utf-8", "replace"))
            if match is not None and match[2] == file.etag:
                return file._replace(sha256=match[1])
        return file

    def keep_sha256(self, file: File, sha256: str, descriptor: int | None = None) -> None:
        """Store the digest of a file that was read, or is open."""
        with contextlib.suppress(OSError, AttributeError):
            where = self.folder + file.path if descriptor is None else descriptor
            os.setxattr(where, _ABOUT, f"{sha256} {file.etag}".encode())

    # Paths

    def _without_links(self, path: str) -> str:
        """Return the full path of a file.

        Raises:
            AccessDeniedError: if it, or a folder above it in the dataset, is a link.
        """
        full = self.folder
        for name in path.split("/"):
            full = full.removesuffix("/") + "/" + name
            if full != self.folder and os.path.islink(full):
                raise symlink_error(full)
        return full

    def remove_empty_above(self, full: str) -> None:
        """Remove the folders of a removed file that are empty: as in a bucket, a folder exists while it has files."""
        with contextlib.suppress(OSError):  # not empty, or already removed
            while len(full := os.path.dirname(full)) >= len(self.folder):
                os.rmdir(full)

    def _temporary(self, path: str) -> BinaryIO:
        """Open a new file in the folder of a path. The dataset's own folder is never created here."""
        folders, name = path.split("/")[:-1], f".{secrets.token_hex(16)}{PARTIAL_SUFFIX}"
        for _ in range(_MAX_ATTEMPTS):
            above = self.folder
            with contextlib.suppress(FileNotFoundError):
                for folder in folders:
                    above += folder + "/"
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(above)
                file = open(above + name, "xb")  # noqa: SIM115  # closed by the writer
                if self.root.lives[self.name] == self._life:
                    return file
                file.close()
                os.unlink(file.name)
                self.remove_empty_above(file.name)
                break
            if not os.path.isdir(self.folder):
                break
        raise removed()


def _file(path: str, status: os.stat_result) -> File:
    return File(path, status.st_size, f'"{version_of(status)}"', status.st_mtime)


def _sync(path: str) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class OpenFile:
    """One version of a file, which stays readable while it is replaced."""

    def __init__(self, dataset: FolderDataset, file: File, descriptor: int) -> None:
        self.dataset, self.file, self.descriptor = dataset, file, descriptor

    def chunks(self, start: int, end: int, chunk_bytes: int) -> Iterator[bytes | memoryview]:
        """Read bytes ``start`` to ``end``.

        Raises:
            ObjectChangedError: if the file became shorter.
        """
        return chunks_of(self.descriptor, start, end, chunk_bytes)

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)


def chunks_of(descriptor: int, start: int, end: int, chunk_bytes: int) -> Iterator[bytes]:
    """Read bytes of an open file, which may not become shorter (``ObjectChangedError``)."""
    while start < end:
        piece = os.pread(descriptor, min(chunk_bytes, end - start), start)
        if not piece:  # truncated in place, by another program
            raise ObjectChangedError("The file became shorter.", url="", etag=None)
        start += len(piece)
        yield piece


class LocalFile:
    """A file that is being written, under a temporary name: it is invisible before ``commit``."""

    _is_published = False

    def __init__(self, dataset: FolderDataset, path: str, file: BinaryIO, conditions: Mapping[str, str]) -> None:
        self._dataset, self._path, self._file, self._conditions = dataset, path, file, conditions
        self.temporary = file.name
        self.full, self._writeback, self._done = dataset.folder + path, EarlyWriteback(file.fileno()), File(path, 0, "")

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return translate_errors(f"file://{self.full}", transient=False)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        with self._errors():
            self._file.write(data)
        self._writeback.wrote(len(data))

    def commit(self, sha256: str) -> File:
        """Make the whole file visible at once, with its digest, if the conditions still hold.

        Raises:
            Problem: 412, if a condition does not hold; 404, if the dataset was removed.
        """
        self.complete(sha256)
        self._dataset.publish([self])
        return self._done

    def complete(self, sha256: str) -> None:
        """Close the temporary file when all was written, with its digest."""
        with self._errors():
            self._file.flush()
            self._done = _file(self._path, os.fstat(self._file.fileno()))._replace(sha256=sha256)
            self._dataset.keep_sha256(self._done, sha256, self._file.fileno())
            self._file.close()

    def publish(self) -> None:
        """Give a complete file its name. Raises as :meth:`commit`."""
        with self._dataset.root.locks.held(self.full):
            self._dataset.require_match(self._path, self._conditions)
            try:
                os.replace(self.temporary, self.full)
            except (IsADirectoryError, NotADirectoryError):
                raise Problem(409, f"{self._path!r} is a folder. Choose another name.") from None
        self._is_published = True

    def abort(self) -> None:
        """Discard it. May be called after a ``commit``, also one that failed."""
        if self._is_published:
            return
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.temporary)
            self._dataset.remove_empty_above(self.full)


# Opening and reading what the kernel has in memory, in the event loop (Linux 5.12). All else is left to a thread

_OPENAT2 = 437  # the number of the call on every architecture
_HOW = struct.pack("QQQ", _READING, 0, 0x20 | 0x04)  # flags, mode; RESOLVE_CACHED, RESOLVE_NO_SYMLINKS


def read_cached(descriptor: int, start: int, end: int) -> bytearray | None:
    """Read bytes ``start`` to ``end`` if all of them are in memory; else return ``None``."""
    data = bytearray(end - start)
    try:
        num_bytes = os.preadv(descriptor, [data], start, os.RWF_NOWAIT)
    except (OSError, AttributeError):  # not in memory; a file system or a kernel without it
        return None
    return data if num_bytes == len(data) else None


def _open_cached(path: str) -> int:
    """Open an absolute path without links; -1 if that is impossible without the disk."""
    call = _system_call()
    return -1 if call is None else int(call(_OPENAT2, -1, os.fsencode(path), _HOW, len(_HOW)))


@cache
def _system_call() -> ctypes._NamedFuncPointer | None:
    try:
        return ctypes.CDLL(None).syscall if _LINUX else None
    except (OSError, AttributeError):
        return None
