"""``datasets://host:port/NAME/PATH``: a dataset service. Read by obstore or urllib3, all else by urllib3."""

from __future__ import annotations

import contextlib
import email.utils
import json
from collections.abc import Callable

from ...core.options import StorageOptions
from ...errors import ObjectExistsError, ObjectNotFoundError
from ..protocol import Answer, Entry, Page, normalized_etag
from .client import ServiceClient
from .listing import MAX_PAGE, DatasetFile, Listing
from .reader import DatasetsReader
from .upload import DatasetsPending, Uploads

__all__ = ["DATASETS", "MAX_PAGE", "DatasetFile", "DatasetsStore"]

DATASETS = "datasets"  # the scheme


class DatasetsStore:
    """One dataset service. Paths are ``NAME/PATH``: the first segment is the dataset.

    No method repeats a request by itself, except for those of what ``create`` returns.

    Args:
        host: with its port.
        options: ``token`` (else the environment's ``TORCHDATA_REMOTE_TOKEN``) and ``secure`` (https).
        read_timeout_s: without a byte, in seconds.
        read_by_obstore: whether obstore may carry the data.

    Raises:
        UrlError: for other options.
    """

    may_ignore_ranges = False
    maps_files = False

    def __init__(self, host: str, options: StorageOptions, read_timeout_s: float, *, read_by_obstore: bool) -> None:
        self._client = ServiceClient(host, options, read_timeout_s)
        self._listing = Listing(self._client)
        self._reader = DatasetsReader(self._client, read_by_obstore=read_by_obstore)
        self._uploads = Uploads(self._client)

    def __reduce__(self) -> str:
        raise TypeError("A store belongs to its process, and knows a secret: it is not pickled. Open it there.")

    # Datasets

    def names(self) -> list[str]:
        """Of all datasets, sorted."""
        return self._listing.names()

    def create_dataset(self, name: str) -> None:
        """Make a dataset; one that is there is fine."""
        with contextlib.suppress(ObjectExistsError):
            self.make_folder(name)

    def has_folder(self, path: str) -> bool:
        if "/" in path.rstrip("/"):
            page = self.list_after(path.rstrip("/") + "/", recursive=True, after="", limit=1)
            return bool(page.entries)
        return self._listing.has_dataset(self._client.folder_name(path))

    def make_folder(self, path: str) -> None:
        """Make a dataset. Folders in it are there as soon as a file is in them."""
        body = json.dumps({"name": self._client.folder_name(path)}).encode()
        headers = {"Content-Type": "application/json"}
        self._client.ask("POST", self._client.target(), path, headers=headers, body=body, writing=True)

    def remove_folder(self, path: str) -> None:
        """Remove a dataset with all that is in it."""
        with contextlib.suppress(ObjectNotFoundError):
            self._client.ask("DELETE", self._client.target(self._client.folder_name(path)), path, writing=True)

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None) -> Page:
        return self.list_after(prefix, recursive=recursive, after=token or "", limit=MAX_PAGE)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        return self._listing.list_after(prefix, recursive=recursive, after=after, limit=limit)

    def digests(self, prefix: str, token: str | None) -> tuple[list[DatasetFile], str | None]:
        """One page of the files of a dataset, with SHA-256: all for ``NAME/``, or those that begin with ``NAME/...``.

        Args:
            prefix: of the paths.
            token: ``None``, or what came with the page before.

        Returns:
            The files, and the token of the next page (``None``: that was all).

        Raises:
            ObjectNotFoundError: if there is no such dataset.
        """
        return self._listing.digests(prefix, token)

    # Files

    def find(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            return None

    def stat(self, path: str) -> Entry:
        headers = self._client.head(path)
        with self._client.understood("Content-Length", path):
            when = headers.get("Last-Modified")
            modified_s = None if when is None else email.utils.parsedate_to_datetime(when).timestamp()
            return Entry(path, int(headers["Content-Length"]), normalized_etag(headers.get("ETag")), modified_s)

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._reader.read(path, start, end, etag)

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """As :meth:`read`, by urllib3."""
        return self._reader.read(path, start, end, etag, by_obstore=False)

    def create(self, path: str, *, overwrite: bool) -> DatasetsPending:
        self._client.split(path)
        return DatasetsPending(self._uploads, path, self.create_dataset, overwrite=overwrite)

    def put(self, path: str, data: bytes, *, sha256: str, overwrite: bool = True) -> str:
        """Store a small file in one request.

        Args:
            path: ``NAME/PATH``; the dataset must be there.
            data: all of it.
            sha256: in hex; the service compares it.
            overwrite: whether a file may be there.

        Returns:
            Its etag.

        Raises:
            ObjectNotFoundError: if there is no such dataset.
            ObjectExistsError: if there is a file and ``overwrite`` is ``False``.
        """
        return self._uploads.put(path, data, sha256=sha256, overwrite=overwrite)

    def put_part(
        self,
        path: str,
        upload_id: str,
        start: int,
        data: bytes,
        total_bytes: int | None,
        *,
        sha256: str | None,
        overwrite: bool = True,
    ) -> str | None:
        """Store a part of a file, which appears when all parts up to the total are there, in whatever order they came.

        Args:
            path: ``NAME/PATH``; the dataset must be there.
            upload_id: the caller's choice: 8 to 64 letters, digits, ``_`` and ``-``.
            start: the part's first byte.
            data: the part, of at least one byte.
            total_bytes: of the file, where it is known.
            sha256: of the whole file, in hex, for the part that completes it.
            overwrite: whether a file may be there; asked when a part completes it.

        Returns:
            The etag, if the file is complete.
        """
        return self._uploads.put_part(path, upload_id, start, data, total_bytes, sha256=sha256, overwrite=overwrite)

    def received(self, path: str, upload_id: str) -> list[tuple[int, int]]:
        """What is there of an upload: first byte and the one after the last, sorted. Nothing if it is not known."""
        return self._uploads.received(path, upload_id)

    def delete(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFoundError):
            self._client.ask("DELETE", self._client.file_target(path), path, writing=True)

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        """Nothing: the service ends uploads that nobody goes on with."""

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        """Nothing, likewise."""
