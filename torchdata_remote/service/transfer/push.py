"""``push``: copy a local folder into a dataset of a service."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from ...core.arguments import check
from ...core.arguments.amounts import whole
from ...core.arguments.calls import explained
from ...core.options import MIB, RetryPolicy, policy_of
from ...errors import RemoteDataError, StorageError
from ...fetch.listing.source_argument import url_of
from ...formats.tar import END_OF_ARCHIVE, pack_header, padding
from ...storage import is_internal_name
from ...storage.dataset_service.protocol import SHA256_RECORD
from .jobs import SHARED_BYTES, Dataset, Jobs, digest_of, folders_of, grouped, local_folder
from .progress import OnProgress, TransferCounter, Transferred
from .source import LocalFile, files_of

T = TypeVar("T")
_REQUEST_BYTES = 64 * MIB  # a larger file is sent by several requests, so that it can be resumed
_MAX_ROUNDS = 4  # of sending the parts that the service reports as missing


@explained
def push(
    source_folder: str | os.PathLike[str],
    url: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    max_in_flight: int = 16,
    on_progress: OnProgress | None = None,
    progress: bool = True,
    delete: bool = False,
) -> Transferred:
    """Copy a folder into a dataset of a service, except for files that it already has, by SHA-256.

    Small files are sent many in one request, others in one request each, or in several if they have more than 64 MiB;
    those of more than 256 MiB in several at once. An interrupted push is resumed by the same call: files that were
    stored, and of files of more than 64 MiB the requests that were, are not sent again. A file becomes visible as a
    whole, after the service has compared its digest. At most ``max_in_flight`` times 8 MiB are held in memory.

    Args:
        source_folder: with all folders below it. Links that stay inside are followed.
        url: ``datasets://host:port/name``, or a folder in it. The dataset is created if it does not exist.
        storage_options: ``token`` and ``secure``, see :class:`StorageOptions`.
        retry: of requests that fail temporarily; ``None`` takes the defaults.
        max_in_flight: concurrent requests, each in a thread of its own.
        on_progress: called in this thread, with :class:`TransferProgress`, after each file or part; ``None`` shows a
            progress bar.
        progress: show it, if standard error is a terminal.
        delete: whether files in the dataset (or in its folder) that the source lacks are removed.

    Returns:
        Transferred: numbers of files and bytes.

    Raises:
        UrlError: if ``url`` is not a dataset of a service.
        EmptyListingError: if the source has no files.
        ObjectChangedError: if a file changed while it was sent.
        StorageError: for a link that leads out of the folder, an entry that is neither file nor folder, a name that is
                not allowed in a dataset, or a refusal of the service.

    Example:
        >>> push("/data/photos", "datasets://storage:8080/photos")  # doctest: +SKIP
        Transferred(num_files=2000, num_bytes=188000000, num_unchanged=0, num_removed=0, num_foreign=0, elapsed_s=1.9)
    """
    retry, local = policy_of(retry), local_folder("source_folder", source_folder)
    check.function_or_none("on_progress", on_progress, example="print")
    delete, progress = check.flag("delete", delete), check.flag("progress", progress)
    jobs = Jobs(whole("max_in_flight", max_in_flight), retry)
    with TransferCounter(on_progress, "push", shown=progress) as counter, jobs:
        dataset = Dataset(url_of(url, of="push"), storage_options, jobs)
        files = files_of(local)
        counter.set_total(len(files), sum(file.size for file in files))
        jobs.request(lambda: dataset.store.create_dataset(dataset.name), dataset.url)
        existing, wanted = dataset.files(), {file.path for file in files}
        foreign = sorted(path for path in existing.keys() - wanted if not is_internal_name(path.rpartition("/")[2]))
        uploads = _Uploads(dataset, {path: file.sha256 for path, file in existing.items()}, jobs, counter)
        first = _blocking(foreign, wanted) if delete else set()
        uploads.remove(first)
        uploads.send(files)
        if delete:  # after the uploads, so that the dataset never lacks a file that was only renamed
            uploads.remove(path for path in foreign if path not in first)
    return counter.result(num_foreign=0 if delete else len(foreign))


def _blocking(foreign: Iterable[str], wanted: set[str]) -> set[str]:
    """Return files with the path of a needed folder, or in a folder with the path of a needed file."""
    folders = {folder for path in wanted for folder in folders_of(path)}
    return {path for path in foreign if path in folders or not wanted.isdisjoint(folders_of(path))}


class _Uploads:
    """Uploads into one folder of a service.

    Args:
        dataset: to upload to.
        known: SHA-256 of the files in it, by path.
        jobs: runs them.
        counter: counts files and bytes.
    """

    def __init__(self, dataset: Dataset, known: dict[str, str], jobs: Jobs, counter: TransferCounter) -> None:
        self.dataset, self.known, self.jobs, self.counter = dataset, known, jobs, counter

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files of the dataset."""

        def remove(path: str) -> None:
            url = self.dataset.url_of(path)
            self.jobs.request(lambda: self.dataset.store.delete(self.dataset.prefix + path), url)
            self.counter.add(removed=1)

        self.jobs.run((partial(remove, path) for path in paths), self.counter.report)

    def send(self, files: list[LocalFile]) -> None:
        """Send files, unless the service has them: small ones in batches, large ones by several requests at once."""
        shared = [file for file in files if file.size > SHARED_BYTES]
        digests: dict[str, str] = {}

        def tasks() -> Iterator[Callable[[], object]]:
            others = [file for file in files if file.size <= SHARED_BYTES]
            for group in grouped(others, len(others), lambda file: file.size, self.jobs.max_in_flight):
                yield partial(self._send_batch, group) if len(group) > 1 else partial(self._send_one, group[0])
            for file in shared:
                yield partial(hash_file, file)

        def hash_file(file: LocalFile) -> None:
            digests[file.path] = file.sha256(self.jobs.check)

        self.jobs.run(tasks(), self.counter.report)
        for file in shared:
            if not self._is_known(file, digests[file.path]):
                parts = _Parts(self, file, digests[file.path])
                parts.send(lambda tasks: self.jobs.run(tasks, self.counter.report))
                self.counter.report()

    def _is_known(self, file: LocalFile, sha256: str) -> bool:
        """Whether the service had the file before; if so, count it."""
        if self.known.get(file.path) != sha256:
            return False
        self.counter.add(unchanged=1, existing_bytes=file.size)
        return True

    def _send_one(self, file: LocalFile, *, is_maybe_stored: bool = False) -> None:
        sha256, store, path = file.sha256(self.jobs.check), self.dataset.store, self.dataset.prefix + file.path
        if self._is_known(file, sha256):
            return
        if file.size > _REQUEST_BYTES:
            _Parts(self, file, sha256).send(lambda tasks: [task() for task in tasks])
            return
        if not (is_maybe_stored and self.jobs.request(lambda: store.sha256_of(path)) == sha256):
            self.put(lambda: store.put(path, file.pieces(self.jobs.check), file.size, sha256=sha256), file, file.size)
        self.counter.add(files=1, num_bytes=file.size)

    def put(self, operation: Callable[[], T], file: LocalFile, num_bytes: int) -> T:
        """Send bytes; send them once more if the service refuses them, as it does if they were damaged on the way."""
        request = partial(self.jobs.request, operation, self.dataset.url_of(file.path), num_bytes)
        try:
            return request()
        except StorageError as error:
            if type(error) is not StorageError:  # a subclass: refused for a reason that remains
                raise
            return request()

    def _send_batch(self, group: list[LocalFile]) -> None:
        """Send small files in one request. What it does not store is sent by itself, which reports the error."""
        tar: list[bytes] = []
        changed: dict[str, tuple[LocalFile, str]] = {}  # by path in the dataset
        below = self.dataset.prefix.partition("/")[2]
        for file in group:
            data = b"".join(map(bytes, file.pieces(self.jobs.check)))
            sha256, path = hashlib.sha256(data).hexdigest(), below + file.path
            if not self._is_known(file, sha256):
                changed[path] = file, sha256
                tar += [pack_header(path, len(data), {SHA256_RECORD: sha256}), data, bytes(padding(len(data)))]
        stored: dict[str, str] = {}
        if len(changed) > 1:
            body = b"".join([*tar, END_OF_ARCHIVE])
            del tar
            with contextlib.suppress(RemoteDataError):  # what arrived is stored
                stored = self.jobs.attempt(lambda: self.dataset.store.put_batch(self.dataset.name, body))
        for path, (file, sha256) in changed.items():
            if stored.get(path) == sha256:
                self.counter.add(files=1, num_bytes=file.size)
            else:
                self._send_one(file, is_maybe_stored=len(changed) > 1)


