"""Upload of small files, many in one request."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from ...errors import RemoteDataError, TransientStorageError
from ...formats.tar import END_OF_ARCHIVE, pack_header, padding
from ...storage.dataset_service.protocol import SHA256_RECORD
from .batch_groups import group_files
from .job_pool import Job
from .local_files import LocalFile, read_part
from .upload import Uploads


class _Read(NamedTuple):
    file: LocalFile
    sha256: str
    data: bytes


class UploadBatches:
    """Uploads of the files of a folder. What a batch cannot store is sent by itself, which reports the error.

    Args:
        uploads: of single files.
        batch_bytes: of the files in one request at most.
    """

    def __init__(self, uploads: Uploads, batch_bytes: int) -> None:
        self._uploads, self._batch_bytes = uploads, batch_bytes
        self._is_supported = True

    def jobs(self, files: Sequence[LocalFile], max_in_flight: int) -> Iterator[Job]:
        """Return the jobs that send files, unless the service has them.

        Args:
            files: to send.
            max_in_flight: concurrent jobs.
        """
        for group in group_files(
            files, len(files), lambda file: file.size, batch_bytes=self._batch_bytes, max_in_flight=max_in_flight
        ):
            if len(group) == 1:
                yield self._uploads.job(group[0])
            else:
                yield Job(2 * sum(file.size for file in group), partial(self._send, group))

    def _send(self, group: list[LocalFile]) -> list[Job]:
        if not self._is_supported:
            return [self._uploads.job(file) for file in group]
        changed = []
        for file in group:
            self._uploads.pool.check()
            data = read_part(file, 0, file.size)
            sha256 = hashlib.sha256(data).hexdigest()
            if not self._uploads.is_unchanged(file, sha256):
                changed.append(_Read(file, sha256, data))
        if len(changed) < 2:
            for one in changed:
                self._uploads.send_whole(one.file, one.data, one.sha256)
            return []
        stored = self._stored(changed)
        return [self._uploads.job_after_batch(one.file) for one in changed if not self._is_stored(one, stored)]

    def _is_stored(self, one: _Read, stored: dict[str, str]) -> bool:
        if stored.get(self._uploads.remote.path(one.file.path)) != one.sha256:
            return False
        self._uploads.counter.add_bytes(one.file.size)
        self._uploads.counter.add_copied()
        return True

    def _stored(self, files: list[_Read]) -> dict[str, str]:
        """Send files; return the SHA-256 of those that the service reports as stored, by their paths in the store."""
        remote, pool = self._uploads.remote, self._uploads.pool
        tar = _tar_of([(remote.path(one.file.path).partition("/")[2], one.sha256, one.data) for one in files])
        try:
            stored = pool.attempt(lambda: remote.store.put_batch(remote.name, tar))
        except TransientStorageError:  # what arrived is stored
            return {}
        except RemoteDataError:
            self._is_supported = False
            return {}
        return {f"{remote.name}/{path}": sha256 for path, sha256 in stored.items()}


def _tar_of(files: list[tuple[str, str, bytes]]) -> bytes:
    """Pack files: path, SHA-256 and data of each."""
    pieces: list[bytes] = []
    for path, sha256, data in files:
        pieces += [pack_header(path, len(data), {SHA256_RECORD: sha256}), data, bytes(padding(len(data)))]
    return b"".join([*pieces, END_OF_ARCHIVE])
