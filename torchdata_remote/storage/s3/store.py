"""S3: read by obstore, or by botocore what obstore cannot read; all other requests by botocore."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ...errors import AccessDeniedError, ExpiredCredentialsError, StorageError, TransientStorageError
from ..entry_table import EntryTable
from ..error_tables import from_botocore
from ..errors import from_status, translate_errors
from ..http.content_encoding import require_unencoded
from ..http.content_range import parse_content_length, parse_content_range, range_header
from ..http.urllib3_reader import stream_body
from ..network_errors import mark_host_known, unusable_response
from ..obstore_reader import ObstoreReader, can_express
from ..preferred_reader import MAX_UNREADABLE, PreferredReader
from ..protocol import Answer, Entry, Page, normalized_etag
from .bucket_pages import BucketPages
from .credential_source import source_of_credentials
from .headers import tolerate_malformed_headers
from .obstore import s3_reader
from .page_parser import install_page_parser, seconds
from .settings import S3Settings, make_client, make_session
from .unfinished_uploads import MultipartUploads
from .upload import S3Writer

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
        self._num_ignored_ranges = 0  # consecutive responses with the whole object instead of a range
        self._read = PreferredReader(
            f"s3://{bucket}",
            self._read_by_obstore,
            self.read_without_obstore,
            can_express if read_by_obstore else None,
        )
        self._session = make_session(settings, f"s3://{bucket}")
        self._client: Any = None  # created at first use
        self._obstore: Any = None  # created by the first read: a parent that only lists can be forked
        self._lock = threading.RLock()
        self.supports_conditional_writes = True  # If-None-Match
        self._warned: set[str] = set()
        self._pages = BucketPages(self.request, self.url)
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
            return operation()
        except AccessDeniedError as error:
            error.args = (f"{error}{source_of_credentials(self._settings, session)}",)
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
        page = self._pages.first(path, {"MaxKeys": limit})
        keys = EntryTable.of(page.entries).keys
        entry = next((one for one in page.entries if one.path == path), None)
        # A key sorts before all keys that it is a prefix of. But some servers list in another order
        is_folder = keys == sorted(keys) and any(key.startswith(path + "/") for key in keys)
        may_be_further = page.next_token is not None and path and not path.endswith("/") and not is_folder
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
        response = self.request("head_object", path, Key=path)
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
            with translate_errors(from_botocore, self.url(path), writing=writing):
                return getattr(self.client, name)(Bucket=self._bucket, **arguments)

        response = self._with_renewed_credentials(send)
        mark_host_known(self.url(""))
        return response

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._read(path, start, end, etag)

    def _read_by_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._with_renewed_credentials(lambda: self._reader().read(path, start, end, etag))

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by botocore."""
        arguments: dict[str, Any] = {"Key": path}
        wanted_range = range_header(start, end)
        if wanted_range is not None:
            arguments["Range"] = wanted_range
        if etag is not None:
            arguments["IfMatch"] = etag
        response = self.request("get_object", path, **arguments)
        metadata, url = response["ResponseMetadata"], self.url(path)
        headers = metadata["HTTPHeaders"]
        with contextlib.ExitStack() as on_error:
            on_error.callback(response["Body"].close)
            require_unencoded(headers.get("content-encoding"), path, url)
            status, length = metadata["HTTPStatusCode"], parse_content_length(headers.get("content-length"))
            first, after, total = parse_content_range(status, headers.get("content-range"), length, url)
            if total is None:
                total = self._total_bytes(path, response.get("ETag"))
            on_error.pop_all()
        requested = (start, total if end is None else min(end, total))
        self._count_ignored_range(wanted_range is not None and (first, after) == (0, total) and requested != (0, total))
        return Answer(first, after, total, normalized_etag(response.get("ETag")), self._chunks(path, response["Body"]))

    def _total_bytes(self, path: str, etag: str | None) -> int:
        """Size of an object, if the response to a range does not contain it."""
        entry = self.stat(path)
        if entry.size is None or (etag is not None and entry.etag is not None and etag != entry.etag):
            raise unusable_response(self.url(path), f"the store does not send the size of the version {etag}")
        return entry.size

    def _count_ignored_range(self, is_whole: bool) -> None:
        """Count consecutive responses that contain the whole object instead of a range.

        A store that ignores ranges would send the whole object for each part, so later objects are read in one request.
        """
        self._num_ignored_ranges = self._num_ignored_ranges + 1 if is_whole else 0
        if self._num_ignored_ranges == MAX_UNREADABLE and not self.may_ignore_ranges:
            self.may_ignore_ranges = True
            _log.warning("s3://%s ignores ranges: each object is read in one request, more slowly", self._bucket)

    def _chunks(self, path: str, body: Any) -> Generator[memoryview, None, None]:
        with contextlib.closing(body), translate_errors(from_botocore, self.url(path)):
            yield from stream_body(body._raw_stream)

    def _reader(self) -> ObstoreReader:
        with self._lock:
            if self._obstore is None:
                self._obstore = s3_reader(self._bucket, self._settings, self._session, lambda: self.client)
            reader: ObstoreReader = self._obstore
            return reader

    def create(self, path: str, *, overwrite: bool) -> S3Writer:
        return S3Writer(self, path, overwrite=overwrite)

    def delete(self, path: str) -> None:
        self.request("delete_object", path, Key=path)

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
