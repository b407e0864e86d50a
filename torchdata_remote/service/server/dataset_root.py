"""The datasets below one root: folders, and files in them. All calls block."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ...core.concurrency_limit import ConcurrencyLimit
from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.urls import join_url, split_url
from ...errors import ObjectExistsError, UrlError
from ...fetch.range_download import RangeRequest
from ...fetch.range_reader import read_range
from ...storage.registry import Entry, FolderStore, LocalStore, ObjectWriter, Page, open_store
from .names import require_dataset_name, require_path
from .problems import Problem
from .symlinks import refuse_links, remove_if_empty

T = TypeVar("T")
HIDDEN = ".torchdata_remote/"  # a folder beside the datasets, for what is not yet one of their files
CHUNK_BYTES = 1 << 20
_MAX_REQUESTS = 64
_RETRY = RetryPolicy(deadline_s=30.0)


class DatasetRoot:
    """Where datasets lie.

    Args:
        root: URL of the folder whose folders are the datasets.
        storage_options: for the store.

    Raises:
        UrlError: if files cannot be kept there.
    """

    def __init__(self, root: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.root = root if root.endswith("/") else root + "/"
        self.options = StorageOptions(storage_options)
        store, self._above = open_store(self.root, self.options)
        if not isinstance(store, FolderStore):
            raise UrlError(f"{root} cannot keep datasets. Serve a local folder, a bucket, or a part of one.", url=root)
        self._scheme, self._bucket, _ = split_url(self.root)
        self.store, self.is_local = store, isinstance(store, LocalStore)
        if self.is_local:
            try:
                os.makedirs(self._above, exist_ok=True)
            except OSError as error:
                raise UrlError(f"{root} cannot keep datasets: {error}.", url=root) from error
        self._in_flight = ConcurrencyLimit(_MAX_REQUESTS, check=lambda: None)

    def _retried(self, operation: Callable[[], T]) -> T:
        return operation() if self.is_local else call_with_retries(operation, _RETRY)

    def datasets(self) -> list[str]:
        """Their names, sorted."""
        if self.is_local:  # one that is a link is its owner's choice; what else lies there is nobody's business
            with os.scandir(self._above) as entries:
                return sorted(entry.name for entry in entries if _is_name(entry.name) and entry.is_dir())
        names, after = [], ""
        while True:
            page = self._retried(
                lambda after=after: self.store.list_after(self._above, recursive=False, after=after, limit=10_000)  # type: ignore[misc]
            )
            names += [folder[len(self._above) : -1] for folder in page.folders]
            if page.next_token is None:
                return sorted(name for name in names if _is_name(name))
            after = page.next_token

    def folder(self, name: str) -> str:
        """The path of a dataset's folder in the store.

        Raises:
            Problem: 404, if there is no such dataset.
        """
        folder = self._above + require_dataset_name(name) + "/"
        if not self._retried(lambda: self.store.has_folder(folder)):
            raise Problem(404, f"There is no dataset {name!r}. POST /datasets makes one, GET /datasets names them.")
        return folder

    def url(self, name: str) -> str:
        """The URL of a dataset's folder."""
        return join_url(self._scheme, self._bucket, self.folder(name))

    def create(self, name: str) -> None:
        """Make an empty dataset.

        Raises:
            Problem: 409, if it is there.
        """
        folder = self._above + require_dataset_name(name) + "/"
        try:
            self.store.make_folder(folder)
        except ObjectExistsError:
            raise Problem(409, f"The dataset {name!r} exists already.") from None

    def remove(self, name: str) -> None:
        """Remove a dataset with all of its files."""
        folder = self.folder(name)
        self._retried(lambda: self.store.remove_folder(folder))

    def page(self, folder: str, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """Files of a folder, their paths below it: those that begin with ``prefix`` and come after ``after``."""
        if self.is_local:
            refuse_links(folder, folder + prefix.rpartition("/")[0])
        page = self._retried(
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

    def files(self, folder: str, *, page_files: int = 1000) -> Iterator[Entry]:
        """All files of a folder, sorted."""
        after: str | None = ""
        while after is not None:
            page = self.page(folder, "", recursive=True, after=after, limit=page_files)
            yield from page.entries
            after = page.next_token

    def stat(self, folder: str, path: str) -> Entry:
        """What is known of a file; its path is that in the store."""
        full = folder + require_path(path)
        if self.is_local:
            refuse_links(folder, full)
            if not os.path.isfile(full):  # a pipe would be waited for
                raise Problem(404, f"There is no file {path!r:.200} there.")
        return self._retried(lambda: self.store.stat(full))

    def find(self, folder: str, path: str) -> Entry | None:
        """Like :meth:`stat`, ``None`` if there is no such file."""
        full = folder + require_path(path)
        if self.is_local:
            refuse_links(folder, full)
        return self._retried(lambda: self.store.find(full))

    def chunks(self, entry: Entry, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """Bytes of a file, in chunks of at most 1 MiB, all of the version that ``stat`` told of.

        Raises:
            ObjectChangedError: if the file was replaced.
        """
        assert entry.size is not None
        stop = entry.size if end is None else end
        if self.is_local:  # opened anew for each chunk: a mapping would kill the process where somebody cuts the file
            for at in range(start, stop, CHUNK_BYTES):
                yield from self.store.read(entry.path, at, min(at + CHUNK_BYTES, stop), entry.etag).chunks
            return
        if start >= stop:
            return
        url = join_url(self._scheme, self._bucket, entry.path)
        wanted = RangeRequest(url, entry.path, start, stop, entry.size, entry.etag)
        pieces = read_range(
            self.store, wanted, _RETRY, in_flight=self._in_flight, on_found=lambda found: None, sleep=time.sleep
        )
        for piece in pieces:
            for at in range(0, len(piece), CHUNK_BYTES):
                yield piece[at : at + CHUNK_BYTES]

    def begin(self, folder: str, path: str, *, overwrite: bool = True) -> ObjectWriter:
        """Begin a file that appears when it is committed.

        Raises:
            Problem: 409, where a folder or a file is in its way.
        """
        if self.is_local:
            self.require_place(folder, path)
        return self.store.create(folder + path, overwrite=overwrite)

    def begin_part(self, folder: str, name: str, *, durable: bool) -> ObjectWriter:
        """Begin a part of an upload; a local one that is not ``durable`` may be lost when the machine stops."""
        if isinstance(self.store, LocalStore):
            return self.store.create(folder + name, overwrite=True, durable=durable)
        return self.begin(folder, name)

    def require_place(self, folder: str, path: str) -> None:
        """See that a file can be there, where it is this machine that has folders.

        Raises:
            Problem: 409, where a folder or a file is in its way; 404, if the dataset is gone.
        """
        full = folder + require_path(path)
        if not self.is_local:
            return
        refuse_links(folder, full)
        if not folder.startswith(self._above + HIDDEN) and not os.path.isdir(folder):
            raise Problem(404, "The dataset was removed meanwhile.")
        if os.path.isdir(full) and not remove_if_empty(full):
            raise Problem(409, f"{path!r} is a folder. Choose another name, or delete what is in it.")
        above = full
        while len(above := os.path.dirname(above)) > len(folder):
            if os.path.isfile(above):
                raise Problem(409, f"{above[len(folder) :]!r} is a file, so that {path!r} cannot be below it.")

    def delete(self, folder: str, path: str) -> None:
        """Remove a file; one that is not there is fine."""
        full = folder + require_path(path)
        if self.is_local:
            refuse_links(folder, full)
        self._retried(lambda: self.store.delete(full))
        if self.is_local:  # as in a bucket, where a folder is what files are in
            above = full
            with contextlib.suppress(OSError):  # which is not empty, or not there
                while len(above := os.path.dirname(above)) > len(folder):
                    os.rmdir(above)

    def hidden(self, name: str) -> str:
        """The path of a folder in the store for what is not yet, or no longer, part of a dataset."""
        return f"{self._above}{HIDDEN}{name}/"

    def free_bytes(self) -> int | None:
        """On the disk of a local root; ``None`` where nobody can tell."""
        return shutil.disk_usage(self._above).free if self.is_local else None

    def local_path(self, entry: Entry) -> str | None:
        """Where a file lies on this machine, if it does."""
        return entry.path if self.is_local else None


def _is_name(name: str) -> bool:
    try:
        return bool(require_dataset_name(name))
    except Problem:
        return False
