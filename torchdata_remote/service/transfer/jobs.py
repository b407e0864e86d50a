"""What push and pull share: a dataset of a service, threads, requests with retries, groups of small files."""

from __future__ import annotations

import contextlib
import errno
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from ...core import arguments as check
from ...core.options import MIB, RetryPolicy, StorageOptions
from ...core.retry import ConcurrencyLimit, call_with_retries
from ...core.threads import Pool, next_item
from ...core.urls import DATASETS, redact, split_url
from ...errors import AccessDeniedError, ObjectNotFoundError, StorageError, TransientStorageError, UrlError
from ...storage import Connection, open_store
from ...storage.dataset_service.protocol import MAX_BATCH_FILE_BYTES, MAX_BATCH_FILES
from ...storage.dataset_service.store import DatasetFile, DatasetsStore

T = TypeVar("T")
_BATCH_BYTES = 4 * MIB  # less than the service's limit, since a broken request sends or fetches them again
_SLOW_BYTES_PER_S = 1 << 20  # an upload that is faster is not reported as slow
_JOIN_S = 5.0
_MAX_EMPTY_PAGES = 100  # in a row; a page is empty if all its files were removed while it was made


class Jobs:
    """Runs functions in threads inside a ``with`` block. After the block none runs or starts.

    Args:
        max_in_flight: concurrent functions, each with one request at a time.
        retry: of requests that fail temporarily.
    """

    def __init__(self, max_in_flight: int, retry: RetryPolicy) -> None:
        self.max_in_flight, self.retry, self._pool = max_in_flight, retry, Pool(max_in_flight)
        self.check, self.sleep = self._pool.check, self._pool.sleep
        self.in_flight = ConcurrencyLimit(max_in_flight, check=self.check)

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        self._pool.join(time.monotonic() + _JOIN_S)

    def run(self, functions: Iterable[Callable[[], object]], after_each: Callable[[], object]) -> None:
        """Run functions, in any order.

        Args:
            functions: read when there is room for another one.
            after_each: called in this thread when one is done.

        Raises:
            Exception: the first error of a function. No further one is started then.
        """
        source, num_running = iter(functions), 0
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def run(function: Callable[[], object]) -> None:
            try:
                function()
            except BaseException as error:  # noqa: BLE001  # raised below
                done.put(error)
            else:
                done.put(None)

        while True:
            while num_running < self.max_in_flight and (function := next(source, None)) is not None:
                self._pool.submit(run, function, on_dropped=done.put)
                num_running += 1
            if not num_running:
                return
            if (error := next_item(done)) is not None:
                raise error
            num_running -= 1
            after_each()

    def request(self, operation: Callable[[], T], url: str | None = None, num_bytes: int = 0) -> T:
        """Send a request, with retries, and reduce the concurrency if the store is overloaded.

        Args:
            operation: sends it.
            url: to report a request that takes long; ``None`` reports none.
            num_bytes: that it sends.
        """
        expected_s, attempt = num_bytes / _SLOW_BYTES_PER_S, partial(self.attempt, operation)
        return call_with_retries(attempt, self.retry, url=url, expected_s=expected_s, sleep=self.sleep)

    def attempt(self, operation: Callable[[], T]) -> T:
        """Send a request once."""
        self.check()
        with self.in_flight.permit():
            try:
                return operation()
            except TransientStorageError as error:
                if error.overloaded:
                    self.in_flight.slow_down()
                raise


