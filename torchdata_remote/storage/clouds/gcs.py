"""Google Cloud Storage: what options in gcsfs's words mean for obstore, and the tokens that google-auth gets."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from obstore.store import GCSStore

from ...core.options import StorageOptions
from ...core.urls import redact_text
from ...errors import AccessDeniedError, RemoteDataError, UrlError
from ..errors import unusable_response
from ..network import ServerPools, obstore_client_options, server_address
from ..obstore_writer import HiddenWriter
from .bucket import CloudBucket, Credentials, Issued, no_token

if TYPE_CHECKING:
    from ..obstore_store import ObstoreStore
    from ..protocol import ObjectWriter

_GOOGLE = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage."
_EARLY_S = 225.0  # metadata servers have a new token four minutes before the end
_MD5 = re.compile("[0-9a-f]{32}")


class GcsBucket(CloudBucket):
    """One bucket.

    Args:
        url: of the bucket.
        name: of the bucket.
        options: of the user, without those that select gcsfs.
        read_timeout_s: seconds without a byte after which a request fails.

    Raises:
        UrlError: for an address or a token that is none, or for ``requester_pays`` without ``project``.
    """

    store_class = GCSStore

    def __init__(self, url: str, name: str, options: StorageOptions, read_timeout_s: float) -> None:
        token, address = options.get("token"), options.get("endpoint_url")
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        if address is None and emulator not in ("", "default"):
            address = emulator if "://" in emulator else f"http://{emulator}"
            token = "anon" if token is None else token
        address = server_address(url, address or _GOOGLE, "endpoint_url or STORAGE_EMULATOR_HOST")
        # Without it the server decompresses what is stored compressed, and ignores the range
        headers = {"Accept-Encoding": "gzip"}
        if payer := options.get("requester_pays"):
            project = payer if isinstance(payer, str) else options.get("project")
            if project is None:
                raise UrlError(f"{url}: requester_pays needs a project: pass requester_pays='my-project'.", url=url)
            headers["x-goog-user-project"] = project
        issue = _issuer(token, _SCOPE + options.get("access", "read_write"), url, read_timeout_s)
        super().__init__(
            url,
            name,
            {"base_url": address},
            {**obstore_client_options(address, read_timeout_s), "default_headers": headers},
            Credentials(issue, url, _EARLY_S),
        )

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        return _GcsWriter(store, key, overwrite=overwrite)


class _GcsWriter(HiddenWriter):
    def _check(self, made: Any, data: bytearray) -> None:
        """Compare the MD5 that the store answers with: obstore sends no digest of what it writes."""
        etag = (made["e_tag"] or "").strip('"')
        if _MD5.fullmatch(etag) and etag != hashlib.md5(data, usedforsecurity=False).hexdigest():
            raise unusable_response(self._url, "the store has other bytes than were sent")


def _issuer(given: Any, scope: str, url: str, read_timeout_s: float) -> Callable[[], Issued]:
    """Return what issues the credentials that the option ``token`` names.

    Raises:
        UrlError: if it is the content of a file, or a file that does not exist.
    """
    if given == "anon":
        return lambda: Issued({}, "The request was not signed (token='anon').")
    is_text = isinstance(given, str) and given not in ("google_default", "cloud")
    if not is_text or os.path.exists(os.path.expanduser(given)):
        return _Tokens(given, scope, url, read_timeout_s)
    if "{" in given or given.endswith(".json"):
        raise UrlError(
            f"{url}: 'token' in storage_options is neither an access token nor a file that exists. Pass the path of a "
            "JSON file, or its content as a dict: json.loads(text).",
            url=url,
        )
    return lambda: Issued({"token": given.strip()}, "The token is 'token' of storage_options, which cannot be renewed.")


class _Tokens:
    """Access tokens by google-auth. The credentials are looked up by the first call.

    Args:
        given: as for gcsfs; ``None`` for the application default credentials.
        scope: of the tokens.
        url: of the bucket, for errors.
        read_timeout_s: seconds without a byte after which a request fails; google-auth would wait for two minutes.
    """

    def __init__(self, given: Any, scope: str, url: str, read_timeout_s: float) -> None:
        self._given, self._scopes, self._url, self._read_timeout_s = given, [scope], url, read_timeout_s
        self._credentials: Any = None  # of google-auth
        self._is_default = given is None or given == "google_default"
        where = "those that google-auth finds (GOOGLE_APPLICATION_CREDENTIALS, gcloud's login, metadata server)"
        named = given if isinstance(given, str | os.PathLike) else "a dict or an object"
        self._source = (
            f"The credentials are {where if self._is_default else f'from {named} (token of storage_options)'}."
        )

    def __call__(self) -> Issued:
        """Return a new token.

        Raises:
            AccessDeniedError: if there are no credentials, or if they cannot be exchanged for a token.
            TransientStorageError: if the server of tokens does not answer.
            UrlError: if google-auth is missing.
        """
        try:
            import google.auth
            from google.auth.exceptions import GoogleAuthError
            from google.auth.transport.urllib3 import Request
        except ImportError as error:
            raise UrlError(
                f"{self._url}: Google's credentials need the package google-auth ({error}): pip install "
                "'torchdata_remote[gs]'. A public bucket needs none: storage_options={'token': 'anon'}.",
                url=self._url,
            ) from error
        make: Any = Request  # untyped
        request = partial(make(ServerPools(retries=False)), timeout=self._read_timeout_s)
        is_new = self._credentials is None
        try:
            if is_new:
                self._credentials = self._found(google.auth, request)
        except (GoogleAuthError, ValueError, TypeError, AttributeError, LookupError) as error:
            raise AccessDeniedError(
                f"{self._url}: no credentials of Google: {redact_text(str(error)).partition(chr(10))[0].rstrip('.')}. "
                f"{self._source} A public bucket needs storage_options={{'token': 'anon'}}.",
                url=self._url,
            ) from None
        credentials = self._credentials
        try:
            if not is_new or not credentials.token:  # those of the user may have one
                credentials.refresh(request)
        except (RemoteDataError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  # google-auth expects a response as documented, which a proxy replaces
            passing = (TypeError, ValueError, LookupError, AttributeError)
            raise no_token(error, self._url, self._source, passing) from None
        ends: dt.datetime | None = credentials.expiry  # in UTC, without a time zone
        expires_s = None if ends is None else ends.replace(tzinfo=dt.timezone.utc).timestamp()
        return Issued({"token": credentials.token}, self._source, expires_s)

    def _found(self, auth: Any, request: Any) -> Any:
        """Return credentials of google-auth, with the scope where they have none."""
        from google.auth import compute_engine
        from google.auth.credentials import with_scopes_if_required

        given = self._given
        if self._is_default:
            found, _ = auth.default(request=request)
        elif given == "cloud":
            found = compute_engine.Credentials()  # type: ignore[no-untyped-call]
        elif isinstance(given, Mapping):
            found, _ = auth.load_credentials_from_dict(given, request=request)
        elif isinstance(given, str | os.PathLike):
            found, _ = auth.load_credentials_from_file(os.path.expanduser(given), request=request)
        else:
            found = given
        scoped: Any = with_scopes_if_required  # untyped
        return scoped(found, self._scopes)
