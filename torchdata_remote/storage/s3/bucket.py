"""A bucket of S3 for obstore: address, region, credentials and headers."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...core.bucket_names import is_name_of_s3
from ...core.object_version import key_as_path, keys_as_paths, split_version
from ...core.urls import redact
from ...errors import AccessDeniedError, ExpiredCredentialsError, ObjectNotFoundError, StorageError, UrlError
from ..error_tables import from_botocore, from_obstore, from_urllib3, status_and_code
from ..errors import from_status, translate_errors
from ..multipart import UPLOAD_PART_BYTES
from ..network import ServerPools, note_authorities, obstore_client_options
from ..obstore_reader import NO_RETRIES, ODD_KEY
from ..obstore_writer import HiddenWriter, is_refused_condition
from ..protocol import ObjectWriter, WrongRegionError
from .credential_chain import require_credentials
from .credential_source import advice_on_access
from .endpoint import Address, bucket_address, is_directory_bucket
from .network import with_bundle
from .request_options import ARGUMENTS
from .session import make_session
from .settings import S3Settings, region_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from ..obstore_store import ObstoreStore

_CREDENTIALS_TTL = dt.timedelta(minutes=5)  # botocore renews those that expire at least ten minutes before
_OF_EVERY_REQUEST = {"RequestPayer", "ExpectedBucketOwner"}
_DELETE_MARKER = 405  # for a version that says that the object was deleted
_NO_SUCH_VERSION = ("InvalidArgument", "NoSuchVersion")


class S3Bucket:
    """One bucket.

    Args:
        bucket: its name.
        settings: endpoint, region, credentials.
    """

    odd_key = ODD_KEY
    odd = re.compile(rf"{ODD_KEY.pattern}|\?versionId=")
    hides_uploads = False

    def __init__(self, bucket: str, settings: S3Settings) -> None:
        if not is_name_of_s3(bucket):
            shown = redact(f"s3://{bucket}")
            raise UrlError(
                f"{shown}: no name of a bucket. It has letters, digits, dots, hyphens and underscores, or is the ARN "
                "of an access point; a name in another notation, such as with %20, is not converted.",
                url=shown,
            )
        self.root, self.name = f"s3://{bucket}/", bucket
        self.lists_in_order = not is_directory_bucket(bucket)
        self.provider_fault: Exception | None = None
        self._where = self.root.rstrip("/")  # for errors
        self._session = make_session(settings, self._where)
        self.settings = replace(settings, network=with_bundle(settings.network, self._session))
        note_authorities(self._where, self.settings.network)
        # obstore signs the header only where there is a body or an object
        self.lists_by_fsspec = bool(self.settings.requests.of({"ExpectedBucketOwner"}))
        self._region: str | None = None  # that AWS has named
        self._asked_for_region = False

    def _address(self) -> Address:
        with translate_errors(from_botocore, self._where):
            region = self._region or region_of(self.settings, self._session)
            return bucket_address(self.name, self.settings, self._session, region, is_found=self._region is not None)

    def connect(self, *, reading: bool, retry: bool = False) -> ObjectStore:
        from obstore.store import S3Store

        address, settings = self._address(), self.settings
        config: dict[str, Any] = {"region": address.region, "endpoint": address.url, "disable_bulk_delete": True}
        config["virtual_hosted_style_request"] = True  # says that the bucket is in the endpoint, in whatever way
        if not self.lists_in_order:
            config["s3_express"] = True  # sessions
        if settings.anon:
            config["skip_signature"] = True
        else:
            with translate_errors(from_botocore, self._where):
                config["credential_provider"] = self._provider(require_credentials(self._session, self._where))
        options: Any = obstore_client_options(address.url, settings.read_timeout_s, settings.network)
        headers = settings.requests.reading_headers()
        if headers.pop("x-amz-request-payer", None):
            config["request_payer"] = True
        if not reading:
            headers = {name: value for name, value in headers.items() if "customer" not in name}
        if headers:
            options["default_headers"] = headers  # which obstore signs
        if not retry:
            config["retry_config"] = NO_RETRIES
        return S3Store(self.name, client_options=options, **config)

    def _provider(self, credentials: Any) -> Callable[[], dict[str, Any]]:
        def provide() -> dict[str, Any]:
            try:
                frozen = credentials.get_frozen_credentials()
                self.provider_fault = None
            except Exception as error:
                self.provider_fault = error
                raise
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": dt.datetime.now(dt.timezone.utc) + _CREDENTIALS_TTL,
            }

        provide()  # raises here what would be wrong at each request
        return provide

    def renew(self, error: StorageError) -> bool:
        if isinstance(error, ExpiredCredentialsError):
            self._session = make_session(self.settings, self._where)
            return True
        if not isinstance(error, WrongRegionError | AccessDeniedError):  # 403: a redirect loses the signature
            return False
        address = self._address()
        if self._asked_for_region or not address.is_of_aws:
            return False
        self._asked_for_region = True
        pools = ServerPools(self.settings.network, timeout=self.settings.read_timeout_s)
        with translate_errors(from_urllib3, self._where):
            found = pools.manager(address.url).request("HEAD", address.url, retries=False, redirect=False)
        self._region = found.headers.get("x-amz-bucket-region")
        return self._region not in (None, address.region)

    def explain(self, error: StorageError) -> StorageError:
        if isinstance(error, AccessDeniedError) and not isinstance(error, ExpiredCredentialsError):
            advice = advice_on_access(self.settings, self._session)
            if advice not in str(error):
                error.args = (f"{error}{advice}",)
        return error

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

    def table(self, error: Exception, url: str, *, writing: bool = False) -> Exception:
        """Convert an error of obstore. AWS answers 400 for a version that does not exist, to HEAD without a reason."""
        if writing and is_refused_condition(error):
            return from_status(412, "", url, writing=True)
        status, code = status_and_code(str(error))
        version = split_version(url)[1]
        if version is not None and (
            status == _DELETE_MARKER or (status == 400 and (not code or code in _NO_SUCH_VERSION))
        ):
            shown = redact(url)
            return ObjectNotFoundError(
                f"{shown}: no such version {version!r}. If ?versionId= is a part of the key, add ?versionId= after it.",
                url=shown,
            )
        return from_obstore(error, url)

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        if self.settings.requests.of(ARGUMENTS - _OF_EVERY_REQUEST):  # properties, for which obstore has no words
            return store.slower.create(key_as_path(key), overwrite=overwrite)
        return _Writer(store, key, overwrite=overwrite)

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        slower: Any = store.slower
        slower.remove_unfinished(prefix, is_left)


class _Writer(HiddenWriter):
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
