"""Download of one file: fetched, verified by its digest, then renamed to its path."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from ...core.options import RetryPolicy
from ...core.urls import RemoteUrl
from ...errors import ObjectChangedError, ObjectNotFoundError, StorageError
from ...fetch.ranges import ObjectReader
from ..client.connect import DatasetFile
from .byte_ranges import REQUEST_PARTS, CutPieces, parts
from .destination import DestinationFolder
from .job_pool import Job, JobPool
from .local_files import hash_rest, read_pieces
from .names import partial_name, ranges_name
from .partial_file import PartialFile
from .progress import TransferCounter
from .pull_state import Pulled
from .remote_folder import RemoteFolder

_MAX_VERSIONS = 4  # of a file that is replaced during the pull
_MAX_FETCHES = 2  # of one version, if its digest is wrong


class Downloads(NamedTuple):
    """Downloads into one folder.

    Args:
        remote: source of the files.
        destination: folder to write into.
        pool: runs the jobs.
        retry: of requests.
        counter: counts files and bytes.
        part_bytes: files of more than two parts are fetched so that it can be resumed, those of more than 16 by several
            requests at once.
        on_done: called from any thread with the path of each complete file and its state; ``None`` if it was removed.
    """

    remote: RemoteFolder
    destination: DestinationFolder
    pool: JobPool
    retry: RetryPolicy
    counter: TransferCounter
    part_bytes: int
    on_done: Callable[[str, Pulled | None], object]

    def job(self, path: str, file: DatasetFile) -> Job:
        """Return the job that fetches a file."""
        return _Download(self, path, file).job()

    def store_small(self, path: str, file: DatasetFile, data: bytes) -> None:
        """Store a small file whose digest was compared.

        Args:
            path: below the folder.
            file: as it was listed.
            data: all of it.
        """
        mtime_ns = self.destination.write_file(path, partial_name(path, file.sha256), data)
        self.counter.add_bytes(file.size)
        self.counter.add_copied()
        self.on_done(path, Pulled(file.size, mtime_ns, file.sha256, file.etag))


class _Download:
    def __init__(self, downloads: Downloads, path: str, file: DatasetFile) -> None:
        self._shared, self._path, self._file = downloads, path, file
        self._num_versions, self._num_fetches = 1, 0
        self._lock = threading.RLock()
        self._num_left = self._counted_bytes = 0
        self._fault: StorageError | None = None  # of a part: the file was replaced or removed
        self._partial = self._partial_file()

    def _partial_file(self) -> PartialFile:
        folder = self._path.rpartition("/")[0]
        above = folder + "/" if folder else ""
        sha256 = self._file.sha256
        names = partial_name(self._path, sha256), ranges_name(self._path, sha256)
        return PartialFile(self._shared.destination, above + names[0], above + names[1], self._file.size)

    def job(self) -> Job:
        """Return the first job for this version of the file."""
        size, part_bytes = self._file.size, self._shared.part_bytes
        return Job(min(size, part_bytes), self._whole if size <= 2 * part_bytes else self._resumable)

    def _pieces(self, start: int, end: int) -> Generator[memoryview, None, None]:
        """Read bytes of this version as they are received."""
        remote, pool, file = self._shared.remote, self._shared.pool, self._file
        if start == end:
            return
        is_whole = (start, end) == (0, file.size)  # without a range, the service has less to do
        url = RemoteUrl(remote.url_of(self._path), file.size, file.etag)
        reader = ObjectReader(url, remote.store, file.path, self._shared.retry, pool.in_flight, sleep=pool.sleep)
        for piece in reader.pieces(start, None if is_whole else end):
            pool.check()  # so that nothing is written after the pull ended
            self._count(len(piece))
            yield piece

    def _count(self, num_bytes: int) -> None:
        with self._lock:
            self._counted_bytes += num_bytes
        self._shared.counter.add_bytes(num_bytes)

    def _whole(self) -> Iterable[Job]:
        digest = hashlib.sha256()
        try:
            with self._shared.destination.create(self._partial.path) as descriptor:
                for piece in self._pieces(0, self._file.size):
                    digest.update(piece)
                    written = 0
                    while written < len(piece):
                        written += os.write(descriptor, piece[written:])
                if digest.hexdigest() == self._file.sha256:
                    self._publish(descriptor)
                    return ()
        except (ObjectChangedError, ObjectNotFoundError) as error:
            self._discard()
            return self._fetch_current_version(error)
        except BaseException:
            self._discard()
            raise
        return self._retry(digest.hexdigest())

    def _resumable(self) -> Iterable[Job]:
        gaps = self._partial.open()
        existing = self._file.size - sum(end - start for start, end in gaps)
        self._shared.counter.add_existing(existing - self._counted_bytes)
        self._counted_bytes = existing
        if self._file.size <= REQUEST_PARTS * self._shared.part_bytes and gaps in ([], [(existing, self._file.size)]):
            return self._rest(existing)
        spans = list(parts(gaps, self._shared.part_bytes))
        self._num_left = len(spans)
        if not spans:
            return self._check_parts()
        return [Job(end - start, partial(self._part, start, end)) for start, end in spans]

    def _rest(self, start: int) -> Iterable[Job]:
        """Fetch all bytes from ``start`` on in one request, and hash them meanwhile."""
        digest, size = hashlib.sha256(), self._file.size
        with self._shared.destination.open_existing(self._partial.path, os.O_RDWR) as descriptor:
            os.ftruncate(descriptor, start)  # a pull that was killed may have written more than it recorded
            for piece in read_pieces(descriptor, self._shared.pool.check):
                digest.update(piece)  # what is there already

            def hashed(pieces: Iterator[memoryview]) -> Iterator[memoryview]:
                for piece in pieces:
                    digest.update(piece)
                    yield piece

            try:
                with contextlib.closing(self._pieces(start, size)) as source:
                    pieces = CutPieces(hashed(source))
                    for first, end in parts([(start, size)], self._shared.part_bytes):
                        self._partial.write(first, pieces.take(end - first))
                    next(source, None)  # its end, after which the connection is used again
            except (ObjectChangedError, ObjectNotFoundError) as error:
                return self._fetch_current_version(error)
            if digest.hexdigest() == self._file.sha256:
                self._publish(descriptor)
                return ()
        return self._retry(digest.hexdigest())

    def _part(self, start: int, end: int) -> Iterable[Job]:
        if self._fault is None:
            try:
                self._partial.write(start, self._pieces(start, end))
            except (ObjectChangedError, ObjectNotFoundError) as error:
                self._fault = error
        with self._lock:
            self._num_left -= 1
            if self._num_left:
                return ()
        if self._fault is not None:
            return self._fetch_current_version(self._fault)
        return self._check_parts()

    def _check_parts(self) -> Iterable[Job]:
        with self._shared.destination.open_existing(self._partial.path, os.O_RDWR) as descriptor:
            received = hash_rest(descriptor, self._shared.pool.check)
            if received == self._file.sha256:
                self._publish(descriptor)
                return ()
        return self._retry(received)

    def _publish(self, descriptor: int) -> None:
        self._shared.pool.check()
        os.fsync(descriptor)
        mtime_ns = os.fstat(descriptor).st_mtime_ns
        self._shared.destination.rename(self._partial.path.rpartition("/")[2], self._path)
        self._partial.remove_ranges()
        self._shared.counter.add_copied()
        self._shared.on_done(self._path, Pulled(self._file.size, mtime_ns, self._file.sha256, self._file.etag))

    def _discard(self) -> None:
        self._partial.remove()
        self._shared.counter.add_existing(-self._counted_bytes)
        self._counted_bytes = 0

    def _retry(self, received: str) -> Iterable[Job]:
        """The digest is wrong: fetch the file once more."""
        self._discard()
        self._num_fetches += 1
        if self._num_fetches == _MAX_FETCHES:
            url = self._shared.remote.url_of(self._path)
            raise StorageError(
                f"{url}: received SHA-256 {received} after fetching it {_MAX_FETCHES} times, where the service reports "
                f"{self._file.sha256}. Nothing was kept. The file is damaged in the dataset or in transit: push it "
                "again.",
                url=url,
                etag=self._file.etag,
            )
        return [self.job()]

    def _fetch_current_version(self, error: StorageError) -> Iterable[Job]:
        """The file was replaced or removed after it was listed: fetch the current version."""
        found = self._shared.remote.find(self._path, self._shared.pool.request)
        self._num_versions += 1
        if found is not None and self._num_versions > _MAX_VERSIONS:
            raise error
        if found is None or found.sha256 != self._file.sha256:
            self._discard()
        self._fault = None
        if found is None:
            self._shared.on_done(self._path, None)
            return ()
        self._file, self._num_fetches = found, 0
        self._partial = self._partial_file()
        return [self.job()]
