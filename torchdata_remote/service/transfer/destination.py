"""The folder that is pulled into: reached by descriptors, so that no link is followed below it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from ...errors import StorageError
from .names import is_partial, is_reserved
from .os_errors import faults_at

_IS_POSIX = hasattr(os, "O_NOFOLLOW")  # Windows has none of these, and no descriptors of folders
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if _IS_POSIX else 0
# A pipe would wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC if _IS_POSIX else 0


class Found(NamedTuple):
    """A file that is there: bytes, and when it was changed."""

    size: int
    mtime_ns: int


class FolderSnapshot(NamedTuple):
    """What is in the folder, by path.

    Args:
        files: regular ones.
        others: links and what else is neither file nor folder.
        folders: below it.
        partial: files of earlier pulls that are not complete.
    """

    files: dict[str, Found]
    others: set[str]
    folders: set[str]
    partial: set[str]


class DestinationFolder:
    """The folder, as long as the block lasts.

    Args:
        folder: made if it is not there. It may be a link itself.

    Raises:
        StorageError: on Windows.
    """

    def __init__(self, folder: str) -> None:
        if not _IS_POSIX:
            raise StorageError(
                f"{folder}: pull needs POSIX file descriptors, which Windows lacks. Read the dataset from the service "
                "instead (datasets://...).",
                url=folder,
            )
        self.folder = os.path.abspath(os.path.expanduser(folder))
        with faults_at(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            self._root = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.is_writable = os.access(".", os.W_OK | os.X_OK, dir_fd=self._root)

    def __enter__(self) -> DestinationFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    def place(self, path: str) -> str:
        """For messages."""
        return f"{self.folder}/{path}"

    @contextlib.contextmanager
    def at(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Descriptor of the folder that a path lies in, and its name there.

        Args:
            path: below this folder.
            make: whether folders on the way are made.

        Raises:
            StorageError: for links on the way, and for what the system refuses in the block.
        """
        *folders, name = path.split("/")
        with faults_at(self.place(path)):
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
    def reading(self, path: str) -> Iterator[int]:
        """Descriptor of a regular file."""
        with self.at(path) as (folder, name):
            descriptor = os.open(name, _READ, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise StorageError(f"{self.place(path)} is not a file.", url=self.place(path))
                yield descriptor
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def new_file(self, path: str) -> Iterator[int]:
        """Descriptor of a new file, to write; what is there under its name goes."""
        with self.at(path, make=True) as (folder, name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o666, dir_fd=folder)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        """Descriptor of a file of ours that is there."""
        with self.at(path) as (folder, name):
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                    raise StorageError(f"{self.place(path)} is not what was written there. Remove it and ask again.")
                yield descriptor
            finally:
                os.close(descriptor)

    def rename(self, name: str, path: str) -> None:
        """Give a file its path; ``name`` is its base name until then, in the same folder."""
        with self.at(path) as (folder, final):
            os.rename(name, final, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, path: str) -> list[str]:
        """Remove a file, and the folders that are empty then; returns these. One that is not there is fine."""
        folders = []
        with contextlib.suppress(FileNotFoundError), self.at(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
        above = path.rpartition("/")[0]
        while above:
            try:
                with self.at(above) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
            except OSError:  # something is in it
                break
            folders.append(above)
            above = above.rpartition("/")[0]
        return folders

    def survey(self) -> FolderSnapshot:
        """What is there; the names that transfers keep for themselves are left out."""
        found = FolderSnapshot({}, set(), set(), set())
        left = [""]
        while left:
            below = left.pop()
            with self.at(below + "_") as (folder, _), os.scandir(folder) as entries:
                for entry in entries:
                    path = below + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        found.folders.add(path)
                        left.append(path + "/")
                    elif not entry.is_file(follow_symlinks=False):
                        found.others.add(path)
                    elif is_partial(entry.name):
                        found.partial.add(path)
                    elif not is_reserved(entry.name):
                        status = entry.stat(follow_symlinks=False)
                        found.files[path] = Found(status.st_size, status.st_mtime_ns)
        return found
