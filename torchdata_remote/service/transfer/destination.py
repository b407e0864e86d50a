"""The folder that is pulled into: accessed by descriptors, so that no link below it is followed; locked; its state."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ...core.early_writeback import SharedSync
from ...errors import ObjectExistsError, ObjectNotFoundError, StorageError
from ...storage import PARTIAL_SUFFIX, is_internal_name
from .jobs import digest_of, os_errors

with contextlib.suppress(ImportError):  # Windows, where Destination raises an error
    import fcntl

STATE_NAME, LOCK_NAME = ".torchdata_remote-pull.json", ".torchdata_remote-pull.lock"
_PARTIAL = re.compile(rf"\.pull-[0-9a-f]{{32}}{re.escape(PARTIAL_SUFFIX)}")
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _SAFE
_log = logging.getLogger("torchdata_remote")


class Pulled(NamedTuple):
    """A file that was pulled; without ``mtime_ns`` one whose pull was interrupted."""

    size: int
    mtime_ns: int | None
    sha256: str


class FolderSnapshot(NamedTuple):
    """Content of the folder, by path.

    Args:
        files: regular files: size in bytes, and modification time in nanoseconds.
        others: links and other entries that are neither file nor folder.
        folders: below it.
        partial: incomplete files of earlier pulls: size in bytes.
    """

    files: dict[str, tuple[int, int]]
    others: set[str]
    folders: set[str]
    partial: dict[str, int]


def partial_path(path: str, sha256: str) -> str:
    """Return the path of the incomplete file of one version of a file, beside it."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}.pull-{digest_of(path, sha256)}{PARTIAL_SUFFIX}"


