"""S3: read by obstore, or by botocore what obstore cannot read; all other requests by botocore."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from ...core.bucket_names import is_name_of_s3, split_access_point
from ...core.object_version import split_version
from ...core.urls import redact
from ...errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from ..errors import from_botocore, mark_host_known, translate_errors
from ..network import note_authorities
from ..obstore_reader import can_express
from ..preferred_reader import PreferredReader
from ..protocol import Answer, CredentialSourceError, Entry, Page, WrongRegionError
from .botocore_reader import BotocoreReader
from .bucket_pages import S3Pages
from .bucket_store import BucketStore
from .client import follows_redirects, make_client
from .credential_chain import require_credentials
from .credential_source import advice_on_access
from .directory_bucket import DirectoryBucketPages, is_directory_bucket
from .endpoint import bucket_endpoint
from .headers import tolerate_malformed_headers
from .network import with_bundle
from .obstore import S3Reader, s3_reader
from .page_parser import install_page_parser
from .session import make_session
from .settings import S3Settings
from .upload import S3Writer
from .versions import named, require_current, version_of

T = TypeVar("T")
_log = logging.getLogger("torchdata_remote")


class S3Store(BucketStore):
    """One bucket.

    Args:
        bucket: its name.
        settings: endpoint, region, credentials.
        read_by_obstore: whether to read by obstore what it can.
    """

    maps_files = False

    def __init__(self, bucket: str, settings: S3Settings, *, read_by_obstore: bool) -> None:
        if not is_name_of_s3(bucket) and split_access_point(bucket) is None:
            shown = redact(f"s3://{bucket}")
            raise UrlError(
                f"{shown}: no name of a bucket. It has letters, digits, dots, hyphens and underscores, or is the ARN "
                "of an access point; a name in another notation, such as with %20, is not converted.",
                url=shown,
            )
        self.has_md5_etags = not is_directory_bucket(bucket)  # of objects that are not encrypted by KMS or SSE-C
        super().__init__(f"s3://{bucket}", S3Pages if self.has_md5_etags else DirectoryBucketPages)
        self._bucket = bucket
        self.may_ignore_ranges = False  # until responses show it
        self._by_botocore = BotocoreReader(self)
        self._read = PreferredReader(
            self._root,
            self._read_by_obstore,
            self.read_without_obstore,
            (lambda path: can_express(split_version(path)[0])) if read_by_obstore else None,
        )
        self._session = make_session(settings, self._root)
        self._settings = replace(settings, network=with_bundle(settings.network, self._session))
        note_authorities(self._root, self._settings.network)
        self._client: Any = None  # created at first use
        self._obstore: S3Reader | None = None  # made by the first read: a parent that only lists can be forked
        self._asked_for_region = False
        self.supports_conditional_writes = True  # If-None-Match

    def named(self, path: str) -> dict[str, Any]:
        """Return botocore's arguments that name an object, and maybe its version."""
        return named(path)

    @property
    def client(self) -> Any:
        """The client of botocore."""
        with self._lock:
            if self._client is None:
                if not self._settings.anon:
                    with translate_errors(from_botocore, self._root):
                        require_credentials(self._session, self._root)
                self._client = make_client(self._settings, self._session, self._root, self._bucket)
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
                    self._session = make_session(self._settings, self._root)
                    self._client = self._obstore = None
                    self._asked_for_region = False
            return operation()
        except CredentialSourceError:
            raise
        except AccessDeniedError as error:
            error.args = (f"{error}{advice_on_access(self._settings, session)}",)
            raise

    def find_first(self, path: str, limit: int) -> tuple[Entry | None, Page]:
        if version_of(path) is not None:
            return self._stat_version(path), Page([], None)
        return super().find_first(path, limit)

    def _stat_version(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            return None

    def request(self, name: str, path: str, *, writing: bool = False, **arguments: Any) -> Any:
        """Send one request by botocore, and raise this package's errors."""

        def send() -> Any:
            with translate_errors(from_botocore, self.url(path), writing=writing):
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
        except CredentialSourceError:
            raise
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
            try:
                self.request("head_bucket", "")
            except (TransientStorageError, ExpiredCredentialsError):
                raise
            except StorageError:  # 400 without a reason, 403: botocore has noted the region nevertheless
                _log.debug("%s: the region of the bucket is not known", self._root, exc_info=True)
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
