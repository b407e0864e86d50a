"""SHA-256 of files: stored in an extended attribute where the file system supports it, else in memory."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from anyio import CancelScope

from ....storage import Entry, ObjectWriter
from ..blocking import Lane, run_blocking
from ..http.preconditions import require_match
from ..stopping import Stopping
from .dataset_root import DatasetRoot
from .file_metadata import etag_of
from .lifetimes import LiveFolder

_ATTRIBUTE = "user.torchdata_remote.sha256"
_ATTRIBUTE_VALUE = re.compile(r"([0-9a-f]{64}) (.*)", re.DOTALL)
_MAX_ENTRIES = 100_000


class Digests:
    """Digests of the files of a root, each computed once.

    A local file that was uploaded carries its digest as an extended attribute, together with the etag of the same
    version: so damage on the disk is noticed, and no file is read twice. Elsewhere, digests are cached in memory.

    Args:
        root: the datasets.
        stopping: ends long readings when the service stops.
    """

    def __init__(self, root: DatasetRoot, stopping: Stopping | None = None) -> None:
        self._root, self._stopping = root, stopping or Stopping()
        self._entries: OrderedDict[tuple[str, str | None], str] = OrderedDict()
        self._lock = threading.RLock()

    def store(self, entry: Entry, sha256: str) -> None:
        """Store the digest of a file."""
        path = self._root.local_path(entry)
        if path is None or not _set_attribute(path, f"{sha256} {entry.etag}"):
            with self._lock:
                self._entries[entry.path, entry.etag] = sha256
                while len(self._entries) > _MAX_ENTRIES:
                    self._entries.popitem(last=False)

    def cached(self, entry: Entry) -> str | None:
        """Return the digest of a file if it is stored; ``None`` if the file would have to be read."""
        path = self._root.local_path(entry)
        match = None if path is None else _ATTRIBUTE_VALUE.fullmatch(_get_attribute(path))
        if match is not None and match[2] == str(entry.etag):
            return match[1]
        with self._lock:
            return self._entries.get((entry.path, entry.etag))

    def sha256(self, entry: Entry) -> str:
        """Return the digest of a file; read the file if it is not stored.

        Raises:
            ObjectChangedError: if the file is replaced while it is read.
            ServiceStoppedError: if the service is being stopped.
        """
        found = self.cached(entry)
        if found is None:
            digest = hashlib.sha256()
            for chunk in self._stopping.during(self._root.chunks(entry)):
                digest.update(chunk)
            found = digest.hexdigest()
            self.store(entry, found)
        return found


def filled_file(
    root: DatasetRoot, folder: LiveFolder, path: str, pieces: Iterable[bytes | memoryview], *, overwrite: bool = True
) -> tuple[ObjectWriter, str]:
    """Write a file that is not visible yet; return it and its digest. After an error nothing is left."""
    digest, pending = hashlib.sha256(), root.create_file(folder, path, overwrite=overwrite)
    try:
        for piece in pieces:
            digest.update(piece)
            pending.write(bytes(piece))
    except BaseException:
        pending.abort()
        raise
    return pending, digest.hexdigest()


def publish(
    root: DatasetRoot,
    digests: Digests,
    pending: ObjectWriter,
    folder: LiveFolder,
    path: str,
    sha256: str,
    by: Callable[[str], None] | None = None,
) -> Entry:
    """Commit a file and store its digest. After an error nothing is left.

    The thread waits for the file's lock, so it may be none of the lane ``writing``.

    Args:
        root: the datasets.
        digests: receives its digest.
        pending: all its bytes.
        folder: of its dataset.
        path: below the folder.
        sha256: of its bytes, hexadecimal.
        by: as of :meth:`Life.changed`.

    Raises:
        Problem: 404, if the dataset was removed.
    """
    with root.publishing.held((folder, path)):
        entry = publish_held(root, digests, pending, folder, path, sha256)
        folder.life.changed(path, by=by)
        return entry


async def publish_in_turn(
    root: DatasetRoot,
    digests: Digests,
    pending: ObjectWriter,
    folder: LiveFolder,
    path: str,
    sha256: str,
    lane: Lane,
    conditions: Mapping[str, str] | None = None,
) -> Entry:
    """Do what :func:`publish` does from the event loop: no thread waits for the file's lock.

    Args:
        root: the datasets.
        digests: receives its digest.
        pending: all its bytes.
        folder: of its dataset.
        path: below the folder.
        sha256: of its bytes, hexadecimal.
        lane: of the thread that commits the file.
        conditions: request headers with If-Match or If-None-Match, checked at the moment of the commit.

    Raises:
        ObjectExistsError: if it was opened with ``overwrite=False`` and a file exists.
        Problem: 412, if a condition does not hold; 404, if the dataset was removed.
    """

    def commit() -> Entry:
        entry = publish_held(root, digests, pending, folder, path, sha256, conditions)
        folder.life.changed(path)
        return entry

    try:
        async with root.publishing.held_in_loop((folder, path)):
            return await run_blocking(commit, lane)
    except BaseException:
        with CancelScope(shield=True):
            await run_blocking(pending.abort)
        raise


def publish_held(
    root: DatasetRoot,
    digests: Digests,
    pending: ObjectWriter,
    folder: LiveFolder,
    path: str,
    sha256: str,
    conditions: Mapping[str, str] | None = None,
) -> Entry:
    """Do what :func:`publish` does for a caller that holds the file's lock in ``root.publishing``.

    With it, preconditions stay valid until the change is made, and a digest is never stored for another version.
    """
    try:
        if conditions is not None and ("if-match" in conditions or "if-none-match" in conditions):
            found = root.find(folder, path)
            require_match(conditions, None if found is None else etag_of(found))
        pending.commit()
    except BaseException:
        pending.abort()
        raise
    entry = root.stat(folder, path)
    digests.store(entry, sha256)
    return entry


def _set_attribute(path: str, value: str) -> bool:
    """Return whether the file system stored it."""
    if sys.platform != "linux":
        return False
    try:
        os.setxattr(path, _ATTRIBUTE, value.encode())
    except OSError:  # no extended attributes, or a file of another user
        return False
    return True


def _get_attribute(path: str) -> str:
    if sys.platform != "linux":
        return ""
    try:
        return os.getxattr(path, _ATTRIBUTE).decode("utf-8", "replace")
    except OSError:
        return ""
