"""A bucket of S3, Google or Azure for obstore: its address and region, names of objects, and what writes them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..core.object_version import key_as_path, keys_as_paths, split_version
from ..core.options import StorageOptions
from ..errors import AccessDeniedError, ExpiredCredentialsError, StorageError, UrlError
from .clouds.azure import azure_target
from .clouds.bucket import CloudBucket
from .clouds.gcs import gcs_target
from .clouds.s3 import is_of_aws, properties_of, s3_target
from .errors import unusable_response
from .multipart import UPLOAD_PART_BYTES
from .obstore_reader import ODD_KEY
from .obstore_writer import HiddenWriter
from .protocol import ObjectWriter, WrongRegionError

if TYPE_CHECKING:
    from .obstore_store import ObstoreStore

_MD5 = re.compile("[0-9a-f]{32}")
_CHANGED_BY_AZURE = re.compile(r"(?:^|/)\.{1,2}(?:/|$)|\\")


class S3Bucket(CloudBucket):
    """One bucket.

    Args:
        bucket: its name.
        options: of the user.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    odd_key = ODD_KEY
    odd = re.compile(rf"{ODD_KEY.pattern}|\?versionId=")
    hides_uploads = False

    def __init__(self, bucket: str, options: StorageOptions, read_timeout_s: float) -> None:
        super().__init__(s3_target(bucket, options, read_timeout_s))
        self._options, self._read_timeout_s = options, read_timeout_s
        self.lists_in_order = not self.target.config["s3_express"]
        # obstore signs the header of the bucket's owner only where there is a body or an object
        self.lists_by_fsspec = bool(self.target.client_options.get("default_headers"))
        self._asked_for_region = False

    def renew(self, error: StorageError) -> bool:
        if isinstance(error, ExpiredCredentialsError):
            return super().renew(error)
        address = self.target.config["endpoint"]
        if not isinstance(error, WrongRegionError | AccessDeniedError):  # 403: a redirect loses the signature
            return False
        if self._asked_for_region or not is_of_aws(address):
            return False
        self._asked_for_region = True
        region = self._region_at_aws(address)
        if region in (None, self.target.config["region"]):
            return False
        self.target = s3_target(self.target.name, self._options, self._read_timeout_s, region)
        return True

    def _region_at_aws(self, address: str) -> str | None:
        """Ask for the region of the bucket, by the proxy and with the authorities of all requests."""
        import urllib3

        options = self.target.client_options
        tls: dict[str, Any] = {"ca_cert_data": options.get("root_certificate")}
        if options.get("allow_invalid_certificates"):
            tls = {"cert_reqs": "CERT_NONE"}
        proxy = urlsplit(options.get("proxy_url", address))
        pools = urllib3.PoolManager(**tls)
        if proxy.geturl() != address:
            user = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}"
            login = urllib3.make_headers(proxy_basic_auth=user) if proxy.username else {}
            pools = urllib3.ProxyManager(proxy.geturl(), proxy_headers=login, **tls)
        try:
            found = pools.request("HEAD", address, retries=False, redirect=False, timeout=self._read_timeout_s)
        except urllib3.exceptions.HTTPError:
            return None  # the error of the request remains
        return found.headers.get("x-amz-bucket-region")

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        key, version = split_version(path)
        if version is not None and writing:
            url = self.root + path
            raise UrlError(
                f"{url}: a version of an object is neither written nor deleted: leave out ?versionId={version}. If it "
                "is a part of the key, add ?versionId= after it.",
                url=url,
            )
        return key, version

    def paths(self, keys: list[str]) -> list[str]:
        return keys_as_paths(keys)

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        if properties_of(self._options):  # properties, for which obstore has no words
            return store.slower.create(key_as_path(key), overwrite=overwrite)
        return _S3Writer(store, key, overwrite=overwrite)

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        slower: Any = store.slower
        slower.remove_unfinished(prefix, is_left)


class _S3Writer(HiddenWriter):
    """Writes a small object by obstore, and a large one by s3fs: obstore has no condition for the end of an upload."""

    _large: ObjectWriter | None = None

    def write(self, data: bytes) -> None:
        if self._large is None and len(self._buffer) + len(data) > UPLOAD_PART_BYTES:
            store: Any = self._store
            self._large = store.slower.create(key_as_path(self._path), overwrite=self._overwrite)
            self._large.write(bytes(self._take_buffer()))
        if self._large is None:
            super().write(data)
        else:
            self._large.write(data)

    def commit(self) -> None:
        if self._large is None:
            super().commit()
        else:
            self._large.commit()

    def abort(self) -> None:
        super().abort()
        if self._large is not None:
            self._large.abort()


class GcsBucket(CloudBucket):
    """One bucket.

    Args:
        bucket: its name.
        options: of the user.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    odd = odd_key = ODD_KEY
    lists_in_order = True
    hides_uploads = True
    lists_by_fsspec = False

    def __init__(self, bucket: str, options: StorageOptions, read_timeout_s: float) -> None:
        super().__init__(gcs_target(bucket, options, read_timeout_s))

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        return path, None

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        return _GcsWriter(store, key, overwrite=overwrite)

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        """Do nothing: obstore cannot list unfinished uploads. A lifecycle rule of the bucket removes them."""


class _GcsWriter(HiddenWriter):
    def _check(self, made: Any, data: bytearray) -> None:
        """Compare the MD5 that the store answers with: obstore sends no digest of what it writes."""
        etag = (made["e_tag"] or "").strip('"')
        if _MD5.fullmatch(etag) and etag != hashlib.md5(data, usedforsecurity=False).hexdigest():
            raise unusable_response(self._url, "the store has other bytes than were sent")


class AzureBucket(CloudBucket):
    """One container.

    Args:
        scheme: of the URL.
        bucket: ``container``, or ``container@account.dfs.core.windows.net``.
        options: of the user.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    odd = odd_key = re.compile(rf"{ODD_KEY.pattern}|\\")
    lists_in_order = False  # with a hierarchical namespace, folders are listed as a tree
    hides_uploads = True
    lists_by_fsspec = False

    def __init__(self, scheme: str, bucket: str, options: StorageOptions, read_timeout_s: float) -> None:
        super().__init__(azure_target(bucket, options, read_timeout_s))
        self.root = f"{scheme}://{bucket}/"

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        if _CHANGED_BY_AZURE.search(path):
            raise UrlError(
                f"{self.root}{path}: a name with '.' or '..' between slashes, or with a backslash, is another one on "
                "its way to Azure.",
                url=self.root + path,
            )
        return path, None

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        return HiddenWriter(store, key, overwrite=overwrite)

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        """Do nothing: Azure deletes blocks that are not committed after a week, and nobody else can."""
