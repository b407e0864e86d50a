"""Download of small files, many in one request."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial

from ...errors import RemoteDataError, TransientStorageError
from ...formats.tar import BLOCK, TarOptions, TarParser
from ...storage.dataset_service.protocol import MAX_BATCH_FILE_BYTES
from ..client.connect import DatasetFile
from .batch_groups import group_files
from .download import Downloads
from .job_pool import Job

_HEADER_BYTES = 8 * BLOCK  # of a member at most, beside its name


class DownloadBatches:
    """Downloads into one folder. What a batch lacks is fetched by itself, which reports the error.

    Args:
        downloads: of single files.
        batch_bytes: of the files in one request at most.
    """

    def __init__(self, downloads: Downloads, batch_bytes: int) -> None:
        self._downloads, self._batch_bytes = downloads, batch_bytes
        self._is_supported = True

    def jobs(self, files: dict[str, DatasetFile], max_in_flight: int) -> Iterator[Job]:
        """Return the jobs that fetch files.

        Args:
            files: by path below the folder.
            max_in_flight: concurrent jobs.
        """
        for group in group_files(
            files, len(files), lambda path: files[path].size, batch_bytes=self._batch_bytes, max_in_flight=max_in_flight
        ):
            if len(group) == 1:
                yield self._downloads.job(group[0], files[group[0]])
            else:
                num_bytes = max(files[path].size for path in group)
                yield Job(num_bytes, partial(self._fetch, {path: files[path] for path in group}))

    def _fetch(self, group: dict[str, DatasetFile]) -> list[Job]:
        left = dict(group)
        if self._is_supported:
            try:
                self._downloads.pool.attempt(lambda: self._receive(left))
            except TransientStorageError:
                pass
            except RemoteDataError:
                self._is_supported = False
        return [self._downloads.job(path, file) for path, file in left.items()]

    def _receive(self, left: dict[str, DatasetFile]) -> None:
        """Fetch files, and remove those from ``left`` that are complete."""
        remote, pool = self._downloads.remote, self._downloads.pool
        below = remote.prefix.partition("/")[2]
        max_bytes = sum(_HEADER_BYTES + 4 * len(path.encode()) + file.size for path, file in left.items()) + 64 * BLOCK
        chunks = remote.store.get_batch(remote.name, [below + path for path in left], max_bytes)
        try:
            tar = TarParser(chunks, remote.url, TarOptions(max_member_bytes=MAX_BATCH_FILE_BYTES))
            while (member := tar.next_member()) is not None:
                path, size = member[0].removeprefix(below), member[1]
                file = left.get(path)
                if file is None or file.size != size:  # replaced since it was listed
                    tar.pass_over(size, f"member {path!r:.200}")
                    continue
                data = tar.take(size, f"member {path!r:.200}")
                pool.check()  # so that nothing is written after the pull ended
                if hashlib.sha256(data).hexdigest() == file.sha256:
                    self._downloads.store_small(path, file, data)
                    del left[path]
        finally:
            chunks.close()
