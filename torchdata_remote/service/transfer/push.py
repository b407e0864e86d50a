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
from ...core.options import RetryPolicy, policy_of
from ...errors import RemoteDataError
from ...fetch.listing.source_argument import url_of
from ...formats.tar import END_OF_ARCHIVE, pack_header, padding
from ...storage import is_internal_name
from ...storage.dataset_service.protocol import SHA256_RECORD
from ...storage.dataset_service.upload import send_file
from .jobs import Dataset, Jobs, folders_of, grouped, local_folder
from .progress import OnProgress, TransferCounter, Transferred
from .source import LocalFile, files_of

T = TypeVar("T")


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

    Small files are sent many in one request, others in one request each, or in several if they have more than 64 MiB.
    An interrupted push is resumed by the same call: files that were
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
        """Send files, unless the service has them: small ones in batches, others by requests of their own."""

        def tasks() -> Iterator[Callable[[], object]]:
            for group in grouped(files, len(files), lambda file: file.size, self.jobs.max_in_flight):
                yield partial(self._send_batch, group) if len(group) > 1 else partial(self._send_one, group[0])

        self.jobs.run(tasks(), self.counter.report)

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
        if is_maybe_stored and self.jobs.request(lambda: store.sha256_of(path)) == sha256:
            self.counter.add(num_bytes=file.size)
        else:
            url, pieces = self.dataset.url_of(file.path), partial(file.pieces, self.jobs.check)

            def request(call: Callable[[], T], num_bytes: int) -> T:
                return self.jobs.request(call, url, num_bytes)

            send_file(store, path, file.size, sha256, pieces, request, count=self.counter.add)
            file.require_unchanged()
        self.counter.add(files=1)

    def _send_batch(self, group: list[LocalFile]) -> None:
        """Send small files in one request. If it fails, each is sent by itself, which reports the error."""
        tar: list[bytes] = []
        changed: list[LocalFile] = []
        below = self.dataset.prefix.partition("/")[2]
        for file in group:
            data = b"".join(map(bytes, file.pieces(self.jobs.check)))
            sha256, path = hashlib.sha256(data).hexdigest(), below + file.path
            if not self._is_known(file, sha256):
                changed.append(file)
                tar += [pack_header(path, len(data), {SHA256_RECORD: sha256}), data, bytes(padding(len(data)))]
        if len(changed) > 1:
            body = b"".join([*tar, END_OF_ARCHIVE])
            del tar
            with contextlib.suppress(RemoteDataError):
                self.jobs.attempt(lambda: self.dataset.store.put_batch(self.dataset.name, body))
                self.counter.add(files=len(changed), num_bytes=sum(file.size for file in changed))
                return
        for file in changed:
            self._send_one(file, is_maybe_stored=len(changed) > 1)
