"""Plan a pull: compare the listing of the dataset with the folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...core.options import MIB
from ...errors import ObjectChangedError, ObjectNotFoundError, StorageError
from ...storage.dataset_service.protocol import path_problem
from ..client.connect import DatasetFile
from .destination import DestinationFolder, FileStatus, FolderSnapshot
from .job_pool import Job, JobPool
from .local_files import hash_rest
from .names import folders_of, is_reserved
from .progress import TransferCounter
from .pull_state import Pulled

_SHA256 = re.compile("[0-9a-f]{64}")


class Plan(NamedTuple):
    """Files that a pull keeps, fetches and removes.

    Args:
        kept: files with the right content, and the state to save of them.
        fetched: files to fetch.
        obsolete: files that an earlier pull wrote and that the dataset no longer has.
        foreign: files and links that were not pulled.
    """

    kept: dict[str, Pulled]
    fetched: dict[str, DatasetFile]
    obsolete: list[str]
    foreign: list[str]


def require_safe_paths(listed: dict[str, DatasetFile], url: str) -> None:
    """Require that the paths of a listing stay inside the folder and can exist together.

    Raises:
        StorageError: if they do not.
    """
    for path, file in listed.items():
        wrong = path_problem(path)
        if wrong is None and is_reserved(path.rpartition("/")[2]):
            wrong = "has a name that is reserved for pull"
        if wrong is None and any(folder in listed for folder in folders_of(path)):
            wrong = "is in a folder that is also listed as a file"
        if wrong is None and (file.size < 0 or not _SHA256.fullmatch(file.sha256)):
            wrong = f"has {file.size} bytes and SHA-256 {file.sha256!r}"
        if wrong is not None:
            raise StorageError(
                f"{url}: the service lists a path that cannot be pulled, {path!r}: it {wrong}. Nothing was written; "
                "rename it in the dataset.",
                url=url,
            )


def make_plan(
    listed: dict[str, DatasetFile],
    pulled: dict[str, Pulled],
    snapshot: FolderSnapshot,
    destination: DestinationFolder,
    pool: JobPool,
    counter: TransferCounter,
) -> Plan:
    """Compare the listing with the folder. A file of the right size is hashed unless an earlier pull wrote it.

    Args:
        listed: files of the dataset.
        pulled: files that earlier pulls wrote.
        snapshot: of the folder.
        destination: the folder.
        pool: runs the hashing.
        counter: counts the files that need not be fetched.
    """
    obsolete = [
        path
        for path, found in snapshot.files.items()
        if path not in listed and path in pulled and pulled[path].is_removable(found)
    ]
    removed = set(obsolete)
    foreign = [path for path in snapshot.files if path not in listed and path not in removed]
    foreign += snapshot.others  # including those with a path of the listing
    plan = Plan({}, {}, sorted(obsolete), sorted(foreign))
    unsure: list[tuple[str, FileStatus]] = []
    for path, file in sorted(listed.items()):
        found, known = snapshot.files.get(path), pulled.get(path)
        if found is None or found.size != file.size:
            plan.fetched[path] = file
        elif known is None or not known.is_unchanged(found):
            unsure.append((path, found))
        elif known.sha256 == file.sha256:
            plan.kept[path] = known._replace(etag=file.etag)
            counter.add_unchanged(file.size)
        else:
            plan.fetched[path] = file
    counter.report()
    pool.run(_comparisons(unsure, listed, plan, destination, pool.check, counter), counter.report)
    return plan


def _comparisons(
    unsure: Iterable[tuple[str, FileStatus]],
    listed: dict[str, DatasetFile],
    plan: Plan,
    destination: DestinationFolder,
    check: Callable[[], object],
    counter: TransferCounter,
) -> Iterable[Job]:
    def compare(path: str, found: FileStatus) -> Iterable[Job]:
        file = listed[path]
        try:
            with destination.open_for_reading(path) as descriptor:
                digest = hash_rest(descriptor, check)
        except (ObjectNotFoundError, ObjectChangedError):
            digest = ""
        if digest == file.sha256:
            plan.kept[path] = Pulled(found.size, found.mtime_ns, file.sha256, file.etag)
            counter.add_unchanged(file.size)
        else:
            plan.fetched[path] = file
        return ()

    return (Job(MIB, lambda path=path, found=found: compare(path, found)) for path, found in unsure)  # type: ignore[misc]


def require_free_paths(
    plan: Plan, snapshot: FolderSnapshot, destination: DestinationFolder, *, removed: set[str]
) -> None:
    """Require that no other file, folder or link has a path that is needed.

    Args:
        plan: files to fetch and to keep.
        snapshot: of the folder before.
        destination: for the message.
        removed: files and folders of the snapshot that were removed since.

    Raises:
        StorageError: for a file or link where a folder is needed, or a folder or link where a file is needed.
    """
    for path in [*plan.fetched, *plan.kept]:
        blocking = [path] if path in snapshot.others or path in snapshot.folders - removed else []
        blocking += [folder for folder in folders_of(path) if folder in snapshot.files or folder in snapshot.others]
        for name in blocking:
            if name not in removed:
                what = "a folder" if name in snapshot.folders else "a file" if name in snapshot.files else "a link"
                raise StorageError(
                    f"{destination.absolute_path(name)} is {what}, and in the way of {path!r}. Links are not followed, "
                    "and files that were not pulled are not removed: move it, or pass delete=True.",
                    url=destination.absolute_path(name),
                )
