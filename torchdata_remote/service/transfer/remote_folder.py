"""A dataset of a service, or a folder in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from ...core import arguments as check
from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.urls import redact
from ...errors import ObjectNotFoundError, StorageError, UrlError
from ...storage import Connection
from ..client.connect import DatasetFile, open_service

T = TypeVar("T")
MAX_FILES = 20_000_000  # their paths and digests take some 10 GB of memory
MAX_EMPTY_PAGES = 100  # in a row; a page is empty if all its files were removed while it was made


class RemoteFolder:
    """A dataset, or a folder in one.

    Args:
        url: ``datasets://host:port/name`` or below.
        storage_options: ``token`` and ``secure``.
        retry: of requests that fail temporarily.

    Raises:
        UrlError: if it is not such a URL.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None, retry: RetryPolicy) -> None:
        self.url = redact(url).rstrip("/")
        self._retry = retry
        connection = Connection(read_timeout_s=retry.progress_timeout_s)
        self.store, path = open_service(url, StorageOptions(storage_options), connection)
        self.name, _, below = path.strip("/").partition("/")
        if not self.name:
            raise UrlError(f"{self.url} names no dataset. Expected datasets://host:port/name.", url=self.url)
        self.prefix = f"{self.name}/{below}/" if below else f"{self.name}/"

    def path(self, path: str) -> str:
        """Return the path in the store of a path below this folder."""
        return self.prefix + path

    def url_of(self, path: str) -> str:
        """Return the URL of a path below this folder, for messages."""
        return f"{self.url}/{path}"

    def create(self) -> None:
        """Create the dataset if it does not exist."""
        call_with_retries(lambda: self.store.create_dataset(self.name), self._retry, url=self.url)

    def list(self) -> dict[str, DatasetFile]:
        """Return all files by their paths below this folder.

        Raises:
            ObjectNotFoundError: if there is no such dataset.
            StorageError: for an invalid listing.
        """
        found: dict[str, DatasetFile] = {}
        for file in self._files(self.prefix, lambda operation: call_with_retries(operation, self._retry, url=self.url)):
            if not file.path.startswith(self.prefix):
                raise StorageError(f"{self.url}: the listing names {file.path!r}, which is not in it.", url=self.url)
            found[file.path[len(self.prefix) :]] = file
            if len(found) > MAX_FILES:
                raise StorageError(
                    f"{self.url} has more than {MAX_FILES:,} files. Transfer one folder of it after the other, or "
                    "write the dataset as shards.",
                    url=self.url,
                )
        return found

    def find(self, path: str, request: Callable[[Callable[[], Any]], Any]) -> DatasetFile | None:
        """Return the current version of a file, or ``None``.

        Args:
            path: below this folder.
            request: sends a request, with retries.
        """
        wanted = self.path(path)
        try:
            for file in self._files(wanted, request):
                if file.path >= wanted:  # longer paths with this prefix follow
                    return file if file.path == wanted else None
        except ObjectNotFoundError:
            pass
        return None

    def _files(self, prefix: str, request: Callable[[Callable[[], Any]], Any]) -> Iterator[DatasetFile]:
        token: str | None = None
        num_empty = 0
        while num_empty < MAX_EMPTY_PAGES:
            files, token = request(partial(self.store.digests, prefix, token))
            yield from files
            if token is None:
                return
            num_empty = 0 if files else num_empty + 1
        raise StorageError(f"{self.url}: the listing does not end: {num_empty} pages without a file.", url=self.url)


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
