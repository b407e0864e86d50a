"""Upload of one file."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from ...core.options import MIB
from ...errors import ObjectExistsError, StorageError
from .byte_ranges import REQUEST_PARTS, Span, missing, parts
from .job_pool import Job, JobPool
from .local_files import LocalFile, pieces_of, read_part, require_unchanged, sha256_of
from .names import upload_id
from .progress import TransferCounter
from .remote_folder import RemoteFolder

T = TypeVar("T")
PART_BYTES = 16 * MIB
_MAX_ROUNDS = 4  # of sending the parts that the service reports as missing


class Uploads(NamedTuple):
    """Uploads into one folder of a service.

    Args:
        remote: folder to upload to.
        known: SHA-256 of the files in it, by path.
        pool: runs the jobs.
        counter: counts files and bytes.
        part_bytes: files of more than two parts are sent as uploads that can be resumed, in requests of 16 parts.
    """

    remote: RemoteFolder
    known: dict[str, str]
    pool: JobPool
    counter: TransferCounter
    part_bytes: int

    def job(self, file: LocalFile) -> Job:
        """Return the job that sends a file unless the service has it."""
        if file.size > 2 * self.part_bytes:
            return Job(MIB, _InParts(self, file).begin)
        return Job(file.size, partial(self._whole, file))

    def job_after_batch(self, file: LocalFile) -> Job:
        """Return the job that sends a small file, unless a broken request has stored it."""
        return Job(file.size, partial(self._whole, file, is_maybe_stored=True))

    def _whole(self, file: LocalFile, *, is_maybe_stored: bool = False) -> Iterable[Job]:
        data = read_part(file, 0, file.size)
        sha256 = hashlib.sha256(data).hexdigest()
        if self.is_unchanged(file, sha256):
            return ()
        path = self.remote.path(file.path)
        if is_maybe_stored and self.pool.request(lambda: self.remote.store.sha256_of(path)) == sha256:
            self.counter.add_bytes(file.size)
            self.counter.add_copied()
            return ()
        self.send_whole(file, data, sha256)
        return ()

    def is_unchanged(self, file: LocalFile, sha256: str) -> bool:
        """Whether the service had the file before; if so, count it."""
        if self.known.get(file.path) != sha256:
            return False
        self.counter.add_unchanged(file.size)
        return True

    def send_whole(self, file: LocalFile, data: bytes, sha256: str) -> None:
        """Send a small file in one request.

        Args:
            file: for its path and size.
            data: all of it.
            sha256: of the data, hexadecimal.
        """
        path = self.remote.path(file.path)
        self.send(lambda: self.remote.store.put(path, data, sha256=sha256), self.remote.url_of(file.path), len(data))
        self.counter.add_bytes(file.size)
        self.counter.add_copied()

    def send(self, operation: Callable[[], T], url: str, num_bytes: int) -> T:
        """Send bytes; send them once more if the service refuses them, as it does if they were damaged on the way."""
        try:
            return self.pool.request(operation, url, num_bytes)
        except StorageError as error:
            if type(error) is not StorageError:  # a subclass: refused for a reason that remains
                raise
            return self.pool.request(operation, url, num_bytes)


class _InParts:
    """Upload of a large file in parts. It is resumable, as its identifier depends on the file only."""

    def __init__(self, uploads: Uploads, file: LocalFile) -> None:
        self._uploads, self._file = uploads, file
        self._remote, self._counter = uploads.remote, uploads.counter
        self._path = uploads.remote.path(file.path)
        self._sha256 = self._id = ""
        self._lock = threading.RLock()
        self._num_rounds = self._num_left = 0
        self._counted_bytes = 0  # of this file, in the counter
        self._complete = self._in_conflict = False

    def begin(self) -> Iterable[Job]:
        self._sha256 = sha256_of(self._file, self._uploads.pool.check)
        if self._uploads.is_unchanged(self._file, self._sha256):
            return ()
        self._id = upload_id(self._path, self._sha256, self._file.size)
        return self._next_round()

    def _next_round(self) -> Iterable[Job]:
        self._num_rounds += 1
        if self._num_rounds > _MAX_ROUNDS:
            url = self._remote.url_of(self._file.path)
            raise StorageError(
                f"{url}: all parts were sent {_MAX_ROUNDS} times, and the file was not created. Is another push of it "
                "running?",
                url=url,
            )
        size, request_bytes = self._file.size, REQUEST_PARTS * self._uploads.part_bytes
        received = self._uploads.pool.request(
            lambda: self._remote.store.received(self._path, self._id), self._remote.url_of(self._file.path)
        )
        gaps = missing(received, size)
        existing = size - sum(end - start for start, end in gaps)
        self._counter.add_existing(existing - self._counted_bytes)
        self._counted_bytes = existing
        spans = list(parts(gaps, request_bytes))
        if not spans:  # a repeated part makes the service check whether all parts are there
            spans = [(0, min(request_bytes, size))]
            self._counter.add_existing(-spans[0][1])
            self._counted_bytes -= spans[0][1]
        self._num_left = len(spans)
        return [Job(MIB, partial(self._part, start, end)) for start, end in spans]

    def _part(self, start: int, end: int) -> Iterable[Job]:
        if not self._complete and not self._in_conflict:
            try:
                self._send(start, end)
            except ObjectExistsError:  # it overlaps parts of other sizes, by another version of this package
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
        self._counter.add_existing(self._file.size - self._counted_bytes)
        self._counter.add_copied()
        return ()

    def _send(self, start: int, end: int) -> None:
        is_first = True

        def put() -> str | None:
            nonlocal is_first
            spans = [(start, end)] if is_first else self._missing_in(start, end)
            is_first, etag = False, None
            for first, after in spans:
                pieces = pieces_of(self._file, first, after, self._uploads.pool.check)
                etag = self._remote.store.put_part(
                    self._path,
                    self._id,
                    first,
                    pieces,
                    self._file.size,
                    sha256=self._sha256,
                    num_bytes=after - first,
                )
            return etag

        etag = self._uploads.send(put, self._remote.url_of(self._file.path), end - start)
        self._counter.add_bytes(end - start)
        with self._lock:
            self._counted_bytes += end - start
            self._complete = self._complete or etag is not None

    def _missing_in(self, start: int, end: int) -> list[Span]:
        """Ask what the service lacks of a range of which an attempt failed: it keeps what arrived."""
        gaps = missing(self._remote.store.received(self._path, self._id), self._file.size)
        inside = [(max(start, first), min(end, after)) for first, after in gaps]
        return [(first, after) for first, after in inside if first < after]

    def _is_there(self) -> bool:
        """Whether the file is complete although no response said so: one was lost, or another push sent the rest."""
        found = self._remote.find(self._file.path, self._uploads.pool.request)
        return found is not None and found.sha256 == self._sha256
