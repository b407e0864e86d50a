"""Clean up in the background, at the start and every hour: finish or remove what a killed service left."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator

import anyio

from ...errors import RemoteDataError, ServiceError
from ...storage import Entry, LocalStore
from .blocking import run_blocking
from .context import ServiceContext
from .datasets.archives import COMMITTED
from .datasets.dataset_root import WORK_FOLDER
from .problems import Problem
from .recovery import UnfinishedArchive
from .stopping import ServiceStoppedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_INTERVAL_S = 3600.0
_FIRST_PAUSE_S = 30.0  # doubled while archives are unfinished, such as on a full disk: each attempt reads them
_FOREIGN_LEFTOVER_AGE_S = 86_400.0  # in a bucket, where another service may still be writing
_MAX_FOLDERS = 100_000

_log = logging.getLogger("torchdata_remote")


@contextlib.contextmanager
def exclusive_lock(context: ServiceContext) -> Iterator[None]:
    """Lock a local root, so that incomplete files in it are leftovers, or of this process.

    Raises:
        ServiceError: if another process holds the lock, for a root that cannot be written to, or on Windows.
    """
    root = context.root
    if not root.is_local:
        yield
        return
    if fcntl is None:
        raise ServiceError(f"{root.url}: a local root needs file locks (flock), which Windows lacks: serve a bucket.")
    path = root.work_folder("")[:-1] + "serving.lock"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        opened = open(path, "a")  # noqa: SIM115  # closed by the block below
    except OSError as error:
        raise ServiceError(
            f"{root.url} cannot be written to: {error}. Let the service's user write there, or serve another folder.",
            url=root.url,
        ) from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServiceError(
                f"{root.url} is served by another process. End that one, or serve another folder.", url=root.url
            ) from None
        yield


class Maintenance:
    """What a killed service left in a root.

    A local root is listed here, before the first request is accepted, so nothing of a running request is taken for a
    leftover. All else is done in :meth:`run`, while requests are served.

    Args:
        context: of the service, which holds the lock of the root.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context, self._start_s = context, time.time()
        self._unfinished: list[UnfinishedArchive] = []
        self._leftovers: list[str] = []
        self._is_searched = False
        if context.root.is_local:
            self._attempt(lambda: self._look(before_s=math.inf))

    async def run(self) -> None:
        """Repeat :meth:`step`. An error is logged, and no reason to end the service."""
        pause_s = _FIRST_PAUSE_S
        while True:
            await run_blocking(self.step, self._context.lanes.maintaining)
            pause_s = min(2 * pause_s, _INTERVAL_S) if self._unfinished else _INTERVAL_S
            await anyio.sleep(pause_s)

    def step(self) -> None:
        """Finish archives, remove leftovers and abandoned uploads. What is done stays done if the service stops."""
        with contextlib.suppress(ServiceStoppedError):
            for work in (self._remove_leftovers, self._finish_archives, self._context.uploads.remove_abandoned):
                self._attempt(work)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (RemoteDataError, OSError, Problem) as error:
            _log.warning("A clean-up of %s failed, and will be repeated: %s", self._context.root.url, error)
        except ServiceStoppedError:
            raise
        except Exception:  # noqa: BLE001  # a defect must not end a service that can still serve
            _log.exception("A clean-up of %s failed", self._context.root.url)

    def _look(self, before_s: float) -> None:
        """Find folders of requests that were killed: archives to be finished, and temporary files."""
        root, known = self._context.root, {one.aside for one in self._unfinished}
        for kind in ("unpacking", "unnamed"):
            above = root.work_folder(kind)
            found: dict[str, dict[str, Entry]] = {aside: {} for aside in self._folders(above)}
            for entry in root.files(above):
                folder, _, name = entry.path.rpartition("/")
                found.setdefault(f"{above}{folder}/", {})[name] = entry._replace(path=above + entry.path)
            for aside, files in found.items():
                if aside in known or any((entry.modified_s or 0.0) >= before_s for entry in files.values()):
                    continue  # of another service on the same bucket, which may be at work
                self._attempt(lambda aside=aside, files=files: self._sort(aside, files))  # type: ignore[misc]

    def _folders(self, above: str) -> Iterator[str]:
        """List folders of requests that may be empty: two levels below a folder, the first is a dataset's name."""
        root = self._context.root
        if root.is_local:
            for folder in root.page(above, "", recursive=False, after="", limit=_MAX_FOLDERS).folders:
                for inside in root.page(above + folder, "", recursive=False, after="", limit=_MAX_FOLDERS).folders:
                    yield above + folder + inside

    def _sort(self, aside: str, files: dict[str, Entry]) -> None:
        """Decide whether files of an archive are missing in a dataset, or a folder is a leftover."""
        archive, note = files.get("archive"), files.get(COMMITTED)
        if archive is None or note is None:
            self._leftovers.append(aside)
            return
        name = b"".join(self._context.root.chunks(note)).decode("utf-8", "replace")
        try:
            self._unfinished.append(UnfinishedArchive(self._context, name, aside, archive, note))
        except Problem as error:  # the dataset was removed
            _log.warning("Dropped an archive that was being unpacked: %s", error.message)
            self._leftovers.append(aside)

    def _remove_leftovers(self) -> None:
        context, root = self._context, self._context.root
        if not root.is_local:
            self._look(time.time() - _FOREIGN_LEFTOVER_AGE_S)
        if not self._is_searched:
            everything = root.work_folder("")[: -len(WORK_FOLDER) - 1]
            if isinstance(root.store, LocalStore):
                root.store.remove_old_leftovers(everything, self._start_s, context.stopping)
            else:
                root.store.remove_old_leftovers(everything, self._start_s - _FOREIGN_LEFTOVER_AGE_S)
            context.stopping.check()
            self._is_searched = True
        for aside in context.stopping.during(list(self._leftovers)):
            root.store.remove_folder(aside)
            self._leftovers.remove(aside)

    def _finish_archives(self) -> None:
        for unfinished in self._context.stopping.during(list(self._unfinished)):
            if unfinished.finish():
                self._context.root.store.remove_folder(unfinished.aside)
                self._unfinished.remove(unfinished)
