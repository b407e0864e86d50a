"""OAuth tokens for requests to Google Cloud Storage, renewed before they expire."""

from __future__ import annotations

import datetime as dt
import logging
import re
import threading
from typing import Any, NamedTuple

from ...core.urls import redact_text
from ...errors import AccessDeniedError, RemoteDataError, StorageError, TransientStorageError, UrlError
from ..http import bearer_token
from ..network_errors import unusable_response
from .credentials import Found, load_credentials, make_request
from .settings import GcsSettings

_log = logging.getLogger("torchdata_remote")


_RENEW_BEFORE = dt.timedelta(seconds=225)  # metadata servers have a new token four minutes before the end
_RENEW_AGAIN_AFTER = dt.timedelta(seconds=30)
# Codes of RFC 6749, 5.2: the credentials were withdrawn. Other faults of credentials that have worked pass
_REFUSED = re.compile(r"invalid_grant|invalid_client|unauthorized_client|access_denied|invalid_scope|disabled|deleted")
_CLOCK_SKEW = dt.timedelta(seconds=10)


class Token(NamedTuple):
    """An access token, and when it expires; ``None`` if that is unknown."""

    text: str
    expires_at: dt.datetime | None

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at})"


class Tokens:
    """The tokens of one bucket. The credentials are looked up at the first request.

    Args:
        settings: of the store.
        url: of the bucket, for errors and the log.
    """

    def __init__(self, settings: GcsSettings, url: str) -> None:
        self._settings, self._url = settings, url
        self._lock = threading.RLock()
        self._found: Found | None = None
        self._must_renew = False
        self._refreshed_at = dt.datetime.min
        self._has_refreshed = False
        self.renewals = 0  # by :meth:`renew`

    def _credentials(self) -> Found:
        """Return the credentials; without any, requests are anonymous, as gcsfs's are, and a warning says so."""
        if self._found is None:
            self._found = load_credentials(self._settings, self._url)
            if self._found.is_missing:
                _log.warning(
                    "%s: %s Pass storage_options={'token': 'anon'} if the bucket is public.",
                    self._url,
                    self._found.source,
                )
        return self._found

    def current(self) -> Token | None:
        """Return a valid token; ``None`` for anonymous requests.

        Raises:
            AccessDeniedError: if credentials cannot be loaded or exchanged for a token.
            TransientStorageError: if the server of tokens does not answer.
        """
        with self._lock:
            found = self._credentials()
            if found.raw_token is not None:
                return Token(bearer_token(found.raw_token, self._url, found.source), None)
            credentials = found.credentials
            if credentials is None:
                return None
            if self._must_renew or self._is_due(credentials):
                self._refresh_in_time(credentials, found.source)
            expiry = credentials.expiry
            text = bearer_token(credentials.token, self._url, found.source)
            return Token(text, None if expiry is None else expiry.replace(tzinfo=dt.timezone.utc))

    def _refresh_in_time(self, credentials: Any, source: str) -> None:
        """Get a new token. While the current one is valid, a failure is logged, and there is another attempt later."""
        try:
            self._refresh(credentials, source)
        except StorageError as error:
            expiry = credentials.expiry
            if self._must_renew or not credentials.token or expiry is None or expiry - _now() <= _CLOCK_SKEW:
                raise
            _log.warning("%s The current token is used until it expires.", error)
        else:
            self._has_refreshed = True
        self._must_renew, self._refreshed_at = False, _now()

    def _is_due(self, credentials: Any) -> bool:
        """Whether to get a new token: some minutes before the end of this one, as Google's libraries do.

        A server may issue tokens that end sooner; these are used until they end, rather than renewed for each request.
        """
        if not credentials.token:
            return True
        if credentials.expiry is None:
            return False
        left, age = credentials.expiry - _now(), _now() - self._refreshed_at
        return bool(left <= _CLOCK_SKEW or (left <= _RENEW_BEFORE and age >= _RENEW_AGAIN_AFTER))

    def _refresh(self, credentials: Any, source: str) -> None:
        from google.auth import exceptions

        try:
            credentials.refresh(make_request(self._url, self._settings.read_timeout_s))
        except exceptions.GoogleAuthError as error:
            shown = f"{self._url}: no access token: {_first_line(error)}."
            if self._may_pass(error):
                raise TransientStorageError(f"{shown} {source}", url=self._url) from None
            raise AccessDeniedError(
                f"{shown} Log in again, or check the service account. {source}", url=self._url
            ) from None
        except (RemoteDataError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  # google-auth expects a response as documented, which a proxy replaces
            raise unusable_response(
                self._url,
                f"no access token: the response of the server of tokens cannot be used ({type(error).__name__}). "
                f"{source.rstrip('.')}",
            ) from None

    def _may_pass(self, error: Any) -> bool:
        """Whether a fault is one of the server of tokens, and not of the credentials."""
        from google.auth import exceptions

        if isinstance(error, exceptions.TransportError) or isinstance(error.__cause__, exceptions.TransportError):
            return True
        return bool(getattr(error, "retryable", False) or (self._has_refreshed and not _REFUSED.search(str(error))))

    def renew(self, renewals: int) -> bool:
        """Have the next request use a new token, after a store refused the current one.

        Args:
            renewals: before the request, so that threads whose requests fail together renew once.

        Returns:
            ``False`` if these credentials cannot be renewed.
        """
        with self._lock:
            if self._credentials().credentials is None:
                return False
            if self.renewals == renewals:
                self.renewals += 1
                self._must_renew = True
            return True

    @property
    def is_anonymous(self) -> bool:
        """Whether requests have no token."""
        with self._lock:
            found = self._credentials()
            return found.credentials is None and found.raw_token is None

    @property
    def source(self) -> str:
        """Where the credentials are from, as a sentence, for errors."""
        with self._lock:
            return self._credentials().source

    def user_project(self) -> str | None:
        """Return the project that pays for the requests, where the bucket's owner does not.

        Raises:
            UrlError: if ``requester_pays`` is set, and no project is known.
        """
        if not self._settings.requester_pays:
            return None
        with self._lock:
            project = self._settings.project or self._credentials().project
        if not project:
            raise UrlError(
                f"{self._url}: storage_options['requester_pays'] needs a project that pays, and the credentials name "
                "none: pass storage_options={'requester_pays': 'my-project'}.",
                url=self._url,
            )
        return project


def _now() -> dt.datetime:
    """The time in UTC, without a time zone, as google-auth has it."""
    return dt.datetime.now(dt.timezone.utc).replace(tzinfo=None)


def _first_line(error: Exception) -> str:
    text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    return redact_text(text.partition("\n")[0].rstrip("."))
