"""Credentials of one bucket: issued by the library of its cloud, renewed in time, and not asked for by each request."""

from __future__ import annotations

import datetime as dt
import logging
import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..core.urls import redact_text
from ..errors import AccessDeniedError, ExpiredCredentialsError, StorageError, TransientStorageError

_TOKEN = re.compile(r"[\x21-\x7e]+")  # RFC 6750, 2.1, and what servers invent beside it
_log = logging.getLogger("torchdata_remote")
_ASK_AGAIN_S = 30.0  # between two questions to a source, while the credentials that it gave are valid
_CLOCK_SKEW_S = 10.0
# Answers to credentials that are not valid any more: codes of RFC 6749, 5.2, and of Microsoft Entra ID
_WITHDRAWN = re.compile(
    r"invalid_grant|invalid_client|unauthorized_client|access_denied|invalid_scope|disabled|deleted|"
    r"AADSTS(?:7000\d+|50\d+|65\d+)"
)
_NO_TOKEN = {"token": ""}  # obstore asks for one to delete from Google without a signature
_OF_NETWORK = {"TransportError", "ServiceRequestError", "ServiceResponseError"}
_AT_LEAST_S = 1.0  # for which credentials are used, even if they end sooner


class Issued(NamedTuple):
    """Credentials for requests.

    Args:
        fields: as obstore's providers return them; empty for requests that are not signed.
        expires_s: their own end, since 1970; ``None`` if they have none, or it is not known.
        source: where they are from, as a sentence for errors.
        can_renew: whether their source may have others.
    """

    fields: dict[str, Any]
    expires_s: float | None
    source: str
    can_renew: bool = True

    def __repr__(self) -> str:
        return f"Issued({', '.join(sorted(self.fields))}, expires_s={self.expires_s})"


class Credentials:
    """The credentials of a bucket; a provider for obstore. Nothing is asked before the first request.

    Args:
        issue: asks the source for new ones, and raises this package's errors.
        url: of the bucket, for errors.
        early_s: how long before their end credentials are renewed. If that fails, they are used until they end.
        hint: another reason for which access may be denied, for errors.
    """

    def __init__(self, issue: Callable[[], Issued], url: str, *, early_s: float = 0.0, hint: str = "") -> None:
        self._issue, self._url, self._early_s, self._hint = issue, url, early_s, hint
        self._issued: Issued | None = None
        self._due_s = self._end_s = 0.0
        self._lock = threading.RLock()
        self.fault: Exception | None = None  # of the last call by obstore, which keeps only its text
        self.refresh_threshold = dt.timedelta(seconds=early_s)  # obstore asks again that early, too

    def __call__(self) -> dict[str, Any]:
        """Return the credentials as obstore expects them."""
        try:
            issued = self.current()
            self.fault = None
        except Exception as error:
            self.fault = error
            raise
        ends = None if issued.expires_s is None else dt.datetime.fromtimestamp(issued.expires_s, dt.timezone.utc)
        return {**(issued.fields or _NO_TOKEN), "expires_at": ends}

    def current(self) -> Issued:
        """Return valid credentials.

        Raises:
            AccessDeniedError: if there are none, or the source refuses.
            TransientStorageError: if the source cannot be reached.
        """
        seen = self._issued
        if seen is not None and time.time() < self._due_s:
            return seen
        is_valid = seen is not None and time.time() < self._end_s
        if not self._lock.acquire(blocking=not is_valid):
            assert seen is not None
            return seen  # while another thread asks
        try:
            if self._issued is None or self._issued is seen:
                self._renew_in_time()
            assert self._issued is not None
            return self._issued
        finally:
            self._lock.release()

    def _renew_in_time(self) -> None:
        now_s = time.time()
        try:
            self._issued = self._issue()
        except StorageError as error:
            if self._issued is None or now_s >= self._end_s:
                raise
            _log.warning("%s The current credentials are used until they expire.", error)
        expires_s = self._issued.expires_s
        if expires_s is None or not self._issued.can_renew:
            self._due_s = self._end_s = math.inf
        else:
            self._end_s = expires_s - _CLOCK_SKEW_S
            self._due_s = max(expires_s - self._early_s, min(now_s + _ASK_AGAIN_S, self._end_s), now_s + _AT_LEAST_S)

    @property
    def are_anonymous(self) -> bool:
        """Whether requests are not signed."""
        return self._issued is not None and not self._issued.fields

    def renew(self, error: StorageError) -> bool:
        """Discard credentials that the store has refused as expired; whether there may be others."""
        with self._lock:
            can_renew = self._issued is None or self._issued.can_renew
            if isinstance(error, ExpiredCredentialsError) and can_renew:
                self._issued = None
                return True
            return False

    def explain(self, error: StorageError) -> StorageError:
        """Add the source of the credentials to an error of access."""
        issued = self._issued
        if issued is None or not isinstance(error, AccessDeniedError) or issued.source in str(error):
            return error
        if issued.expires_s is not None and not issued.can_renew and issued.expires_s < time.time():
            ended = dt.datetime.fromtimestamp(issued.expires_s, dt.timezone.utc).isoformat()
            message = f"{error.url}: the SAS has expired at {ended}. Make a new one. {issued.source}"
            return ExpiredCredentialsError(message, url=error.url)
        message = f"{error} {issued.source}{self._hint}"
        if isinstance(error, ExpiredCredentialsError) and not issued.fields:
            return AccessDeniedError(message, url=error.url)
        error.args = (message,)
        return error


def no_token(error: Exception, url: str, source: str, advice: str, *, has_worked: bool) -> StorageError:
    """Make the error for a token that was not issued: one that passes, or one of the credentials.

    Args:
        error: of a library for credentials.
        url: of the bucket.
        source: where the credentials are from, as a sentence.
        advice: for one of the credentials.
        has_worked: whether they have got a token before; then only a server that refuses them is no passing fault.
    """
    text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    line = f"{url}: no access token: {redact_text(text.partition(chr(10))[0]).rstrip('.')}."
    if (has_worked and _WITHDRAWN.search(str(error)) is None) or _may_pass(error):
        return TransientStorageError(f"{line} {source}", url=url)
    return AccessDeniedError(f"{line} {advice} {source}", url=url)


def _may_pass(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, is one of a server or a network: of google-auth or azure-identity."""
    if error is None:
        return False
    status = getattr(getattr(error, "response", error), "status_code", None)
    is_of_server = isinstance(status, int) and (status >= 500 or status in (408, 429))
    is_known = not _OF_NETWORK.isdisjoint(kind.__name__ for kind in type(error).__mro__)
    return is_of_server or is_known or bool(getattr(error, "retryable", False)) or _may_pass(error.__cause__)


def bearer_token(token: object, url: str, source: str) -> str:
    r"""Return an access token, without the line feed that a file or a command leaves at its end.

    Libraries show in their errors, or fail without one, what is no header.

    Args:
        token: as given or issued.
        url: for errors.
        source: where it is from, as a sentence.

    Raises:
        AccessDeniedError: if it cannot be a header. The message never shows it.

    >>> bearer_token("ya29.a\n", "gs://bucket", "")
    'ya29.a'
    """
    text = token.decode("latin-1") if isinstance(token, bytes) else token
    text = text.strip() if isinstance(text, str) else ""
    if _TOKEN.fullmatch(text) is None:
        what = "is empty" if not text else "contains a space, a line feed or another character that no token has"
        what = what if isinstance(token, str | bytes) else f"is of the type {type(token).__name__}, not a text"
        raise AccessDeniedError(f"{url}: the access token {what}. {source}", url=url)
    return text
