"""Archives that a killed service had begun to unpack: their missing files are written while requests are served."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Iterable

from ...errors import ObjectChangedError, ObjectNotFoundError, RemoteDataError, ShardReadError
from ...storage import Entry
from .context import ServiceContext
from .datasets.archives import Data, unpack
from .datasets.digests import filled_file, publish_held
from .datasets.touched_paths import TouchedPaths
from .problems import Problem, problem_of

_HOPELESS = (400, 404, 409, 413)  # the archive is damaged, the dataset removed, a path occupied

_log = logging.getLogger("torchdata_remote")


class UnfinishedArchive:
    """An archive whose files are not all written, for the present life of its dataset.

    Files that are complete are compared and left alone, so that an attempt begins where the last one ended. What a
    client has written or removed since the archive was committed is newer, and is left alone too, also after another
    kill.

    Args:
        context: of the service.
        name: of the dataset.
        aside: folder of the archive.
        archive: itself.
        note: its file ``COMMITTED``.

    Raises:
        Problem: 404, if the dataset was removed.
    """

    def __init__(self, context: ServiceContext, name: str, aside: str, archive: Entry, note: Entry) -> None:
        self._context, self._root, self._name, self.aside = context, context.root, name, aside
        self._archive, self._note_s = archive, note.modified_s or 0.0
        self._folder = context.root.folder(name)
        self._postponed: set[str] = set()
        self._touched = TouchedPaths(context.root, self._folder, aside)

    def finish(self) -> bool:
        """Write the missing files; return whether the archive is no longer needed.

        Raises:
            ServiceStoppedError: if the service is being stopped. The next one continues.
        """
        try:
            self._unpack(None)
            if self._postponed:
                self._unpack(frozenset(self._postponed))
        except (RemoteDataError, OSError, Problem) as error:
            if self._may_succeed_later(error):
                _log.warning("%s: repair this, and an archive will be unpacked within an hour: %s", self._name, error)
                return False
            _log.warning("%s: repair this, and send an archive again, of which files miss: %s", self._name, error)
        self._touched.end()
        self._context.summaries.invalidate(self._name)
        return True

    def _may_succeed_later(self, error: Exception) -> bool:
        """Whether the disk may have room another time, or a link be gone."""
        if not self._touched.is_known or self._folder.life.is_over or isinstance(error, ShardReadError):
            return False
        if (self._archive.modified_s or 0.0) < time.time() - self._context.limits.upload_lifetime_s:
            return False
        problem = problem_of(error)
        return problem is None or problem.status not in _HOPELESS

    def _unpack(self, only: frozenset[str] | None) -> None:
        stopping, limits = self._context.stopping, self._context.limits

        def write(path: str, size: int, pieces: Iterable[Data]) -> None:
            stopping.check()
            if not self._touched.is_known:
                raise Problem(409, "Clients changed too many files since, or the disk is full.")
            if only is not None and path not in only:
                return
            if path not in self._touched and not self._is_complete(path, size, pieces, again=only is not None):
                limits.require_space(self._root.free_bytes(), size)
                self._write(path, pieces)

        unpack(self._root, self._archive, self._name, limits, write)

    def _is_complete(self, path: str, size: int, pieces: Iterable[Data], *, again: bool) -> bool:
        """Whether the dataset has this file. One that is not small, and differs, is postponed: its data is read."""
        found = self._root.find(self._folder, path)
        if found is None or again:
            return False
        if not self._root.is_local and (found.modified_s or 0.0) > self._note_s:
            return True  # written by this archive, or later by a client of another service
        if found.size != size:
            return False
        digest = hashlib.sha256()
        for piece in self._context.stopping.during(pieces):
            digest.update(piece)
        with contextlib.suppress(ObjectChangedError, ObjectNotFoundError):
            if self._context.digests.sha256(found) == digest.hexdigest():
                return True
        if isinstance(pieces, list):
            return False
        self._postponed.add(path)
        return True

    def _write(self, path: str, pieces: Iterable[Data]) -> None:
        pieces = self._context.stopping.during(pieces)
        pending, sha256 = filled_file(self._root, self._folder, path, pieces)
        with self._root.publishing.held((self._folder, path)):
            if path in self._touched:
                pending.abort()
            else:
                publish_held(self._root, self._context.digests, pending, self._folder, path, sha256)
