"""Clean up at the start and every hour: finish or remove what a killed service left."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator

from ...errors import ServiceError, ShardReadError
from .archives import COMMITTED, unpack
from .context import ServiceContext
from .dataset_root import WORK_FOLDER
from .problems import Problem

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

INTERVAL_S = 3600.0
_FOREIGN_LEFTOVER_AGE_S = 86_400.0  # in a bucket, where another service may still be writing

_log = logging.getLogger("torchdata_remote")


@contextlib.contextmanager
def exclusive_lock(context: ServiceContext) -> Iterator[None]:
    """Lock a local root, so that incomplete files in it can only be leftovers.

    Raises:
        ServiceError: if another process holds the lock, or on Windows.
    """
    root = context.root
    if not root.is_local:
        yield
        return
    if fcntl is None:
        raise ServiceError(f"{root.url}: a local root needs file locks (flock), which Windows lacks: serve a bucket.")
    path = root.work_folder("")[:-1] + "serving.lock"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServiceError(
                f"{root.url} is served by another process. End that one, or serve another folder.", url=root.url
            ) from None
        yield


def recover(context: ServiceContext) -> None:
    """Finish archives that were being unpacked, and remove incomplete files, when the service starts."""
    root = context.root
    before_s = time.time() if root.is_local else time.time() - _FOREIGN_LEFTOVER_AGE_S
    if root.is_local:
        root.store.remove_folder(root.work_folder("unnamed"))
    _finish_unpacking(context, before_s)
    root.store.remove_old_leftovers(root.work_folder("")[: -len(WORK_FOLDER) - 1], before_s)
    clean_up(context)


def clean_up(context: ServiceContext) -> None:
    """Remove abandoned uploads; in a bucket, also finish archives of other services."""
    for kind in ("uploads", "unnamed"):
        _remove_old(context, context.root.work_folder(kind))
    if not context.root.is_local:
        _finish_unpacking(context, time.time() - _FOREIGN_LEFTOVER_AGE_S)


def _remove_old(context: ServiceContext, above: str) -> None:
    """Remove the folders in a folder whose newest file is too old."""
    newest: dict[str, float] = {}
    for entry in context.root.files(above):
        folder = entry.path.partition("/")[0]
        newest[folder] = max(newest.get(folder, 0.0), entry.modified_s or time.time())
    for folder, modified_s in newest.items():
        if modified_s < time.time() - context.limits.upload_lifetime_s:
            context.root.store.remove_folder(f"{above}{folder}/")


def _finish_unpacking(context: ServiceContext, before_s: float) -> None:
    root = context.root
    above = root.work_folder("unpacking")
    found = {entry.path: entry for entry in root.files(above)}
    for temporary in sorted({path.partition("/")[0] for path in found}):
        archive, note = found.get(f"{temporary}/archive"), found.get(f"{temporary}/{COMMITTED}")
        if archive is not None and (archive.modified_s or 0.0) >= before_s:
            continue  # may belong to another service on the same bucket
        if archive is not None and note is not None:
            name = b"".join(root.chunks(note._replace(path=above + note.path))).decode("utf-8", "replace")
            archive = archive._replace(path=above + archive.path)
            try:
                unpack(root, context.digests, archive, root.folder(name), name, context.limits)
            except (Problem, ShardReadError) as error:  # the dataset was removed, or a path is occupied
                _log.warning("dropped an archive for %s that was being unpacked: %s", name, error)
        root.store.remove_folder(f"{above}{temporary}/")
