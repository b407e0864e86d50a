"""Datasets in a local folder, which one process serves.

A file is written under a temporary name in its own folder, and renamed when it is on disk. A dataset is removed by
renaming its folder: what is being written in it then lacks its temporary file, and never appears, also if another
dataset has the name by then. No link in a dataset is followed; its folder itself may be one, which its owner made.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import math
import os
import re
import secrets
import shutil
import stat
import struct
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import BinaryIO

from ...core.early_writeback import EarlyWriteback
from ...core.options import StorageOptions
from ...core.threads.named_locks import NamedLocks
from ...core.urls import join_url
from ...errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, ServiceError, UrlError
from ...storage import PARTIAL_SUFFIX, LocalStore, symlink_error, translate_errors, version_of
from .headers import require_match
from .names import is_dataset_name, require_dataset_name
from .problems import Problem, Stopping
from .root import WORK_FOLDER, File, Files, no_dataset, no_file, removed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LINUX = sys.platform == "linux"
_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_MAX_ATTEMPTS = 100  # at creating a folder, while others remove it since it is empty
_ABOUT = "user.torchdata_remote.sha256"  # an extended attribute: SHA-256, etag of the version, id of its writer
_ABOUT_VALUE = re.compile(r'([0-9a-f]{64}) ("[^"]*")(?: (.*))?')
_UPLOADS = ".torchdata_remote-uploads/"  # in the folder of a dataset, for parts
_MAX_KEPT = 100_000  # in memory, where the file system has no such attributes


class FolderRoot:
    """A local folder.

    Args:
        url: of the folder.
        options: of the store, which needs none.

    Raises:
        UrlError: if it cannot be created.
    """

    is_local = True

    def __init__(self, url: str, options: StorageOptions, folder: str) -> None:
        self.url, self.options, self.folder = url, options, folder
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UrlError(f"{url.rstrip('/')} cannot keep datasets: {error}.", url=url) from error
        self.store, self.locks = LocalStore(), NamedLocks()  # of files, by their full paths
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._began_s = math.inf
        self.lives: dict[str, int] = {}  # of names of datasets that were removed

    def names(self) -> list[str]:
        with os.scandir(self.folder) as entries:  # a link to a folder is a choice of the root's owner
            return sorted(entry.name for entry in entries if is_dataset_name(entry.name) and entry.is_dir())

    def dataset(self, name: str) -> FolderDataset:
        folder = f"{self.folder}{require_dataset_name(name)}/"
        if not os.path.isdir(folder):
            raise no_dataset(name)
        return FolderDataset(self, name, folder)

    def open_cached(self, name: str, path: str) -> OpenLocalFile | None:
        descriptor = _open_cached(self.folder, require_dataset_name(name), path)
        return None if descriptor < 0 else FolderDataset(self, name, f"{self.folder}{name}/").opened(descriptor, path)

    def create(self, name: str) -> None:
        try:
            self.store.make_folder(f"{self.folder}{require_dataset_name(name)}/")
        except ObjectExistsError:
            raise Problem(409, f"The dataset {name!r} exists already.") from None

    def remove(self, name: str) -> None:
        folder = self.dataset(name).folder
        self.lives[name] = self.lives.get(name, 0) + 1
        self.store.remove_folder(folder)

    def free_bytes(self) -> int | None:
        return shutil.disk_usage(self.folder).free

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Lock the folder, so that unfinished files in it are leftovers, or of this process."""
        if fcntl is None:
            raise ServiceError(f"{self.url}: a local root needs flock, which Windows lacks: serve a bucket.")
        try:
            os.makedirs(self.folder + WORK_FOLDER, exist_ok=True)
            opened = open(f"{self.folder}{WORK_FOLDER}serving.lock", "a")  # noqa: SIM115  # closed by the block below
        except OSError as error:
            advice = "Let the service's user write there, or serve another folder."
            raise ServiceError(f"{self.url} cannot be written to: {error}. {advice}", url=self.url) from error
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                advice = "End that one, or serve another folder."
                raise ServiceError(f"{self.url} is served by another process. {advice}", url=self.url) from None
            self._began_s = self._now_s()
            yield

    def _now_s(self) -> float:
        """Return the time by the clock of the file system, which may be that of another machine."""
        lock = f"{self.folder}{WORK_FOLDER}serving.lock"
        os.utime(lock)
        return os.stat(lock).st_mtime

    def clean(self, unfinished_s: float, stopping: Stopping) -> None:
        before_s = max(self._began_s, self._now_s() - unfinished_s)
        self.store.remove_old_leftovers(self.folder, before_s, lambda: stopping.is_set)
        for folder in glob.iglob(f"{glob.escape(self.folder)}*/{_UPLOADS}*/"):
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(folder)

    def keep(self, file: str | int, path: str, value: str) -> None:
        """Store what is known of a file, as an extended attribute if the file system has them, else in memory."""
        try:
            os.setxattr(file, _ABOUT, value.encode())
        except (OSError, AttributeError):  # none there, or another system
            self._kept[path] = value
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)

    def kept(self, path: str) -> str:
        """Return what is stored of a file."""
        try:
            return os.getxattr(path, _ABOUT).decode("utf-8", "replace")
        except (OSError, AttributeError):
            return self._kept.get(path, "")


