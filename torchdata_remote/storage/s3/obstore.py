"""Read S3 by obstore, with the endpoint, region and credentials that botocore resolves."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any

from ..error_tables import from_botocore
from ..errors import translate_errors
from ..obstore_reader import NO_RETRIES, ObstoreReader, client_options
from .settings import S3Settings, is_custom_endpoint, region_of

_CREDENTIALS_TTL = dt.timedelta(minutes=5)  # botocore renews those that expire at least ten minutes before


def s3_reader(bucket: str, settings: S3Settings, session: Any, client: Callable[[], Any]) -> ObstoreReader:
    """Make a reader with the endpoint, region and credentials that botocore resolves.

    Args:
        bucket: its name.
        settings: of the store.
        session: of botocore.
        client: makes a botocore client, which takes 0.05 s. It is called only if the options have no endpoint.
    """
    from obstore.store import S3Store

    region = region_of(settings, session)
    endpoint_url = settings.endpoint_url
    if endpoint_url is None:
        endpoint_url = str(client().meta.endpoint_url)
    config: dict[str, Any] = {"region": region}
    if is_custom_endpoint(endpoint_url, region):
        config["endpoint"] = endpoint_url
    else:
        config["virtual_hosted_style_request"] = "." not in bucket
    if settings.anon:
        config["skip_signature"] = True
    else:
        from botocore.exceptions import NoCredentialsError

        with translate_errors(from_botocore, f"s3://{bucket}"):
            credentials = session.get_credentials()
            if credentials is None:
                raise NoCredentialsError
        config["credential_provider"] = _BotocoreCredentials(credentials)
    options = client_options(settings.read_timeout_s, endpoint_url)
    store = S3Store(bucket, client_options=options, retry_config=NO_RETRIES, **config)  # type: ignore[arg-type]
    return ObstoreReader(store, f"s3://{bucket}/", if_match=True)


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
