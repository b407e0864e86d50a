"""A bucket of a cloud for obstore: its configuration, and credentials that are renewed in time and never shown."""

from __future__ import annotations

import datetime as dt
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from obstore.exceptions import BaseError

from ...core.urls import redact_text
from ...errors import AccessDeniedError, ExpiredCredentialsError, StorageError, TransientStorageError, UrlError
from ..network import for_small_bodies
from ..obstore_reader import NO_RETRIES, ODD_KEY
from ..obstore_writer import HiddenWriter

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from ..obstore_store import ObstoreStore
    from ..protocol import ObjectWriter

_log = logging.getLogger("torchdata_remote")
_PLAIN = re.compile(r"[^\x00-\x1f\x7f]*")
_ASK_AGAIN_S = 30.0  # between two questions to a source, while the credentials that it gave are valid
_CLOCK_SKEW_S = 10.0
_OF_NETWORK = {"TransportError", "ServiceRequestError", "ServiceResponseError"}  # of google-auth and azure-identity


class Issued(NamedTuple):
    """Credentials for requests.

    Args:
        fields: as obstore's providers return them; empty for requests that are not signed.
        source: where they are from, as a sentence for errors.
        expires_s: their own end, since 1970; ``None`` if they have none, or it is not known.
    """

    fields: Mapping[str, Any]
    source: str
    expires_s: float | None = None

    def __repr__(self) -> str:
        return f"Issued({', '.join(sorted(self.fields))}, expires_s={self.expires_s})"


def require_plain(issued: Issued, url: str) -> Issued:
    """Return credentials that requests can hold: libraries abort at others, or show them in their errors.

    Raises:
        AccessDeniedError: names the field and its source.
    """
    for name, value in issued.fields.items():
        if value is not None and not (isinstance(value, str) and _PLAIN.fullmatch(value)):
            what = "is no str, or has a line break or another control character"
            raise AccessDeniedError(f"{url}: {name} {what}. {issued.source}", url=url)
    return issued


class Credentials:
    """The credentials of a bucket; a provider for obstore. Nothing is asked before the first request.

    Args:
        issue: asks the source for new ones, and raises this package's errors.
        url: of the bucket, for errors.
        early_s: how long before their end credentials are renewed. If that fails, they are used until they end.
    """

    def __init__(self, issue: Callable[[], Issued], url: str, early_s: float) -> None:
        self._issue, self._url, self._early_s = issue, url, early_s
        self.issued: Issued | None = None
        self._due_s = self._end_s = 0.0
        self._lock = threading.RLock()
        self.fault: Exception | None = None  # of the last call by obstore, which keeps only its text
        self.refresh_threshold = dt.timedelta(seconds=early_s)  # obstore asks again that early, too

    def __call__(self) -> dict[str, Any]:
        """Return valid credentials as obstore expects them."""
        issued = self.current()
        ends = None if issued.expires_s is None else dt.datetime.fromtimestamp(issued.expires_s, dt.timezone.utc)
        # obstore asks for a token to delete from Google without a signature
        return {**(issued.fields or {"token": ""}), "expires_at": ends}

    def current(self) -> Issued:
        """Return valid credentials.

        Raises:
            AccessDeniedError: if there are none, or the source refuses.
            TransientStorageError: if the source cannot be reached.
        """
        with self._lock:
            self.fault = None
            try:
                if time.time() >= self._due_s:
                    self._renew()
            except Exception as error:
                self.fault = error
                raise
            assert self.issued is not None
            return self.issued

    def _renew(self) -> None:
        now_s = time.time()
        try:
            self.issued = require_plain(self._issue(), self._url)
        except StorageError as error:
            if self.issued is None or now_s >= self._end_s:
                raise
            _log.warning("%s The current credentials are used until they expire.", error)
        ends = self.issued.expires_s
        self._end_s = math.inf if ends is None else ends - _CLOCK_SKEW_S
        self._due_s = max(self._end_s - self._early_s, min(now_s + _ASK_AGAIN_S, self._end_s))

    def discard(self) -> None:
        """Ask the source again at the next request."""
        self._due_s = self._end_s = 0.0