class FolderDataset:
    """A dataset in a folder."""

    num_readers = 1

    def __init__(self, root: FolderRoot, name: str, folder: str) -> None:
        self.root, self.name, self.folder, self._life = root, name, folder, root.lives.get(name)
        self.url = join_url("file", "", folder)

    def find(self, path: str) -> File | None:
        full = self._without_links(path)
        try:
            status = os.lstat(full)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return self.file(path, status) if stat.S_ISREG(status.st_mode) else None

    def open(self, path: str) -> OpenLocalFile:
        full = self.folder + path
        if self.find(path) is None:  # also what is no file, such as a named pipe, which would block
            raise no_file(path)
        try:
            with translate_errors(f"file://{full}", transient=False):
                opened = self.opened(os.open(full, _READING), path)
        except ObjectNotFoundError:  # removed since
            opened = None
        if opened is None:
            raise no_file(path)
        return opened

    def reopen(self, file: File) -> OpenLocalFile:
        with contextlib.suppress(Problem):
            opened = self.root.open_cached(self.name, file.path) or self.open(file.path)
            if opened.file.etag == file.etag:
                return opened
            opened.close()
        raise ObjectChangedError(f"{file.path} was replaced or removed.", url=self.url, etag=file.etag)

    def opened(self, descriptor: int, path: str) -> OpenLocalFile | None:
        """Return an open file; ``None``, and close it, if it is none."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):  # such as a named pipe
            os.close(descriptor)
            return None
        return OpenLocalFile(self, self.file(path, status), descriptor)

    def page(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Files:
        skip = len(self.folder)
        self._without_links(prefix.rpartition("/")[0])
        after = self.folder + after if after else ""
        found = self.root.store.list_after(self.folder + prefix, recursive=recursive, after=after, limit=limit)
        files = [File(one.path[skip:], one.size or 0, f'"{one.etag}"', one.modified_s) for one in found.entries]
        token = found.next_token and found.next_token[skip:]
        return Files(files, [path[skip:] for path in found.folders], token)

    def writer(self, path: str, conditions: Mapping[str, str], *, sha256: str | None = None, by: str = "") -> LocalFile:
        found = self.find(path)
        require_match(conditions, found and found.etag)
        self.require_writable(path)
        with translate_errors(f"file://{self.folder}{path}", transient=False):
            return LocalFile(self, path, self.temporary(path), conditions, by)

    def adopt(self, part: str, path: str, conditions: Mapping[str, str], by: str) -> LocalFile | None:
        writer = self.writer(path, conditions, by=by)
        return writer if writer.takes(self.folder + part) else None

    def sync(self, paths: Iterable[str]) -> None:
        for above in {(self.folder + path).rpartition("/")[0] for path in paths}:
            with contextlib.suppress(ObjectNotFoundError):  # removed since, with its files
                self.root.store.sync_folder(above)

    def delete(self, path: str, conditions: Mapping[str, str]) -> None:
        full = self._without_links(path)
        with self.root.locks.held(full):
            found = self.find(path)
            if found is None:
                raise no_file(path)
            require_match(conditions, found.etag)
            self.root.store.delete(full)
        self.remove_empty_above(full)

    def require_writable(self, path: str) -> None:
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

    # Parts of uploads

    def part_path(self, upload: str, name: str) -> str:
        return f"{_UPLOADS}{upload}/{name}{PARTIAL_SUFFIX}"

    def parts(self, upload: str) -> list[str]:
        try:
            names = os.listdir(f"{self.folder}{_UPLOADS}{upload}")
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(PARTIAL_SUFFIX) for name in names if not name.startswith("."))

    def remove_part(self, upload: str, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.folder + self.part_path(upload, name))

    def remove_parts(self, upload: str) -> None:
        folder = f"{self.folder}{_UPLOADS}{upload}"
        shutil.rmtree(folder, ignore_errors=True)
        self.remove_empty_above(folder)

    # Digests

    def about(self, file: File) -> File:
        match = _ABOUT_VALUE.fullmatch(self.root.kept(self.folder + file.path))
        if match is None or match[2] != file.etag:
            return file
        return file._replace(sha256=match[1], by=match[3] or "")

    def keep_sha256(self, file: File, sha256: str) -> None:
        full = self.folder + file.path
        self.root.keep(full, full, f"{sha256} {file.etag}")

    # Paths

    def file(self, path: str, status: os.stat_result) -> File:
        etag = f'"{version_of(status)}"'
        return File(path, status.st_size, etag, status.st_mtime)

    def _without_links(self, path: str) -> str:
        """Return the full path of a file.

        Raises:
            AccessDeniedError: if it, or a folder above it in the dataset, is a link.
        """
        full, end = self.folder + path, len(self.folder) - 1
        while end < len(full):
            slash = full.find("/", end + 1)
            end = len(full) if slash < 0 else slash
            if end > len(self.folder) and os.path.islink(full[:end]):
                raise symlink_error(full[:end])
        return full

    def remove_empty_above(self, full: str) -> None:
        """Remove the folders of a removed file that are empty: as in a bucket, a folder exists while it has files."""
        above = full
        with contextlib.suppress(OSError):  # not empty, or already removed
            while len(above := os.path.dirname(above)) >= len(self.folder):
                os.rmdir(above)

    def temporary(self, path: str) -> BinaryIO:
        """Open a new file in the folder of a path. The dataset's own folder is never created here."""
        folders, name = path.split("/")[:-1], f".{secrets.token_hex(16)}{PARTIAL_SUFFIX}"
        for _ in range(_MAX_ATTEMPTS):
            above = self.folder
            with contextlib.suppress(FileNotFoundError):
                for folder in folders:
                    above += folder + "/"
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(above)
                file = open(above + name, "xb", buffering=1 << 20)  # noqa: SIM115  # closed by the writer
                if self.root.lives.get(self.name) == self._life:
                    return file
                file.close()
                os.unlink(file.name)
                self.remove_empty_above(file.name)
                break
            if not os.path.isdir(self.folder):
                break
        raise removed()