class Destination:
    """A folder that is kept open during a ``with`` block, by one pull of all that share it.

    The others wait. The kernel releases the lock (``flock``) of a killed process; its file stays, because processes
    that wait for a removed one would hold another lock than those that come later.

    Args:
        folder: created if it does not exist. It may be a link itself.

    Raises:
        StorageError: on Windows, and if the file system has no locks.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(os.path.expanduser(folder))
        self._sync = SharedSync()
        if not hasattr(os, "O_DIRECTORY"):
            what = "pull needs POSIX file descriptors, which Windows lacks. Read the dataset from the service instead (datasets://...)"
            raise StorageError(f"{folder}: {what}.", url=folder)
        if os.path.lexists(self.folder) and not os.path.isdir(self.folder):
            what = "a file" if os.path.exists(self.folder) else "a link to nothing"
            advice = f"Pass the folder that the files are pulled into, such as {os.path.dirname(self.folder)}"
            raise StorageError(f"{self.folder} is {what}, expected a folder. {advice}.", url=self.folder)
        with os_errors(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            self._root = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.is_writable = os.access(".", os.W_OK | os.X_OK, dir_fd=self._root)

    def __enter__(self) -> Destination:
        self._open = contextlib.ExitStack()
        with self._open:
            self._open.callback(os.close, self._root)
            with contextlib.suppress(*(() if self.is_writable else (StorageError,))):  # nothing to lock there
                self._lock(self._open.enter_context(self.opened(LOCK_NAME, os.O_RDWR | os.O_CREAT)))
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _lock(self, descriptor: int) -> None:
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            _log.warning("%s: another pull is running there; waiting until it ends", self.folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # interrupted by signals such as Ctrl-C's
        except OSError as error:
            what = f"the file system has no locks ({error.strerror}), without which two pulls could write one file"
            raise StorageError(f"{self.folder}: {what}. Pull to a local disk.", url=self.folder) from error

    def absolute_path(self, path: str) -> str:
        """Return the path of a file for messages."""
        return f"{self.folder}/{path}"

    @contextlib.contextmanager
    def parent_of(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder of a path; yield its descriptor and the base name.

        Args:
            path: below this folder.
            make: whether missing folders are created.

        Raises:
            StorageError: for links on the way, and instead of errors of the operating system in the block.
        """
        *folders, name = path.split("/")
        with os_errors(self.absolute_path(path)):
            descriptor = os.dup(self._root)
            try:
                for folder in folders:
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(folder, dir_fd=descriptor)
                    below = os.open(folder, _FOLDER, dir_fd=descriptor)
                    os.close(descriptor)
                    descriptor = below
                yield descriptor, name
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def opened(self, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open a regular file that has no other name; yield its descriptor.

        Args:
            path: below this folder.
            flags: with ``O_CREAT`` missing folders are created, too.
        """
        with self.parent_of(path, make=bool(flags & os.O_CREAT)) as (folder, name):
            descriptor = os.open(name, flags | _SAFE, 0o666, dir_fd=folder)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or (status.st_nlink != 1 and flags != os.O_RDONLY):
                    what = "is not the file that a pull has written there. Remove it and pull again"
                    raise StorageError(f"{self.absolute_path(path)} {what}.", url=self.absolute_path(path))
                yield descriptor
            finally:
                os.close(descriptor)

    def publish(self, files: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Rename complete files, each by its incomplete one in the same folder; yields the paths."""
        for folder, group in itertools.groupby(files, lambda file: file[1].rpartition("/")[:2]):
            with self.parent_of("".join((*folder, "_"))) as (descriptor, _):
                for partial, path in group:
                    os.rename(base_name(partial), base_name(path), src_dir_fd=descriptor, dst_dir_fd=descriptor)
                    yield path

    def write(self, files: Iterable[tuple[str, bytes]]) -> Iterator[int]:
        """Write small files under incomplete paths; yields the modification time of each in nanoseconds.

        They are on disk after :meth:`settle`. The folder of the last file stays open, since the next one is mostly in
        it, too.
        """
        for folder, group in itertools.groupby(files, lambda file: file[0].rpartition("/")[:2]):
            with self.parent_of("".join((*folder, "_")), make=True) as (parent, _):
                for path, data in group:
                    descriptor = self._new(base_name(path), parent)
                    try:
                        write_all(descriptor, memoryview(data))
                        mtime_ns = os.fstat(descriptor).st_mtime_ns
                    finally:
                        os.close(descriptor)
                    yield mtime_ns

    @staticmethod
    def _new(name: str, parent: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
        with contextlib.suppress(FileExistsError):
            return os.open(name, flags, 0o666, dir_fd=parent)
        os.unlink(name, dir_fd=parent)  # of an earlier pull
        return os.open(name, flags, 0o666, dir_fd=parent)

    def settle(self, paths: Iterable[str]) -> None:
        """Wait until files are on disk: all at once, since a sync of each takes ten times as long."""
        paths = list(paths)
        if paths and not self._sync.wait(self._root):
            for path in paths:
                with self.opened(path) as descriptor:
                    os.fsync(descriptor)

    def remove(self, path: str) -> list[str]:
        """Remove a file if it exists, and the folders that become empty; return these folders."""
        folders = []
        with contextlib.suppress(ObjectNotFoundError), self.parent_of(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
        with contextlib.suppress(OSError):  # not empty
            while path := path.rpartition("/")[0]:
                with self.parent_of(path) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
                folders.append(path)
        return folders

    def snapshot(self) -> FolderSnapshot:
        """List the folder, without the reserved names of transfers."""
        found, left = FolderSnapshot({}, set(), set(), {}), [""]
        while left:
            below = left.pop()
            with self.parent_of(below + "_") as (folder, _), os.scandir(folder) as entries:
                for entry in entries:
                    path = below + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        found.folders.add(path)
                        left.append(path + "/")
                    elif not entry.is_file(follow_symlinks=False):
                        found.others.add(path)
                    elif _PARTIAL.fullmatch(entry.name):
                        found.partial[path] = entry.stat(follow_symlinks=False).st_size
                    elif not is_internal_name(entry.name):
                        status = entry.stat(follow_symlinks=False)
                        found.files[path] = status.st_size, status.st_mtime_ns
        return found

    def load_state(self, dataset: str) -> dict[str, Pulled]:
        """Read which files earlier pulls wrote; none if there is no state, or an invalid one.

        Args:
            dataset: that is pulled now, with the folder in it.

        Raises:
            ObjectExistsError: if the folder holds another dataset.
        """
        try:
            with self.opened(STATE_NAME) as descriptor, open(os.dup(descriptor), "rb") as file:
                document = json.loads(file.read())
            held = str(document["dataset"])
            files = {
                str(path): Pulled(int(size), None if mtime_ns is None else int(mtime_ns), str(sha256))
                for path, (size, mtime_ns, sha256) in document["files"].items()
            }
        except ObjectNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("%s cannot be read (%r): every file is hashed", self.absolute_path(STATE_NAME), error)
            return {}
        if held != dataset:
            raise ObjectExistsError(
                f"{self.folder} holds the dataset {held!r}, and {dataset!r} is to be pulled there. Pull into another "
                f"folder; or remove {STATE_NAME}, and its files count as not pulled.",
                url=self.folder,
            )
        return files

    def save_state(self, dataset: str, files: Mapping[str, Pulled]) -> None:
        """Write which files pulls wrote, so that they are not hashed again and may be removed."""
        document, partial = json.dumps({"dataset": dataset, "files": files}), STATE_NAME + PARTIAL_SUFFIX
        try:
            list(self.write([(partial, document.encode())]))
            self.settle([partial])
            list(self.publish([(partial, STATE_NAME)]))
        except StorageError:
            self.remove(partial)
            raise


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all bytes."""
    while data:
        data = data[os.write(descriptor, data) :]


def base_name(path: str) -> str:
    """Return the name of a file in its folder."""
    return path.rpartition("/")[2]
