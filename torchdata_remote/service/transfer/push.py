"""``push``: a folder into a service's data set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ...core.options import RetryPolicy
from ...fetch.listing.source_argument import url_of
from .job_pool import Job, JobPool
from .local_files import files_of
from .names import folders_of, is_reserved
from .progress import OnProgress, TransferCounter, Transferred
from .remote_folder import RemoteFolder
from .upload import PART_BYTES, Uploads


def push(
    source_folder: str | os.PathLike[str],
    url: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    max_in_flight: int = 16,
    on_progress: OnProgress | None = None,
    delete: bool = False,
    _part_bytes: int = PART_BYTES,
) -> Transferred:
    """Copy a folder's files into a data set of a service; only what it does not have already, by SHA-256.

    A push that was stopped goes on when it is asked again: small files that arrived are not sent again, nor are
    finished parts (16 MiB) of large ones. Every file appears whole or not at all, after the service has compared
    its digest. At most ``max_in_flight`` times 16 MiB, and 256 MiB, are held in memory.

    Args:
        source_folder: with all that is below it. Links that stay inside are followed.
        url: ``datasets://host:port/name``, or a folder in it. The data set is made if it is not there.
        storage_options: ``token`` and ``secure``, see :class:`StorageOptions`.
        retry: how long requests that fail for a passing reason are repeated; ``None`` takes the defaults.
        max_in_flight: requests under way at once, each in a thread of its own.
        on_progress: called in this thread, with :class:`TransferProgress`, after each file or part.
        delete: whether files of the data set (or of its folder) that the source does not have are removed.

    Returns:
        Transferred: what was sent, what was there, what was removed.

    Raises:
        UrlError: if ``url`` is not one of a service's data set.
        EmptyListingError: if the source has no files.
        ObjectChangedError: if a file changed while it was sent.
        StorageError: for a link that leads out of the folder, what is neither file nor folder, a name that a data set
            cannot have, or what the service refuses.

    Example:
        >>> push("/data/photos", "datasets://storage:8080/photos")  # doctest: +SKIP
        Transferred(num_files=2000, num_bytes=188000000, num_unchanged=0, num_removed=0, num_foreign=0, elapsed_s=1.9)
    """
    retry = retry or RetryPolicy()
    jobs = JobPool(max_in_flight, retry, part_bytes=_part_bytes)
    tally = TransferCounter(on_progress)
    remote = RemoteFolder(url_of(url, of="push"), storage_options, retry)
    files = files_of(url_of(source_folder, of="push"))
    tally.expect(len(files), sum(file.size for file in files))
    remote.create()
    there = remote.list()
    wanted = {file.path for file in files}
    foreign = sorted(path for path in there if path not in wanted and not is_reserved(path.rpartition("/")[2]))
    with jobs as crew:
        first = _in_the_way(foreign, wanted) if delete else set()
        crew.do(_removals(first, remote, crew, tally), tally.tell)
        uploads = Uploads(remote, {path: file.sha256 for path, file in there.items()}, crew, tally, _part_bytes)
        crew.do((uploads.job(file) for file in files), tally.tell)
        if delete:  # what is new is there before what is old goes
            crew.do(_removals((path for path in foreign if path not in first), remote, crew, tally), tally.tell)
    return tally.result(num_foreign=0 if delete else len(foreign))


def _in_the_way(foreign: Iterable[str], wanted: set[str]) -> set[str]:
    """Files whose name a folder needs, or that lie in a folder whose name a file needs."""
    folders = {folder for path in wanted for folder in folders_of(path)}
    return {path for path in foreign if path in folders or not wanted.isdisjoint(folders_of(path))}


def _removals(paths: Iterable[str], remote: RemoteFolder, crew: JobPool, tally: TransferCounter) -> Iterable[Job]:
    def remove(path: str) -> Iterable[Job]:
        crew.request(lambda: remote.store.delete(remote.path(path)))
        tally.removed()
        return ()

    return (Job(0, lambda path=path: remove(path)) for path in paths)  # type: ignore[misc]
