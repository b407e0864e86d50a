"""``pull``: copy a dataset of a service into a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ...core import arguments as check
from ...core.arguments import explained, whole
from ...core.options import RetryPolicy, policy_of
from ...errors import AccessDeniedError, EmptyListingError, StorageError
from ...fetch.listing.source_argument import url_of
from .batch_groups import BATCH_BYTES
from .destination import DestinationFolder, FolderSnapshot
from .download import Downloads
from .download_batches import DownloadBatches
from .job_pool import Job, JobPool
from .names import partial_name, ranges_name
from .os_errors import free_bytes, translate_os_errors
from .partial_file import PartialFile
from .progress import OnProgress, TransferCounter, Transferred
from .pull_lock import pull_lock
from .pull_plan import Plan, make_plan, require_free_paths, require_safe_paths
from .pull_state import Pulled, load_state, save_state
from .remote_folder import RemoteFolder, local_folder
from .upload import PART_BYTES


@explained
def pull(
    url: str,
    folder: str | os.PathLike[str],
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
    """Copy a dataset of a service into a folder, except for files that are already there, by SHA-256.

    Each file is verified by its digest and then renamed into place, so the folder can be read meanwhile. Of several
    pulls into one folder, by processes or containers that share it, one works and the others wait, and then find a
    complete folder. An interrupted pull is resumed by the same call, also within large files. A file that an earlier
    pull wrote and that the dataset no longer has is removed; the folder's ``.torchdata_remote-pull.json`` lists them. A
    complete folder may be read-only.

    Args:
        url: ``datasets://host:port/name``, or a folder in it.
        folder: local; created if it does not exist. Links below it are never followed.
        storage_options: ``token`` and ``secure``, see :class:`StorageOptions`.
        retry: of requests that fail temporarily; ``None`` takes the defaults.
        max_in_flight: concurrent requests, each in a thread of its own.
        on_progress: called in this thread, with :class:`TransferProgress`, after each file or part; ``None`` shows a
            progress bar.
        progress: show it, if standard error is a terminal.
        delete: whether files that were not pulled are removed too.

    Returns:
        Transferred: numbers of files and bytes.

    Raises:
        UrlError: if ``url`` is not a dataset of a service.
        ObjectNotFoundError: if there is no such dataset.
        EmptyListingError: if it has no files. Nothing is removed then.
        ObjectExistsError: if another dataset was pulled into the folder.
        StorageError: for a full disk, a digest that is wrong twice, a listing with paths outside the folder, or a file
            in the folder that was not pulled and has a path of the dataset.

    Example:
        >>> pull("datasets://storage:8080/photos", "/datasets/photos")  # doctest: +SKIP
        Transferred(num_files=0, num_bytes=0, num_unchanged=2000, num_removed=0, num_foreign=0, elapsed_s=0.1)
    """
    retry, local = policy_of(retry), local_folder("folder", folder)
    check.function_or_none("on_progress", on_progress, example="print")
    delete, progress = check.flag("delete", delete), check.flag("progress", progress)
    max_in_flight = whole("max_in_flight", max_in_flight)
    jobs = JobPool(max_in_flight, retry, part_bytes=_part_bytes)
    counter = TransferCounter(on_progress, "pull", shown=progress)
    remote = RemoteFolder(url_of(url, of="pull"), storage_options, retry)
    with DestinationFolder(local) as destination, pull_lock(destination), counter:
        listed = remote.list()
        if not listed:
            raise EmptyListingError(f"{remote.url}: there are no files to pull. Push some first.", url=remote.url)
        require_safe_paths(listed, remote.url)
        counter.set_total(len(listed), sum(file.size for file in listed.values()))
        before, snapshot = load_state(destination, remote.prefix), destination.snapshot()
        with jobs as pool:
            plan = make_plan(listed, before, snapshot, destination, pool, counter)
            obsolete = [*plan.obsolete, *(plan.foreign if delete else ())]
            if not destination.is_writable:
                _require_nothing_to_do(plan, obsolete, destination)
                return counter.result(num_foreign=len(plan.foreign))
            update = _FolderUpdate(remote, destination, pool, counter, before, plan, snapshot)
            downloads = Downloads(remote, destination, pool, retry, counter, _part_bytes, update.done)
            update.run(obsolete, DownloadBatches(downloads, _batch_bytes).jobs(plan.fetched, max_in_flight))
    return counter.result(num_foreign=0 if delete else len(plan.foreign))


def _require_nothing_to_do(plan: Plan, obsolete: list[str], destination: DestinationFolder) -> None:
    if plan.fetched or obsolete:
        raise AccessDeniedError(
            f"{destination.folder} is not writable, and not complete: {len(plan.fetched):,} files are to be "
            f"fetched and {len(obsolete):,} to be removed.",
            url=destination.folder,
        )


class _FolderUpdate:
    """Executes a plan.

    Args:
        remote: source of the files.
        destination: folder to update.
        pool: runs the jobs.
        counter: counts files and bytes.
        before: what earlier pulls wrote.
        plan: to execute.
        snapshot: of the folder before.
    """

    def __init__(
        self,
        remote: RemoteFolder,
        destination: DestinationFolder,
        pool: JobPool,
        counter: TransferCounter,
        before: dict[str, Pulled],
        plan: Plan,
        snapshot: FolderSnapshot,
    ) -> None:
        self._remote, self._destination, self._pool, self._counter = remote, destination, pool, counter
        self._plan, self._snapshot, self._before = plan, snapshot, before
        self._now = {  # saved before any file is fetched, so that after a kill they are known to be pulled
            **plan.kept,
            **{path: Pulled(file.size, None, file.sha256, file.etag) for path, file in plan.fetched.items()},
        }
        self._kept_partial: set[str] = set()
        self._appeared: list[str] = []  # files that were removed from the dataset after they were listed

    def run(self, obsolete: list[str], jobs: Iterable[Job]) -> None:
        """Remove, then fetch. The saved state is correct at any time.

        Args:
            obsolete: files to remove.
            jobs: fetch the files of the plan, and call :meth:`done`.
        """
        missing_bytes = self._missing_bytes()
        for path in self._snapshot.partial - self._kept_partial:
            self._destination.remove(path)
        removed = self._remove(obsolete)
        require_free_paths(self._plan, self._snapshot, self._destination, removed=removed)
        self._require_space(missing_bytes)
        if self._now != self._before:
            save_state(self._destination, self._remote.prefix, self._now)
        if not self._plan.fetched:
            return
        try:
            self._pool.run(jobs, self._counter.report)
            self._remove(self._appeared)
        finally:
            save_state(self._destination, self._remote.prefix, dict(self._now))

    def done(self, path: str, pulled: Pulled | None) -> None:
        """Note a file that was fetched, or, without its state, removed from the dataset."""
        if pulled is not None:
            self._now[path] = pulled
            return
        self._now.pop(path)
        if path in self._snapshot.files and path in self._before:
            self._appeared.append(path)

    def _missing_bytes(self) -> int:
        """Return the bytes to fetch, without the ranges that an earlier pull left."""
        num_bytes = 0
        for path, file in self._plan.fetched.items():
            folder = path.rpartition("/")[0]
            names = [
                f"{folder}/{name}" if folder else name
                for name in (partial_name(path, file.sha256), ranges_name(path, file.sha256))
            ]
            num_bytes += file.size
            if self._snapshot.partial.issuperset(names):
                self._kept_partial.update(names)
                existing = PartialFile(self._destination, names[0], names[1], file.size).ranges()
                num_bytes -= sum(end - start for start, end in set(existing))
        return num_bytes

    def _remove(self, obsolete: list[str]) -> set[str]:
        """Remove files; return them and the folders that became empty."""
        removed: set[str] = set()
        for path in obsolete:
            removed.update([path, *self._destination.remove(path)])
            self._counter.add_removed()
        return removed

    def _require_space(self, num_bytes: int) -> None:
        with translate_os_errors(self._destination.folder):
            free = free_bytes(self._destination.folder)
        if num_bytes > free:
            raise StorageError(
                f"{self._destination.folder}: {num_bytes:,} bytes are needed and {free:,} are free. Nothing was "
                "fetched: free some space and pull again.",
                url=self._destination.folder,
            )
