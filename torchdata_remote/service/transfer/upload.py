"""One file on its way to a service."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from ...core.options import MIB
from ...errors import ObjectExistsError, StorageError
from .byte_ranges import missing, parts
from .job_pool import Job, JobPool
from .local_files import LocalFile, read_part, require_unchanged, sha256_of
from .names import upload_id
from .progress import TransferCounter
from .remote_folder import RemoteFolder

T = TypeVar("T")
PART_BYTES = 16 * MIB
_MAX_ROUNDS = 4  # of sending what the service says that it lacks


class Uploads(NamedTuple):
    """What all uploads share.

    Args:
        remote: where to.
        known: SHA-256 of the files that are there, by path.
        crew: does the work.
        tally: counts it.
        part_bytes: files of more than two parts are sent in parts.
    """

    remote: RemoteFolder
    known: dict[str, str]
    crew: JobPool
    tally: TransferCounter
    part_bytes: int

    def job(self, file: LocalFile) -> Job:
        """Sends a file, if the service does not have it."""
        if file.size > 2 * self.part_bytes:
            return Job(MIB, _InParts(self, file).begin)
        return Job(file.size, partial(self._whole, file))

    def _whole(self, file: LocalFile) -> Iterable[Job]:
        data = read_part(file, 0, file.size)
        sha256 = hashlib.sha256(data).hexdigest()
        if self.known.get(file.path) == sha256:
            self.tally.unchanged(file.size)
            return ()
        path = self.remote.path(file.path)
        self.send(lambda: self.remote.store.put(path, data, sha256=sha256))
        self.tally.moved(file.size)
        self.tally.copied()
        return ()

    def send(self, operation: Callable[[], T]) -> T:
        """Send bytes, and once more if the service refuses them: it does so for what was damaged on the way."""
        try:
            return self.crew.request(operation)
        except StorageError as error:
            if type(error) is not StorageError:  # what it has a name for will not pass
                raise
            return self.crew.request(operation)


class _InParts:
    """A large file. An upload that was stopped goes on, as its number depends on the file only."""

    def __init__(self, uploads: Uploads, file: LocalFile) -> None:
        self._uploads, self._file = uploads, file
        self._remote, self._tally = uploads.remote, uploads.tally
        self._path = uploads.remote.path(file.path)
        self._sha256 = self._id = ""
        self._lock = threading.RLock()
        self._num_rounds = self._num_left = 0
        self._counted_bytes = 0  # of this file, in the tally
        self._complete = self._in_conflict = False

    def begin(self) -> Iterable[Job]:
        self._sha256 = sha256_of(self._file, self._uploads.crew.check)
        if self._uploads.known.get(self._file.path) == self._sha256:
            self._tally.unchanged(self._file.size)
            return ()
        self._id = upload_id(self._path, self._sha256, self._file.size)
        return self._next_round()

    def _next_round(self) -> Iterable[Job]:
        self._num_rounds += 1
        if self._num_rounds > _MAX_ROUNDS:
            url = self._remote.url_of(self._file.path)
            raise StorageError(
                f"{url}: all parts were sent {_MAX_ROUNDS} times, and the file did not appear. Is another push of it "
                "at work?",
                url=url,
            )
        size, part_bytes = self._file.size, self._uploads.part_bytes
        received = self._uploads.crew.request(lambda: self._remote.store.received(self._path, self._id))
        gaps = missing(received, size)
        there = size - sum(end - start for start, end in gaps)
        self._tally.had(there - self._counted_bytes)
        self._counted_bytes = there
        spans = list(parts(gaps, part_bytes))
        if not spans:  # a part that comes again makes the service look whether all are there
            spans = [(0, min(part_bytes, size))]
            self._tally.had(-spans[0][1])
            self._counted_bytes -= spans[0][1]
        self._num_left = len(spans)
        return [Job(end - start, partial(self._part, start, end)) for start, end in spans]

    def _part(self, start: int, end: int) -> Iterable[Job]:
        if not self._complete and not self._in_conflict:
            try:
                self._send(start, end)
            except ObjectExistsError:  # parts that another version of this package cut differently
                self._in_conflict = True
        with self._lock:
            self._num_left -= 1
            if self._num_left:
                return ()
        if not self._complete and not self._is_there():
            if self._in_conflict:
                self._id, self._in_conflict = upload_id(self._id, self._sha256, self._file.size), False
            return self._next_round()
        require_unchanged(self._file)
        self._tally.had(self._file.size - self._counted_bytes)
        self._tally.copied()
        return ()

    def _send(self, start: int, end: int) -> None:
        data = read_part(self._file, start, end)
        put = partial(
            self._remote.store.put_part, self._path, self._id, start, data, self._file.size, sha256=self._sha256
        )
        etag = self._uploads.send(put)
        self._tally.moved(end - start)
        with self._lock:
            self._counted_bytes += end - start
            self._complete = self._complete or etag is not None

    def _is_there(self) -> bool:
        """Whether the file appeared although nobody was told: the answer was lost, or another push sent the rest."""
        found = self._remote.find(self._file.path, self._uploads.crew.request)
        return found is not None and found.sha256 == self._sha256
