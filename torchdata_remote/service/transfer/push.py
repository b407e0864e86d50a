"""``push``: copy a local folder into a dataset of a service."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ...core import arguments as check
from ...core.arguments import explained, whole
from ...core.options import RetryPolicy, policy_of
from ...fetch.listing.source_argument import url_of
from .batch_groups import BATCH_BYTES
from .job_pool import Job, JobPool
from .local_files import files_of
from .names import folders_of, is_reserved
from .progress import OnProgress, TransferCounter, Transferred
from .remote_folder import RemoteFolder, local_folder
from .upload import PART_BYTES, Uploads
from .upload_batches import UploadBatches


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
    _part_bytes: int = PART_BYTES,
    _batch_bytes: int = BATCH_BYTES,
) -> Transferred:
    """Copy a folder into a dataset of a service, except for files that it already has, by SHA-256.

    Small files are sent many in one request, others in one request each, and files of more than 256 MiB in several. An
    interrupted push is resumed by the same call: files that were stored, and of files of more than 32 MiB what arrived,
    are not sent again. A file becomes visible as a whole, after the service has compared its digest. At most
    ``max_in_flight`` times 16 MiB, and 256 MiB, are held in memory.

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
    max_in_flight = whole("max_in_flight", max_in_flight)
    jobs = JobPool(max_in_flight, retry, part_bytes=_part_bytes)
    with TransferCounter(on_progress, "push", shown=progress) as counter:
        remote = RemoteFolder(url_of(url, of="push"), storage_options, retry)
        files = files_of(local)
        counter.set_total(len(files), sum(file.size for file in files))
        remote.create()
        existing = remote.list()
        wanted = {file.path for file in files}
        foreign = sorted(path for path in existing if path not in wanted and not is_reserved(path.rpartition("/")[2]))
        with jobs as pool:
            first = _blocking(foreign, wanted) if delete else set()
            pool.run(_removals(first, remote, pool, counter), counter.report)
            uploads = Uploads(
                remote, {path: file.sha256 for path, file in existing.items()}, pool, counter, _part_bytes
            )
            pool.run(UploadBatches(uploads, _batch_bytes).jobs(files, max_in_flight), counter.report)
            if delete:  # after the uploads, so that the dataset never lacks a file that was only renamed
                pool.run(
                    _removals((path for path in foreign if path not in first), remote, pool, counter), counter.report
                )
    return counter.result(num_foreign=0 if delete else len(foreign))


def _blocking(foreign: Iterable[str], wanted: set[str]) -> set[str]:
    """Return files with the path of a needed folder, or in a folder with the path of a needed file."""
    folders = {folder for path in wanted for folder in folders_of(path)}
    return {path for path in foreign if path in folders or not wanted.isdisjoint(folders_of(path))}


def _removals(paths: Iterable[str], remote: RemoteFolder, pool: JobPool, counter: TransferCounter) -> Iterable[Job]:
    def remove(path: str) -> Iterable[Job]:
        pool.request(lambda: remote.store.delete(remote.path(path)), remote.url_of(path))
        counter.add_removed()
        return ()

    return (Job(0, lambda path=path: remove(path)) for path in paths)  # type: ignore[misc]
