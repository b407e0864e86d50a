"""Reading by obstore: the transport that carries most of the bytes. Blocking calls only, one request each.

obstore cannot be used in a process that was forked after its parent used it: requests hang there. So each use is
noted, and ``usable`` says no in such a child.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import threading
from typing import TYPE_CHECKING, Any

from ..errors import TransientStorageError
from ..urls import redact
from ._errors import from_botocore, from_obstore, from_status, translated
from ._protocol import Blob
from ._s3_settings import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, S3Settings, is_custom_endpoint

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CREDENTIALS_TTL = dt.timedelta(minutes=5)  # botocore renews those that expire at least ten minutes before
_PLAIN_HTTP_PATH = re.compile(r"[A-Za-z0-9_.~/-]+")

_used = False
_forked_after_use = False


def _after_fork() -> None:
    global _forked_after_use, _used
    _forked_after_use = _forked_after_use or _used


os.register_at_fork(after_in_child=_after_fork)


def usable() -> bool:
    """Whether obstore works in this process."""
    return not _forked_after_use


def can_express(path: str) -> bool:
    """Whether obstore asks for exactly this key: it drops slashes at both ends and refuses empty and dot segments."""
    return not any(segment in ("", ".", "..") for segment in path.split("/"))


def can_express_http(path: str) -> bool:
    """Whether obstore asks for exactly this path: it quotes once more what is quoted, and knows no query."""
    return can_express(path) and _PLAIN_HTTP_PATH.fullmatch(path) is not None


class ObstoreReader:
    """Reads objects of one bucket or host.

    Args:
        store: an obstore store.
        root: URL of the store, with a slash at its end.
        if_match: whether to send If-Match. Without it the etag of the answer is compared.
    """

    def __init__(self, store: ObjectStore, root: str, *, if_match: bool) -> None:
        global _used
        _used = True
        self._store, self._root, self._if_match = store, root, if_match

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Blob:
        import obstore
        from obstore.exceptions import NotSupportedError

        options: dict[str, Any] = {}
        if end is not None:
            options["range"] = (start, end)
        if etag is not None and self._if_match:
            options["if_match"] = etag
        url = self._root + path
        with translated(from_obstore, url):
            try:
                result = obstore.get(self._store, path, options=options)  # type: ignore[arg-type]  # a TypedDict
            except NotSupportedError:  # the server answered 200 with everything
                options.pop("range")
                result = obstore.get(self._store, path, options=options)  # type: ignore[arg-type]
            total, found_etag = int(result.meta["size"]), result.meta["e_tag"]
            first, last = result.range
            data = memoryview(result.bytes())
        if len(data) != last - first or first != (start if "range" in options else 0):
            raise TransientStorageError(
                f"{redact(url)}: asked for {start:,} to {end}, got {first:,} to {last:,} in {len(data):,} bytes.",
                url=redact(url),
            )
        if etag is not None and found_etag is not None and found_etag != etag:
            raise from_status(412, "", url)
        return Blob(data, total, found_etag)


class _BotocoreCredentials:
    """obstore's credential provider over botocore's chain, which knows env, profiles, SSO and roles."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._lock = threading.Lock()

    def __call__(self) -> dict[str, Any]:
        with self._lock:
            frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": dt.datetime.now(dt.timezone.utc) + _CREDENTIALS_TTL,
        }


_CLIENT_OPTIONS: dict[str, Any] = {
    "allow_http": True,
    "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
    "read_timeout": f"{READ_TIMEOUT_S}s",
    "timeout": "300s",  # of a whole request; by default 30 s, too little for a part over a slow link
}
_NO_RETRIES: dict[str, Any] = {"max_retries": 0}


def s3_reader(bucket: str, settings: S3Settings, session: Any, client: Any) -> ObstoreReader:
    """A reader with the endpoint, region and credentials that botocore resolved."""
    from obstore.store import S3Store

    config: dict[str, Any] = {"region": client.meta.region_name}
    if is_custom_endpoint(client):
        config["endpoint"] = client.meta.endpoint_url
    else:
        config["virtual_hosted_style_request"] = "." not in bucket
    if settings.anon:
        config["skip_signature"] = True
    else:
        credentials = session.get_credentials()
        if credentials is None:
            from botocore.exceptions import NoCredentialsError

            raise from_botocore(NoCredentialsError(), f"s3://{bucket}")
        config["credential_provider"] = _BotocoreCredentials(credentials)
    store = S3Store(bucket, client_options=_CLIENT_OPTIONS, retry_config=_NO_RETRIES, **config)  # type: ignore[arg-type]
    return ObstoreReader(store, f"s3://{bucket}/", if_match=True)


def http_reader(origin: str) -> ObstoreReader:
    """A reader of one http host, such as ``https://host:port``."""
    from obstore.store import HTTPStore

    store = HTTPStore.from_url(origin, client_options=_CLIENT_OPTIONS, retry_config=_NO_RETRIES)  # type: ignore[arg-type]
    return ObstoreReader(store, origin + "/", if_match=False)  # If-Match fails for weak etags
