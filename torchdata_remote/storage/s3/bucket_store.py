"""What all stores with S3's XML API have in common: listings, folders, and what killed writers leave behind."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ...errors import ExpiredCredentialsError, StorageError, TransientStorageError
from ..entry_table import EntryTable
from ..errors import from_status
from ..protocol import Entry, ObjectWriter, Page, normalized_etag
from .bucket_pages import BucketPages
from .page_parser import seconds
from .unfinished_uploads import MultipartUploads

_log = logging.getLogger("torchdata_remote")


class BucketStore(ABC):
    """One bucket. Subclasses send the requests, read and write.

    Args:
        root: URL of the bucket, without a slash at its end.
        pages: requests the pages of its listings.
    """

    def __init__(self, root: str, pages: type[BucketPages] = BucketPages) -> None:
        self._root = root
        self._lock = threading.RLock()
        self._warned: set[str] = set()
        self._pages = pages(self.request, self.url)
        self.uploads = MultipartUploads(self.request, self.warn_unsupported)

    @abstractmethod
    def request(self, name: str, path: str, *, writing: bool = False, **arguments: Any) -> Any:
        """Send one request by botocore, and raise this package's errors."""

    @abstractmethod
    def create(self, path: str, *, overwrite: bool) -> ObjectWriter:
        """Start to write an object."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete an object; a missing one is no error."""

    def url(self, path: str) -> str:
        """URL of an object, for errors."""
        return f"{self._root}/{path}"

    def named(self, path: str) -> dict[str, Any]:
        """Return botocore's arguments that name an object."""
        return {"Key": path}

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        return self._pages.page(prefix, recursive=recursive, token=token, after=after)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        return self._pages.after(prefix, recursive=recursive, after=after, limit=limit)

    def find(self, path: str) -> Entry | None:
        return self.find_first(path, 1)[0]

    def find_first(self, path: str, limit: int) -> tuple[Entry | None, Page]:
        page = self._pages.beside(path, limit)
        keys = EntryTable.of(page.entries).keys
        entry = next((one for one in page.entries if one.path == path), None)
        # A key sorts before all keys that it is a prefix of. But some servers list in another order
        is_folder = keys == sorted(keys) and any(key.startswith(path + "/") for key in keys)
        may_be_further = self._pages.may_omit(page) and path and not path.endswith("/") and not is_folder
        if entry is None and may_be_further:
            entry = self._stat_if_allowed(path)
        return entry, page

    def _stat_if_allowed(self, path: str) -> Entry | None:
        """Return an object; ``None`` if it is missing, or the store only allows to list it."""
        try:
            return self.stat(path)
        except (TransientStorageError, ExpiredCredentialsError):
            raise
        except StorageError:
            return None

    def stat(self, path: str) -> Entry:
        response = self.request("head_object", path, **self.named(path))
        size = response.get("ContentLength")
        return Entry(
            path,
            None if size is None else int(size),
            normalized_etag(response.get("ETag")),
            seconds(response.get("LastModified")),
        )

    def warn_unsupported(self, what: str, error: StorageError) -> None:
        """Warn, once, of a feature that this store does not support, and of the consequences."""
        with self._lock:
            if what in self._warned:
                return
            self._warned.add(what)
        _log.warning("%s %s (%s)", self._root, what, error)

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        for upload in self.uploads.list_unfinished(prefix):
            key = upload["Key"]
            if "/" not in key[len(prefix) :] and is_ours(key.rpartition("/")[2]):
                self.uploads.abort(key, upload["UploadId"])

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        for upload in self.uploads.list_unfinished(path):
            began_s = seconds(upload.get("Initiated"))
            if began_s is not None and began_s < before_s:
                self.uploads.abort(upload["Key"], upload["UploadId"])

    def has_folder(self, path: str) -> bool:
        return bool(self._pages.keys(path, {"MaxKeys": 1}))

    def make_folder(self, path: str) -> None:
        """Create an empty object whose key ends with a slash, as S3's console does. Listings omit it."""
        if self.has_folder(path):
            raise from_status(412, "", self.url(path), writing=True)
        self.create(path, overwrite=False).commit()

    def remove_folder(self, path: str) -> None:
        while keys := self._pages.keys(path, {"StartAfter": path}):
            for key in keys:
                self.delete(key)
        self.delete(path)  # the marker is last: until then the folder exists
