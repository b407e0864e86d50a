"""The folder that is pulled into, accessed by descriptors, so that no link below it is followed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from ...errors import StorageError
from .names import is_partial, is_reserved
from .os_errors import translate_os_errors

_IS_POSIX = hasattr(os, "O_NOFOLLOW")  # not on Windows, which has no descriptors of folders either
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if _IS_POSIX else 0
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC if _IS_POSIX else 0
# O_NONBLOCK: opening a named pipe would wait for a writer
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC if _IS_POSIX else 0


class FileStatus(NamedTuple):
    """Size and modification time of a file."""

    size: int
    mtime_ns: int


class FolderSnapshot(NamedTuple):
    """Content of the folder, by path.

    Args:
        files: regular files.
        others: links and other entries that are neither file nor folder.
        folders: below it.
        partial: incomplete files of earlier pulls.
    """

    files: dict[str, FileStatus]
    others: set[str]
    folders: set[str]
    partial: set[str]


class DestinationFolder:
    """A folder that is kept open during a ``with`` block.

    Args:
        folder: created if it does not exist. It may be a link itself.

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
        if os.path.lexists(self.folder) and not os.path.isdir(self.folder):
            what = "a file" if os.path.exists(self.folder) else "a link to nothing"
            raise StorageError(
                f"{self.folder} is {what}, expected a folder. Pass the folder that the files are pulled into, such as "
                f"{os.path.dirname(self.folder)}.",
                url=self.folder,
            )
        with translate_os_errors(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            self._root = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.is_writable = os.access(".", os.W_OK | os.X_OK, dir_fd=self._root)

    def __enter__(self) -> DestinationFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

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
        with translate_os_errors(self.absolute_path(path)):
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
    def open_for_reading(self, path: str) -> Iterator[int]:
        """Open a regular file."""
        with self.parent_of(path) as (folder, name):
            descriptor = os.open(name, _READ, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise StorageError(f"{self.absolute_path(path)} is not a file.", url=self.absolute_path(path))
                yield descriptor
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[int]:
        """Create a file for writing. An existing one is removed, not overwritten."""
        with self.parent_of(path, make=True) as (folder, name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            descriptor = os.open(name, _CREATE, 0o666, dir_fd=folder)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def write_file(self, path: str, temporary: str, data: bytes) -> int:
        """Write a small file, which becomes visible when it is complete and on disk; return its date.

        Args:
            path: below this folder.
            temporary: base name of the incomplete file. An existing one is removed, not overwritten.
            data: all of it.

        Returns:
            Modification time in nanoseconds.
        """
        with self.parent_of(path, make=True) as (folder, name):
            try:
                descriptor = os.open(temporary, _CREATE, 0o666, dir_fd=folder)
            except FileExistsError:
                os.unlink(temporary, dir_fd=folder)
                descriptor = os.open(temporary, _CREATE, 0o666, dir_fd=folder)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
                mtime_ns = os.fstat(descriptor).st_mtime_ns
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            finally:
                os.close(descriptor)
        return mtime_ns

    @contextlib.contextmanager
    def open_existing(self, path: str, flags: int) -> Iterator[int]:
        """Open a file that a pull wrote."""
        with self.parent_of(path) as (folder, name):
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                    raise StorageError(
                        f"{self.absolute_path(path)} is not what was written there. Remove it and ask again."
                    )
                yield descriptor
            finally:
                os.close(descriptor)

    def rename(self, name: str, path: str) -> None:
        """Rename a file to its final path; ``name`` is its present base name, in the same folder."""
        with self.parent_of(path) as (folder, final):
            os.rename(name, final, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, path: str) -> list[str]:
        """Remove a file if it exists, and the folders that become empty; return these folders."""
        folders = []
        with contextlib.suppress(FileNotFoundError), self.parent_of(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
        above = path.rpartition("/")[0]
        while above:
            try:
                with self.parent_of(above) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
            except OSError:  # not empty
                break
            folders.append(above)
            above = above.rpartition("/")[0]
        return folders

    def snapshot(self) -> FolderSnapshot:
        """List the folder, without the reserved names of transfers."""
        found = FolderSnapshot({}, set(), set(), set())
        left = [""]
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
                    elif is_partial(entry.name):
                        found.partial.add(path)
                    elif not is_reserved(entry.name):
                        status = entry.stat(follow_symlinks=False)
                        found.files[path] = FileStatus(status.st_size, status.st_mtime_ns)
        return found
