"""One file on its way from a service: whole, compared with its digest, then under its name."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from ...core.options import RetryPolicy
from ...errors import ObjectChangedError, ObjectNotFoundError, StorageError
from ...fetch.range_download import RangeRequest
from ...fetch.range_reader import read_range
from ..client.connect import DatasetFile
from .byte_ranges import parts
from .destination import DestinationFolder
from .job_pool import Job, JobPool
from .local_files import hash_rest
from .names import partial_name, ranges_name
from .partial_file import PartialFile
from .progress import TransferCounter
from .pull_state import Pulled
from .remote_folder import RemoteFolder

_MAX_VERSIONS = 4  # of a file, if it is replaced again and again
_MAX_FETCHES = 2  # of one version, if its digest is wrong


class Downloads(NamedTuple):
    """What all downloads share.

    Args:
        remote: where from.
        target: where to.
        crew: does the work.
        retry: how long faults are repeated.
        tally: counts it.
        part_bytes: files of more than two parts are fetched in parts.
        on_done: told of each file that is complete, or of ``None`` if it is gone; from any thread.
    """

    remote: RemoteFolder
    target: DestinationFolder
    crew: JobPool
    retry: RetryPolicy
    tally: TransferCounter
    part_bytes: int
    on_done: Callable[[str, Pulled | None], object]

    def job(self, path: str, file: DatasetFile) -> Job:
        """Fetches a file."""
        return _Download(self, path, file).job()


class _Download:
    def __init__(self, downloads: Downloads, path: str, file: DatasetFile) -> None:
        self._all, self._path, self._file = downloads, path, file
        self._num_versions, self._num_fetches = 1, 0
        self._lock = threading.RLock()
        self._num_left = self._counted_bytes = 0
        self._fault: StorageError | None = None  # of a part: there is another version, or none
        self._partial = self._partial_file()

    def _partial_file(self) -> PartialFile:
        folder = self._path.rpartition("/")[0]
        above = folder + "/" if folder else ""
        sha256 = self._file.sha256
        names = partial_name(self._path, sha256), ranges_name(self._path, sha256)
        return PartialFile(self._all.target, above + names[0], above + names[1], self._file.size)

    def job(self) -> Job:
        """Begins with this version of the file."""
        size, part_bytes = self._file.size, self._all.part_bytes
        return Job(min(size, part_bytes), self._whole if size <= 2 * part_bytes else self._in_parts)

    def _pieces(self, start: int, end: int) -> Iterator[memoryview]:
        """Bytes of this version, as they come."""
        remote, crew, file = self._all.remote, self._all.crew, self._file
        wanted = RangeRequest(remote.url_of(self._path), file.path, start, end, file.size, file.etag)
        if start == end:
            return
        for piece in read_range(
            remote.store,
            wanted,
            self._all.retry,
            in_flight=crew.in_flight,
            on_found=lambda _: None,
            sleep=crew.wait,
        ):
            crew.check()  # nothing is written after the end
            yield piece
            self._count(len(piece))

    def _count(self, num_bytes: int) -> None:
        with self._lock:
            self._counted_bytes += num_bytes
        self._all.tally.moved(num_bytes)

    def _whole(self) -> Iterable[Job]:
        digest = hashlib.sha256()
        try:
            with self._all.target.new_file(self._partial.path) as descriptor:
                for piece in self._pieces(0, self._file.size):
                    digest.update(piece)
                    written = 0
                    while written < len(piece):
                        written += os.write(descriptor, piece[written:])
                if digest.hexdigest() == self._file.sha256:
                    self._publish(descriptor)
                    return ()
        except (ObjectChangedError, ObjectNotFoundError) as error:
            self._forget_bytes()
            return self._other_version(error)
        except BaseException:
            self._forget_bytes()
            raise
        return self._again(digest.hexdigest())

    def _in_parts(self) -> Iterable[Job]:
        gaps = self._partial.open()
        there = self._file.size - sum(end - start for start, end in gaps)
        self._all.tally.had(there - self._counted_bytes)
        self._counted_bytes = there
        spans = list(parts(gaps, self._all.part_bytes))
        self._num_left = len(spans)
        if not spans:
            return self._check_parts()
        return [Job(end - start, partial(self._part, start, end)) for start, end in spans]

    def _part(self, start: int, end: int) -> Iterable[Job]:
        if self._fault is None:
            try:
                self._partial.write(start, end, self._pieces(start, end))
            except (ObjectChangedError, ObjectNotFoundError) as error:
                self._fault = error
        with self._lock:
            self._num_left -= 1
            if self._num_left:
                return ()
        if self._fault is not None:
            return self._other_version(self._fault)
        return self._check_parts()

    def _check_parts(self) -> Iterable[Job]:
        with self._all.target.opened(self._partial.path, os.O_RDWR) as descriptor:
            came = hash_rest(descriptor, self._all.crew.check)
            if came == self._file.sha256:
                self._publish(descriptor)
                return ()
        return self._again(came)

    def _publish(self, descriptor: int) -> None:
        self._all.crew.check()
        os.fsync(descriptor)
        mtime_ns = os.fstat(descriptor).st_mtime_ns
        self._all.target.rename(self._partial.path.rpartition("/")[2], self._path)
        self._partial.remove_ranges()
        self._all.tally.copied()
        self._all.on_done(self._path, Pulled(self._file.size, mtime_ns, self._file.sha256, self._file.etag))

    def _forget_bytes(self) -> None:
        self._partial.remove()
        self._all.tally.had(-self._counted_bytes)
        self._counted_bytes = 0

    def _again(self, came: str) -> Iterable[Job]:
        """The bytes are not the right ones: fetch them all once more."""
        self._forget_bytes()
        self._num_fetches += 1
        if self._num_fetches == _MAX_FETCHES:
            url = self._all.remote.url_of(self._path)
            raise StorageError(
                f"{url}: SHA-256 {came} came, twice or differently each time, where the service tells "
                f"{self._file.sha256}. Nothing was kept. The file is damaged there, or on the way: push it again.",
                url=url,
                etag=self._file.etag,
            )
        return [self.job()]

    def _other_version(self, error: StorageError) -> Iterable[Job]:
        """The file was replaced or removed after it was listed."""
        found = self._all.remote.find(self._path, self._all.crew.request)
        self._num_versions += 1
        if found is not None and self._num_versions > _MAX_VERSIONS:
            raise error
        if found is None or found.sha256 != self._file.sha256:
            self._forget_bytes()
        self._fault = None
        if found is None:
            self._all.on_done(self._path, None)
            return ()
        self._file, self._num_fetches = found, 0
        self._partial = self._partial_file()
        return [self.job()]
