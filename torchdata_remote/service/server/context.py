"""What all request handlers share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from ...core.options import StorageOptions
from ...core.threads.named_locks import NamedLocks
from ...errors import UrlError
from ...storage import LocalStore, open_store
from ...storage.bucket_objects import bucket_objects
from .bucket import RETRY, BucketRoot
from .folder import FolderRoot
from .limits import ServiceLimits
from .problems import Stopping
from .root import Root
from .threads import run_blocking

T = TypeVar("T")
_SUMMARY_S, _MAX_SUMMARIES = 60.0, 300  # files may also change without a request; a sheet of photographs has 250 kB


class Context:
    """The datasets of an application, with its limits and locks.

    Args:
        root: the datasets.
        limits: of requests.

    Attributes:
        stopping: set when the service stops.
        locks: of work that many requests share, such as a summary.
        uploads: locks of uploads in parts.
    """

    def __init__(self, root: Root, limits: ServiceLimits) -> None:
        self.root, self.limits = root, limits
        self.stopping, self.locks, self.uploads = Stopping(), NamedLocks(), NamedLocks()
        self._summaries: dict[tuple[str, str], tuple[float, Any]] = {}  # oldest first
        self._changes: dict[str, int] = {}  # of datasets that are being summarized

    @staticmethod
    def of(request: Request) -> Context:
        """Return the context of the application that handles a request."""
        context: Context = request.app.state.context
        return context

    async def summary(self, name: str, kind: str, compute: Callable[[], T]) -> T:
        """Return what is computed from a dataset, or was in the last minute, if no request has changed the dataset.

        Args:
            name: of the dataset.
            kind: of value.
            compute: takes seconds. It is called by one request at a time for each dataset.
        """
        async with self.locks.held_in_loop(("summary", name)):
            expired = [key for key, (end_s, _) in self._summaries.items() if end_s < time.monotonic()]
            for key in expired:
                del self._summaries[key]
            if (name, kind) in self._summaries:
                return self._summaries[name, kind][1]  # type: ignore[no-any-return]
            self._changes[name] = 0
            try:
                value = await run_blocking(compute, "look")
                if not self._changes[name]:
                    while len(self._summaries) >= _MAX_SUMMARIES:
                        del self._summaries[next(iter(self._summaries))]
                    self._summaries[name, kind] = time.monotonic() + _SUMMARY_S, value
            finally:
                del self._changes[name]
            return value

    def changed(self, name: str) -> None:
        """Forget what was computed from a dataset."""
        if name in self._changes:
            self._changes[name] += 1
        for key in [key for key in self._summaries if key[0] == name]:
            del self._summaries[key]


def open_root(url: str, storage_options: Mapping[str, Any] | None, *, pass_through: bool) -> Root:
    """Open a folder, or a bucket, whose folders are the datasets.

    Args:
        url: of the folder.
        storage_options: for the store.
        pass_through: whether files of a bucket are sent by the service, and clients are not redirected.

    Raises:
        UrlError: if it is neither, or cannot be written to.
    """
    url, options = url.rstrip("/") + "/", StorageOptions(storage_options)
    store, path = open_store(url, options)
    if isinstance(store, LocalStore):
        return FolderRoot(url, options, path)
    objects = bucket_objects(store, options, RETRY)
    if objects is not None:
        return BucketRoot(url, options, objects, path, signs=objects.can_sign and not pass_through)
    what = "Serve a local folder, or a folder in a bucket of S3, Google or Azure."
    raise UrlError(f"{url.rstrip('/')} cannot keep datasets. {what}", url=url)
