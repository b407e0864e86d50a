"""A bucket of Google Cloud Storage for obstore, with the tokens that google-auth finds."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import AccessDeniedError, ExpiredCredentialsError, StorageError
from ..errors import from_status, with_source
from ..network import obstore_client_options
from ..network_errors import unusable_response
from ..obstore_reader import NO_RETRIES, ODD_KEY
from ..obstore_writer import HiddenWriter, is_refused_condition
from ..protocol import ObjectWriter
from .errors import from_reader
from .settings import GcsSettings
from .tokens import Tokens

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from ..obstore_store import ObstoreStore

# Without it the server decompresses what is stored compressed, and ignores the range
_STORED_BYTES = {"Accept-Encoding": "gzip"}
_CLOCK_SKEW = dt.timedelta(seconds=10)
_MD5 = re.compile("[0-9a-f]{32}")


class GcsBucket:
    """One bucket.

    Args:
        bucket: its name.
        settings: endpoint and credentials.
    """

    odd = odd_key = ODD_KEY
    lists_in_order = True
    hides_uploads = True
    lists_by_fsspec = False

    def __init__(self, bucket: str, settings: GcsSettings) -> None:
        self.root, self._name, self._settings = f"gs://{bucket}/", bucket, settings
        self._tokens = Tokens(settings, f"gs://{bucket}")
        self.provider_fault: Exception | None = None

    def connect(self, *, reading: bool, retry: bool = False) -> ObjectStore:
        from obstore.store import GCSStore

        tokens, settings = self._tokens, self._settings
        project = tokens.user_project()
        headers = _STORED_BYTES if project is None else {**_STORED_BYTES, "x-goog-user-project": project}
        options: Any = {
            **obstore_client_options(settings.endpoint_url, settings.read_timeout_s),
            "default_headers": headers,
        }
        config: dict[str, Any] = {"base_url": settings.endpoint_url}
        if tokens.is_anonymous:
            config["skip_signature"] = True
        if not retry:
            config["retry_config"] = NO_RETRIES
        # With a provider obstore does not look for credentials, among whose files are some that it cannot read
        found = [self._provide()]  # raises here what would be wrong at each request
        provider: Any = lambda: found.pop() if found else self._provide()  # noqa: E731
        return GCSStore(self._name, client_options=options, credential_provider=provider, **config)

    def _provide(self) -> dict[str, Any]:
        try:
            token = self._tokens.current()
            self.provider_fault = None
        except Exception as error:
            self.provider_fault = error
            raise
        if token is None:
            return {"token": "", "expires_at": None}
        end = token.expires_at
        return {"token": token.text, "expires_at": None if end is None else end - _CLOCK_SKEW}

    def table(self, error: Exception, url: str, *, writing: bool = False) -> Exception:
        if writing and is_refused_condition(error):
            return from_status(412, "", url, writing=True)
        return from_reader(error, url)

    def renew(self, error: StorageError) -> bool:
        return isinstance(error, ExpiredCredentialsError) and self._tokens.renew(self._tokens.renewals)

    def explain(self, error: StorageError) -> StorageError:
        if isinstance(error, AccessDeniedError):
            message = with_source(error, self._tokens.source)
            if isinstance(error, ExpiredCredentialsError) and self._tokens.is_anonymous:
                return AccessDeniedError(message, url=error.url)
            error.args = (message,)
        return error

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        return path, None

    def paths(self, keys: list[str]) -> list[str]:
        return keys

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        return _Writer(store, key, overwrite=overwrite)

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        """Do nothing: obstore cannot list unfinished uploads. A lifecycle rule of the bucket removes them."""


class _Writer(HiddenWriter):
    def _check(self, made: Any, data: bytearray) -> None:
        """Compare the MD5 that the store answers with: obstore sends no digest of what it writes."""
        etag = (made["e_tag"] or "").strip('"')
        if _MD5.fullmatch(etag) and etag != hashlib.md5(data, usedforsecurity=False).hexdigest():
            raise unusable_response(self._url, "the store has other bytes than were sent")