class OpenLocalFile:
    """An open file."""

    def __init__(self, dataset: FolderDataset, file: File, descriptor: int) -> None:
        self.dataset, self.file, self.descriptor = dataset, file, descriptor

    def chunks(self, start: int, end: int, chunk_bytes: int) -> Iterator[bytes]:
        while start < end:
            piece = os.pread(self.descriptor, min(chunk_bytes, end - start), start)
            if not piece:  # truncated in place, by another program
                raise ObjectChangedError("The file became shorter.", url="", etag=None)
            start += len(piece)
            yield piece

    def signed_url(self) -> None:
        return None

    def close(self) -> None:
        os.close(self.descriptor)


class LocalFile:
    """Writes a file of a dataset, under a temporary name."""

    def __init__(
        self, dataset: FolderDataset, path: str, file: BinaryIO, conditions: Mapping[str, str], by: str
    ) -> None:
        self._dataset, self._file, self._conditions, self._by = dataset, file, conditions, by
        self._path, self._full = path, dataset.folder + path
        self._writeback = EarlyWriteback(file.fileno())

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return translate_errors(f"file://{self._full}", transient=False)

    def write(self, data: bytes | memoryview) -> None:
        with self._errors():
            self._file.write(data)
        self._writeback.wrote(len(data))

    def takes(self, source: str) -> bool:
        """Use a complete file as the temporary one."""
        linked = f"{self._file.name}.{PARTIAL_SUFFIX}"
        try:
            os.link(source, linked)
            os.replace(linked, self._file.name)
            self._file.close()
            self._file = open(self._file.name, "r+b")  # noqa: SIM115
        except OSError:  # such as from one mount into another one
            self.abort()
            return False
        return True

    def rename(self, path: str) -> bool:
        self._path, self._full = path, self._dataset.folder + path
        return True

    def commit(self, sha256: str, *, sync: bool = True) -> File:
        descriptor, dataset, root = self._file.fileno(), self._dataset, self._dataset.root
        is_part = self._path.startswith(_UPLOADS)
        try:
            with self._errors():
                self._file.flush()
                file = dataset.file(self._path, os.fstat(descriptor))._replace(sha256=sha256, by=self._by)
                root.keep(descriptor, self._full, f"{sha256} {file.etag} {self._by}".rstrip())
                if not is_part:  # which are sent again after a crash
                    os.fsync(descriptor)
                self._file.close()
            with root.locks.held(self._full):
                found = dataset.find(self._path)
                require_match(self._conditions, found and found.etag)
                self._publish()
        except BaseException:
            self.abort()
            raise
        if sync and not is_part:
            dataset.sync([self._path])
        return file

    def _publish(self) -> None:
        try:
            os.replace(self._file.name, self._full)
        except FileNotFoundError:
            raise removed() from None
        except (IsADirectoryError, NotADirectoryError):
            raise Problem(409, f"{self._path!r} is a folder. Choose another name.") from None

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file.name)
            self._dataset.remove_empty_above(self._full)


