"""What is done before the first request, and every hour: what a killed service left is finished or removed."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator

from ...errors import ServiceError, ShardReadError
from .archives import COMMITTED, unpack
from .context import ServiceContext
from .dataset_root import HIDDEN
from .problems import Problem

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

EVERY_S = 3600.0
_FOREIGN_LEFTOVERS_S = 86_400.0  # in a bucket, where another service may be writing

_log = logging.getLogger("torchdata_remote")


@contextlib.contextmanager
def alone(hosting: ServiceContext) -> Iterator[None]:
    """Hold a local root, so that what is half written there is nobody else's.

    Raises:
        ServiceError: if another process holds it, or on Windows.
    """
    shelf = hosting.shelf
    if not shelf.is_local:
        yield
        return
    if fcntl is None:
        raise ServiceError(f"{shelf.root}: a local root needs file locks (flock), which Windows lacks: serve a bucket.")
    path = shelf.hidden("")[:-1] + "serving.lock"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServiceError(
                f"{shelf.root} is served by another process. End that one, or serve another folder.", url=shelf.root
            ) from None
        yield


def begin(hosting: ServiceContext) -> None:
    """Finish what was being unpacked, and remove what was being written when the last service ended."""
    shelf = hosting.shelf
    before_s = time.time() if shelf.is_local else time.time() - _FOREIGN_LEFTOVERS_S
    if shelf.is_local:
        shelf.store.remove_folder(shelf.hidden("unnamed"))
    _finish_unpacking(hosting, before_s)
    shelf.store.remove_old_leftovers(shelf.hidden("")[: -len(HIDDEN) - 1], before_s)
    tidy(hosting)


def tidy(hosting: ServiceContext) -> None:
    """Forget uploads that nobody goes on with; in a bucket, also finish what another service left."""
    for what in ("uploads", "unnamed"):
        _forget_old(hosting, hosting.shelf.hidden(what))
    if not hosting.shelf.is_local:
        _finish_unpacking(hosting, time.time() - _FOREIGN_LEFTOVERS_S)


def _forget_old(hosting: ServiceContext, above: str) -> None:
    """Remove the folders of a folder to which nothing came for too long."""
    newest: dict[str, float] = {}
    for entry in hosting.shelf.files(above):
        folder = entry.path.partition("/")[0]
        newest[folder] = max(newest.get(folder, 0.0), entry.modified_s or time.time())
    for folder, modified_s in newest.items():
        if modified_s < time.time() - hosting.limits.upload_lifetime_s:
            hosting.shelf.store.remove_folder(f"{above}{folder}/")


def _finish_unpacking(hosting: ServiceContext, before_s: float) -> None:
    shelf = hosting.shelf
    above = shelf.hidden("unpacking")
    found = {entry.path: entry for entry in shelf.files(above)}
    for aside in sorted({path.partition("/")[0] for path in found}):
        archive, note = found.get(f"{aside}/archive"), found.get(f"{aside}/{COMMITTED}")
        if archive is not None and (archive.modified_s or 0.0) >= before_s:
            continue  # in a bucket, of another service
        if archive is not None and note is not None:
            name = b"".join(shelf.chunks(note._replace(path=above + note.path))).decode("utf-8", "replace")
            archive = archive._replace(path=above + archive.path)
            try:
                unpack(shelf, hosting.digests, archive, shelf.folder(name), name, hosting.limits)
            except (Problem, ShardReadError) as error:  # the dataset is gone, or something is in a file's way
                _log.warning("an archive for %s, which had begun to be unpacked, is dropped: %s", name, error)
        shelf.store.remove_folder(f"{above}{aside}/")
