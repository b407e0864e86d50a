"""Read S3 by obstore, with the endpoint, region and credentials that botocore resolves."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.object_version import split_version
from ..errors import from_botocore, translate_errors
from ..obstore_reader import NO_RETRIES, ObstoreReader, client_options, construction_by_obstore
from ..protocol import Answer, UnsupportedByTransportError
from .credential_chain import require_credentials
from .directory_bucket import is_directory_bucket
from .endpoint import Endpoint, bucket_endpoint, is_of_aws
from .settings import S3Settings, region_of
from .versions import version_of

if TYPE_CHECKING:
    from obstore.store import S3Store

_CREDENTIALS_TTL = dt.timedelta(minutes=5)  # botocore renews those that expire at least ten minutes before
_ZONAL = "s3express"  # signing name of directory buckets
_READABLE = ("s3", _ZONAL)


class S3Reader(ObstoreReader):
    """Reads one bucket by obstore.

    Args:
        store: of obstore.
        bucket: its name, or the ARN of an access point.
        endpoint: its address.
        credentials: of botocore, or ``None`` without a signature.
    """

    def __init__(self, store: S3Store, bucket: str, endpoint: Endpoint, credentials: Any = None) -> None:
        super().__init__(
            store,
            f"s3://{bucket}/",
            if_match=True,
            key=lambda path: split_version(path)[0],
            version=version_of,
        )
        self.endpoint, self._credentials = endpoint, credentials

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        if self._credentials is not None:
            self._credentials.get_frozen_credentials()  # renews them here: obstore keeps only the text of an error
        return super().read(path, start, end, etag)


def s3_reader(bucket: str, settings: S3Settings, session: Any, client: Callable[[], Any]) -> S3Reader:
    """Make a reader with the endpoint, region and credentials that botocore resolves.

    Args:
        bucket: its name, or the ARN of an access point.
        settings: of the store.
        session: of botocore.
        client: makes a botocore client, which takes 0.05 s. It is called only if the address needs its rules.

    Raises:
        UnsupportedByTransportError: if obstore has no signature for the service.
    """
    from obstore.store import S3Store

    url = f"s3://{bucket}"
    with translate_errors(from_botocore, url):
        endpoint = _endpoint(bucket, settings, session, client)
    if endpoint.service not in _READABLE:
        raise UnsupportedByTransportError(f"{url}: obstore does not sign for {endpoint.service}.", url=url)
    config: dict[str, Any] = {"region": endpoint.region, "endpoint": endpoint.url}
    config["virtual_hosted_style_request"] = True  # says that the bucket is in the endpoint, in whatever way
    if endpoint.service == _ZONAL:
        config["s3_express"] = True  # sessions
    credentials = None
    if settings.anon:
        config["skip_signature"] = True
    else:
        with translate_errors(from_botocore, url):
            credentials = require_credentials(session, url)
        config["credential_provider"] = _BotocoreCredentials(credentials)
    options = client_options(settings.read_timeout_s, endpoint.url, settings.network)
    if headers := settings.requests.reading_headers():
        options["default_headers"] = headers  # which obstore signs
    with construction_by_obstore(url):
        store = S3Store(bucket, client_options=options, retry_config=NO_RETRIES, **config)  # type: ignore[arg-type]
    return S3Reader(store, bucket, endpoint, credentials)


def _endpoint(bucket: str, settings: S3Settings, session: Any, client: Callable[[], Any]) -> Endpoint:
    endpoint_url = settings.endpoint_url
    of_file = session.get_scoped_config().get("s3")  # such as its addressing_style
    needs_rules = settings.config or of_file or ":" in bucket or is_directory_bucket(bucket)
    if endpoint_url is None or needs_rules or is_of_aws(endpoint_url):
        return bucket_endpoint(client(), bucket)
    return Endpoint(f"{endpoint_url.rstrip('/')}/{bucket}", region_of(settings, session), "s3")


class _BotocoreCredentials:
    """Credential provider for obstore that uses botocore's chain: environment, profiles, SSO and roles."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._lock = threading.RLock()

    def __call__(self) -> dict[str, Any]:
        with self._lock:
            frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": dt.datetime.now(dt.timezone.utc) + _CREDENTIALS_TTL,
        }