# Opening and reading what the kernel has in memory, in the event loop (Linux 5.12). All else is left to a thread

_OPENAT2 = 437  # the number of the call on every architecture
_NO_SYMLINKS, _BENEATH, _CACHED = 0x04, 0x08, 0x20  # RESOLVE_... of linux/openat2.h
_HOW = struct.Struct("QQQ")  # flags, mode, resolve
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC if _LINUX else 0
_roots: dict[str, tuple[int, tuple[int, int]]] = {}  # open folders of this process, which are few


def read_cached(descriptor: int, start: int, end: int) -> bytearray | None:
    """Read bytes ``start`` to ``end`` if all of them are in memory; else return ``None``."""
    data = bytearray(end - start)
    try:
        num_bytes = os.preadv(descriptor, [data], start, os.RWF_NOWAIT)
    except (OSError, AttributeError):  # not in memory; a file system or a kernel without it
        return None
    return data if num_bytes == len(data) else None


def _open_cached(root: str, name: str, path: str) -> int:
    """Open ``root/name/path``, following no link but ``root/name``; -1 if that is impossible without the disk."""
    call = _system_call()
    if call is None:
        return -1
    try:
        status = os.stat(root)
        above, known = _roots.get(root, (-1, None))
        if (status.st_dev, status.st_ino) != known:
            opened = os.open(root, _FOLDER)
            if above >= 0:
                os.close(above)
            _roots[root], above = (opened, (status.st_dev, status.st_ino)), opened
    except OSError:
        return -1
    file = _openat2(call, above, f"{name}/{path}", _READING, _CACHED | _NO_SYMLINKS | _BENEATH)
    if file >= 0 or not os.path.islink(root + name):
        return file
    folder = _openat2(call, above, name, _FOLDER, _CACHED)
    if folder < 0:
        return -1
    try:
        return _openat2(call, folder, path, _READING, _CACHED | _NO_SYMLINKS | _BENEATH)
    finally:
        os.close(folder)


def _openat2(call: ctypes._NamedFuncPointer, folder: int, path: str, flags: int, resolve: int) -> int:
    return int(call(_OPENAT2, folder, os.fsencode(path), _HOW.pack(flags, 0, resolve), _HOW.size))


@cache
def _system_call() -> ctypes._NamedFuncPointer | None:
    try:
        return ctypes.CDLL(None).syscall if _LINUX else None
    except (OSError, AttributeError):
        return None
