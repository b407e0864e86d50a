"""Google Cloud Storage, by its XML API: read by obstore, or by botocore what obstore cannot read; all else by botocore.

Google's XML API is S3's in all that is needed here, with other headers, credentials and conditions, which the client
translates (https://cloud.google.com/storage/docs/xml-api/overview).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import ObjectNotFoundError
from ..clouds.bucket import CloudBucket
from ..entry_table import EntryTable
from ..errors import from_botocore, mark_host_known, translate_errors
from ..obstore_reader import ObstoreReader, can_express
from ..paging import every_page
from ..preferred_reader import PreferredReader
from ..protocol import Answer, Page
from ..s3.botocore_reader import BotocoreReader
from ..s3.bucket_store import BucketStore
from .client import make_gcs_client
from .partial_names import own_name, without_partial
from .upload import GcsWriter


class GcsStore(BucketStore):
    """One bucket.

    Args:
        bucket: its name.
        cloud: endpoint and credentials.
        read_timeout_s: seconds without a byte after which a request fails.
        read_by_obstore: whether to read by obstore what it can.
    """

    maps_files = False

    def __init__(self, bucket: str, cloud: CloudBucket, read_timeout_s: float, *, read_by_obstore: bool) -> None:
        super().__init__(f"gs://{bucket}")
        self._bucket, self._cloud, self._read_timeout_s = bucket, cloud, read_timeout_s
        self.may_ignore_ranges = False  # until responses show it
        self._client: Any = None  # created at first use
        self._obstore: tuple[int, ObstoreReader] | None = (
            None  # made by the first read: a parent that only lists can be forked
        )
        self._by_botocore = BotocoreReader(self)
        self._read = PreferredReader(
            self._root, self._read_by_obstore, self.read_without_obstore, can_express if read_by_obstore else None
        )

    @property
    def client(self) -> Any:
        """The client of botocore."""
        with self._lock:
            if self._client is None:
                self._client = make_gcs_client(self._cloud, self._read_timeout_s)
            return self._client

    def request(self, name: str, path: str, *, writing: bool = False, **arguments: Any) -> Any:
        """Send one request by botocore, and raise this package's errors."""

        def send() -> Any:
            with translate_errors(from_botocore, self.url(path), writing=writing):
                return getattr(self.client, name)(Bucket=self._bucket, **arguments)

        response = self._cloud.credentials.with_renewal(send)
        mark_host_known(self.url(""))
        return response

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._read(path, start, end, etag)

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by botocore."""
        return self._by_botocore.read(path, start, end, etag)

    def _read_by_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._cloud.credentials.with_renewal(lambda: self._reader().read(path, start, end, etag))

    def _reader(self) -> ObstoreReader:
        with self._lock:
            renewals = self._cloud.credentials.renewals
            if self._obstore is None or self._obstore[0] != renewals:  # it keeps the token
                reader = ObstoreReader(self._cloud.open(), f"{self._root}/", if_match=True)
                self._obstore = renewals, reader
            return self._obstore[1]

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        return without_partial(super().list_page(prefix, recursive=recursive, token=token, after=after))

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        return without_partial(super().list_after(prefix, recursive=recursive, after=after, limit=limit))

    def create(self, path: str, *, overwrite: bool) -> GcsWriter:
        return GcsWriter(self, path, overwrite=overwrite)

    def copy_if_absent(self, source: str, path: str) -> None:
        """Copy an object within the bucket, unless there is one at ``path``: metadata only, whatever its size."""
        copied = {"Bucket": self._bucket, "Key": source}
        self.request("copy_object", path, writing=True, Key=path, CopySource=copied)

    def delete(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFoundError):
            self.request("delete_object", path, Key=path)

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        def is_of_ours(name: str) -> bool:
            own = own_name(name)
            return is_ours(name if own is None else own)

        folder, slash, start = prefix.rpartition("/")
        hidden = f"{folder}{slash}.{start}"
        super().remove_leftovers(prefix, is_of_ours)
        if start:
            super().remove_leftovers(hidden, is_of_ours)
        for page in self._all_pages(hidden, recursive=False):
            for key in EntryTable.of(page.entries).keys:
                name = own_name(key)
                if name is not None and is_ours(name):
                    self.delete(key)

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        super().remove_old_leftovers(path, before_s)
        for page in self._all_pages(path, recursive=True):
            keys = EntryTable.of(page.entries).keys
            for entry in page.entries if any(map(own_name, keys)) else ():
                if own_name(entry.path) is not None and (entry.modified_s or before_s) < before_s:
                    self.delete(entry.path)

    def _all_pages(self, prefix: str, *, recursive: bool) -> Iterator[Page]:
        """Yield the pages of a listing, with the names that other listings omit."""
        return every_page(lambda token: self._pages.page(prefix, recursive=recursive, token=token), self.url(prefix))
