"""S3: read by obstore, or by botocore what obstore cannot read; all other requests by botocore."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from ...core.object_version import split_version
from ...core.options import StorageOptions
from ...errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from ..clouds.s3 import s3_bucket
from ..errors import from_botocore, mark_host_known, translate_errors
from ..obstore_reader import ObstoreReader, can_express
from ..preferred_reader import PreferredReader
from ..protocol import Answer, CredentialSourceError, Entry, Page, WrongRegionError
from .botocore_reader import BotocoreReader
from .bucket_pages import S3Pages
from .bucket_store import BucketStore
from .client import follows_redirects, make_client
from .directory_bucket import DirectoryBucketPages, is_directory_bucket
from .endpoint import bucket_endpoint
from .headers import tolerate_malformed_headers
from .network import with_bundle
from .page_parser import install_page_parser
from .session import session_of
from .settings import s3_settings
from .upload import S3Writer
from .versions import named, require_current, version_of

_log = logging.getLogger("torchdata_remote")


class S3Store(BucketStore):
    """One bucket.

    Args:
        bucket: its name.
        options: of the user.
        read_timeout_s: seconds without a byte after which a request fails.
        read_by_obstore: whether to read by obstore what it can.
    """

    maps_files = False

    def __init__(self, bucket: str, options: StorageOptions, read_timeout_s: float, *, read_by_obstore: bool) -> None:
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
        self._options, self._read_timeout_s = options, read_timeout_s
        settings = s3_settings(options, read_timeout_s)
        self._cloud = s3_bucket(bucket, options, read_timeout_s)
        self._session = session_of(self._cloud.credentials, settings, self._root)
        self._settings = replace(settings, network=with_bundle(settings.network, self._session))
        self._client: Any = None  # created at first use
        self._obstore: tuple[int, ObstoreReader] | None = (
            None  # made by the first read: a parent that only lists can be forked
        )
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
                self._cloud.credentials.current()
                self._client = make_client(self._settings, self._session, self._root, self._bucket)
                install_page_parser(self._client)
                tolerate_malformed_headers(self._client)
            return self._client

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

        response = self._cloud.credentials.with_renewal(send)
        mark_host_known(self.url(""))
        return response

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._read(path, start, end, etag)

    def _read_by_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        used: list[ObstoreReader] = []

        def read() -> Answer:
            used.append(self._reader())
            return used[-1].read(path, start, end, etag)

        try:
            return self._cloud.credentials.with_renewal(read)
        except CredentialSourceError:
            raise
        except (WrongRegionError, AccessDeniedError):  # 403: a redirect loses the signature
            if not used or not self._is_elsewhere(used[-1]):
                raise
        return self._cloud.credentials.with_renewal(read)

    def _is_elsewhere(self, reader: ObstoreReader) -> bool:
        """Whether the bucket is in another region than a reader assumes. AWS is asked once, by HEAD of the bucket."""
        with self._lock:
            if self._obstore is None or self._obstore[1] is not reader:
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
            region = bucket_endpoint(self.client, self._bucket).region
            if region == self._cloud.config["region"]:
                return False
            self._cloud = s3_bucket(self._bucket, self._options, self._read_timeout_s, region)
            self._obstore = None
            return True

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by botocore."""
        return self._by_botocore.read(path, start, end, etag)

    def _reader(self) -> ObstoreReader:
        with self._lock:
            renewals = self._cloud.credentials.renewals
            if self._obstore is None or self._obstore[0] != renewals:  # it keeps the credentials
                self._obstore = (
                    renewals,
                    ObstoreReader(
                        self._cloud.open(),
                        f"{self._root}/",
                        if_match=True,
                        key=lambda path: split_version(path)[0],
                        version=version_of,
                    ),
                )
            return self._obstore[1]

    def create(self, path: str, *, overwrite: bool) -> S3Writer:
        require_current(path, self.url(path))
        return S3Writer(self, path, overwrite=overwrite)

    def delete(self, path: str) -> None:
        require_current(path, self.url(path))
        self.request("delete_object", path, **named(path))
