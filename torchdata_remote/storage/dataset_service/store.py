"""``datasets://host:port/NAME/PATH``: a dataset service. Reads by obstore or urllib3, other requests by urllib3."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

from ...core.options import StorageOptions
from ...core.urls import DATASETS
from ...errors import ObjectExistsError, ObjectNotFoundError
from ..http import parse_content_length
from ..protocol import Answer, Entry, Page, normalized_etag
from .batches import BatchRequests
from .client import ServiceClient
from .fields import byte_count, date_in_header
from .listing import MAX_PAGE, DatasetFile, ListRequests
from .reader import DatasetsReader
from .upload import DatasetsWriter, UploadRequests

__all__ = ["DATASETS", "MAX_PAGE", "DatasetFile", "DatasetsStore"]


class DatasetsStore(ListRequests, UploadRequests, BatchRequests):
    """One dataset service. Paths are ``NAME/PATH``: the first segment is the dataset.

    No method retries a request by itself, except those of the object writer that ``create`` returns.

    Args:
        host: with its port.
        options: ``token`` (default: that of the environment, see :func:`token_for`) and ``secure`` (https).
        read_timeout_s: seconds without a byte after which a request fails.
        read_by_obstore: whether to read by obstore.

    Raises:
        UrlError: for other options.
    """

    may_ignore_ranges = False
    maps_files = False

    def __init__(self, host: str, options: StorageOptions, read_timeout_s: float, *, read_by_obstore: bool) -> None:
        super().__init__(ServiceClient(host, options, read_timeout_s))
        self._reader = DatasetsReader(self._client, read_by_obstore=read_by_obstore)

    def __reduce__(self) -> str:
        raise TypeError(
            "A store belongs to its process and contains a secret, so it cannot be pickled. Open it in each process."
        )

    # Datasets

    def create_dataset(self, name: str) -> None:
        """Create a dataset; an existing one is no error."""
        with contextlib.suppress(ObjectExistsError):
            self.make_folder(name)

    def has_folder(self, path: str) -> bool:
        if "/" in path.rstrip("/"):
            page = self.list_after(path.rstrip("/") + "/", recursive=True, after="", limit=1)
            return bool(page.entries)
        return self.has_dataset(self._client.folder_name(path))

    def make_folder(self, path: str) -> None:
        """Create a dataset. Folders in it exist as soon as they contain a file."""
        body = json.dumps({"name": self._client.folder_name(path)}).encode()
        headers = {"Content-Type": "application/json"}
        self._client.request_json("POST", self._client.target(), path, headers=headers, body=body, writing=True)

    def remove_folder(self, path: str) -> None:
        """Delete a dataset with all its files."""
        with contextlib.suppress(ObjectNotFoundError):
            self._client.request_json("DELETE", self._client.target(self._client.folder_name(path)), path, writing=True)

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        return self.list_after(prefix, recursive=recursive, after=token or after, limit=MAX_PAGE)

    # Files

    def find(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            return None

    def stat(self, path: str) -> Entry:
        headers = self._client.head(path)
        with self._client.expecting("Content-Length", path):
            size = byte_count(parse_content_length(headers.get("Content-Length")))
        return Entry(path, size, normalized_etag(headers.get("ETag")), date_in_header(headers.get("Last-Modified")))

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._reader.read(path, start, end, etag)

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by urllib3."""
        return self._reader.read_without_obstore(path, start, end, etag)

    def create(self, path: str, *, overwrite: bool) -> DatasetsWriter:
        self._client.split(path)
        return DatasetsWriter(self, path, self._client.url(path), self.create_dataset, overwrite=overwrite)

    def delete(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFoundError):
            self._client.request_json("DELETE", self._client.file_target(path), path, writing=True)

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        """Do nothing: the service deletes uploads that are not continued."""

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        """Do nothing: the service deletes uploads that are not continued."""
