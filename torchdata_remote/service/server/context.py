"""What all request handlers share: the datasets, in a folder or a bucket, and what is done with all of their files."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from starlette.requests import Request

from ...core.options import StorageOptions
from ...core.threads import NamedLocks, ordered_map
from ...errors import UrlError
from ...storage import LocalStore, open_store
from ...storage.bucket_objects import bucket_objects, etag_of
from .bucket import RETRY, BucketDataset, BucketRoot, OpenObject, Upload
from .folder import FolderDataset, FolderRoot, LocalFile, OpenFile
from .limits import ServiceLimits
from .problems import Stopping
from .requests import require_match
from .root import CHUNK_BYTES, File, Files, no_file
from .threads import run_blocking

Root: TypeAlias = FolderRoot | BucketRoot
Dataset: TypeAlias = FolderDataset | BucketDataset
Opened: TypeAlias = OpenFile | OpenObject
Writer: TypeAlias = LocalFile | Upload
A = TypeVar("A")
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
    """

    def __init__(self, root: Root, limits: ServiceLimits) -> None:
        self.root, self.limits = root, limits
        self.stopping, self.locks = Stopping(), NamedLocks()
        self._summaries: dict[tuple[str, str], tuple[float, Any]] = {}  # with their ends, oldest first
        self._num_changes = 0

    @staticmethod
    def of(request: Request) -> Context:
        """Return the context of the application that handles a request."""
        context: Context = request.app.context
        return context

    async def summary(self, name: str, kind: str, compute: Callable[[], T]) -> T:
        """Return what is computed from a dataset, or was in the last minute, if no request has changed the dataset.

        Args:
            name: of the dataset.
            kind: of value.
            compute: takes seconds. It is called by one request at a time for each dataset.
        """
        async with self.locks.held_in_loop(("summary", name)):
            end_s, value = self._summaries.pop((name, kind), (0.0, None))
            num_changes = self._num_changes
            if end_s < time.monotonic():
                end_s, value = time.monotonic() + _SUMMARY_S, await run_blocking(compute, "look")
            if num_changes == self._num_changes:
                self._summaries[name, kind] = end_s, value
            if len(self._summaries) > _MAX_SUMMARIES:
                del self._summaries[next(iter(self._summaries))]
            return value  # type: ignore[no-any-return]

    def changed(self, name: str) -> None:
        """Forget what was computed from a dataset."""
        self._num_changes += 1
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
        return FolderRoot(url, path)
    objects = bucket_objects(store, options, RETRY)
    if objects is not None:
        return BucketRoot(url, options, objects, path, signs=objects.can_sign and not pass_through)
    what = "Serve a local folder, or a folder in a bucket of S3, Google or Azure."
    raise UrlError(f"{url.rstrip('/')} cannot keep datasets. {what}", url=url)


def page_of(dataset: Dataset, prefix: str, *, recursive: bool, after: str, limit: int) -> Files:
    """List files whose paths begin with ``prefix``, sorted, after the path ``after``."""
    folder, skip = dataset.folder, len(dataset.folder)
    found = dataset.listed(folder + prefix, recursive=recursive, after=after and folder + after, limit=limit)
    files = [File(one.path[skip:], one.size or 0, etag_of(one.etag, one.size), one.modified_s) for one in found.entries]
    return Files(files, [path[skip:] for path in found.folders], found.next_token and found.next_token[skip:])


def all_files(dataset: Dataset, page_files: int = 10_000) -> Iterator[File]:
    """Iterate over all files of a dataset, sorted by path."""
    after: str | None = ""
    while after is not None:
        page = page_of(dataset, "", recursive=True, after=after, limit=page_files)
        yield from page.files
        after = page.next


def delete(dataset: Dataset, path: str, conditions: Mapping[str, str]) -> None:
    """Remove a file. Its version is compared before, since not all buckets have a condition for that.

    Raises:
        Problem: 404 or 412.
    """
    with dataset.root.locks.held(dataset.folder + path):
        found = dataset.find(path)
        if found is None:
            raise no_file(path)
        require_match(conditions, found.etag)
        dataset.remove(path)


def sha256_of_file(dataset: Dataset, file: File, stopping: Stopping) -> str:
    """Return the digest of a version of a file, which is read if its digest is not stored.

    Raises:
        ObjectChangedError: if it is replaced meanwhile.
        Problem: 503, if the service ends.
    """
    known = dataset.about(file).sha256
    if known is not None:
        return known
    digest = hashlib.sha256()
    with contextlib.closing(dataset.open(file.path, file)) as opened:
        for chunk in stopping.during(opened.chunks(0, file.size, CHUNK_BYTES)):
            digest.update(chunk)
    dataset.keep_sha256(file, digest.hexdigest())
    return digest.hexdigest()


def each(dataset: Dataset, call: Callable[[A], T], items: Iterable[A]) -> Iterator[T]:
    """Call a function for each item, several at once where calls are requests; yields the results in order."""
    if dataset.num_readers == 1:
        return map(call, items)

    def task(item: A) -> Callable[[object], T]:
        return lambda _: call(item)

    return ordered_map(map(task, items), max_threads=dataset.num_readers)