class _Parts:
    """Upload of a large file. It is resumable, as its identifier depends on the file only."""

    def __init__(self, uploads: _Uploads, file: LocalFile, sha256: str) -> None:
        self._uploads, self._file, self._sha256 = uploads, file, sha256
        self._store, self._path = uploads.dataset.store, uploads.dataset.prefix + file.path
        self._id = digest_of(self._path, sha256, f"{file.size} {_REQUEST_BYTES}")
        self._is_complete = False

    def send(self, run: Callable[[Iterable[Callable[[], object]]], object]) -> None:
        """Send what the service lacks, by ``run``, until it has the file."""
        file, counter, request = self._file, self._uploads.counter, self._uploads.jobs.request
        counted = 0  # bytes of this file that are counted as existing
        for _ in range(_MAX_ROUNDS):
            spans = list(request(lambda: self._missing(0, file.size), self._uploads.dataset.url_of(file.path)))
            # A repeated part makes the service check whether all parts are there
            spans = spans or [(0, min(_REQUEST_BYTES, file.size))]
            existing = file.size - sum(end - start for start, end in spans)
            counter.add(existing_bytes=existing - counted)
            run([partial(self._put, start, end) for start, end in spans])
            if not self._is_complete and self._is_there():  # a repeated part may have begun another upload
                request(lambda: self._store.abort_upload(self._path, self._id))
                self._is_complete = True
            if self._is_complete:
                file.require_unchanged()
                counter.add(files=1)
                return
            counted = file.size
        url = self._uploads.dataset.url_of(file.path)
        what = f"all parts were sent {_MAX_ROUNDS} times, and the file was not created. Is another push of it running?"
        raise StorageError(f"{url}: {what}", url=url)

    def _put(self, start: int, end: int) -> None:
        if self._is_complete:
            self._uploads.counter.add(existing_bytes=end - start)
            return
        file, is_first = self._file, True

        def put() -> None:
            nonlocal is_first
            # What an attempt that broke has sent may be stored
            spans, is_first = [(start, end)] if is_first else self._missing(start, end), False
            for first, after in spans:
                pieces = file.pieces(self._uploads.jobs.check, first, after)
                part = self._id, first, file.size
                etag = self._store.put(self._path, pieces, after - first, sha256=self._sha256, part=part)
                self._is_complete = self._is_complete or etag is not None

        self._uploads.put(put, file, end - start)
        self._uploads.counter.add(num_bytes=end - start)

    def _missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return what the service lacks of a range, cut at multiples of the size of a request."""
        found, position = [], start
        for first, after in [*self._store.received(self._path, self._id), (end, end)]:
            while position < min(first, end):
                cut = min(first, end, (position // _REQUEST_BYTES + 1) * _REQUEST_BYTES)
                found.append((position, cut))
                position = cut
            position = max(position, after)
        return found

    def _is_there(self) -> bool:
        """Whether the file is complete although no response said so: one was lost, or another push sent the rest."""
        found = self._uploads.dataset.find(self._file.path)
        return found is not None and found.sha256 == self._sha256
