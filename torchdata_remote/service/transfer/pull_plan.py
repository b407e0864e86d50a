"""What a pull has to do: what the listing says, against what is in the folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...core.options import MIB
from ...errors import ObjectChangedError, ObjectNotFoundError, StorageError
from ...storage.dataset_service.protocol import path_problem
from ..client.connect import DatasetFile
from .destination import DestinationFolder, FolderSnapshot, Found
from .job_pool import Job, JobPool
from .local_files import hash_rest
from .names import folders_of, is_reserved
from .progress import TransferCounter
from .pull_state import Pulled

_SHA256 = re.compile("[0-9a-f]{64}")


class Plan(NamedTuple):
    """What a pull has to do.

    Args:
        kept: files that have the right content, and what is to be remembered of them.
        fetched: files to fetch.
        gone: files that an earlier pull wrote and that the data set no longer has.
        foreign: what nobody pulled, links too.
    """

    kept: dict[str, Pulled]
    fetched: dict[str, DatasetFile]
    gone: list[str]
    foreign: list[str]


def require_safe(listed: dict[str, DatasetFile], url: str) -> None:
    """See that a listing names nothing that would lead out of a folder, or that cannot be in one together.

    Raises:
        StorageError: if it does.
    """
    for path, file in listed.items():
        wrong = path_problem(path)
        if wrong is None and is_reserved(path.rpartition("/")[2]):
            wrong = "has a name that pull keeps for itself"
        if wrong is None and any(folder in listed for folder in folders_of(path)):
            wrong = "lies in a folder that is also a file"
        if wrong is None and (file.size < 0 or not _SHA256.fullmatch(file.sha256)):
            wrong = f"has {file.size} bytes and SHA-256 {file.sha256!r}"
        if wrong is not None:
            raise StorageError(
                f"{url}: the service lists a path that cannot be pulled, {path!r}: it {wrong}. Nothing was written; "
                "rename it there.",
                url=url,
            )


def make_plan(
    listed: dict[str, DatasetFile],
    pulled: dict[str, Pulled],
    survey: FolderSnapshot,
    target: DestinationFolder,
    crew: JobPool,
    tally: TransferCounter,
) -> Plan:
    """Compare. Files that are not as an earlier pull left them are hashed, unless their size tells enough.

    Args:
        listed: files of the data set.
        pulled: by earlier pulls.
        survey: what is there.
        target: the folder.
        crew: hashes.
        tally: counts what need not be fetched.
    """
    gone = [
        path
        for path, found in survey.files.items()
        if path not in listed and path in pulled and pulled[path].may_go(found)
    ]
    going = set(gone)
    foreign = [path for path in survey.files if path not in listed and path not in going]
    foreign += survey.others  # also those under a name that is listed
    plan = Plan({}, {}, sorted(gone), sorted(foreign))
    unsure: list[tuple[str, Found]] = []
    for path, file in sorted(listed.items()):
        found, known = survey.files.get(path), pulled.get(path)
        if found is None or found.size != file.size:
            plan.fetched[path] = file
        elif known is None or not known.is_as_pulled(found):
            unsure.append((path, found))
        elif known.sha256 == file.sha256:
            plan.kept[path] = known._replace(etag=file.etag)
            tally.unchanged(file.size)
        else:
            plan.fetched[path] = file
    tally.tell()
    crew.do(_comparisons(unsure, listed, plan, target, crew.check, tally), tally.tell)
    return plan


def _comparisons(
    unsure: Iterable[tuple[str, Found]],
    listed: dict[str, DatasetFile],
    plan: Plan,
    target: DestinationFolder,
    check: Callable[[], object],
    tally: TransferCounter,
) -> Iterable[Job]:
    def compare(path: str, found: Found) -> Iterable[Job]:
        file = listed[path]
        try:
            with target.reading(path) as descriptor:
                digest = hash_rest(descriptor, check)
        except (ObjectNotFoundError, ObjectChangedError):
            digest = ""
        if digest == file.sha256:
            plan.kept[path] = Pulled(found.size, found.mtime_ns, file.sha256, file.etag)
            tally.unchanged(file.size)
        else:
            plan.fetched[path] = file
        return ()

    return (Job(MIB, lambda path=path, found=found: compare(path, found)) for path, found in unsure)  # type: ignore[misc]


def require_room(plan: Plan, survey: FolderSnapshot, target: DestinationFolder, *, removed: set[str]) -> None:
    """See that nothing is in the way of what is fetched.

    Args:
        plan: what is to be fetched.
        survey: what was there before.
        target: for the message.
        removed: files and folders of the survey that are gone by now.

    Raises:
        StorageError: for a file or link where a folder is needed, or a folder or link where a file is.
    """
    for path in [*plan.fetched, *plan.kept]:
        in_the_way = [path] if path in survey.others or path in survey.folders - removed else []
        in_the_way += [folder for folder in folders_of(path) if folder in survey.files or folder in survey.others]
        for name in in_the_way:
            if name not in removed:
                what = "a folder" if name in survey.folders else "a file" if name in survey.files else "a link"
                raise StorageError(
                    f"{target.place(name)} is {what}, and in the way of {path!r}. Links are not followed, and what "
                    "nobody pulled is not removed: move it, or pass delete=True.",
                    url=target.place(name),
                )
