"""The folder that is pulled into: no link below it is followed; it is locked; its state."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ...core.files import EarlyWriteback, SharedSync
from ...errors import ObjectExistsError, StorageError
from ...storage import PARTIAL_SUFFIX, is_internal_name
from .jobs import os_errors

with contextlib.suppress(ImportError):  # Windows, where Destination raises an error
    import fcntl

STATE_NAME, LOCK_NAME = ".torchdata_remote-pull.json", ".torchdata_remote-pull.lock"
JOURNAL_NAME = ".torchdata_remote-pull.journal"
_PARTIAL_PREFIX = ".pull-"
_log = logging.getLogger("torchdata_remote")


class Pulled(NamedTuple):
    """A file that was pulled."""

    size: int
    mtime_ns: int
    sha256: str


class Written(NamedTuple):
    """A complete file, under a temporary name in its folder."""

    path: str
    temporary: str
    mtime_ns: int


class Destination:
    """A folder that is held during a ``with`` block, by one pull of all that share it.

    The others wait. The kernel releases the lock (``flock``) of a killed process; its file stays, because processes
    that wait for a removed one would hold another lock than those that come later.

    Args:
        folder: created if it does not exist. It may be a link itself.

    Raises:
        StorageError: on Windows, and if the file system has no locks.

    Attributes:
        files: regular files in the folder, by path: size in bytes, and modification time in nanoseconds.
        others: links and other entries that are neither file nor folder.
        folders: below it.
        other_host: from which the folder was pulled, if it is not the one that is pulled from now.
    """

    def __init__(self, folder: str) -> None:
        self.other_host: str | None = None
        self._journal_lock, self._has_journal = threading.RLock(), False
        self.folder = os.path.abspath(os.path.expanduser(folder))
        self._sync, self._numbers = SharedSync(), itertools.count()
        if "fcntl" not in globals():
            what = "pull needs flock, which Windows lacks. Read the dataset from the service instead (datasets://...)"
            raise StorageError(f"{folder}: {what}.", url=folder)
        with os_errors(self.folder):
            os.makedirs(self.folder, exist_ok=True)
        self.is_writable = os.access(self.folder, os.W_OK | os.X_OK)
        self.files, self.others, self.folders = dict[str, tuple[int, int]](), set[str](), set[str]()

    def __enter__(self) -> Destination:
        with contextlib.ExitStack() as opened:
            if self.is_writable:  # else there is nothing to lock
                self._lock(opened)
            self._find("")
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _lock(self, opened: contextlib.ExitStack) -> None:
        path = self.absolute_path(LOCK_NAME)
        with os_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            opened.callback(os.close, descriptor)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            _log.warning("%s: another pull is running there; waiting until it ends", self.folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # interrupted by signals such as Ctrl-C's

    def _find(self, below: str) -> None:
        """Find what is in a folder, without the reserved names of transfers; remove incomplete files."""
        with os_errors(self.absolute_path(below)), os.scandir(self.absolute_path(below)) as entries:
            for entry in entries:
                path = below + entry.name
                if entry.is_dir(follow_symlinks=False):
                    self.folders.add(path)
                    self._find(path + "/")
                elif not entry.is_file(follow_symlinks=False):
                    self.others.add(path)
                elif not is_internal_name(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    self.files[path] = status.st_size, status.st_mtime_ns
                elif entry.name.startswith(_PARTIAL_PREFIX) and self.is_writable:
                    os.unlink(entry.path)

    def absolute_path(self, path: str) -> str:
        """Return the path of a file in the file system."""
        return f"{self.folder}/{path}"

    def _parent(self, path: str) -> str:
        """Return the folder of a path, which is made if it is missing. A link on the way is an error."""
        parent = self.absolute_path(path).rpartition("/")[0]
        with os_errors(parent):
            os.makedirs(parent, exist_ok=True)
        if os.path.realpath(parent) != os.path.join(os.path.realpath(self.folder), os.path.dirname(path)).rstrip("/"):
            what = "here a link or a file is in the way, and links are not followed: remove it"
            raise StorageError(f"{parent}: {what}.", url=parent)
        return parent

    def write(self, files: Iterable[tuple[str, Iterable[bytes | memoryview]]]) -> Iterator[Written]:
        """Write files under temporary names. Each is removed if its pieces end with an error."""
        for _, group in itertools.groupby(files, lambda file: file[0].rpartition("/")[0]):
            parent = ""
            for path, pieces in group:
                parent = parent or self._parent(path)
                temporary = f"{parent}/{_PARTIAL_PREFIX}{next(self._numbers)}{PARTIAL_SUFFIX}"
                with os_errors(temporary), contextlib.ExitStack() as on_error:
                    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                    on_error.callback(os.unlink, temporary)
                    try:
                        writeback = EarlyWriteback(descriptor)
                        for piece in pieces:
                            left = memoryview(piece)
                            while left:
                                left = left[os.write(descriptor, left) :]
                            writeback.wrote(len(piece))
                        written = Written(path, temporary, os.fstat(descriptor).st_mtime_ns)
                    finally:
                        os.close(descriptor)
                    on_error.pop_all()
                yield written

    @staticmethod
    def discard(file: Written) -> None:
        """Remove a file that was written and has no name yet."""
        os.unlink(file.temporary)

    def publish(self, files: list[Written]) -> None:
        """Give complete files their names when they are on disk: by one sync, which takes a tenth of one for each."""
        if files:
            self._settle([file.temporary for file in files])
        for parent, group in itertools.groupby(files, lambda file: os.path.dirname(file.temporary)):
            one = next(group)
            self._parent(one.path)
            with os_errors(parent):
                for file in (one, *group):
                    os.rename(file.temporary, self.absolute_path(file.path))

    def _settle(self, paths: list[str]) -> None:
        for path in [self.folder, *paths]:
            with os_errors(path):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    if path == self.folder:
                        if len(paths) > 1 and self._sync.wait(descriptor):
                            return
                    else:
                        os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def remove(self, path: str) -> list[str]:
        """Remove a file, and the folders that become empty; return all of them."""
        removed = [path]
        with os_errors(self.absolute_path(path)), contextlib.suppress(FileNotFoundError):
            os.unlink(self.absolute_path(path))
        with contextlib.suppress(OSError):  # not empty
            while path := path.rpartition("/")[0]:
                os.rmdir(self.absolute_path(path))
                removed.append(path)
        return removed

    def load_state(self, dataset: str, host: str) -> dict[str, Pulled]:
        """Read which files earlier pulls wrote; none if there is no state, or an invalid one.

        Args:
            dataset: that is pulled now, with the folder in it.
            host: of its service, with the port.

        Raises:
            ObjectExistsError: if the folder holds another dataset.
        """
        held, held_host, files = self._read_state(dataset, host)
        for line in self._read_journal():
            if "dataset" in line:
                held, held_host = line["dataset"], line["host"]
            files.update({path: Pulled(*known) for path, known in line.get("files", {}).items()})
        if held != dataset:
            raise self.held_error(held, dataset)
        self.other_host = held_host if held_host != host else None
        return files

    def _read_state(self, dataset: str, host: str) -> tuple[str, str, dict[str, Pulled]]:
        path = self.absolute_path(STATE_NAME)
        try:
            with open(path, "rb") as file:
                document = json.loads(file.read())
            files = {path: Pulled(*known) for path, known in document["files"].items()}
            return str(document["dataset"]), str(document.get("host", host)), files
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("%s cannot be read (%r): every file is hashed", path, error)
        return dataset, host, {}

    def _read_journal(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of a pull that was killed, up to one that was cut off."""
        with contextlib.suppress(FileNotFoundError, ValueError), open(self.absolute_path(JOURNAL_NAME), "rb") as file:
            self._has_journal = True
            for line in file:
                yield json.loads(line)

    def held_error(self, held: str, wanted: str) -> ObjectExistsError:
        """Make the error for a folder that holds another dataset."""
        return ObjectExistsError(
            f"{self.folder} holds the dataset {held!r}, and {wanted!r} is to be pulled there. Pull into another "
            f"folder; or remove {STATE_NAME}, and its files count as not pulled.",
            url=self.folder,
        )

    def announce(self, dataset: str, host: str, files: Mapping[str, Pulled]) -> None:
        """Write down which files get their names now: the next pull knows them if this one is killed."""
        path = self.absolute_path(JOURNAL_NAME)
        with self._journal_lock, os_errors(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o666)
            try:
                line = json.dumps({"dataset": dataset, "host": host, "files": files}).encode() + b"\n"
                if os.write(descriptor, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._has_journal = True
            finally:
                os.close(descriptor)

    def save_state(self, dataset: str, host: str, files: Mapping[str, Pulled], *, changed: bool) -> None:
        """Write which files pulls wrote, so that they are not hashed again and may be replaced and removed."""
        if changed or self._has_journal:
            document = json.dumps({"dataset": dataset, "host": host, "files": files}).encode()
            self.publish(list(self.write([(STATE_NAME, [document])])))
        with os_errors(self.absolute_path(JOURNAL_NAME)), contextlib.suppress(FileNotFoundError):
            os.unlink(self.absolute_path(JOURNAL_NAME))
