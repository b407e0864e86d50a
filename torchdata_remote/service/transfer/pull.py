"""``pull``: a service's data set into a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...core.options import RetryPolicy
from ...errors import AccessDeniedError, EmptyListingError, StorageError
from ...fetch.listing.source_argument import url_of
from .destination import DestinationFolder, FolderSnapshot
from .download import Downloads
from .job_pool import JobPool
from .names import partial_name, ranges_name
from .os_errors import faults_at, free_bytes
from .partial_file import PartialFile
from .progress import OnProgress, TransferCounter, Transferred
from .pull_lock import pull_lock
from .pull_plan import Plan, make_plan, require_room, require_safe
from .pull_state import Pulled, load_state, save_state
from .remote_folder import RemoteFolder
from .upload import PART_BYTES


def pull(
    url: str,
    folder: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    max_in_flight: int = 16,
    on_progress: OnProgress | None = None,
    delete: bool = False,
    _part_bytes: int = PART_BYTES,
) -> Transferred:
    """Copy a data set of a service into a folder; only what is not there already, by SHA-256.

    Files appear whole and compared with their digest, by a rename, so that others may read the folder meanwhile. Of
    several pulls into one folder, by processes or containers that share it, one is at work and the others wait; then
    they find all there. A pull that was stopped goes on when it is asked again, also within large files. A file that
    an earlier pull wrote and that the data set no longer has is removed; the folder's ``.torchdata_remote-pull.json``
    remembers which these are. A folder that is complete may be read-only.

    Args:
        url: ``datasets://host:port/name``, or a folder in it.
        folder: local; made if it is not there. No link below it is followed.
        storage_options: ``token`` and ``secure``, see :class:`StorageOptions`.
        retry: how long requests that fail for a passing reason are repeated; ``None`` takes the defaults.
        max_in_flight: requests under way at once, each in a thread of its own.
        on_progress: called in this thread, with :class:`TransferProgress`, after each file or part.
        delete: whether files that nobody pulled are removed too.

    Returns:
        Transferred: what was fetched, what was there, what was removed.

    Raises:
        UrlError: if ``url`` is not one of a service's data set.
        ObjectNotFoundError: if there is no such data set.
        EmptyListingError: if it has no files. Nothing is removed then.
        ObjectExistsError: if another data set was pulled into the folder.
        StorageError: for a full disk, a digest that is wrong twice, a listing that would lead out of the folder, or
            what is in the way there.

    Example:
        >>> pull("datasets://storage:8080/photos", "/datasets/photos")  # doctest: +SKIP
        Transferred(num_files=0, num_bytes=0, num_unchanged=2000, num_removed=0, num_foreign=0, elapsed_s=0.1)
    """
    retry = retry or RetryPolicy()
    jobs = JobPool(max_in_flight, retry, part_bytes=_part_bytes)
    tally = TransferCounter(on_progress)
    remote = RemoteFolder(url_of(url, of="pull"), storage_options, retry)
    with DestinationFolder(url_of(folder, of="pull")) as target, pull_lock(target):
        listed = remote.list()
        if not listed:
            raise EmptyListingError(f"{remote.url}: there are no files to pull. Push some first.", url=remote.url)
        require_safe(listed, remote.url)
        tally.expect(len(listed), sum(file.size for file in listed.values()))
        before, survey = load_state(target, remote.prefix), target.survey()
        with jobs as crew:
            plan = make_plan(listed, before, survey, target, crew, tally)
            going = [*plan.gone, *(plan.foreign if delete else ())]
            if not target.is_writable:
                _require_complete(plan, going, target)
                return tally.result(num_foreign=len(plan.foreign))
            _Pull(remote, target, crew, retry, tally, _part_bytes, before, plan, survey).run(going)
    return tally.result(num_foreign=0 if delete else len(plan.foreign))


def _require_complete(plan: Plan, going: list[str], target: DestinationFolder) -> None:
    if plan.fetched or going:
        raise AccessDeniedError(
            f"{target.folder} cannot be written to, and is not complete: {len(plan.fetched):,} files are to be fetched "
            f"and {len(going):,} to be removed.",
            url=target.folder,
        )


class _Pull:
    """What changes the folder.

    Args:
        remote: where from.
        target: where to.
        crew: does the work.
        retry: how long faults are repeated.
        tally: counts it.
        part_bytes: files of more than two parts are fetched in parts.
        before: what earlier pulls wrote.
        plan: what is to be done.
        survey: what was in the folder.
    """

    def __init__(
        self,
        remote: RemoteFolder,
        target: DestinationFolder,
        crew: JobPool,
        retry: RetryPolicy,
        tally: TransferCounter,
        part_bytes: int,
        before: dict[str, Pulled],
        plan: Plan,
        survey: FolderSnapshot,
    ) -> None:
        self._remote, self._target, self._crew, self._tally = remote, target, crew, tally
        self._downloads = Downloads(remote, target, crew, retry, tally, part_bytes, self._done)
        self._plan, self._survey, self._before = plan, survey, before
        self._now = {  # before any of them is there, so that they are known for ours after a kill
            **plan.kept,
            **{path: Pulled(file.size, None, file.sha256, file.etag) for path, file in plan.fetched.items()},
        }
        self._kept_partial: set[str] = set()
        self._left: list[str] = []  # files that went there after they were listed

    def run(self, going: list[str]) -> None:
        """Remove, then fetch; what is written down is true at any time.

        Args:
            going: files to remove.
        """
        missing_bytes = self._missing_bytes()
        for path in self._survey.partial - self._kept_partial:
            self._target.remove(path)
        removed = self._remove(going)
        require_room(self._plan, self._survey, self._target, removed=removed)
        self._require_space(missing_bytes)
        if self._now != self._before:
            save_state(self._target, self._remote.prefix, self._now)
        if not self._plan.fetched:
            return
        jobs = (self._downloads.job(path, file) for path, file in self._plan.fetched.items())
        try:
            self._crew.do(jobs, self._tally.tell)
            self._remove(self._left)
        finally:
            save_state(self._target, self._remote.prefix, dict(self._now))

    def _done(self, path: str, pulled: Pulled | None) -> None:
        if pulled is not None:
            self._now[path] = pulled
            return
        self._now.pop(path)
        if path in self._survey.files and path in self._before:
            self._left.append(path)

    def _missing_bytes(self) -> int:
        """Of all files that are to be fetched, without the ranges that an earlier pull left."""
        num_bytes = 0
        for path, file in self._plan.fetched.items():
            folder = path.rpartition("/")[0]
            names = [
                f"{folder}/{name}" if folder else name
                for name in (partial_name(path, file.sha256), ranges_name(path, file.sha256))
            ]
            num_bytes += file.size
            if self._survey.partial.issuperset(names):
                self._kept_partial.update(names)
                there = PartialFile(self._target, names[0], names[1], file.size).ranges()
                num_bytes -= sum(end - start for start, end in set(there))
        return num_bytes

    def _remove(self, going: list[str]) -> set[str]:
        """Files that have to go; returns what is gone, folders too."""
        removed: set[str] = set()
        for path in going:
            removed.update([path, *self._target.remove(path)])
            self._tally.removed()
        return removed

    def _require_space(self, num_bytes: int) -> None:
        with faults_at(self._target.folder):
            free = free_bytes(self._target.folder)
        if num_bytes > free:
            raise StorageError(
                f"{self._target.folder}: {num_bytes:,} bytes are needed and {free:,} are free. Nothing was fetched: "
                "make room and ask again.",
                url=self._target.folder,
            )
