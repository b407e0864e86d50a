"""S3: read by obstore, or by botocore what obstore cannot read; all other requests by botocore."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ...core.object_version import split_version
from ...errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from ..entry_table import EntryTable
from ..errors import from_status, translate_errors
from ..network_errors import mark_host_known
from ..obstore_reader import can_express
from ..preferred_reader import PreferredReader
from ..protocol import Answer, Entry, Page, WrongRegionError, normalized_etag
from .botocore_reader import BotocoreReader
from .bucket_pages import BucketPages
from .credential_source import advice_on_access
from .directory_bucket import DirectoryBucketPages, is_directory_bucket
from .endpoint import bucket_endpoint
from .headers import tolerate_malformed_headers
from .obstore import S3Reader, s3_reader
from .page_parser import install_page_parser, seconds
from .settings import S3Settings, follows_redirects, make_client, make_session
from .unfinished_uploads import MultipartUploads
from .upload import S3Writer
from .versions import botocore_error, named, require_current, version_of

T = TypeVar("T")
_log = logging.getLogger("torchdata_remote")


class S3Store:
    """One bucket.

    Args:
        bucket: its name.
        settings: endpoint, region, credentials.
        read_by_obstore: whether to read by obstore what it can.
    """

    maps_files = False

    def __init__(self, bucket: str, settings: S3Settings, *, read_by_obstore: bool) -> None:
        self._bucket = bucket
        self._settings = settings
        self.may_ignore_ranges = False  # until responses show it
        self._by_botocore = BotocoreReader(self, named)
        self._read = PreferredReader(
            f"s3://{bucket}",
            self._read_by_obstore,
            self.read_without_obstore,
            (lambda path: can_express(split_version(path)[0])) if read_by_obstore else None,
        )
        self._session = make_session(settings, f"s3://{bucket}")
        self._client: Any = None  # created at first use
        self._obstore: S3Reader | None = None  # made by the first read: a parent that only lists can be forked
        self._asked_for_region = False
        self._lock = threading.RLock()
        self.supports_conditional_writes = True  # If-None-Match
        self._warned: set[str] = set()
        self.has_md5_etags = not is_directory_bucket(bucket)  # of objects that are not encrypted by KMS or SSE-C
        pages = BucketPages if self.has_md5_etags else DirectoryBucketPages
        self._pages = pages(self.request, self.url)
        self.uploads = MultipartUploads(self.request, self.warn_unsupported)

    @property
    def client(self) -> Any:
        """The client of botocore."""
        with self._lock:
            if self._client is None:
                self._client = make_client(self._settings, self._session, f"s3://{self._bucket}")
                install_page_parser(self._client)
                tolerate_malformed_headers(self._client)
            return self._client

    def _with_renewed_credentials(self, operation: Callable[[], T]) -> T:
        """Call ``operation``. If the credentials have expired, load them again and call it once more."""
        session = self._session
        try:
            return operation()
        except ExpiredCredentialsError:
            with self._lock:
                if self._session is session:  # no other thread has renewed it
                    self._session = make_session(self._settings, f"s3://{self._bucket}")
                    self._client = self._obstore = None
                    self._asked_for_region = False
            return operation()
        except AccessDeniedError as error:
            error.args = (f"{error}{advice_on_access(self._settings, session)}",)
            raise

    def url(self, path: str) -> str:
        """URL of an object, for errors."""
        return f"s3://{self._bucket}/{path}"

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        return self._pages.page(prefix, recursive=recursive, token=token, after=after)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        return self._pages.after(prefix, recursive=recursive, after=after, limit=limit)

    def find(self, path: str) -> Entry | None:
        return self.find_first(path, 1)[0]

    def find_first(self, path: str, limit: int) -> tuple[Entry | None, Page]:
        if version_of(path) is not None:
            return self._stat_version(path), Page([], None)
        page = self._pages.beside(path, limit)
        keys = EntryTable.of(page.entries).keys
        entry = next((one for one in page.entries if one.path == path), None)
        # A key sorts before all keys that it is a prefix of. But some servers list in another order
        is_folder = keys == sorted(keys) and any(key.startswith(path + "/") for key in keys)
        may_be_further = self._pages.may_omit(page) and path and not path.endswith("/") and not is_folder
        if entry is None and may_be_further:
            entry = self._stat_if_allowed(path)
        return entry, page

    def _stat_version(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            return None

    def _stat_if_allowed(self, path: str) -> Entry | None:
        """Return an object; ``None`` if it is missing, or the store only allows to list it."""
        try:
            return self.stat(path)
        except (TransientStorageError, ExpiredCredentialsError):
            raise
        except StorageError:
            return None

    def stat(self, path: str) -> Entry:
        response = self.request("head_object", path, **named(path))
        size = response.get("ContentLength")
        return Entry(
            path,
            None if size is None else int(size),
            normalized_etag(response.get("ETag")),
            seconds(response.get("LastModified")),
        )

    def request(self, name: str, path: str, *, writing: bool = False, **arguments: Any) -> Any:
        """Send one request by botocore, and raise this package's errors."""

        def send() -> Any:
            with translate_errors(botocore_error, self.url(path), writing=writing):
                client = self.client
                model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[name])
                more = self._settings.requests.of(model.input_shape.members)
                return getattr(client, name)(Bucket=self._bucket, **more, **arguments)

        response = self._with_renewed_credentials(send)
        mark_host_known(self.url(""))
        return response

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._read(path, start, end, etag)

    def _read_by_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        used: list[S3Reader] = []

        def read() -> Answer:
            used.append(self._reader())
            return used[-1].read(path, start, end, etag)

        try:
            return self._with_renewed_credentials(read)
        except (WrongRegionError, AccessDeniedError):  # 403: a redirect loses the signature
            if not used or not self._is_elsewhere(used[-1]):
                raise
        return self._with_renewed_credentials(read)

    def _is_elsewhere(self, reader: S3Reader) -> bool:
        """Whether the bucket is in another region than a reader assumes. AWS is asked once, by HEAD of the bucket."""
        with self._lock:
            if self._obstore is not reader:
                return True  # another thread has found it
            if self._asked_for_region or not follows_redirects(self.client):
                return False
            self._asked_for_region = True
            with contextlib.suppress(AccessDeniedError, WrongRegionError):  # botocore has noted the region nevertheless
                self.request("head_bucket", "")
            if bucket_endpoint(self.client, self._bucket) == reader.endpoint:
                return False
            self._obstore = None
            return True

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by botocore."""
        return self._by_botocore.read(path, start, end, etag)

    def _reader(self) -> S3Reader:
        with self._lock:
            if self._obstore is None:
                self._obstore = s3_reader(self._bucket, self._settings, self._session, lambda: self.client)
            return self._obstore

    def create(self, path: str, *, overwrite: bool) -> S3Writer:
        require_current(path, self.url(path))
        return S3Writer(self, path, overwrite=overwrite)

    def delete(self, path: str) -> None:
        require_current(path, self.url(path))
        self.request("delete_object", path, **named(path))

    def warn_unsupported(self, what: str, error: StorageError) -> None:
        """Warn, once, of a feature that this store does not support, and of the consequences."""
        with self._lock:
            if what in self._warned:
                return
            self._warned.add(what)
        _log.warning("s3://%s %s (%s)", self._bucket, what, error)

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