class Dataset:
    """A dataset of a service, or a folder in one.

    Args:
        url: ``datasets://host:port/name`` or below.
        storage_options: ``token`` and ``secure``.
        jobs: sends the requests.

    Raises:
        UrlError: if it is not such a URL.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None, jobs: Jobs) -> None:
        self.url, self._jobs = redact(url).rstrip("/"), jobs
        if split_url(url)[0] != DATASETS:
            raise UrlError(f"{self.url}: expected datasets://host:port/name, a dataset of a service.", url=self.url)
        connection = Connection(read_timeout_s=jobs.retry.progress_timeout_s)
        self.host = split_url(self.url)[1]
        store, path = open_store(url, StorageOptions(storage_options), connection)
        assert isinstance(store, DatasetsStore)
        self.store = store
        self.name, _, below = path.strip("/").partition("/")
        if not self.name:
            raise UrlError(f"{self.url} names no dataset. Expected datasets://host:port/name.", url=self.url)
        self.below = f"{below}/" if below else ""
        self.prefix = f"{self.name}/{self.below}"

    def url_of(self, path: str) -> str:
        """Return the URL of a path below this folder, for messages."""
        return f"{self.url}/{path}"

    def files(self) -> dict[str, DatasetFile]:
        """Return all files by their paths below this folder.

        Raises:
            ObjectNotFoundError: if there is no such dataset.
            StorageError: for an invalid listing.
        """
        found: dict[str, DatasetFile] = {}
        token, num_empty = None, 0
        while num_empty < _MAX_EMPTY_PAGES:
            files, token = self._jobs.request(partial(self.store.files_after, self.prefix, token), self.url)
            for file in files:
                if not file.path.startswith(self.prefix):
                    what = f"the listing names {file.path!r}, which is not in it"
                    raise StorageError(f"{self.url}: {what}.", url=self.url)
                found[file.path[len(self.prefix) :]] = file
            if token is None:
                return found
            num_empty = 0 if files else num_empty + 1
        raise StorageError(f"{self.url}: the listing does not end: {num_empty} pages without a file.", url=self.url)


def grouped(files: Iterable[T], num_files: int, size_of: Callable[[T], int], max_in_flight: int) -> Iterator[list[T]]:
    """Group small files, in order, to be transferred in one request each; a large one is a group of its own.

    Args:
        files: in any order.
        num_files: how many there are.
        size_of: returns the bytes of a file.
        max_in_flight: as many groups as that are made even of few files.

    >>> list(grouped([3, 3, 9 << 20, 3], 4, int, 1))
    [[9437184], [3, 3, 3]]
    """
    max_files = max(1, min(MAX_BATCH_FILES, -(-num_files // max_in_flight)))
    group: list[T] = []
    num_bytes = 0
    for file in files:
        size = size_of(file)
        if size > MAX_BATCH_FILE_BYTES:
            yield [file]
            continue
        if group and (len(group) == max_files or num_bytes + size > _BATCH_BYTES):
            yield group
            group, num_bytes = [], 0
        group.append(file)
        num_bytes += size
    if group:
        yield group


def folders_of(path: str) -> list[str]:
    """Return all folders above a path.

    >>> folders_of("a/b/c.jpg")
    ['a', 'a/b']
    """
    names = path.split("/")[:-1]
    return ["/".join(names[: number + 1]) for number in range(len(names))]


def read_pieces(path: str) -> Iterator[memoryview]:
    """Read a file, a MiB at a time. Each piece is valid until the next one is read."""
    buffer = memoryview(bytearray(MIB))
    with open(path, "rb", buffering=0) as file:
        while num_read := file.readinto(buffer):
            yield buffer[:num_read]


def local_folder(name: str, folder: object) -> str:
    """Return the path of a local folder, also of a ``file://`` URL.

    Args:
        name: of the argument.
        folder: that was passed.

    Raises:
        TypeError, ValueError: if it is none; a URL of a service belongs into the other argument.
    """
    if isinstance(folder, str) and folder.startswith("datasets://"):
        raise check.marked(ValueError(f"{name} and url are exchanged: {name} must be a local path, got {folder:.200}."))
    is_url = isinstance(folder, str) and folder.startswith(("file://", "local://"))
    return str(folder) if is_url else check.local_path(name, folder, example="/data/photos")


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Raise errors of the operating system in the block as errors of this package, which name the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        kind, advice = StorageError, ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice = " Free some space, and pull again."
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            kind, advice = AccessDeniedError, " Check who may read and write there."
        elif error.errno in (errno.EEXIST, errno.ENOTDIR):
            advice = " Here a link or a file is in the way, and links are not followed: remove it."
        elif error.errno == errno.ENOENT:
            kind = ObjectNotFoundError
        raise kind(f"{path}: {error.strerror or type(error).__name__}.{advice}", url=path) from error
