"""Datasets below one root URL, each a folder of files. All calls block."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ....core.options import RetryPolicy, StorageOptions
from ....core.retry import ConcurrencyLimit, call_with_retries
from ....core.threads import NamedLocks
from ....core.urls import RemoteUrl, join_url, split_url
from ....errors import ObjectExistsError, UrlError
from ....fetch.ranges import ObjectReader
from ....storage import Entry, FolderStore, LocalStore, ObjectWriter, Page, open_store
from ..problems import Problem
from .lifetimes import Lifetimes, LiveFolder, LiveWriter
from .local_folders import refuse_links, remove_empty_above, require_free
from .names import is_dataset_name, require_dataset_name, require_path

T = TypeVar("T")
# beside the datasets, for data that is not yet, or no longer, one of their files
WORK_FOLDER = ".torchdata_remote/"
_WORK_OF_DATASETS = ("uploads", "unpacking", "unnamed")  # folders in it, with a folder per dataset
CHUNK_BYTES = 1 << 20
STREAM_BYTES = 256 << 10  # of a piece of a response, of which a client that stalls keeps three or four in memory
_MAX_REQUESTS = 64
_RETRY = RetryPolicy(deadline_s=30.0)


class DatasetRoot:
    """The datasets of a service, in a local folder or a bucket.

    Args:
        url: of the folder whose folders are the datasets.
        storage_options: for the store.

    Raises:
        UrlError: if the store cannot be written to.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.url = url if url.endswith("/") else url + "/"
        self.options = StorageOptions(storage_options)
        store, self._prefix = open_store(self.url, self.options)
        if not isinstance(store, FolderStore):
            raise UrlError(f"{url} cannot keep datasets. Serve a local folder, a bucket, or a part of one.", url=url)
        self._scheme, self._bucket, _ = split_url(self.url)
        self.store, self.is_local = store, isinstance(store, LocalStore)
        if self.is_local:
            try:
                os.makedirs(self._prefix, exist_ok=True)
            except OSError as error:
                raise UrlError(f"{url} cannot keep datasets: {error}.", url=url) from error
        self._concurrency = ConcurrencyLimit(_MAX_REQUESTS, check=lambda: None)
        self._lifetimes = Lifetimes()
        self.publishing = NamedLocks()  # of files, by folder and path

    def _with_retries(self, operation: Callable[[], T]) -> T:
        return operation() if self.is_local else call_with_retries(operation, _RETRY)

    def names(self) -> list[str]:
        """Return the names of all datasets, sorted."""
        if self.is_local:  # a link to a folder is a choice of the root's owner; other entries are not datasets
            with os.scandir(self._prefix) as entries:
                return sorted(entry.name for entry in entries if is_dataset_name(entry.name) and entry.is_dir())
        names: list[str] = []
        after: str | None = ""
        while after is not None:
            page = self.page(self._prefix, "", recursive=False, after=after, limit=10_000)
            names += [folder[:-1] for folder in page.folders]
            after = page.next_token
        return sorted(filter(is_dataset_name, names))

    def folder(self, name: str) -> LiveFolder:
        """Return the path of a dataset's folder in the store.

        Raises:
            Problem: 404, if there is no such dataset.
        """
        folder = self._prefix + require_dataset_name(name) + "/"
        life = self._lifetimes.current(folder)
        if life.is_over or not self._with_retries(lambda: self.store.has_folder(folder)):
            raise Problem(404, f"There is no dataset {name!r}. POST /datasets creates one, GET /datasets lists them.")
        return LiveFolder(folder, life)

    def dataset_url(self, name: str) -> str:
        """Return the URL of a dataset's folder."""
        return join_url(self._scheme, self._bucket, self.folder(name))

    def create_dataset(self, name: str) -> None:
        """Create an empty dataset.

        Raises:
            Problem: 409, if it exists.
        """
        folder = self._prefix + require_dataset_name(name) + "/"
        try:
            with self._lifetimes.current(folder).used():
                self.store.make_folder(folder)
        except ObjectExistsError:
            raise Problem(409, f"The dataset {name!r} exists already.") from None
        except Problem:
            raise Problem(503, f"The dataset {name!r} is being removed. Try again.", {"Retry-After": "1"}) from None

    def remove_dataset(self, name: str) -> None:
        """Remove a dataset with all that is kept for it. Requests that write to it fail from here on."""
        folder = self.folder(name)
        with self._lifetimes.ended(folder):
            for path in [*(self.work_folder(f"{kind}/{name}") for kind in _WORK_OF_DATASETS), folder]:
                self._with_retries(lambda path=path: self.store.remove_folder(path))  # type: ignore[misc]

    def page(self, folder: str, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """List one page: files whose path below the folder starts with ``prefix`` and sorts after ``after``."""
        if self.is_local:
            refuse_links(folder, folder + prefix.rpartition("/")[0])
        page = self._with_retries(
            lambda: self.store.list_after(
                folder + prefix, recursive=recursive, after=folder + after if after else "", limit=limit
            )
        )
        skip = len(folder)
        return Page(
            [entry._replace(path=entry.path[skip:]) for entry in page.entries],
            None if page.next_token is None else page.next_token[skip:],
            [path[skip:] for path in page.folders],
        )

    def files(self, folder: str, *, page_files: int = 10_000) -> Iterator[Entry]:
        """Iterate over all files of a folder, sorted by path."""
        after: str | None = ""
        while after is not None:
            page = self.page(folder, "", recursive=True, after=after, limit=page_files)
            yield from page.entries
            after = page.next_token

    def file_urls(self, name: str) -> Iterator[RemoteUrl] | None:
        """Iterate over the URLs of a dataset's files, sorted, with an error at a link; ``None`` without links."""
        folder = self.folder(name)
        start = join_url(self._scheme, self._bucket, folder)
        urls = (RemoteUrl(start + entry.path, entry.size, entry.etag) for entry in self.files(folder))
        return urls if self.is_local else None

    def stat(self, folder: str, path: str) -> Entry:
        """Return size, version and date of a file. The path in the entry is the one in the store.

        Raises:
            Problem, ObjectNotFoundError: 404, if there is no such file.
        """
        full = folder + require_path(path)
        if self.is_local:
            refuse_links(folder, full)
            if not os.path.isfile(full):  # opening a named pipe would block
                raise Problem(404, f"There is no file {path!r:.200} in the dataset.")
        return self._with_retries(lambda: self.store.stat(full))

    def find(self, folder: str, path: str) -> Entry | None:
        """Return what :meth:`stat` does, or ``None`` if there is no such file."""
        full = folder + require_path(path)
        if self.is_local:
            refuse_links(folder, full)
        return self._with_retries(lambda: self.store.find(full))

    def chunks(
        self, entry: Entry, start: int = 0, end: int | None = None, *, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[memoryview]:
        """Read bytes ``start`` to ``end`` of one version of a file, in chunks of at most ``chunk_bytes``.

        Raises:
            ObjectChangedError: if the file was replaced.
        """
        assert entry.size is not None
        stop = entry.size if end is None else end
        if self.is_local:  # opened again for each chunk: truncating a file that is mapped would kill this process
            for at in range(start, stop, chunk_bytes):
                yield from self.store.read(entry.path, at, min(at + chunk_bytes, stop), entry.etag).pieces()
            return
        if start >= stop:
            return
        url = join_url(self._scheme, self._bucket, entry.path)
        version = RemoteUrl(url, entry.size, entry.etag)
        reader = ObjectReader(version, self.store, entry.path, _RETRY, self._concurrency)
        for piece in reader.pieces(start, stop):
            for at in range(0, len(piece), chunk_bytes):
                yield piece[at : at + chunk_bytes]

    def create_file(
        self, folder: LiveFolder, path: str, *, overwrite: bool = True, sync_folder: bool = True
    ) -> ObjectWriter:
        """Open a file for writing. It becomes visible as a whole, when it is committed; on disk with ``sync_folder``.

        Raises:
            Problem: 409, if a folder has its path, or a file the path of one of its folders; 404, if the dataset was
                removed, also from committing it.
        """
        with folder.life.used():
            self.require_writable_path(folder, path)
            if isinstance(self.store, LocalStore):
                writer: ObjectWriter = self.store.create(folder + path, overwrite=overwrite, sync_folder=sync_folder)
            else:
                writer = self.store.create(folder + path, overwrite=overwrite)
            return LiveWriter(writer, folder.life)

    def require_writable_path(self, folder: str, path: str) -> None:
        """Require, in a local root, that a file can be created at a path.

        Raises:
            Problem: 409, if a folder has this path, or a file the path of one of its folders; 404, if the dataset was
                removed.
        """
        full = folder + require_path(path)
        if not self.is_local:
            return
        refuse_links(folder, full)
        if not folder.startswith(self._prefix + WORK_FOLDER) and not os.path.isdir(folder):
            raise Problem(404, "The dataset was removed during the request.")
        require_free(folder, path)

    def delete(self, folder: str, path: str) -> None:
        """Remove a file, if it exists."""
        full = folder + require_path(path)
        if self.is_local:
            refuse_links(folder, full)
        self._with_retries(lambda: self.store.delete(full))
        if self.is_local:  # as in a bucket, a folder exists only while it has files
            remove_empty_above(folder, full)

    def work_folder(self, name: str) -> str:
        """Return the path in the store of a folder for data that is not part of a dataset."""
        return f"{self._prefix}{WORK_FOLDER}{name}/"

    def free_bytes(self) -> int | None:
        """Return the free bytes on the disk of a local root; ``None`` for other stores."""
        return shutil.disk_usage(self._prefix).free if self.is_local else None

    @property
    def local_folder(self) -> str | None:
        """The folder of the datasets, with a slash at the end; ``None`` for other stores."""
        return self._prefix if self.is_local else None

    def local_path(self, entry: Entry) -> str | None:
        """Return the local path of a file; ``None`` for other stores."""
        return entry.path if self.is_local else None
