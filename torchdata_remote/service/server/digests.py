"""SHA-256 of files: kept with them where the file system can, computed where nobody did."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping

from ...storage.registry import Entry, ObjectWriter
from .dataset_root import DatasetRoot
from .file_metadata import etag_of
from .preconditions import require_match

_ATTRIBUTE = "user.torchdata_remote.sha256"
_VALUE = re.compile(r"([0-9a-f]{64}) (.*)", re.DOTALL)
_MAX_KEPT = 100_000
_PUBLISHING = [threading.RLock() for _ in range(256)]


class Digests:
    """What is known of the files of a shelf.

    A local file that came through the service carries its digest as an extended attribute, together with the etag that
    it is of; so damage on the disk is noticed, and nothing is read twice. Elsewhere, digests are kept in memory.

    Args:
        shelf: where the files lie.
    """

    def __init__(self, shelf: DatasetRoot) -> None:
        self._shelf = shelf
        self._kept: OrderedDict[tuple[str, str | None], str] = OrderedDict()
        self._lock = threading.RLock()

    def remember(self, entry: Entry, sha256: str) -> None:
        """Keep the digest of a file."""
        path = self._shelf.local_path(entry)
        if path is None or not _set(path, f"{sha256} {entry.etag}"):
            with self._lock:
                self._kept[entry.path, entry.etag] = sha256
                while len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)

    def known(self, entry: Entry) -> str | None:
        """The digest of a file, if nobody has to read it for that."""
        path = self._shelf.local_path(entry)
        match = None if path is None else _VALUE.fullmatch(_get(path))
        if match is not None and match[2] == str(entry.etag):
            return match[1]
        with self._lock:
            return self._kept.get((entry.path, entry.etag))

    def of(self, entry: Entry) -> str:
        """The digest of a file.

        Raises:
            ObjectChangedError: if it is replaced meanwhile.
        """
        found = self.known(entry)
        if found is None:
            digest = hashlib.sha256()
            for chunk in self._shelf.chunks(entry):
                digest.update(chunk)
            found = digest.hexdigest()
            self.remember(entry, found)
        return found


def one_at_a_time(folder: str, path: str) -> threading.RLock:
    """Held while a file is replaced or removed: what was compared stays so, and a digest is not taken for another's."""
    return _PUBLISHING[hash((folder, path)) % len(_PUBLISHING)]


def publish(
    shelf: DatasetRoot,
    digests: Digests,
    pending: ObjectWriter,
    folder: str,
    path: str,
    sha256: str,
    conditions: Mapping[str, str] | None = None,
) -> Entry:
    """Make a file appear, and keep its digest. What fails leaves nothing behind.

    Args:
        shelf: where it will be.
        digests: is told of it.
        pending: all of its bytes.
        folder: of its dataset.
        path: in there.
        sha256: of its bytes, hexadecimal.
        conditions: headers of a request with If-Match or If-None-Match, which hold when it appears.

    Raises:
        ObjectExistsError: if it was begun with ``overwrite=False``, and there is one.
        Problem: 412, if a condition does not hold.
    """
    with one_at_a_time(folder, path):
        try:
            if conditions is not None and ("if-match" in conditions or "if-none-match" in conditions):
                found = shelf.find(folder, path)
                require_match(conditions, None if found is None else etag_of(found))
            pending.commit()
        except BaseException:
            pending.abort()
            raise
        entry = shelf.stat(folder, path)
        digests.remember(entry, sha256)
        return entry


def _set(path: str, value: str) -> bool:
    """Whether the file system keeps it."""
    if sys.platform != "linux":
        return False
    try:
        os.setxattr(path, _ATTRIBUTE, value.encode())
    except OSError:  # it knows no such attributes, or the file is somebody else's
        return False
    return True


def _get(path: str) -> str:
    if sys.platform != "linux":
        return ""
    try:
        return os.getxattr(path, _ATTRIBUTE).decode("utf-8", "replace")
    except OSError:
        return ""