def no_token(error: Exception, url: str, source: str, passing: tuple[type[Exception], ...] = ()) -> StorageError:
    """Make the error for a token that was not issued: one that passes, or one of the credentials.

    Args:
        error: of a library for credentials.
        url: of the bucket.
        source: where the credentials are from, as a sentence.
        passing: further classes of errors that pass.
    """
    text = str(error.args[0] if error.args else error).partition("\n")[0]
    message = f"{url}: no access token: {type(error).__name__}: {redact_text(text).rstrip('.')}. {source}"
    if isinstance(error, passing) or _may_pass(error):
        return TransientStorageError(message, url=url)
    return AccessDeniedError(message, url=url)


def _may_pass(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, is one of a server or a network."""
    if error is None:
        return False
    status = getattr(getattr(error, "response", error), "status_code", None)
    is_of_server = isinstance(status, int) and (status >= 500 or status in (408, 429))
    is_of_network = isinstance(error, OSError) or not _OF_NETWORK.isdisjoint(
        one.__name__ for one in type(error).__mro__
    )
    return is_of_server or is_of_network or bool(getattr(error, "retryable", False)) or _may_pass(error.__cause__)


class CloudBucket:
    """One bucket or container.

    Args:
        url: of the bucket.
        name: of the bucket.
        config: arguments of obstore's class.
        client_options: of its HTTP client.
        credentials: of all requests.
    """

    store_class: ClassVar[Any]
    odd = ODD_KEY
    lists_in_order = hides_uploads = True
    lists_by_fsspec = False

    def __init__(
        self,
        url: str,
        name: str,
        config: Mapping[str, Any],
        client_options: Mapping[str, Any],
        credentials: Credentials,
    ) -> None:
        self.root, self._name, self._credentials = f"{url}/", name, credentials
        self._config, self._client_options = config, client_options

    def connect(self, *, retry: bool = False, small: bool = False) -> ObjectStore:
        """Make a store of obstore. It keeps credentials until they end.

        Args:
            retry: whether it repeats requests by itself.
            small: whether it is for small bodies.

        Raises:
            AccessDeniedError: if there are no credentials.
            TransientStorageError: if their source cannot be reached.
            UrlError: if an option has a value that obstore cannot use.
        """
        issued, options = self._credentials.current(), self._client_options
        try:
            store: ObjectStore = self.store_class(
                self._name,
                client_options=for_small_bodies(options) if small else options,
                credential_provider=self._credentials,  # always, or obstore searches for some itself
                skip_signature=not issued.fields,
                retry_config=None if retry else NO_RETRIES,
                **self._config,
            )
        except (TypeError, ValueError, BaseError) as error:
            what = redact_text(str(error).partition("\n")[0])
            raise UrlError(f"{self.root}: storage_options cannot be used: {what}", url=self.root) from None
        return store

    @property
    def provider_fault(self) -> Exception | None:
        """Why obstore got no credentials; it keeps only the text."""
        return self._credentials.fault

    def renew(self, error: StorageError) -> bool:
        """Find other credentials after an error; whether the request is worth another attempt."""
        issued = self._credentials.issued
        if not isinstance(error, ExpiredCredentialsError) or (issued is not None and not issued.fields):
            return False
        self._credentials.discard()
        return True

    def explain(self, error: StorageError) -> StorageError:
        """Add the source of the credentials to an error of access."""
        issued = self._credentials.issued
        if isinstance(error, AccessDeniedError) and issued is not None and issued.source not in str(error):
            error.args = (f"{error} {issued.source}",)
        return error

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        """Return the key and the version of a path."""
        return path, None

    def paths(self, keys: list[str]) -> list[str]:
        """Return the paths of keys."""
        return keys

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        """Start to write an object."""
        return HiddenWriter(store, key, overwrite=overwrite)

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        """Do nothing: obstore cannot list unfinished uploads. A lifecycle rule of the store removes them."""
